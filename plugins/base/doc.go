// Package base is the contract of every plugin, whatever its type: the plugin describes
// itself, returns the schema of its plugin block, and accepts its configuration
// (plugin-protocol 1 and 2.1).
//
// The package holds both ends of that service, the constants of the handshake, and the
// code that the clients of all services share: how a failed call is distinguished from
// a dead plugin. It starts no process: package launch does, and passes the connection
// in. The runtime calls the client, package sdk serves an author's plugin.
package base
