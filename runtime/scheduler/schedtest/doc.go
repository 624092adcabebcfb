// Package schedtest is a machine for tests of the scheduler: a store in memory, a
// node whose allocations only pretend to run, a record of all that happens, and
// many runs at once.
//
// Everything takes its time from the clock of the caller, so that a test in a
// synctest bubble lasts as long as its computations. Other rooms may put real
// runners in the place of the pretended ones.
package schedtest
