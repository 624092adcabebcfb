// Package taskexec runs commands in tasks for clients that type the input and read the output.
//
// It finds a request's command, passes the messages of the client to the command, and sends the output and the exit code.
// The transport of the messages is a [Conn]: a websocket of the HTTP API, or a stream of a server of the cluster. The
// package does not decide who may run commands.
package taskexec
