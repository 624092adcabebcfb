package keeper

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// keeperDialer connects a plugin to its keeper. The plugin gets socketPath in its environment. After the first
// connection, dataDirHandle stays open and the socket is looked up in that directory, because the data directory may
// be moved, and another data directory may get the same path.
type keeperDialer struct {
	socketPath    string
	dataDirHandle *os.File // the data directory, opened with O_PATH; nil before the first connection
}

// dial connects to the socket and verifies that the listening process belongs to this user.
func (s *keeperDialer) dial() (*net.UnixConn, error) {
	if s.dataDirHandle != nil {
		return dialInDir(s.dataDirHandle, s.socketPath)
	}
	home, err := OpenDataDirOfSocket(s.socketPath)
	if err != nil {
		return nil, err
	}
	conn, err := dialInDir(home, s.socketPath)
	if err != nil {
		home.Close()
		return nil, err
	}
	s.dataDirHandle = home
	return conn, nil
}

// dialInDir connects to the socket whose path, relative to the open directory dataDir, has the last two elements of
// socketPath. The address of a socket is short, and socketPath may be longer.
func dialInDir(dataDir *os.File, socketPath string) (*net.UnixConn, error) {
	name := filepath.Join(filepath.Base(filepath.Dir(socketPath)), filepath.Base(socketPath))
	conn, err := net.DialUnix("unix", nil, unixAddrInDir(dataDir, name))
	if err != nil {
		return nil, err
	}
	if err := osprocess.CheckPeerUser(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("keeper socket %s: %w", socketPath, err)
	}
	return conn, nil
}

func (s *keeperDialer) closeDataDir() {
	if s.dataDirHandle != nil {
		s.dataDirHandle.Close()
		s.dataDirHandle = nil
	}
}
