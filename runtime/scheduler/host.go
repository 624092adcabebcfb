package scheduler

import (
	"errors"
	"net"
	"strconv"
	"syscall"
)

// PortFree reports whether a task could listen on the port on all addresses of the
// machine, with TCP and UDP. It opens and closes both sockets. A port that this
// process is not permitted to open counts as free, because a driver may have more
// privileges.
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
