// Package wire is the transport between a node and a Nomad cluster's servers.
//
// A [Session] is one connection to a server. Both ends open streams on it: the node calls the server's methods with
// [Session.Call], and [Session.Serve] answers the calls and the streams the server opens. The messages are msgpack values in the
// dialect [Encoder] and [Decoder] use.
//
// The package knows no server method and no message; package cluster/protocol has the messages, and the callers choose servers
// and repeat calls.
package wire
