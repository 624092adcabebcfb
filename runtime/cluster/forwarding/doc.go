// Package forwarding forwards HTTP requests from a cluster node to a server's HTTP API.
//
// Servers do not announce their HTTP API addresses to nodes, so an address is configured, or it is the host of a server that the
// node uses, with the default port. The package checks no tokens and chooses no requests: package httpapi does.
package forwarding
