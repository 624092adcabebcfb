// Package top has the command "nomad-lite top", a live table of jobs, allocations and tasks.
//
// It is a client of the HTTP API: it reads the lists of jobs and allocations once, follows the event stream, and
// requests the resource usage of the allocations on the screen. One goroutine owns the table; the other goroutines only
// wait for the agent or for input.
package top
