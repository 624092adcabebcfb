// Package hostservice serves hook plugins' requests to the agent, on a socket with the same path for all agents in a data
// directory: [HostService] implements the service defined by plugins/hook.
//
// A hook presents a capability token, which is valid for one allocation or one task and expires with it. Tokens are not stored,
// except for counters while in use: a token consists of the names and a signature with a key in the state, so an earlier agent's
// tokens stay valid.
package hostservice
