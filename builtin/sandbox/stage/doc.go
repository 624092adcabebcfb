// Package stage is the program that becomes an isolated task.
//
// A driver starts its own binary with the variable [EnvName]. The init function of this
// package then makes the mounts of the task, or joins the namespaces of a running task, drops
// privileges, and executes the task's program in place of the binary. It is an init function
// because the packages of a large binary take ten times as long to initialize as the stage
// takes: an init function runs as soon as the packages that it imports are initialized. So
// this package imports few packages, and none of this module that has many imports.
//
// Importing the package has no other effect. Package sandbox starts the stage.
package stage
