// Package hook is the contract of a lifecycle hook: what may run beside an
// allocation or a task, at which moments, and what it can ask its host for.
//
// A hook implements one interface per moment that it takes part in, and those in
// the agent [Hook] as well; the runners find them by type assertion. Requests and
// responses are plain data, so that a hook in this process and one in a plugin
// look the same to a runner. Deadlines, order and what an error does are the
// runner's business; they are written at each interface.
//
// The same contract crosses the wire twice: moments go from the host ([Client])
// to the plugin ([RegisterServer]), and what the plugin asks for comes back on a
// socket of its own ([DialHost], [RegisterHost]), which outlives agents.
package hook
