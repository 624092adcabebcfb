// Package sdktest proves a task driver or a hook against the contract that hosts
// rely on.
//
// The suite starts the plugin as hosts do, as a process behind a gRPC connection,
// and is the host for it: it makes allocation directories, reads the output of
// tasks, answers what hooks ask for, kills the plugin in the middle of it.
// [Driver] and [Hook] run it in a Go test, [Check] without one, for the command
// `nomad-lite plugin test`.
//
// The suite knows nothing of the plugin but what a [Plugin] says: which task runs
// on, which one ends, how a hook is attached. Cases for what a plugin does not
// claim to do are skipped.
package sdktest
