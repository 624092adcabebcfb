// Package duration formats durations for people. Commands, sentences about allocations and the web page
// (runtime/agent/ui/static/format.js) have the same rule.
package duration
