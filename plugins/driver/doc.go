// Package driver is the contract of a task driver: the Go interface, its values and its
// errors.
//
// The author of a driver uses the values of this package, such as [ExitResult], and
// implements sdk.Driver, which is smaller than [Driver]. The package links no gRPC: package
// driverwire has client and server of the service.
//
// A comment with the words "For hosts only." marks a declaration that authors of plugins do not need. A
// later version can change it: docs/reference/compatibility.md promises the other declarations.
package driver
