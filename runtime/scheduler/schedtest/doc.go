// Package schedtest has helpers for scheduler tests: a store in memory that can fail, a node that simulates allocations, and a
// change transcript.
//
// All waits use package time, so that a test in a synctest bubble takes only as long as its computations. Other packages' tests
// can use real runners instead of the simulated node.
package schedtest
