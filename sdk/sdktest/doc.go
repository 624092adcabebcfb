// Package sdktest tests a task driver, a hook or a device plugin against the contract that
// hosts rely on.
//
// The suite starts the plugin as hosts do, as a process behind a gRPC
// connection, and acts as its host: it makes allocation directories, reads the
// output of tasks, serves the calls of hooks, and kills the plugin during its
// work. [Driver], [Hook] and [Device] run it in a Go test; [Check] runs it without one,
// for the command `nomad-lite plugin test`.
//
// A [Plugin] describes the tested plugin to the suite: a task that keeps
// running, a task that exits, the attachment of a hook. The suite skips cases
// for features that the plugin does not claim to have.
//
// A unit test calls the methods of a plugin without a process and a host: [NewStartRequest] makes the
// request of a driver's Start, [NewConfig] the configuration of a plugin, and [FakeHost] is the host of a hook.
//
// The suite reads the memory limits of tasks from the kernel, and not from the
// driver, because an error that the suite shares with the SDK would otherwise
// be hidden. No capability of the protocol declares limits. A driver that leaves its
// tasks in the cgroups of the plugin therefore has a quirk: hosts run such tasks,
// and Nomad accepts such drivers. A driver that makes cgroups enforces what jobs
// request, so that a missing or wrong limit in these is a failure.
//
// A comment with the words "For hosts only." marks a declaration that authors of plugins do not need. A
// later version can change it: docs/reference/compatibility.md promises the other declarations.
package sdktest
