// Package protocol has the messages between a node and the servers of a Nomad cluster, and the names of the methods.
//
// The names of the fields are the keys of the messages, so they are Nomad's. The package does no I/O: package wire encodes
// and sends the messages.
package protocol
