// Package isolated is the part of the drivers exec and java that does not depend on the command of
// a task: their configuration, and the start and the recovery of isolated tasks.
//
// The drivers embed [Driver], and make the commands. Package sandbox isolates the tasks, and
// package sdk/process runs their processes.
package isolated
