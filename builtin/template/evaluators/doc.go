// Package evaluators evaluates templates in processes of their own.
//
// A pool has two processes, which all tasks of the node share and which exit ten seconds after the last evaluation. A process
// evaluates one template at a time, and a template that takes too much time or memory is killed with its process, so that it
// neither delays nor fails another one. The caller then evaluates it alone, in a process that exits afterwards and whose limits
// are higher.
//
// The process of the hook may not start programs. So it starts a launcher at its own start, which has the rights of the
// evaluators, and which starts them.
package evaluators
