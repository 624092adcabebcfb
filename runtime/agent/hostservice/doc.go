// Package hostservice serves the requests of hook plugins to the agent, on a socket whose
// path is the same for every agent of a data directory: [HostService] implements the service
// of plugins/hook.
//
// A hook presents a capability token, which is valid for one allocation or one task and
// expires with it. Tokens are not stored, except for counters of current use: a token is
// made of the names and signed with a key in the state, so that the tokens of an earlier
// agent stay valid.
package hostservice
