// Package services registers an allocation's services in the node's catalog, and runs their checks.
//
// An [AllocServices] has the services and checks of one allocation. Its caller reports when a workload (the group or one of its
// tasks) starts and stops. It updates the registrations, runs the checks, and requests a restart according to check_restart. The
// hooks in package builtinhooks call it. Deployment health reads its check results. Read set.go first.
package services
