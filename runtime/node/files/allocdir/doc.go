// Package allocdir creates and removes allocation directories.
//
// It owns the layout, the modes and owners, and the memory file systems for secrets.
// Task hooks and drivers get paths; the runner decides when to build and when to
// destroy.
//
// Tasks own most of these directories and may change them at any time, so no function here follows
// a path if a task can redirect it: every step opens one name relative to an open directory,
// without following links, and then changes, mounts or removes the opened object. Nothing is ever
// removed through a mount.
package allocdir
