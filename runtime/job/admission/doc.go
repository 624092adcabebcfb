// Package admission decides whether a job can run on a node.
//
// Check compares a canonical job with the facts about a node and returns the faults of the job, the refusals of this
// program and of the node, and the warnings. RefusalKinds has each refusal with its id, its remedy and its effect for each
// caller. The package reads no store and calls no plugin: an agent fills the facts from its node, and a command
// without an agent from the plugins of its machine. The HTTP API, the commands that read job files, and the scheduler,
// which places the allocations of admitted jobs, use it.
package admission
