// Package nodeapi serves the calls that a Nomad cluster's servers make to a node.
//
// It converts a server's call or stream into a request to the agent's HTTP API, and the reply into messages of package
// cluster/protocol, so that each operation has one implementation with one text per error. Commands in tasks are sessions of
// package taskexec.
//
// The server has checked its user's rights. The package adds the checks that only a node makes, and it trusts the sender: package
// cluster/wire authenticates the connection.
package nodeapi
