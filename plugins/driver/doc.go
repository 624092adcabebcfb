// Package driver is the contract of a task driver: the Go interface, its values,
// and both ends of the wire.
//
// It starts no process: package launch does, and hands over the connection. The
// runtime calls the client; package sdk serves an author's implementation.
package driver
