package ui

import (
	"net"
	"os"
	"slices"
	"strconv"

	"github.com/prometheus/procfs"
)

// tcpEstablished is the state of a connected TCP socket in /proc/net/tcp. For sockets in later states the kernel
// reports no user.
const tcpEstablished = 1

// peerRunsAsOneOf reports whether the process at the other end of a loopback connection runs as one of the users.
func peerRunsAsOneOf(c net.Conn, uids []int) bool {
	local, isLocalTCP := c.LocalAddr().(*net.TCPAddr)
	remote, isRemoteTCP := c.RemoteAddr().(*net.TCPAddr)
	if !isLocalTCP || !isRemoteTCP {
		return false
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return false
	}
	//lint:ignore SA1019 the replacement is a netlink library, which reads the same with more code
	for _, read := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} { // an IPv6 socket can be connected to an IPv4 address
		lines, _ := read() // a machine without IPv6 does not have the file
		for _, line := range lines {
			if line.St == tcpEstablished && line.LocalPort == uint64(remote.Port) && line.RemPort == uint64(local.Port) &&
				line.LocalAddr.Equal(remote.IP) && line.RemAddr.Equal(local.IP) {
				return slices.Contains(uids, int(line.UID))
			}
		}
	}
	return false
}

// allowedBrowserUIDs returns the user IDs whose browsers may connect: that of this process and, under sudo, that of the
// user who ran sudo.
func allowedBrowserUIDs() []int {
	uids := []int{os.Geteuid()}
	if sudo, err := strconv.Atoi(os.Getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		uids = append(uids, sudo)
	}
	return uids
}
