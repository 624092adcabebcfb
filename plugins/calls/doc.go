// Package calls matches answers with the requests that wait for them: many may be
// under way at once over one connection, and answers come in any order.
//
// It sends and receives nothing. Who owns the connection does: plugins/keeper for
// the keeper, runtime/logs for the log collector.
package calls
