// Package record has what an agent must know about a task after a crash: the Record, a value, and Apply, the one function that
// changes it. The runner of the task reports facts, such as a start or an exit; Apply returns the record with a fact, and a Change,
// which says what has to be stored, how soon, and who has to be told. The package calls no driver, reads no clock and stores
// nothing, so that its tests can search all records that facts and crashes can produce.
package record
