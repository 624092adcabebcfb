// Package services registers what an allocation offers to others, under
// provider nomad, and looks whether it works.
//
// A [Set] is the services and checks of one allocation. It is told when a
// workload (the group, or a task of it) comes up and goes, keeps the
// registrations accordingly, runs the checks, and asks for a restart where
// check_restart wants one. It registers nothing with Consul and runs no script.
// The hooks of package hooks drive it; deployment health reads the results of
// its checks. Read set.go first.
package services
