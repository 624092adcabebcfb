// Package restart decides whether a task that has ended starts again, and when.
//
// It is a function of the policy, of what has happened and of the time that it
// is told: it reads no clock, sleeps for nobody and emits no event. The task
// runner asks it after every end, waits, and stores its state.
package restart
