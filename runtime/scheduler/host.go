package scheduler

import (
	"errors"
	"net"
	"strconv"
	"syscall"
)

// PortFree tells whether a task could listen on this port of every address of
// the machine, over TCP and UDP. It opens and closes both sockets. A port that
// only this process may not open counts as free: a driver may have more rights.
func PortFree(port int) bool {
	address := net.JoinHostPort("", strconv.Itoa(port))
	if l, err := net.Listen("tcp", address); err == nil {
		l.Close()
	} else if errors.Is(err, syscall.EADDRINUSE) {
		return false
	}
	if l, err := net.ListenPacket("udp", address); err == nil {
		l.Close()
	} else if errors.Is(err, syscall.EADDRINUSE) {
		return false
	}
	return true
}
