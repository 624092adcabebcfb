package keeper

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// SocketPath returns the path of the socket of the keeper of a data directory, which plugins have in the environment
// variable EnvSocket.
func SocketPath(dataDir string) string {
	return filepath.Join(helperdir.SocketDir(dataDir), keeperwire.SocketName)
}

// DataDir is an open data directory, with the connections of package net to the sockets in it.
type DataDir struct{ *helperdir.Dir }

// OpenOrCreateDataDir opens a data directory like [helperdir.OpenOrCreate].
func OpenOrCreateDataDir(path string) (*DataDir, error) {
	d, err := helperdir.OpenOrCreate(path)
	if err != nil {
		return nil, err
	}
	return &DataDir{d}, nil
}

// OpenDataDirOfSocket opens the data directory (O_PATH) in which a keeper listens on socketPath, the value of EnvSocket. It returns no
// DataDir, which would make each plugin 100 kB larger.
func OpenDataDirOfSocket(socketPath string) (*os.File, error) {
	return helperdir.OpenHandle(filepath.Dir(filepath.Dir(socketPath)))
}

// ListenReplacingSocket listens on a socket like [helperdir.Dir.ListenReplacingSocket].
func (d *DataDir) ListenReplacingSocket(socketFileName string) (*net.UnixListener, error) {
	socket, err := d.Dir.ListenReplacingSocket(socketFileName)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	listener, err := net.FileListener(socket)
	if err != nil {
		return nil, err
	}
	return listener.(*net.UnixListener), nil
}

// unixAddrInDir returns a short address of a socket in an open directory: the address contains the directory's
// descriptor, and is valid in this process while the directory is open.
func unixAddrInDir(dir *os.File, name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: safepath.ProcPathAt(int(dir.Fd()), name)}
}

// DialAndCheckPeerUser connects to a socket in the directory for sockets, and verifies that the listening
// process belongs to this user. The error is fs.ErrNotExist without a socket, and ECONNREFUSED
// without a listener.
func (d *DataDir) DialAndCheckPeerUser(socketFileName string) (*net.UnixConn, error) {
	dir, err := d.OpenSocketDir()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	conn, err := net.DialUnix("unix", nil, unixAddrInDir(dir, socketFileName))
	if err != nil {
		return nil, err
	}
	if err := osprocess.CheckPeerUser(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("socket %s: %w", filepath.Join(helperdir.SocketDir(d.Path()), socketFileName), err)
	}
	return conn, nil
}

// Keeper returns the keeper that runs in the directory, if there is one. Each error satisfies [osprocess.IsResourceExhausted].
func (d *DataDir) Keeper() (keeper osprocess.ID, running bool, err error) {
	return d.LockOwner(keeperwire.PIDFileName)
}
