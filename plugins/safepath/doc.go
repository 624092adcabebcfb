// Package safepath opens and checks paths that other users may try to replace.
//
// OpenAt and StatAt use one name in a directory that other users may write to, such as the
// directory of a task, and never follow a symbolic link. CheckDir and CheckParents have the rule
// for paths that determine what the agent runs: only the agent's own account and root may change
// the file or directory at the path, or any directory on the way to it.
//
// The package imports no other package of nomad-lite. The agent applies the rule to its data
// directory and to sockets, package catalog to plugins.
package safepath
