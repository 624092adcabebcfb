// Package noderunner runs the allocations that are assigned to this node.
//
// A [Runner] compares the assignments of its [AssignmentSource] with the allocations that it
// runs. It starts, updates or removes allocations accordingly, and reports their changes to
// the source. It does not depend on where allocations come from: a foreground run, a
// scheduler and a cluster can implement AssignmentSource.
package noderunner
