// Package snapshot reads and writes snapshots: archives with an agent's state and the keys for its variables.
//
// A snapshot is a compressed tar archive with the description meta.json, a state file, a key file unless the keys are left out,
// and SHA256SUMS, by which Unpack detects damage. The package does not change the data directory of an agent:
// package agent does this when a snapshot is restored.
package snapshot
