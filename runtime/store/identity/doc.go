// Package identity issues and verifies workload identity tokens. They are JSON Web Tokens that prove to the agent's API, and to
// other services, which task sends them.
//
// It owns a token's claims and renewal time, and the records of issued tokens in the state. A token is signed with RS256 and
// the store's active key. The package delivers no token: package builtinhooks has the identity hook, which writes tokens to
// files and environments and renews them, and package httpapi decides what a token gives access to.
package identity
