package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

const (
	defaultHTTPPort = 4646
	loopback        = "127.0.0.1"
	socketFile      = "nomad.sock"
	tokenFile       = "token"
)

// listeners are where the API is served.
type listeners struct {
	tcp    net.Listener // nil if there is none
	unix   net.Listener
	socket string
}

// listen opens the TCP port, unless it would have to speak in the clear what was
// meant to be encrypted.
func listen(c *config.Config, logger hclog.Logger) (*listeners, error) {
	if c.TLS {
		logger.Warn("this build cannot serve TLS: the API is served on the unix socket only")
		return &listeners{}, nil
	}
	host, port := loopback, defaultHTTPPort
	switch {
	case c.HTTPAddr != "":
		host = c.HTTPAddr
	case c.BindAddr != "":
		host = c.BindAddr
	}
	if c.HTTPPort != nil {
		port = *c.HTTPPort
	}
	address := net.JoinHostPort(host, strconv.Itoa(port))
	tcp, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: another agent may be running; ports { http = … } in a configuration file chooses another port", err)
	}
	if err != nil {
		return nil, err
	}
	return &listeners{tcp: tcp}, nil
}

// addSocket opens the unix socket in the data directory. Nobody else can connect
// at any moment: it is made in a directory of its own, and moved when its mode is
// set.
func (l *listeners) addSocket(dataDir string) error {
	dir, err := os.MkdirTemp(dataDir, ".socket-")
	if err != nil {
		return fmt.Errorf("make unix socket: %w", err)
	}
	defer os.RemoveAll(dir)
	// The path of a socket has room for 107 bytes; this one is always short.
	handle, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("make unix socket: %w", err)
	}
	defer handle.Close()
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", handle.Fd(), socketFile)})
	if err != nil {
		return fmt.Errorf("make unix socket: %w", err)
	}
	unix.SetUnlinkOnClose(false)
	made := filepath.Join(dir, socketFile)
	socket := filepath.Join(dataDir, socketFile)
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, socket)); err != nil {
		unix.Close()
		return fmt.Errorf("make unix socket: %w", err)
	}
	l.unix, l.socket = unix, socket
	return nil
}

func (l *listeners) all() []net.Listener {
	all := []net.Listener{l.unix}
	if l.tcp != nil {
		all = append(all, l.tcp)
	}
	return all
}

func (l *listeners) close() {
	if l.tcp != nil {
		l.tcp.Close()
	}
	if l.unix != nil {
		l.unix.Close()
		os.Remove(l.socket)
	}
}

// String says where the API is.
func (l *listeners) String() string {
	if l.tcp == nil {
		return "unix://" + l.socket
	}
	return "http://" + l.tcp.Addr().String()
}

// port is that of the TCP listener.
func (l *listeners) port() string {
	_, port, err := net.SplitHostPort(l.tcp.Addr().String())
	if err != nil {
		return ""
	}
	return port
}

// advertise is how clients reach the API over TCP: what the operator says, or
// where it listens. It is empty if there is no TCP, or if it listens everywhere.
func (l *listeners) advertise(c *config.Config) string {
	switch {
	case l.tcp == nil:
		return ""
	case c.HTTPAdvertise != "":
		if _, _, err := net.SplitHostPort(c.HTTPAdvertise); err == nil {
			return c.HTTPAdvertise
		}
		return net.JoinHostPort(c.HTTPAdvertise, l.port())
	}
	if address, ok := l.tcp.Addr().(*net.TCPAddr); ok && !address.IP.IsUnspecified() {
		return address.String()
	}
	return ""
}

// everywhere is the address of a listener on all addresses.
func (l *listeners) everywhere(ip string) string {
	if l.tcp == nil {
		return ""
	}
	return net.JoinHostPort(ip, l.port())
}

// names are the host names by which the API may be asked for.
func (l *listeners) names(c *config.Config, hostname string) []string {
	names := []string{hostname, c.Node.Name, c.HTTPAddr, c.BindAddr, c.HTTPAdvertise}
	if host, _, err := net.SplitHostPort(c.HTTPAdvertise); err == nil {
		names = append(names, host)
	}
	return names
}

// isLoopback reports whether only this machine can connect over TCP.
func (l *listeners) isLoopback() bool {
	if l.tcp == nil {
		return true
	}
	address, ok := l.tcp.Addr().(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

// token returns what a client over TCP must show: an open port of an agent that
// runs as root gives root to every user of the machine, or of the network. It is
// empty where the operator wants none and the port is one of this machine only.
func (l *listeners) token(c *config.Config, dev bool, dataDir string, s *streams, logger hclog.Logger) (string, error) {
	if (dev || c.NoTokens) && l.isLoopback() {
		return "", nil
	}
	if c.NoTokens || dev {
		logger.Warn("clients must show the token: the API listens on more than the loopback address", "address", l.tcp.Addr().String())
	}
	path := filepath.Join(dataDir, tokenFile)
	text, err := os.ReadFile(path)
	switch token := strings.TrimSpace(string(text)); {
	case err == nil && token == "":
		return "", fmt.Errorf("%s is empty: remove it, and the next agent makes another", path)
	case err == nil:
		return token, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read token: %w", err)
	}
	id, err := uuid.NewRandomFromReader(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	_, err = f.WriteString(id.String() + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("make token: %w", err), os.Remove(path))
	}
	fmt.Fprintf(s.err, "==> over TCP the API wants a token, which is in %s:\n    export NOMAD_TOKEN=%s\n", path, id)
	return id.String(), nil
}

// supervised is how systemd is told what becomes of the agent, if it has started
// us.
type supervised struct{ socket string }

// supervision takes the address of systemd out of the environment: it is not for
// the tasks.
func supervision() supervised {
	const variable = "NOTIFY_SOCKET"
	defer os.Unsetenv(variable)
	return supervised{os.Getenv(variable)}
}

func (s supervised) tell(state string) {
	if s.socket == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: s.socket})
	if err != nil {
		return // who has asked for it is not there
	}
	defer c.Close()
	_, _ = c.Write([]byte(state))
}
