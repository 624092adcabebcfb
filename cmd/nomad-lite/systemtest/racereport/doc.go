// Package racereport collects the reports of the race detector from all processes that a test
// starts.
//
// Without it, a report of a plugin process would be a line of the agent's log, which no test reads. Package systemtest
// calls it when the tests of a package start.
package racereport
