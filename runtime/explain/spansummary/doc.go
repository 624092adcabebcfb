// Package spansummary describes in sentences what the spans of an allocation mean: which of them is the problem, what each task does, and
// what the start of each task waited for.
//
// The agent sends the sentences with the spans, so that all clients print the same ones. The package reads no clock and has no
// state.
package spansummary
