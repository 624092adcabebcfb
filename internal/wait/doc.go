// Package wait pauses for a duration or until a context ends, repeats what fails for a short time, and reports whether a channel is closed.
//
// It imports no other package. Every package of the module can use it.
package wait
