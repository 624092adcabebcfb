// Package sdk is what the author of a Nomad task driver needs.
//
// A driver is a program of one line:
//
//	func main() { sdk.Serve(&sleeper{}) }
//
// The author writes two small things: a [Driver], which says what the driver is
// called and starts tasks, and a [Task], which is one that runs. Everything else
// is optional and found by looking at the methods: a task that can be signalled
// has the method of [Signaler], a driver that finds its tasks again has the
// method of [Recoverer], and so on.
//
// The package does the rest of the protocol, so that the same binary runs under
// nomad-lite and under Nomad: it keeps the table of tasks, answers any number of
// waiters, samples statistics, keeps streams open, cuts output to size, logs in
// the format that hosts read, lets no descriptor leak into a task, and says in
// one sentence what is wrong when a person starts the program by hand.
//
// Package sdk/process runs tasks that are operating system processes; package
// sdk/sdktest proves a driver against the contract.
package sdk
