// Package evaluators evaluates templates in separate processes.
//
// A pool has two processes, which all tasks of the node share and which exit ten seconds after the last evaluation. A process
// evaluates one template at a time. The pool kills the process of a template that exceeds the limits, so that the template
// neither delays nor fails another one. The caller then evaluates it alone, in a process that exits afterwards and whose limits
// are higher.
//
// The hook's process cannot start programs. Before it drops that right, it starts a launcher, which runs as the evaluators' user
// and starts them.
package evaluators
