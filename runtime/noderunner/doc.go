// Package noderunner keeps the allocations of this node as they shall be.
//
// It compares the allocations that its Source wants here with those that it
// runs, starts, updates or removes the difference, and tells the source what
// becomes of them. Where allocations come from is not its business: a
// foreground run, a scheduler and a cluster look the same from here.
package noderunner
