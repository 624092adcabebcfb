// Package wait pauses for a duration or until a context ends, repeats what fails for a short time, reports whether a channel
// is closed, and sends notices without blocking.
//
// It imports no other package. Every package of the module can use it.
package wait
