// Package healthtracker keeps all jobs' health up to date for readers waiting for changes.
//
// A [Tracker] reads the store, the check results, and the last stderr lines of failed tasks, and has package jobhealth evaluate
// the changed jobs. It works only in its readers' calls: without readers it does nothing, and has no goroutine.
package healthtracker
