// Package safepath opens and checks paths that other users may try to replace.
//
// OpenAt and StatAt use one name in a directory that other users may write to, such as the
// directory of a task, and never follow a symbolic link. OpenBeneath does so for a path, and OpenFile and ReadFile for a
// regular file that a job names and root reads. CheckDir and CheckParents have the rule
// for paths that determine what the agent runs: only the agent's own account and root may change
// the file or directory at the path, or any directory on the way to it. Locate has the rule for paths of the operator that are
// mounted into tasks.
//
// The package imports no other package of nomad-lite. The agent applies the rules to its data
// directory, to sockets and to host volumes, package catalog to plugins, the driver docker to what it mounts.
package safepath
