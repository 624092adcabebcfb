// Package taskrunner runs one task of an allocation: it waits for the task's gate,
// calls the hooks, starts the task in its driver, waits for its exit and applies the
// restart policy. It repeats this until the policy, a kill or a shutdown of the agent
// ends the task.
//
// The runner owns the state and the events of the task, and the handle with which the
// driver recovers the process. It does not access other tasks: package allocrunner
// creates one runner per task, opens the gates and decides which task is killed when.
// Package tasksteps has the order of the steps. Read it first, then run.go and steps.go.
package taskrunner
