// Package process finds the processes of a task by the kernel's data about them, kills
// them, and resets their protection from the out-of-memory killer. It also looks up the
// user that a task names.
//
// It serves a caller that has no handle of the task: a driver before it starts a task
// again, and an agent whose driver is unavailable. It owns no process and keeps no
// state.
package process
