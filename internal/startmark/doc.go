// Package startmark records on a cgroup, or in a file, how far the start of a task is, so that the next plugin process can
// continue. A stage imports the package: it imports few packages itself, because a stage must initialize all of them before it
// executes the program of the task.
package startmark
