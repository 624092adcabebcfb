package hostport

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/prometheus/procfs"
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
