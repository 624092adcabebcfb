// Package nodeapi serves what the servers of a Nomad cluster call on a node.
//
// It converts a call or a stream of a server into a request to the HTTP API of the agent, and the reply into the messages of
// package cluster/protocol, so that each operation has one implementation with one text per error. Commands in tasks are
// sessions of package taskexec.
//
// The server has checked the rights of its user. The package adds the checks that only a node makes, and it trusts the sender:
// package cluster/wire authenticates the connection.
package nodeapi
