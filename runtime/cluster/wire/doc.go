// Package wire is the transport between a node and the servers of a Nomad cluster.
//
// A [Session] is one connection to a server. Both ends open streams on it: the node calls methods of the server with
// [Session.Call], and [Session.Serve] answers the calls and the streams that the server opens. The messages are msgpack
// values in the dialect of [Encoder] and [Decoder].
//
// The package knows no method and no message of a server; package cluster/protocol has the messages, and the callers
// choose servers and repeat calls.
package wire
