// Package connlimit limits client connections to the agent's API.
//
// A [Limiter] counts the connections of all listeners together. Each connection belongs to one client, which is identified by the
// connected user or address, and, as soon as the server has read a token, by the token's task or rights. Clients are divided into
// classes, each with a number of connections not available to other classes. The package reads no request: package httpapi
// authenticates requests and reports the result with [Conn.CountForClient].
package connlimit
