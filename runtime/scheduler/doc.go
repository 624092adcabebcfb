// Package scheduler decides what this node runs.
//
// Plan returns the necessary changes for a job, its allocations, its deployment, the free
// resources of the node and the time. ComputeDeploymentChanges decides the progress of a deployment. Both
// write nothing to the store and read no clock, and ComputeDeploymentChanges is a pure function. Plan adds
// its placements to the usage of the node in its input, and takes ids, random numbers and
// the answer whether a port is free from the Env in its input. Scheduler prepares ids and
// these answers before the transaction in which it calls Plan: no plan blocks other
// writers.
//
// Scheduler applies the changes to a store, in transactions of package store. Each API
// request and each report of the node is one transaction, which includes all
// consequences: allocations, evaluations, the deployment, the status of the job. Run
// acts only when a time is reached (delayed evaluations, deadlines, periodic launches,
// old records) or when blocked evaluations may fit.
//
// DesiredAllocs returns the allocations that the node must run. The package starts
// nothing itself and does not depend on how an allocation is run.
package scheduler
