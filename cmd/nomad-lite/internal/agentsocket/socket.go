package agentsocket

import (
	"errors"
	"io/fs"
	"net"
	"time"
)

// FileName is the name of the socket of an agent in its data directory.
const FileName = "nomad.sock"

// FirstDeniedSocket returns the first of the socket paths that this user has no permission to connect to, or "" if
// there is none.
func FirstDeniedSocket(socketPaths []string) string {
	for _, socket := range socketPaths {
		c, err := net.DialTimeout("unix", socket, time.Second)
		if err == nil {
			c.Close()
		} else if DeniedSocketPath(err) != "" {
			return socket
		}
	}
	return ""
}

// DeniedSocketPath returns the path of the unix socket to which err denies the connection, or "" if err has another
// cause.
func DeniedSocketPath(err error) string {
	attempt := new(net.OpError)
	if errors.As(err, &attempt) && attempt.Net == "unix" && attempt.Addr != nil && errors.Is(err, fs.ErrPermission) {
		return attempt.Addr.String()
	}
	return ""
}
