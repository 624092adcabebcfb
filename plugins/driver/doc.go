// Package driver is the contract of a task driver: the Go interface, its values and its
// errors.
//
// The author of a driver uses the values of this package, such as [ExitResult], and
// implements sdk.Driver, which is smaller than [Driver]. The package links no gRPC: package
// driverwire has client and server of the service.
package driver
