// Package tasksteps is the state machine of a task: which step follows which, as one table.
//
// A task runner executes one step at a time, for example it waits for the start gate or calls StartTask of the driver.
// The result of a step determines the next step. The package executes nothing: it has no goroutine, lock, clock or I/O.
// docs/reference/task-steps.md is the printed table.
package tasksteps
