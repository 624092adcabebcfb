// Package run has the command "nomad-lite run", which runs jobs in the foreground.
//
// It embeds an agent, shows the output of the tasks through package taskview, and computes
// the exit code from the results of the allocations. With -watch it follows the files of the
// jobs, and gives changed jobs to the scheduler of the agent.
//
// It also has "nomad-lite plugin dev", which is such a run with a plugin that it builds and replaces.
package run
