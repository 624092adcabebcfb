// Package driver is the contract of a task driver: the Go interface, its values,
// and both ends of the wire.
//
// The package starts no process: package launch does, and passes the connection in. The
// runtime calls the client; package sdk serves an author's implementation.
package driver
