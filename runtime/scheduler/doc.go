// Package scheduler decides what should run on this node.
//
// Plan is the heart: a pure function from a job, its allocations, its deployment,
// the room on the node and the time to the changes that must be made. Judge says
// what becomes of a deployment. Neither reads a clock, draws a number or touches
// anything outside: what they need comes in.
//
// Scheduler is the shell around them. Each request of the API and each report of
// the node is one change of the store, with all that follows from it: allocations,
// evaluations, the deployment, the status of the job. Its Run only acts when time
// has passed (delayed evaluations, deadlines, periodic launches, old records) or
// room has appeared for what is blocked.
//
// Desired is what the node is to run. The package starts nothing itself, and does
// not know how an allocation is run.
package scheduler
