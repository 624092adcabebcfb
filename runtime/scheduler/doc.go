// Package scheduler decides what this node runs.
//
// Plan is a pure function. Its input is a job with its allocations and its
// deployment, the free resources of the node and the time; its result is the set of
// necessary changes. Judge is a pure function that decides the progress of a
// deployment. Neither reads a clock, generates random numbers or has side effects.
//
// Scheduler applies them to a store. Each API request and each report of the node
// is one change of the store, which includes all consequences: allocations,
// evaluations, the deployment, the status of the job. Run acts only when a time is
// reached (delayed evaluations, deadlines, periodic launches, old records) or when
// blocked evaluations may fit.
//
// Desired returns the allocations that the node must run. The package starts
// nothing itself and does not depend on how an allocation is run.
package scheduler
