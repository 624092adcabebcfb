// Package localnode is this machine's node as the scheduler and the tasks see it.
//
// [Node] keeps the node record in the store: facts about the machine, the operator's settings, metadata, devices, and the drivers
// that are up. [AllocSync] connects the node runner with the scheduler: it lists the node's allocations and stores their reports.
//
// It makes no decision about jobs and starts no task; packages scheduler and noderunner
// do. Package agent creates one Node and one AllocSync.
package localnode
