// Package devicewire is the gRPC side of package device: client and server of the service, and the
// conversion of values. The client validates each message of a plugin, so that its callers need not.
//
// The package is not part of the contract: other modules cannot rely on it.
package devicewire
