// Package wait has what waiting code repeats: a pause that a context ends, and a look at a channel that is closed once.
//
// It imports no other package. Every package of the module can use it.
package wait
