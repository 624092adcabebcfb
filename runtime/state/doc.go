// Package state has the types of the records that an agent leaves for the next one: the
// local state of a task, the cleanups of hooks that are still pending, allocations that
// must still be removed, descriptions of plugins.
//
// The names of the fields are the format of the state file. A field that is renamed or
// whose type changes is lost in the records of older agents; a new field is zero in them.
//
// The runners and the agent fill the records, package store keeps them. Records of types
// that another package owns are not here: jobs, allocations and the states of tasks are
// types of the Nomad API, and package supervisor defines the record of a plugin process.
// The package reads and writes no file.
package state
