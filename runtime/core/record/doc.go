// Package record holds the task state that the next agent needs after a crash: the Record, a value, and Apply, the only function
// to change it. The task runner reports facts, such as a start or an exit. Apply returns the record with a fact, and a Change,
// which lists the parts to store, how soon, and the events. The package calls no driver, reads no clock and stores nothing, so
// that its tests can search all records produced by facts and crashes.
package record
