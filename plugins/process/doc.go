// Package process finds the processes of a task by what the kernel knows of
// them, ends them, and makes them as likely as others to be ended when memory runs
// out. It also looks up the user that a task names.
//
// It serves a caller that has no handle of the task: a driver before it starts a
// task again, and an agent whose driver is unavailable. It owns no process and
// keeps no state.
package process
