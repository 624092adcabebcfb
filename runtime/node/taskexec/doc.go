// Package taskexec runs commands in tasks for clients that type the input and read the output.
//
// It finds a request's command, passes the client's messages to the command, and sends the output and the exit code. A
// [Conn] transports the messages: a websocket in the HTTP API, or a stream from a cluster server. The package does not
// decide who may run commands.
package taskexec
