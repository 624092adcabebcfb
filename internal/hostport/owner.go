package hostport

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/prometheus/procfs"
)

// States of a TCP socket in /proc/net/tcp. For sockets in later states than tcpEstablished the kernel reports no user.
const (
	tcpEstablished = 1
	tcpListen      = 10
)

// SocketOwner is the user and the process that have a TCP socket of this machine.
type SocketOwner struct {
	UID   int
	inode uint64
}

// String returns the owner for messages, such as `process "nginx" (pid 812) of uid 33`. It lacks name and pid if they are
// hidden from this process, for example because the owner is another user and this process is not root.
func (o SocketOwner) String() string {
	process := "a process"
	if fs, err := procfs.NewDefaultFS(); err == nil {
		forEachSocketOfProcesses(fs, func(socket string, p procfs.Proc) {
			if socket == socketTarget(o.inode) {
				process = describeProcess(p)
			}
		})
	}
	return fmt.Sprintf("%s of uid %d", process, o.UID)
}

// OwnerOfConnected returns the owner of the socket at local that is connected to remote: for a connection that a process
// has accepted, the user that has accepted it. It returns false if no process of this machine has the socket, for example
// because no process has accepted the connection yet.
func OwnerOfConnected(local, remote netip.AddrPort) (SocketOwner, bool) {
	return findOwner(func(s tcpSocket) bool {
		return s.state == tcpEstablished && s.local == normalize(local) && s.remote == normalize(remote)
	})
}

// OwnerOfListener returns the owner of a socket that listens at an address, or at its port on all addresses.
func OwnerOfListener(address netip.AddrPort) (SocketOwner, bool) {
	address = normalize(address)
	return findOwner(func(s tcpSocket) bool {
		return s.state == tcpListen && (s.local == address || s.local.Port() == address.Port() && s.local.Addr().IsUnspecified())
	})
}

func findOwner(matches func(tcpSocket) bool) (owner SocketOwner, found bool) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return owner, false
	}
	forEachTCPSocket(fs, func(s tcpSocket) {
		if s.inode != 0 && matches(s) {
			owner, found = SocketOwner{s.uid, s.inode}, true
		}
	})
	return owner, found
}

// tcpSocket is a line of /proc/net/tcp. Its inode is 0 if no process has the socket.
type tcpSocket struct {
	local, remote netip.AddrPort
	state         uint64
	uid           int
	inode         uint64
}

// forEachTCPSocket calls f for each TCP socket of this network namespace.
func forEachTCPSocket(fs procfs.FS, f func(tcpSocket)) {
	addrPort := func(ip net.IP, port uint64) netip.AddrPort {
		address, _ := netip.AddrFromSlice(ip) // the size is that of an address
		return normalize(netip.AddrPortFrom(address, uint16(port)))
	}
	//lint:ignore SA1019 the replacement is a netlink library, which reads the same with more code
	for _, read := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} { // an IPv6 socket can be connected to an IPv4 address
		lines, _ := read() // the error is ignored: a machine without IPv6 does not have one of the files
		for _, l := range lines {
			f(tcpSocket{addrPort(l.LocalAddr, l.LocalPort), addrPort(l.RemAddr, l.RemPort), l.St, int(l.UID), l.Inode})
		}
	}
}

// normalize returns the address of an IPv6 socket that has an IPv4 address in the form of the other sockets.
func normalize(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// forEachSocketOfProcesses calls f for each socket of each process whose descriptors this process may see. A socket is the
// target of a descriptor in /proc, such as "socket:[4711]".
func forEachSocketOfProcesses(fs procfs.FS, f func(socket string, p procfs.Proc)) {
	processes, err := fs.AllProcs()
	if err != nil {
		return
	}
	for _, p := range processes {
		targets, _ := p.FileDescriptorTargets() // the error is ignored: the process has ended, or belongs to another user
		for _, target := range targets {
			f(target, p)
		}
	}
}

func socketTarget(inode uint64) string { return fmt.Sprintf("socket:[%d]", inode) }

// describeProcess returns a description such as `process "nginx" (pid 812)`.
func describeProcess(p procfs.Proc) string {
	name, err := p.Comm()
	if err != nil {
		return fmt.Sprintf("process (pid %d)", p.PID) // it has ended
	}
	return fmt.Sprintf("process %q (pid %d)", name, p.PID)
}
