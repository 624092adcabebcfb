// Package schedtest has helpers for tests of the scheduler: a store in memory that
// can fail, a node that simulates allocations, and a transcript of changes.
//
// All waits use package time, so that a test in a synctest bubble takes only as
// long as its computations. Tests of other packages can use real runners instead of
// the simulated node.
package schedtest
