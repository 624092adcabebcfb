//go:build !linux

package agentsocket

// FindConnectableSocket returns "", because agents run only on Linux.
func FindConnectableSocket() string { return "" }

// DefaultSocket returns "", because agents run only on Linux.
func DefaultSocket() string { return "" }

// DefaultSocketPaths returns nil, because agents run only on Linux.
func DefaultSocketPaths() []string { return nil }

// DevSocketPaths returns nil, because agents run only on Linux.
func DevSocketPaths() []string { return nil }

// SocketPathsInTrustedDirs returns nil, because agents run only on Linux.
func SocketPathsInTrustedDirs() []string { return nil }
