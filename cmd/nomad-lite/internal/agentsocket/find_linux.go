package agentsocket

import (
	"cmp"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/datadir"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// FindConnectableSocket returns the path of a socket through which an agent on this machine accepts this user without a
// token, or "" if there is none.
func FindConnectableSocket() string {
	connectable, _ := findSockets()
	return connectable
}

// DefaultSocket returns the socket to which commands connect if the user names no address: that of FindConnectableSocket,
// or else one at which no process listens, because its agent was killed. It returns "" if there is none, and if this user has
// no permission to connect to a socket of an agent.
func DefaultSocket() string {
	connectable, refusing := findSockets()
	return cmp.Or(connectable, refusing)
}

// findSockets returns the first trusted socket at which a process accepts this user, or else the first at which none listens,
// unless this user has no permission to connect to another.
func findSockets() (connectable, refusing string) {
	var isDenied bool
	for _, socket := range DefaultSocketPaths() {
		if !isTrustedSocket(socket) {
			continue
		}
		// Only a connection attempt shows whether an agent listens there and accepts this
		// user.
		c, err := net.DialTimeout("unix", socket, time.Second)
		switch {
		case err == nil:
			c.Close()
			return socket, ""
		case errors.Is(err, fs.ErrPermission):
			isDenied = true
		case errors.Is(err, syscall.ECONNREFUSED):
			refusing = cmp.Or(refusing, socket)
		}
	}
	if isDenied {
		return "", ""
	}
	return "", refusing
}

// DefaultSocketPaths returns the default paths of the sockets of agents on this machine. The sockets need not exist.
func DefaultSocketPaths() []string {
	sockets := []string{filepath.Join(datadir.System, FileName)}
	if dir, err := datadir.Default(); err == nil && filepath.Join(dir, FileName) != sockets[0] {
		sockets = slices.Insert(sockets, 0, filepath.Join(dir, FileName))
	}
	return append(sockets, DevSocketPaths()...)
}

// DevSocketPaths returns the default paths of the sockets of agents in development mode that this user or root has
// started.
func DevSocketPaths() []string {
	sockets := []string{filepath.Join(datadir.Temporary(os.Geteuid()), FileName)}
	if os.Geteuid() != 0 {
		sockets = append(sockets, filepath.Join(datadir.Temporary(0), FileName))
	}
	return sockets
}

// isTrustedSocket reports whether a socket belongs to this user or to root, and whether no other
// user can replace it: tokens, variables and jobs are sent there.
func isTrustedSocket(socketPath string) bool {
	real, err := filepath.EvalSymlinks(socketPath)
	if err != nil {
		return false
	}
	info, err := os.Lstat(real)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	owned := ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
	return owned && safepath.CheckDir(filepath.Dir(real)) == nil && safepath.CheckParents(socketPath) == nil
}

// SocketPathsInTrustedDirs returns the default socket paths in directories in which only this user and root can create
// files.
func SocketPathsInTrustedDirs() []string {
	return slices.DeleteFunc(DefaultSocketPaths(), func(socket string) bool { return safepath.CheckDir(filepath.Dir(socket)) != nil })
}
