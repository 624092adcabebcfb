// Package device is the contract of a device plugin: it finds devices of the machine, hands them
// to tasks, and reports their statistics.
//
// The package holds the interface [Plugin], the gRPC client for hosts and the gRPC server for
// plugins. The client validates each message of a plugin, so that its callers need not. The
// package does not choose devices for tasks: the host does, and calls Reserve with its choice.
// Package sdk implements [Plugin] for authors.
package device
