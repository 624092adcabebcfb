//go:build !linux

package agentsocket

// FindSocket returns "": agents run on Linux, so none is on this machine.
func FindSocket() string { return "" }

// DefaultSocketPaths returns no sockets, as do DevSocketPaths and ReachableSocketPaths.
func DefaultSocketPaths() []string { return nil }

// DevSocketPaths returns no sockets.
func DevSocketPaths() []string { return nil }

// ReachableSocketPaths returns no sockets.
func ReachableSocketPaths() []string { return nil }
