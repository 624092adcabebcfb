// Package agentproof is the proof by which an agent shows a client that it knows a token, without sending the token.
//
// The client sends a nonce and the token's [KeyID] over a new connection. The agent replies with a MAC, whose key is the
// token, over the nonce and both addresses of that connection. Package httpapi serves the proof, and package apiclient
// requests it before it sends a token or a body over plain HTTP to a loopback address.
package agentproof
