// Package exec is the driver exec: it runs a program of the machine as a task, isolated from
// the machine and from other tasks.
//
// It holds the configuration and the rules for users and commands. Package sandbox isolates
// the task, and package sdk/process runs its processes. The host serves it as a plugin
// process of its own, by the hidden command `nomad-lite plugin serve exec`.
package exec
