// Package admission decides whether a job can run on a node.
//
// Check compares a canonical job with the node facts and returns the job's faults, the refusals by this program and the node, and
// the warnings. RefusalKinds has each refusal with its ID, its remedy and its effect for each caller. The package reads no store
// and calls no plugin: an agent fills in the facts from its node, and a command without an agent from its machine's plugins. Its
// callers are the HTTP API, the commands that read job files, and the scheduler when it places admitted jobs.
package admission
