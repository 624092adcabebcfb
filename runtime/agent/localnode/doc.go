// Package localnode is the node of this machine as the scheduler and the tasks see it.
//
// [Node] keeps the record of the node in the store: facts about the machine, settings of
// the operator, metadata, devices, and the drivers that are up. [AllocSync] connects the node runner
// with the scheduler: it lists the allocations of the node and stores their reports.
//
// It makes no decision about jobs and starts no task; packages scheduler and noderunner
// do. Package agent creates one Node and one AllocSync.
package localnode
