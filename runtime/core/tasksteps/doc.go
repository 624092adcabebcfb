// Package tasksteps is a task's state machine: which step follows which, as one table.
//
// A task runner executes one step at a time, for example it waits for the start gate or calls the driver's StartTask. A
// step's result determines the next step. The package executes nothing: it has no goroutine, lock, clock or I/O.
// docs/reference/task-steps.md is the printed table.
package tasksteps
