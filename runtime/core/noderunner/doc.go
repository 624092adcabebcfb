// Package noderunner runs this node's allocations.
//
// A [Runner] compares the assignments from its [AssignmentSource] with its own allocations. It
// starts, updates or removes allocations accordingly, and reports their changes to the source. It
// does not depend on where allocations come from: a foreground run, a scheduler and a cluster can
// implement AssignmentSource.
package noderunner
