// Package safepath has the rule for paths that decide what the agent runs: no account
// besides the agent's own and root may change what is found there, in any directory on the
// way.
//
// It imports none of our packages. The agent applies it to its data directory and to
// sockets, package catalog to plugins.
package safepath
