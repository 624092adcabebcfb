// Package healthtracker keeps the health of all jobs up to date for readers that wait for changes.
//
// A [Tracker] reads the store, the results of checks, and the last lines of standard error of tasks that have failed, and has
// package jobhealth evaluate the jobs that have changed. It works only in the calls of its readers: without readers it does
// nothing, and has no goroutine.
package healthtracker
