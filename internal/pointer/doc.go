// Package pointer reads optional values, which the types of Nomad's API have as pointers.
//
// It imports no other package. Every package of the module can use it.
package pointer
