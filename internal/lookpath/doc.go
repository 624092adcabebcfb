// Package lookpath finds the program of a task by the rules for commands in jobs.
//
// It imports few packages, because the stage of an isolated task uses it before other packages
// are initialized. Package sdk/process uses it for tasks without isolation.
package lookpath
