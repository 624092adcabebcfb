// Package run has the command "nomad-lite run", which runs jobs in the foreground.
//
// It runs an agent in its own process, shows the output of the tasks through package taskview, and computes the exit
// code from the results of the allocations. With -watch it watches the files of the jobs, and registers a changed job
// with the agent's scheduler.
//
// It also has "nomad-lite plugin dev", which runs a job in the same way with a plugin that it builds, and replaces when
// the plugin's sources change.
package run
