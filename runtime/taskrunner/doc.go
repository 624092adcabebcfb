// Package taskrunner runs one task of an allocation: it waits for the task's
// gate, runs the hooks, starts the task in its driver, waits for the end, asks
// the restart policy, and begins again, until the policy, a kill or a shutdown
// of the agent ends it.
//
// It owns the state and the events of the task, and the handle by which the
// driver finds the process again. It does not know the other tasks: package
// allocrunner makes one runner per task, opens the gates and says who is killed
// when. Read run.go first.
package taskrunner
