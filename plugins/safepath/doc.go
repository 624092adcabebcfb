// Package safepath has the rule for paths that determine what the agent runs: only the
// agent's own account and root may change the file or directory at the path, or any
// directory on the way to it.
//
// The package imports no other package of nomad-lite. The agent applies the rule to its
// data directory and to sockets, package catalog to plugins.
package safepath
