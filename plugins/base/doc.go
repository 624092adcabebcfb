// Package base is the contract of every plugin, whatever it does: it says what
// it is, what its plugin block accepts, and takes its configuration
// (plugin-protocol 1 and 2.1).
//
// It holds both ends of that service, the constants of the handshake, and what
// the clients of all services share: how a failed call is told from a dead
// plugin. It starts no process: package launch does, and hands over the
// connection. The runtime calls the client, package sdk serves an author's
// plugin.
package base
