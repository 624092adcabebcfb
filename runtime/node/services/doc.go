// Package services registers the services of an allocation in the catalog of the node, and runs their
// checks.
//
// An [AllocServices] is the services and checks of one allocation. Its caller reports when a workload (the
// group, or a task of it) starts and stops. It updates the registrations, runs the checks,
// and requests a restart according to check_restart. The hooks of package builtinhooks call it; deployment health reads the results of its checks.
// Read set.go first.
package services
