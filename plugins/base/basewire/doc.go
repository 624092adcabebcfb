// Package basewire is the gRPC side of package base: client and server of the service of every
// plugin, the constants of the handshake, and the code with which the clients of all services
// distinguish a failed call from an exited plugin.
//
// The package starts no process: package launch starts the plugin, and passes the connection to this
// package. Package sdk registers the server of an author's plugin.
//
// The package is not part of the contract: other modules cannot rely on it.
package basewire
