// Package allocrunner runs one allocation: it calls the hooks of the allocation, runs
// its tasks, opens their gates in the order of the lifecycle, and stops them in kill
// order. It reports the states of the tasks and the resulting status of the allocation.
//
// The package does not decide which allocations exist: it receives allocations and
// their versions. Read allocrunner.go first; siblings.go and killorder.go hold the
// rules.
package allocrunner
