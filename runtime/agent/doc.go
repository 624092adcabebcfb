// Package agent implements a running nomad-lite: it owns the directories of a node,
// starts the helper processes, and connects plugins, logs, allocations and the
// scheduler.
//
// It makes no decisions about jobs; package scheduler does.
package agent
