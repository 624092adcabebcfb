// Package footprint reduces the memory of idle processes. It makes no decisions: the
// agent and each of its helper processes call it when they have become idle. When the
// process becomes active again, it loses less than a millisecond.
package footprint
