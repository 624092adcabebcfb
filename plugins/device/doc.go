// Package device is the contract of a device plugin: it finds devices of the machine, hands them
// to tasks, and reports their statistics.
//
// The package holds the interface [Plugin], its values, and the rules for valid values. It does not
// choose devices for tasks: the host does, and calls Reserve with its choice. Package sdk implements
// [Plugin] for authors. The package links no gRPC: package devicewire has client and server of the
// service.
//
// A comment with the words "For hosts only." marks a declaration that authors of plugins do not need. A
// later version can change it: docs/reference/compatibility.md promises the other declarations.
package device
