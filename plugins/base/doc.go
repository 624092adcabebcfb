// Package base is the contract of every plugin, whatever its type: the plugin describes
// itself, returns the schema of its plugin block, and accepts its configuration.
//
// The package holds client and server of that gRPC service, the constants of the handshake,
// and the code with which the clients of all services distinguish a failed call from an
// exited plugin. It starts no process: package launch starts the plugin, and passes the
// connection to this package. The runtime uses the client; package sdk registers the server
// of an author's plugin.
package base
