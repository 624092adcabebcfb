// Package connlimit limits the connections of clients to the API of the agent.
//
// A [Limiter] counts the connections of all listeners together. Each connection belongs to one client, which is
// identified by the user or the address that has connected, and, as soon as the server has read a token, by the
// task or the rights of the token. Clients are divided into classes, each with a number of connections that no other class
// can use. The package reads no request: package httpapi authenticates requests and reports the result with
// [Conn.CountForClient].
package connlimit
