// Package store holds the durable state of nomad-lite.
//
// It owns a data directory's state file: jobs with their versions, evaluations, allocations, deployments, the node, services,
// variables, namespaces, scaling events, launch times, and the records that runners need to continue after a crash. The whole
// state is also in memory, where readers take snapshots, wait for changes and follow the event feed. One writer groups
// concurrent updates into few commits; an update returns, and becomes visible, once it is on disk. A store can also be in
// memory only.
//
// The items of variables, and record parts that can hold copies of them, are sealed in the file with package keyring's keys. In
// memory, and for callers, they are plain.
//
// Each record carries its schema version and a checksum. This build opens every file with a format it can read, damaged or not.
// An unreadable record is moved to quarantine, and taken back by the build that can read it; a damaged file is set aside and a
// new one is written with all readable records; both are reported. A file with an earlier format is migrated. Fields, records
// and tables known only to another build are reported and kept.
//
// The package handles only the keys, indexes and timestamps of its objects. Its callers decide which changes are valid.
package store
