// Package rpcmux multiplexes requests to a helper process over one connection. Many requests
// may be in flight at once, and responses come in any order: see [PendingCalls]. The process
// may exit and be started again: see [Reconnector].
//
// The package sends and receives nothing, and does not connect by itself. The owner of
// the connection does: plugins/host/keeper for the keeper, runtime/node/files/logs for the log
// collector.
package rpcmux
