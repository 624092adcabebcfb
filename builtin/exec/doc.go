// Package exec is the driver exec: it runs a program of the machine as a task, isolated from
// the machine and from other tasks.
//
// It holds the options of a task's command; package isolated does the rest. The host serves it as a
// plugin process of its own, by the hidden command `nomad-lite plugin serve exec`.
package exec
