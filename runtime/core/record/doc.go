// Package record holds the state of a task that the next agent needs after a crash: the Record, a value, and Apply, the only function
// that changes it. The task runner reports facts, such as a start or an exit. Apply returns the record with a fact, and a Change, which
// lists the parts to store, how soon, and the events. The package calls no driver, reads no clock and stores nothing, so that its tests
// can search all records that facts and crashes can produce.
package record
