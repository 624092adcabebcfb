// Package allocrunner runs one allocation: it calls the hooks of the allocation, runs its tasks, opens
// their gates in the order of the lifecycle, and stops them in kill order. It reports the states of the
// tasks and the resulting status of the allocation. A restored allocation continues where an earlier
// agent left it.
//
// Data flows one way: allocState contains what any goroutine may read or change, allocTasks applies the
// rules that concern several tasks, and Runner has the requests. The rules that stop tasks are pure
// functions: evaluateSiblingStop and taskSet.killWaves.
//
// The package does not decide which allocations exist: package noderunner creates the runners, and
// passes new versions of their allocations.
package allocrunner
