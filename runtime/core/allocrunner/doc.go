// Package allocrunner runs one allocation: it calls the allocation's hooks, runs its tasks, opens their gates in
// lifecycle order, and stops them in kill order. It reports the task states and the resulting allocation status. A
// restored allocation continues where an earlier agent left it.
//
// Data flows one way: allocState contains what any goroutine may read or change, allocTasks applies the rules for
// several tasks, and Runner has the requests. The rules for stopping tasks are pure functions: evaluateSiblingStop and
// taskSet.killWaves.
//
// The package does not decide which allocations exist: package noderunner creates the runners, and passes new versions
// to them.
package allocrunner
