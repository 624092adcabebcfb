// Package forwarding forwards HTTP requests from a node of a cluster to the HTTP API of a server.
//
// Servers do not announce the addresses of their HTTP APIs to nodes, so an address is configured, or it is the host of a server
// that the node uses, with the default port. The package checks no tokens and chooses no requests: package httpapi does.
package forwarding
