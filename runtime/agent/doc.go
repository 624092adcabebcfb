// Package agent implements a running nomad-lite agent: it owns the data directory, starts the helper
// processes and the plugins, and connects plugins, logs, allocations and the scheduler.
//
// It makes no decisions about jobs, the node or allocations; packages scheduler, localnode, noderunner
// and orphans do. The commands that need a node open an [Agent].
package agent
