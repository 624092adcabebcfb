//go:build linux

package osprocess

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeerCredentials returns the credentials of the process at the other end of a unix socket, as of its
// connect or listen call. The pid is 0 if that process is in a pid namespace that this
// process cannot see.
func PeerCredentials(conn syscall.Conn) (cred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	if controlErr := raw.Control(func(fd uintptr) { cred, err = socketPeerCredentials(int(fd)) }); controlErr != nil {
		return nil, controlErr
	}
	return cred, err
}

func socketPeerCredentials(fd int) (*unix.Ucred, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	return cred, nil
}

// CheckPeerUser returns an error unless the process at the other end of a unix socket has the same
// user as this process, or had it when it connected.
func CheckPeerUser(conn syscall.Conn) error { return checkPeerUser(PeerCredentials(conn)) }

// CheckPeerUserFD returns an error like CheckPeerUser, for the descriptor of a socket.
func CheckPeerUserFD(fd int) error { return checkPeerUser(socketPeerCredentials(fd)) }

func checkPeerUser(cred *unix.Ucred, err error) error {
	if err == nil && int(cred.Uid) != os.Geteuid() {
		err = fmt.Errorf("peer is user %d, not %d", cred.Uid, os.Geteuid())
	}
	return err
}
