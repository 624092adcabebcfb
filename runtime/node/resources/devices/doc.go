// Package devices presents this machine's devices to their users: device groups for the node's
// record, reservations for tasks, and statistics.
//
// It starts no plugin: package supervisor runs the device plugins. It does not choose devices
// for allocations either: package scheduler does. Packages localnode, hooks and agent are its
// callers.
package devices
