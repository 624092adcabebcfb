// Package state has the types of the records that an agent leaves for the next one: the
// record of a task ([record.Fields]), the cleanups of hooks that are still pending, networks, tokens,
// allocations that must still be removed, descriptions of plugins.
//
// A record has explicit names in the tag "store" of its fields, so that no renaming in Go
// changes the format of the state file. The option "secret" of the tag means that 'operator
// state inspect' does not show the value. A type of another package, such as
// driver.Handle, has a record of its own here, and the functions that convert it both ways.
// The nouns of the Nomad API are stored as they are, under the names that their fields have
// in Go. AgentRecordKinds lists the kinds of the agent's records.
//
// The runners and the agent fill the records, package store keeps them. The package reads
// and writes no file.
package state
