// Package state has the record types that an agent leaves for the next one: task records ([record.Fields]), pending hook
// cleanups, networks, tokens, allocations still to be removed, plugin descriptions.
//
// A record's fields have explicit names in the tag "store", so renaming them in Go never changes the state file format. With
// the tag's option "secret", 'operator state inspect' does not show the value. A type from another package, such as
// driver.Handle, has its own record here, and functions that convert it both ways. Nomad API types are stored as they are,
// under the Go names of their fields. AgentRecordKinds lists the kinds of agent records.
//
// The runners and the agent fill the records, package store keeps them. The package reads
// and writes no file.
package state
