// Package noderunner runs the allocations that are assigned to this node.
//
// It compares the assignments of its Source with the allocations that it runs,
// starts, updates or removes the difference, and reports changes of the allocations
// to the source. It does not depend on where allocations come from: a foreground
// run, a scheduler and a cluster can implement Source.
package noderunner
