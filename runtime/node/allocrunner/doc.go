// Package allocrunner runs one allocation: it calls the hooks of the allocation, runs its tasks, opens
// their gates in the order of the lifecycle, and stops them in kill order. It reports the states of the
// tasks and the resulting status of the allocation. A restored allocation continues where an earlier
// agent left it.
//
// Runner only connects small types, each of which has one responsibility and its own lock. None of them
// refers to Runner, so that each can be read and tested alone. The rules are pure functions:
// evaluateSiblingStop and taskSet.killOrder.
//
// The package does not decide which allocations exist: package noderunner creates the runners, and
// passes new versions of their allocations.
package allocrunner
