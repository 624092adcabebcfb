// Package taskrunner runs one task in an allocation: it waits for the task's gate, calls the hooks, starts the task in its
// driver, waits for its exit and applies the restart policy. It repeats this until the policy, a kill or an agent shutdown ends
// the task.
//
// The runner owns the task's state and events, and the handle with which the driver recovers the process. It does not access
// other tasks: package allocrunner creates one runner per task, opens the gates and decides which task is killed when. Package
// tasksteps has the steps in order. Read it first, then run.go and steps.go.
package taskrunner
