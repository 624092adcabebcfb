// Package keeper is the client of the keeper, a minimal init process for one data directory. Package keeperserver is the keeper
// itself.
//
// The keeper process starts the plugin processes and the log collector, so that they are its
// children and not the agent's. It is the child subreaper of everything below it: a task whose
// driver plugin has died becomes its child, and the keeper records the exit status of that
// task. It stores descriptors that must outlive the agent (read ends of log FIFOs, read ends
// of the plugins' stdout and stderr) and returns them on request.
//
// The keeper parses only its own messages, restarts nothing, and has no notion of jobs. Its
// clients decide what runs: the agent (ConnectOrStart), which replaces a keeper that has died and hands
// the new keeper all state, and the drivers (ConnectFromPlugin), which request the exit status of a task
// that an earlier driver process started, and the processes that such a task may have been.
package keeper
