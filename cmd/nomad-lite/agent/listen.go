package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/heldport"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
	"github.com/nomad-lite/nomad-lite/runtime/agent/connlimit"
)

const (
	defaultHTTPPort = 4646
	loopbackAddress = "127.0.0.1"
)

// apiListeners are the network listeners on which the agent serves its HTTP API.
type apiListeners struct {
	connLimiter           *connlimit.Limiter
	tcpListener           net.Listener            // nil if the API is not served over TCP
	certificates          *reloadableCertificates // nil if the TCP listener does not use TLS
	unixListener          net.Listener
	taskAPISocketListener net.Listener // accepts connections on the API sockets in the tasks' directories
	unixSocketPath        string
	unixSocketLinkPath    string // symbolic link to unixSocketPath, at a path where commands look for a socket; "" if there is no link
}

// shouldServeTCP reports whether the API is served over TCP. An agent in development mode that runs as root serves TCP only
// if the operator has requested that explicitly: root's commands find its unix socket.
func shouldServeTCP(c *config.Config, dev bool) bool {
	return !dev || os.Geteuid() != 0 || c.HTTPPort != nil || c.HTTPListenAddr != "" || c.BindAddr != "" || c.DisableAccessControl
}

// newAPIListeners returns an apiListeners without a listener. If the API will be served with TLS, it has the certificates.
func newAPIListeners(c *config.Config, dev bool, logger hclog.Logger) (*apiListeners, error) {
	l := &apiListeners{connLimiter: connlimit.New(connlimit.Config{MaxConnsPerClient: c.MaxHTTPConnsPerClient, Logger: logger})}
	if !shouldServeTCP(c, dev) || !c.TLS.ServeHTTPS {
		return l, nil
	}
	l.certificates = &reloadableCertificates{}
	return l, l.certificates.loadFiles(c.TLS, !c.Cluster.IsNode(), logger)
}

// listenTCP opens the TCP listener, which the keeper stores.
func (l *apiListeners) listenTCP(ctx context.Context, k heldport.Keeper, c *config.Config, logger hclog.Logger) error {
	host, port := loopbackAddress, defaultHTTPPort
	switch {
	case c.HTTPListenAddr != "":
		host = c.HTTPListenAddr
	case c.BindAddr != "":
		host = c.BindAddr
	}
	if c.HTTPPort != nil {
		port = *c.HTTPPort
	}
	address := net.JoinHostPort(host, strconv.Itoa(port))
	tcp, guardErr, err := listenTCPRetryingIfInUse(ctx, k, address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: %s; ports { http = … } in a configuration file chooses another port", err, describePortOwner(host, port))
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%w: choose an address of this machine with bind_addr, addresses { http = … } or -bind", err)
	}
	if err != nil {
		return err
	}
	if guardErr != nil {
		logger.Warn("another process can answer programs that connect to localhost instead of the agent's address", "address", tcp.Addr().String(), "error", guardErr)
	}
	l.tcpListener = l.connLimiter.LimitListener(tcp)
	if l.certificates != nil {
		l.tcpListener = tls.NewListener(l.tcpListener, l.certificates.listenerTLSConfig())
	}
	return nil
}

// describePortOwner describes the process that listens on a port at an address of a host.
func describePortOwner(host string, port int) string {
	owners := hostport.FindListeners(host, port)
	if len(owners) == 0 {
		return "no process listens there: a process has bound it, or connections of an earlier listener have not expired, which takes a minute"
	}
	keepers := keeper.FindRunning()
	keeperDir := ""
	for _, owner := range owners {
		i := slices.IndexFunc(keepers, func(k keeper.RunningKeeper) bool { return k.Process.PID == owner.PID })
		if i < 0 {
			return owner.String() + " has it" // an agent has it together with its keeper
		}
		keeperDir, _ = os.Readlink(keepers[i].DataDir) // without it the message still has the pid
	}
	return fmt.Sprintf("the keeper (pid %d, uid %d) of the data directory %s, whose agent does not run, has it until its tasks have ended; nomad-lite agent stop -all %s ends them",
		owners[0].PID, owners[0].UID, keeperDir, shellquote.Quote(keeperDir))
}

// killedAgentTimeout is how long listenTCPRetryingIfInUse waits.
const killedAgentTimeout = 2 * time.Second

// listenTCPRetryingIfInUse listens on a TCP address. If the address is in use it tries again for killedAgentTimeout,
// because an agent that has just been killed together with its keeper can still be dying, and its children hold its listener until
// they have executed their program. It polls, because the kernel does not report that an address is free. The end of ctx ends the wait.
func listenTCPRetryingIfInUse(ctx context.Context, k heldport.Keeper, address string) (l net.Listener, guardErr, err error) {
	err = wait.WhileError(ctx, syscall.EADDRINUSE, killedAgentTimeout, func() (err error) {
		l, guardErr, err = heldport.Listen(ctx, k, address)
		return err
	})
	return l, guardErr, err
}

// addUnixSocket opens the unix socket in the data directory. Only this user, and the members of the group if there
// is one, can ever connect: the socket is created in the private directory for sockets, and moved to the data
// directory after its mode is set. No directory is made for the socket, because that would fail on a full disk.
func (l *apiListeners) addUnixSocket(dataDir, group string, logger hclog.Logger) error {
	mode, gid, err := socketModeAndGroup(dataDir, group, logger)
	if err != nil {
		return err
	}
	dir, err := keeper.OpenOrCreateDataDir(dataDir)
	if err != nil {
		return fmt.Errorf("make unix socket: %w", err)
	}
	defer dir.Close()
	unix, err := dir.ListenReplacingSocket(agentsocket.FileName)
	if err != nil {
		return fmt.Errorf("make unix socket: %w", err)
	}
	made := filepath.Join(helperdir.SocketDir(dataDir), agentsocket.FileName)
	socket := filepath.Join(dataDir, agentsocket.FileName)
	if err := errors.Join(os.Lchown(made, -1, gid), os.Chmod(made, mode), os.Rename(made, socket)); err != nil {
		unix.Close()
		return fmt.Errorf("make unix socket: %w", errors.Join(err, os.Remove(made)))
	}
	l.unixListener, l.unixSocketPath = l.connLimiter.LimitListener(unix), socket
	return nil
}

// socketModeAndGroup returns the file mode of the unix socket and the id of its group, which the configuration gives by
// name or id. The id -1 means the group of the process.
func socketModeAndGroup(dataDir, group string, logger hclog.Logger) (fs.FileMode, int, error) {
	if group == "" {
		return 0o600, -1, nil
	}
	found, err := user.LookupGroup(group)
	if err != nil {
		found, err = user.LookupGroupId(group)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("unix_sockets: there is no group %q", group)
	}
	gid, err := strconv.Atoi(found.Gid)
	if err != nil {
		return 0, 0, fmt.Errorf("unix_sockets: group %q: %w", group, err)
	}
	info, err := os.Stat(dataDir)
	if err != nil {
		return 0, 0, fmt.Errorf("unix_sockets: %w", err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode()&0o001 == 0 && (int(stat.Gid) != gid || info.Mode()&0o010 == 0) {
		logger.Warn("members of the group cannot enter the data directory, and so cannot use the unix socket", "group", group, "path", dataDir)
	}
	as := "this user"
	if os.Geteuid() == 0 {
		as = "root"
	}
	logger.Warn("each member of the group can do through the unix socket what "+as+" can", "group", group)
	return 0o660, gid, nil
}

// addSocketLinkUnlessServed creates the symbolic link by which commands find the socket of an agent in development
// mode, unless the link already leads to the socket of another running agent.
func (l *apiListeners) addSocketLinkUnlessServed(linkPath string) error {
	if c, err := net.DialTimeout("unix", linkPath, time.Second); err == nil {
		return c.Close()
	}
	dir, err := os.MkdirTemp(filepath.Dir(linkPath), ".socket-")
	if err != nil {
		return fmt.Errorf("make link to unix socket: %w", err)
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, agentsocket.FileName)
	if err := os.Symlink(l.unixSocketPath, made); err != nil {
		return fmt.Errorf("make link to unix socket: %w", err)
	}
	if err := os.Rename(made, linkPath); err != nil {
		return fmt.Errorf("make link to unix socket: %w", err)
	}
	l.unixSocketLinkPath = linkPath
	return nil
}

func (l *apiListeners) allListeners() []net.Listener {
	all := []net.Listener{l.unixListener, l.taskAPISocketListener}
	if l.tcpListener != nil {
		all = append(all, l.tcpListener)
	}
	return all
}

func (l *apiListeners) closeAndRemoveSocketFiles() {
	if l.tcpListener != nil {
		l.tcpListener.Close()
	}
	if l.unixListener != nil {
		l.unixListener.Close()
		os.Remove(l.unixSocketPath)
	}
	if target, err := os.Readlink(l.unixSocketLinkPath); err == nil && target == l.unixSocketPath {
		os.Remove(l.unixSocketLinkPath)
	}
}

// String returns the URL of the API: the TCP address or, without TCP, the unix socket.
func (l *apiListeners) String() string {
	if l.tcpListener == nil {
		return "unix://" + l.unixSocketPath
	}
	if l.certificates != nil {
		return "https://" + l.tcpListener.Addr().String()
	}
	return "http://" + l.tcpListener.Addr().String()
}

// tcpPort returns the port of the TCP listener, which must exist.
func (l *apiListeners) tcpPort() string {
	_, port, err := net.SplitHostPort(l.tcpListener.Addr().String())
	if err != nil {
		return ""
	}
	return port
}

// advertisedTCPAddress returns the address by which clients reach the API over TCP: the configured
// address, or the address of the listener. It is empty without TCP, or if the agent listens
// on all addresses.
func (l *apiListeners) advertisedTCPAddress(c *config.Config) string {
	switch {
	case l.tcpListener == nil:
		return ""
	case c.HTTPAdvertiseAddr != "":
		if _, _, err := net.SplitHostPort(c.HTTPAdvertiseAddr); err == nil {
			return c.HTTPAdvertiseAddr
		}
		return net.JoinHostPort(c.HTTPAdvertiseAddr, l.tcpPort())
	}
	if address, ok := l.tcpListener.Addr().(*net.TCPAddr); ok && !address.IP.IsUnspecified() {
		return address.String()
	}
	return ""
}

// tcpAddressWithIP returns the address IP:PORT of a TCP listener on all interfaces, for an IP address of this machine.
// It is empty without TCP.
func (l *apiListeners) tcpAddressWithIP(ip string) string {
	if l.tcpListener == nil {
		return ""
	}
	return net.JoinHostPort(ip, l.tcpPort())
}

// acceptedHostNames returns the names that the API accepts in the Host header of requests.
func (l *apiListeners) acceptedHostNames(c *config.Config, hostname string) []string {
	names := []string{hostname, c.Node.Name, c.HTTPListenAddr, c.BindAddr, c.HTTPAdvertiseAddr}
	if host, _, err := net.SplitHostPort(c.HTTPAdvertiseAddr); err == nil {
		names = append(names, host)
	}
	return names
}

// onlyLocalCanConnect reports whether no other machine can connect to the API: it has no TCP listener, or one on a
// loopback address.
func (l *apiListeners) onlyLocalCanConnect() bool {
	if l.tcpListener == nil {
		return true
	}
	address, ok := l.tcpListener.Addr().(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

// otherNodesCanConnect reports whether other machines can connect to the API: it listens on more than a loopback address, or the
// configuration names an address for other machines, which then leads to the listener.
func (l *apiListeners) otherNodesCanConnect(c *config.Config) bool {
	return l.tcpListener != nil && (c.HTTPAdvertiseAddr != "" || !l.onlyLocalCanConnect())
}
