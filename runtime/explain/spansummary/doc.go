// Package spansummary describes in sentences what an allocation's spans mean: which span is the problem, what each task does, and
// what each task start waited for.
//
// The agent sends the sentences with the spans, so that all clients print the same ones. The package reads no clock and has no
// state.
package spansummary
