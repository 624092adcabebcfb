// Package allocdir makes and removes the directories of allocations.
//
// It owns the layout, the modes and owners, and the memory file systems for
// secrets. Task hooks and drivers get paths; the runner decides when to build
// and when to destroy.
//
// Tasks own most of what lies here and may change it at any moment, so nothing
// here walks a path that a task can bend: every step opens one name relative to
// an open directory, without following links, and what is then changed, mounted
// or removed is what was opened. Nothing is ever removed through a mount.
package allocdir
