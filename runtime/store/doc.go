// Package store is the one durable thing of nomad-lite.
//
// It owns the state file of a data directory: jobs with their versions,
// evaluations, allocations, deployments, the node, services, variables,
// namespaces, scaling events, launch times, and what the runners must know to
// go on after a crash. All of it is also in memory, where readers take
// snapshots, wait for changes and follow the feed of events. One writer turns
// concurrent updates into few commits; an update has happened, and is seen,
// when it is on the disk.
//
// The items of variables, and the parts of other records that can hold copies of
// them, are sealed in the file with the keys of package keyring. Memory and callers
// have them in the clear.
//
// Each record carries its schema version and a checksum. Whatever the file
// holds, it opens: a record that does not read is moved to quarantine, a file
// that is damaged is set aside and written anew with what was read from it, and
// both are named.
//
// The package knows the nouns only as far as their keys, their indexes and the
// stamps that it puts on them. What may follow what is the business of those
// who call it: scheduler, noderunner, agent and httpapi.
package store
