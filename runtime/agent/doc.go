// Package agent is one running nomad-lite: it owns the directories of a node,
// starts the helper processes, and wires plugins, logs and allocations
// together.
//
// It decides nothing about jobs. Its user hands it a source of allocations and
// gets the node's facts, drivers and logs.
package agent
