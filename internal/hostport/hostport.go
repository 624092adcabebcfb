package hostport

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/prometheus/procfs"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// IsFree reports whether a task could listen on the port on all addresses of the machine, with TCP and
// UDP, except those on which other programs may listen. It opens and closes both sockets. A port that this process is not
// permitted to open counts as free, because a driver may have more privileges.
func IsFree(port int, except ...netip.Addr) bool {
	return canListen("", port) || len(except) > 0 && onlyAddressesListen(port, except)
}

// IsFreeAt reports whether a task could listen on the port on one address, like IsFree.
func IsFreeAt(address netip.Addr, port int) bool { return canListen(address.String(), port) }

// onlyAddressesListen reports whether sockets listen on a port, and each of them has one of the addresses.
func onlyAddressesListen(port int, addresses []netip.Addr) bool {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return false
	}
	found, others := false, false
	forEachListeningSocket(fs, func(l listeningSocket) {
		if l.port == port {
			found = true
			others = others || !slices.Contains(addresses, l.address)
		}
	})
	return found && !others
}

func canListen(host string, port int) bool {
	address := net.JoinHostPort(host, strconv.Itoa(port))
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

// Listeners describes the processes that use the ports, for messages: `process "nginx" (pid 812)`. It
// reads /proc, and leaves out a port if it cannot find the process, for example because the process
// belongs to another user and this process is not root.
func Listeners(ports []int) map[int]string {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	portsBySocket := portBySocket(fs, ports)
	if len(portsBySocket) == 0 {
		return nil
	}
	listeners := make(map[int]string)
	forEachSocketOfProcesses(fs, func(socket string, p procfs.Proc) {
		if port, found := portsBySocket[socket]; found && listeners[port] == "" {
			listeners[port] = describeProcess(p)
		}
	})
	return listeners
}

// Listener is a process that has a socket that listens.
type Listener struct {
	PID  int // 0 if /proc does not show which process has the socket, for example to a process that is not root
	UID  int // user who has opened the socket
	Name string
	Task osprocess.TaskEnvID // the task to which the process belongs; zero if it belongs to none
}

// String returns a description such as `process "nginx" (pid 812, uid 33), of task "web" of allocation 0b5a1c2d`.
func (l Listener) String() string {
	if l.PID == 0 {
		return fmt.Sprintf("a process of uid %d", l.UID)
	}
	text := fmt.Sprintf("process %q (pid %d, uid %d)", l.Name, l.PID, l.UID)
	if l.Task.AllocID != "" {
		text += fmt.Sprintf(", of task %q of allocation %.8s,", l.Task.Task, l.Task.AllocID)
	}
	return text
}

// FindListeners returns the processes that have the socket that listens with TCP on a port at an address of the host, or at all
// addresses. The host is an address or a name. If /proc shows none of the processes to this one, the result is one Listener without
// PID. It is empty if no socket listens.
func FindListeners(host string, port int) (listeners []Listener) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	address, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil
	}
	ip := address.AddrPort().Addr().Unmap()
	var socket *listeningSocket
	forEachListeningSocket(fs, func(s listeningSocket) {
		if s.isTCP && s.port == port && (s.address == ip || s.address.IsUnspecified() || ip.IsUnspecified()) {
			socket = &s
		}
	})
	if socket == nil {
		return nil
	}
	forEachSocketOfProcesses(fs, func(target string, p procfs.Proc) {
		if target != socketTarget(socket.inode) || slices.ContainsFunc(listeners, func(l Listener) bool { return l.PID == p.PID }) {
			return
		}
		l := Listener{PID: p.PID, UID: socket.uid}
		l.Name, _ = p.Comm()
		l.Task, _ = osprocess.TaskOf(p.PID)
		listeners = append(listeners, l)
	})
	if len(listeners) == 0 {
		listeners = []Listener{{UID: socket.uid}}
	}
	return listeners
}

// portBySocket returns the ports on which sockets listen. The keys are the sockets, as the targets of file
// descriptors in /proc, such as "socket:[4711]".
func portBySocket(fs procfs.FS, ports []int) map[string]int {
	sockets := make(map[string]int)
	forEachListeningSocket(fs, func(l listeningSocket) {
		if l.inode != 0 && slices.Contains(ports, l.port) {
			sockets[socketTarget(l.inode)] = l.port
		}
	})
	return sockets
}

// listeningSocket is a socket that listens on a port.
type listeningSocket struct {
	address netip.Addr
	port    int
	isTCP   bool
	uid     int
	inode   uint64
}

// forEachListeningSocket calls f for each listening TCP socket and each UDP socket of this network namespace.
func forEachListeningSocket(fs procfs.FS, f func(listeningSocket)) {
	forEachTCPSocket(fs, func(s tcpSocket) {
		if s.state == tcpListen {
			f(listeningSocket{s.local.Addr(), int(s.local.Port()), true, s.uid, s.inode})
		}
	})
	for _, read := range []func() (procfs.NetUDP, error){fs.NetUDP, fs.NetUDP6} {
		lines, _ := read() // the error is ignored: a machine without IPv6 does not have one of the files
		for _, line := range lines {
			address, _ := netip.AddrFromSlice(line.LocalAddr) // the size is that of an address
			f(listeningSocket{address.Unmap(), int(line.LocalPort), false, int(line.UID), line.Inode})
		}
	}
}
