// Package driver is the contract of a task driver: the Go interface, its values,
// and both ends of the wire.
//
// The package starts no process: package launch does, and passes the connection in. The
// runtime calls the client; package sdk serves an author's implementation.
//
// The author of a driver uses the values of this package, such as [ExitResult], and
// implements sdk.Driver, which is smaller than [Driver].
package driver
