// Package calls is what the clients of our own helper processes have in common. Many
// requests may be under way at once over one connection, and answers come in any
// order: see [PendingCalls]. The process may die and come back: see [Reconnector].
//
// It sends and receives nothing, and does not know how to connect. Who owns the
// connection does: plugins/keeper for the keeper, runtime/logs for the log collector.
package calls
