// Package clock reports that the wall clock of the machine was set.
//
// It does not report by how much: its caller, the agent, makes the scheduler compare the wall
// clock with a monotonic clock.
package clock
