//go:build !linux

package osprocess

// signalName returns no name: the number is one of Linux, and the names of this system have others.
func signalName(int) string { return "" }
