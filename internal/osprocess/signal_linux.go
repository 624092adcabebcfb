package osprocess

import "golang.org/x/sys/unix"

func signalName(number int) string { return unix.SignalName(unix.Signal(number)) }
