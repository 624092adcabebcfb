package ui

import (
	"net"
	"os"
	"slices"
	"strconv"

	"github.com/nomad-lite/nomad-lite/internal/hostport"
)

// peerRunsAsOneOf reports whether the process at the other end of a loopback connection runs as one of the users.
func peerRunsAsOneOf(c net.Conn, uids []int) bool {
	local, isLocalTCP := c.LocalAddr().(*net.TCPAddr)
	remote, isRemoteTCP := c.RemoteAddr().(*net.TCPAddr)
	if !isLocalTCP || !isRemoteTCP {
		return false
	}
	owner, found := hostport.OwnerOfConnected(remote.AddrPort(), local.AddrPort())
	return found && slices.Contains(uids, owner.UID)
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
