// Package sdktest proves a task driver against the contract that hosts rely on.
//
// The suite starts the driver as Nomad does, as a process behind a gRPC
// connection, and is the host for it: it makes allocation directories, reads the
// output, kills the plugin while tasks run. [Driver] runs it in a Go test, [Check]
// without one, for the command `nomad-lite plugin test`.
//
// The suite knows nothing of the driver but what a [Plugin] says: which task runs
// on, which one ends. Cases for what a driver does not claim to do are skipped.
package sdktest
