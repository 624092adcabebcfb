// Package sdk is what the author of a Nomad task driver or of a hook needs.
//
// A plugin is a program of one line:
//
//	func main() { sdk.Serve(&sleeper{}) }
//
// The author of a driver writes two small things: a [Driver], which says what the
// driver is called and starts tasks, and a [Task], which is one that runs.
// Everything else is optional and found by looking at the methods: a task that can
// be signalled has the method of [Signaler], a driver that finds its tasks again
// has the method of [Recoverer], and so on.
//
// A hook takes part in the life of allocations and tasks. It is any value with a
// method for at least one moment ([TaskPrestart], [TaskExited], [AllocPostrun], …),
// and asks its host for what it needs through a [Host]. Hooks are for nomad-lite.
//
// The package does the rest of the protocol, so that the same driver runs under
// nomad-lite and under Nomad: it keeps the table of tasks, answers any number of
// waiters, samples statistics, keeps streams open, cuts output to size, logs in
// the format that hosts read, lets no descriptor leak into a task, and says in
// one sentence what is wrong when a person starts the program by hand.
//
// Package sdk/process runs tasks that are operating system processes; package
// sdk/sdktest proves a driver or a hook against the contract.
package sdk
