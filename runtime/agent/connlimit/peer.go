package connlimit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
)

// identifyPeer returns the identity of a connection's peer. A task's socket identifies the task. A connection to another unix
// socket, or over TCP from this machine, is identified by its peer's user, and any other by its peer's address.
func identifyPeer(c net.Conn) ClientIdentity {
	switch c.LocalAddr().Network() {
	case taskapi.Network:
		return ClientIdentity{Task, c.RemoteAddr().String()}
	case "unix":
		name := "unix socket"
		if uid, err := UnixPeerUID(c); err == nil {
			name = fmt.Sprint("unix socket, uid ", uid)
		}
		return ClientIdentity{Operator, name}
	}
	remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return ClientIdentity{Unauthenticated, c.RemoteAddr().String()}
	}
	peer := remote.Addr().Unmap().WithZone("")
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err == nil && (peer.IsLoopback() || peer == local.Addr().Unmap().WithZone("")) {
		if uid, err := tcpSocketUID(remote, local); err == nil {
			id := ClientIdentity{Unauthenticated, fmt.Sprint("uid ", uid)}
			if int(uid) == os.Geteuid() {
				id.Class = Operator
			}
			return id
		}
	}
	switch {
	case peer.IsLoopback():
		return ClientIdentity{Unauthenticated, "loopback"} // each client on this machine can choose among these addresses
	case peer.Is6():
		network, _ := peer.Prefix(64) // the length is valid; one client often has a whole network
		return ClientIdentity{Unauthenticated, network.String()}
	}
	return ClientIdentity{Unauthenticated, peer.String()}
}

// UnixPeerUID returns the user of the process that has connected to a unix socket. c can be a [Conn].
func UnixPeerUID(c net.Conn) (uid uint32, err error) {
	if limited, ok := c.(*Conn); ok {
		c = limited.Conn
	}
	conn, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var credentials *unix.Ucred
		if credentials, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = credentials.Uid
		}
	})
	return uid, errors.Join(err, controlErr)
}

// Offsets and values from linux/inet_diag.h, which golang.org/x/sys/unix lacks.
const (
	diagRequestSize = unix.SizeofNlMsghdr + 56 // struct inet_diag_req_v2
	diagReplySize   = unix.SizeofNlMsghdr + 72 // struct inet_diag_msg
	diagState       = unix.SizeofNlMsghdr + 1
	diagUID         = unix.SizeofNlMsghdr + 64
	diagInode       = unix.SizeofNlMsghdr + 68
	loopbackIndex   = 1
	noDiagCookie    = ^uint64(0)
)

// errNoOwner is the error for a TCP socket without a process.
var errNoOwner = errors.New("the socket belongs to no process")

// tcpSocketUID returns the user of this machine's TCP socket connected from socketAddr to connectedTo. The kernel finds the
// socket in a hash table, and replies before the send returns.
func tcpSocketUID(socketAddr, connectedTo netip.AddrPort) (uint32, error) {
	reply, err := querySockDiag(socketAddr, connectedTo)
	if err != nil {
		return 0, err
	}
	// A closed connection's sockets, and sockets listening at the address, are not the peer's. The kernel reports the user 0 and
	// no inode for a socket without a process.
	if reply[diagState] == unix.BPF_TCP_LISTEN || binary.NativeEndian.Uint32(reply[diagInode:]) == 0 {
		return 0, errNoOwner
	}
	return binary.NativeEndian.Uint32(reply[diagUID:]), nil
}

// querySockDiag returns the kernel's description of a TCP socket.
func querySockDiag(own, other netip.AddrPort) (reply [diagReplySize]byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return reply, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	from, to := own.Addr().Unmap(), other.Addr().Unmap()
	family := byte(unix.AF_INET6)
	if from.Is4() {
		family = unix.AF_INET
	}
	native, network := binary.NativeEndian, binary.BigEndian
	r := make([]byte, 0, diagRequestSize)
	r = native.AppendUint32(r, diagRequestSize)
	r = native.AppendUint16(r, unix.SOCK_DIAG_BY_FAMILY)
	r = native.AppendUint16(r, unix.NLM_F_REQUEST)
	r = append(r, make([]byte, 8)...) // sequence number and port
	r = append(r, family, unix.IPPROTO_TCP, 0, 0)
	r = native.AppendUint32(r, ^uint32(0)) // a bit for each socket state
	r = network.AppendUint16(r, own.Port())
	r = network.AppendUint16(r, other.Port())
	for _, addr := range []netip.Addr{from, to} {
		var field [16]byte
		copy(field[:], addr.AsSlice())
		r = append(r, field[:]...)
	}
	r = native.AppendUint32(r, loopbackIndex)
	r = native.AppendUint64(r, noDiagCookie)
	if err := unix.Sendto(fd, r, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return reply, os.NewSyscallError("sendto", err)
	}
	n, _, err := unix.Recvfrom(fd, reply[:], unix.MSG_DONTWAIT)
	switch {
	case err != nil:
		return reply, os.NewSyscallError("recvfrom", err)
	case n >= unix.SizeofNlMsghdr+4 && native.Uint16(reply[4:]) == unix.NLMSG_ERROR:
		return reply, os.NewSyscallError("sock_diag", unix.Errno(-int32(native.Uint32(reply[unix.SizeofNlMsghdr:]))))
	case n < diagReplySize:
		return reply, errors.New("sock_diag: the reply of the kernel is too short")
	}
	return reply, nil
}
