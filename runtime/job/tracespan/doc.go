// Package tracespan describes what happened in an allocation, and how long it took: a call of a hook or a driver, a wait, a run of a
// process, an event.
//
// The node records spans (package timeline), and the agent, its exporters and its clients show them.
package tracespan
