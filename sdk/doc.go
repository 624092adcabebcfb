// Package sdk is for authors of Nomad task drivers, Nomad device plugins, and hooks.
//
// The main function of a plugin has one line:
//
//	func main() { sdk.ServeDriver(&sleeper{}) }
//	func main() { sdk.ServeHook(&greeter{}) }
//	func main() { sdk.ServeDevice(&serialPorts{}) }
//
// The author of a driver writes two small types: a [Driver], which names the driver and
// starts tasks, and a [Task], which is one running task. Everything else is optional
// and detected by its methods: a task that accepts signals has the method of
// [Signaler], a driver that can recover its tasks has the method of [Recoverer], and so
// on. A capability such as Exec must also be declared by Info: a call of the host is
// rejected otherwise, even if the task has the method.
//
// A [Hook] is called at hook points in the life of allocations and tasks. It has a method
// for at least one hook point ([hook.TaskPrestart], [hook.TaskExited],
// [hook.AllocPostrun], …), and sends requests to its host through a [hook.Host]. Hooks are
// for nomad-lite.
//
// The author of a device plugin writes a [Device], which finds the devices of the machine
// and returns what a task needs to use them; statistics are optional
// ([DeviceStatsProvider]).
//
// The values that methods receive and return are in the packages of the contracts:
// plugins/driver for drivers, plugins/hook for hooks, plugins/device for device plugins.
// Package hclspec describes configuration blocks.
//
// The compiler rejects a driver whose Start has another signature, or returns a value
// that is not a task. A method of an optional interface with another signature is
// rejected when the program starts; a line such as
//
//	var _ sdk.Signaler = (*nap)(nil)
//
// lets the compiler reject it.
//
// The package implements the rest of the protocol, so that the same driver or device
// plugin runs under nomad-lite and under Nomad: it keeps the table of tasks, answers any
// number of waiters, samples statistics, keeps streams open, limits the size of output,
// logs in the format that hosts read, leaks no descriptor into a task, and prints a
// one-sentence explanation when a user starts the program by hand.
//
// Package sdk/process runs tasks that are operating system processes; package
// sdk/sdktest tests a plugin against its contract.
//
// A comment with the words "For hosts only." marks a declaration that authors of plugins do not need. A
// later version can change it: docs/reference/compatibility.md promises the other declarations.
package sdk
