// Package agentdial connects to an agent over plain HTTP, and checks who listens before anything is sent.
//
// Each connection to a loopback address must lead to a listener that proves that it knows the token, or to one that the
// user has named and whose user is root or the caller. Package apiclient uses it as the dialer of all API clients, so that
// requests, streams and websockets are checked alike.
package agentdial
