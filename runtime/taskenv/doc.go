// Package taskenv makes the environment of a task, and replaces ${…} in texts.
//
// A [Builder] belongs to one task runner and collects what the parts of the
// runtime have to say about the environment; [Builder.Build] turns it into an
// [Env] that never changes. Environments are made when they are needed and
// dropped afterwards: nothing here copies the attributes of the node, and
// nobody should keep an Env or a copy of its maps for longer than one step.
//
// It reads no file and no variable of this process.
package taskenv
