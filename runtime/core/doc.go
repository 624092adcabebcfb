// Package core holds the ports of the packages below it, which run allocations. They reach a
// machine, plugins and storage only through these interfaces.
//
// The packages below core decide what happens to a task and when. They link neither gRPC, go-plugin,
// HCL, bbolt, Prometheus nor netlink. Package agent connects the ports with their implementations.
package core
