// Package scheduler decides what this node runs.
//
// Plan returns the necessary changes for a job, its allocations and its deployment, given the node's free resources and the
// time. ComputeDeploymentChanges decides a deployment's progress. Both write nothing to the store and read no clock, and
// ComputeDeploymentChanges is a pure function. Plan adds its placements to the node usage in its input, and takes ids, random
// numbers and free-port answers from its input's Env. Scheduler prepares ids and these answers before the transaction in which
// it calls Plan, so no plan blocks other writers.
//
// Scheduler applies the changes in package store's transactions. Each API request and each node report is one transaction,
// which includes all consequences: allocations, evaluations, the deployment, the job status. Run acts only when a time is
// reached (delayed evaluations, deadlines, periodic launches, old records) or when blocked evaluations may fit.
//
// DesiredAllocs returns the allocations that the node must run. The package starts nothing itself and does not depend on how
// allocations are run.
package scheduler
