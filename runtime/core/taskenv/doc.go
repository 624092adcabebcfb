// Package taskenv builds the environment of a task, and replaces ${…} in texts.
//
// A [Builder] belongs to one task and collects the inputs of its environment from the parts of the
// runtime; [Builder.Build] returns an immutable [Env]. Environments are built on demand and
// dropped afterwards: the package does not copy the attributes of the node, and a caller should
// not keep an Env or a copy of its maps for longer than one step.
//
// The package reads no files and no variables of this process.
package taskenv
