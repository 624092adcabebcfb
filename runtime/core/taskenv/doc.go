// Package taskenv builds a task's environment, and replaces ${…} in texts.
//
// A [Builder] belongs to one task and collects its environment's inputs from the rest of the
// runtime; [Builder.Build] returns an immutable [Env]. Environments are built on demand and dropped
// afterwards: the package does not copy the node's attributes, and a caller should not keep an Env
// or a copy of its maps for longer than one step.
//
// The package reads no files and none of this process's variables.
package taskenv
