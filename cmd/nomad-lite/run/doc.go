// Package run has the command "nomad-lite run", which runs a job in the foreground.
//
// It embeds an agent, shows the output of the tasks through package taskview, and computes
// the exit code from the results of the allocations.
package run
