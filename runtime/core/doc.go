// Package core has the ports of the packages below it, which run allocations: all that they use of a
// machine, of plugins and of storage is an interface of this package.
//
// The packages below core decide what happens to a task and when. They link neither gRPC, go-plugin,
// HCL, bbolt, Prometheus nor netlink. Package agent connects the ports with their implementations.
package core
