// Package driverwire is the gRPC side of package driver: client and server of the service, and the
// conversion of values and errors.
//
// The package starts no process: package launch does, and passes the connection in. The
// runtime calls the client; package sdk serves an author's implementation.
//
// The package is not part of the contract: other modules cannot rely on it.
package driverwire
