// Package footprint keeps processes small that idle beside the tasks. It decides
// nothing: the agent and each of its helper processes call it when they have become
// quiet. What it does costs those who wake up again a part of a millisecond.
package footprint
