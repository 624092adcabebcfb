// Package identity issues and verifies the tokens of workload identities: JSON Web Tokens that
// prove to the API of the agent, and to other services, which task sends them.
//
// It owns the claims of a token, the time at which it is renewed, and the records of issued tokens
// in the state. A token is signed with RS256 and the active key of the store. The package delivers
// no token: the identity hook of package builtinhooks writes tokens to files and environments and renews
// them, and package httpapi decides what a token gives access to.
package identity
