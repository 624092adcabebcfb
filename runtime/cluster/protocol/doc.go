// Package protocol has the messages between a node and a Nomad cluster's servers, and the method names.
//
// The field names are the message keys, so they are Nomad's. The package does no I/O: package wire encodes and sends the
// messages.
package protocol
