// Package racereport collects the reports of the race detector from all processes that a test
// starts.
//
// Without it, a report of a plugin process is a line of the agent's log, which no test reads. The
// tests of the whole program call it from TestMain.
package racereport
