// Package top has the command "nomad-lite top", a live table of jobs, allocations and tasks.
//
// It is a client of the HTTP API: it reads the lists of jobs and allocations once, follows the event stream, and
// requests the resource usage of the allocations on the screen. The table is a tea.Model: the program of package tea
// owns the terminal, decodes keys and draws, and all data arrives as messages to Update.
package top
