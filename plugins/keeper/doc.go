// Package keeper is a tiny init for one data directory, and the client that
// talks to it. It also says where the helper processes of a data directory listen, and
// how one of them is told from none (Directory).
//
// The keeper process starts the plugin processes and the log collector, so
// that they are its children and not the agent's. It is the child subreaper of
// everything below it: a task whose driver plugin has died becomes its child,
// and it remembers how that task ended. It holds descriptors that must outlive
// the agent (read ends of log FIFOs, read ends of the plugins' stderr) and gives
// them back on demand.
//
// It parses nothing but its own frames, restarts nothing, and knows nothing of
// jobs. Deciding what runs is the work of its clients: the agent (Start), which
// replaces a keeper that has died and hands it everything again, and the drivers
// (Attach), which ask it how a task ended that an earlier driver process started.
package keeper
