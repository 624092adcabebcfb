// Package taskfiles reads allocation files for remote clients.
//
// Tasks can write to their directories: each name in a path may be a link by the time it is opened,
// a FIFO without a writer, or a device. So the package opens a path element by element (walk.go)
// and always knows the real position: it never leaves the allocation's directory, and recognises
// secrets under any name. It opens regular files only.
//
// The package writes nothing. Package runtime/node/files/logs follows task output.
package taskfiles
