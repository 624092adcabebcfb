package keeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// setConn replaces the connection that all methods of the client use.
func (c *Client) setConn(l *clientConn) {
	c.mu.Lock()
	c.keeperID, c.keeperIsEphemeral = l.keeperHello.Process, l.keeperIsEphemeral
	c.mu.Unlock()
	c.conns.SetConn(l, nil)
}

// keepConnected connects again each time when a connection to the keeper ends, until ctx ends. l is the first connection.
func (c *Client) keepConnected(ctx context.Context, l *clientConn) {
	logError := func(err error) {
		if c.isAgent {
			c.cfg.Logger.Error("no keeper", "dir", c.cfg.DataDir, "error", err)
		}
	}
	for ok := true; ok; {
		select {
		case <-l.Done():
		case <-ctx.Done():
		}
		c.conns.SetConn(nil, nil)
		l.closeAndWait()
		if c.isAgent && ctx.Err() == nil {
			c.cfg.Logger.Warn("keeper is gone", "pid", l.keeperHello.Process.PID, "dir", c.cfg.DataDir)
		}
		if l, ok = c.conns.ConnectWithBackoff(ctx, c.connectOrStartKeeper, logError); ok {
			c.setConn(l)
		}
	}
}

// connectOrStartKeeper returns a connection to the keeper. The client of a plugin only connects.
// The client of an agent starts a keeper if none runs, and copies stored descriptors in
// both directions, so that client and keeper have all of them.
func (c *Client) connectOrStartKeeper(ctx context.Context) (*clientConn, error) {
	if !c.isAgent {
		conn, err := c.pluginDialer.dial()
		if err != nil {
			return nil, err
		}
		return newClientConn(ctx, conn, c.hello())
	}

	lock, err := c.dataDir.LockFile(keeperwire.LockFileName, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	l, err := c.connectUpgradeOrKillKeeper(ctx)
	if err == nil && l == nil {
		l, err = c.startAndConnectKeeper(ctx)
	}
	if err != nil {
		return nil, err
	}
	// The keeper can have been started by an earlier agent with a lower limit of open files.
	if _, err := l.keeperHello.Process.RaiseDescriptorLimit(); err != nil {
		c.cfg.Logger.Warn("the keeper keeps a lower limit of open files than the agent", "pid", l.keeperHello.Process.PID, "error", err)
	}
	if err := c.syncFDsAndProcsWithKeeper(ctx, l); err != nil {
		l.closeAndWait()
		return nil, fmt.Errorf("hand over descriptors: %w", err)
	}
	return l, nil
}

// hello returns the hello message of this client.
func (c *Client) hello() framing.Hello {
	role := framing.RolePlugin
	if c.isAgent {
		role = framing.RoleAgent
	}
	return framing.NewHello(role, cmp.Or(c.cfg.testProtocolVersion, keeperwire.ProtocolVersion))
}

func (c *Client) dialKeeper() (*net.UnixConn, error) {
	return c.dataDir.DialAndCheckPeerUser(keeperwire.SocketName)
}

// connectUpgradeOrKillKeeper returns a connection to the keeper of the directory, or nil if none runs.
// A keeper runs as long as a process holds the lock of its PID file, even if its socket is
// missing. connectUpgradeOrKillKeeper makes a keeper without a socket listen again, and kills a keeper
// that does not respond. If this process has no free descriptors, connectUpgradeOrKillKeeper returns
// that error and kills nothing. The caller holds the lock of the directory.
func (c *Client) connectUpgradeOrKillKeeper(ctx context.Context) (*clientConn, error) {
	logger := c.cfg.Logger.With("dir", c.cfg.DataDir)
	conn, err := c.dialKeeper()
	if err != nil && !isNotListeningError(err) {
		return nil, err
	}
	if err != nil {
		p, running, err := c.dataDir.LockOwner(keeperwire.PIDFileName)
		if !running {
			return nil, err
		}
		logger.Warn("the socket of the keeper is missing, the keeper listens again", "pid", p.PID)
		if conn, err = c.recreateSocketAndDialKeeper(ctx, p); osprocess.IsResourceExhausted(err) || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		} else if err != nil {
			return nil, killKeeper(ctx, c.dataDir, c.cfg.Logger, "keeper cannot be reached, killing it", err)
		}
	}
	l, err := newClientConn(ctx, conn, c.hello())
	if err == nil {
		return c.upgradeOrKillKeeper(ctx, l)
	}
	if ctx.Err() != nil || osprocess.IsResourceExhausted(err) {
		return nil, err
	}
	return nil, killKeeper(ctx, c.dataDir, c.cfg.Logger, "keeper does not answer, killing it", err)
}

// killKeeper kills the keeper of the directory, if one runs, and blocks until it has ended. The lock has its process: a hello message
// of another version can lack it.
func killKeeper(ctx context.Context, dir *DataDir, logger hclog.Logger, message string, cause error) error {
	p, running, err := dir.LockOwner(keeperwire.PIDFileName)
	if err != nil || !running {
		return err
	}
	logger.Warn(message, "pid", p.PID, "dir", dir.Path(), "error", cause)
	if err := p.KillAndWait(ctx); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// isNotListeningError reports whether an error of net.Dial means that no process listens.
func isNotListeningError(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// recreateSocketAndDialKeeper makes a keeper whose socket is missing listen again, and connects to the keeper.
func (c *Client) recreateSocketAndDialKeeper(ctx context.Context, p osprocess.ID) (*net.UnixConn, error) {
	if err := c.dataDir.EnsurePrivateSocketDir(); err != nil {
		return nil, err
	}
	if err := p.Signal(unix.SIGHUP); err != nil {
		return nil, err
	}
	for end := time.Now().Add(listenTimeout); ; {
		conn, err := c.dialKeeper()
		if err == nil || !isNotListeningError(err) || time.Now().After(end) || !p.Alive() {
			return conn, err
		}
		select {
		case <-time.After(5 * time.Millisecond): // a loop, because the keeper does not report that it listens
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// listenTimeout is the maximum time that recreateSocketAndDialKeeper waits for the keeper to listen.
const listenTimeout = 2 * time.Second

// upgradeOrKillKeeper makes a keeper of another build execute this program in its place. It returns the
// connection to the resulting keeper, or nil if none runs. If a keeper of this version cannot execute
// the program, the keeper continues, and upgradeOrKillKeeper returns the connection l. A keeper of another version is
// then killed, because the agent cannot use it; the tasks continue, and their drivers find them in /proc.
func (c *Client) upgradeOrKillKeeper(ctx context.Context, l *clientConn) (*clientConn, error) {
	otherVersion := l.keeperHello.Version != c.hello().Version
	exe, err := os.Open(selfExePath)
	if err != nil && otherVersion {
		l.closeAndWait()
		return nil, err
	}
	if err != nil {
		return l, nil
	}
	defer exe.Close()
	if !otherVersion {
		if same, err := sameExecutable(ctx, l.keeperHello.Process, exe, func() (*clientConn, error) { return l, nil }); same || err != nil {
			return l, nil
		}
	}
	logger := c.cfg.Logger.With("pid", l.keeperHello.Process.PID, "dir", c.cfg.DataDir, "version", l.keeperHello.Version, "build", l.keeperHello.Build)
	resp, _, err := l.call(ctx, &keeperwire.Request{Op: keeperwire.OpReplaceProgram, Args: c.cfg.KeeperArgv}, int(exe.Fd()))
	if !errors.Is(err, errConnDown) {
		if err == nil {
			err = resp.Err()
		}
		if !otherVersion {
			logger.Warn("keeper stays another build", "error", err)
			return l, ctx.Err()
		}
		l.closeAndWait()
		if ctx.Err() != nil || osprocess.IsResourceExhausted(err) {
			return nil, fmt.Errorf("replace keeper of version %d: %w", l.keeperHello.Version, err)
		}
		return nil, killKeeper(ctx, c.dataDir, c.cfg.Logger, "keeper of another version cannot be replaced, killing it", fmt.Errorf("version %d, build %s: %w", l.keeperHello.Version, l.keeperHello.Build, err))
	}
	l.closeAndWait()
	logger.Info("keeper was replaced by this build")
	conn, err := c.dialKeeper()
	if err == nil {
		l, err = newClientConn(ctx, conn, c.hello())
	}
	switch {
	case err == nil:
		return l, nil
	case osprocess.IsResourceExhausted(err) || ctx.Err() != nil:
		return nil, err // the keeper still runs: a later attempt connects to it
	default:
		return nil, nil // the keeper has exited during its replacement
	}
}

// syncFDsAndProcsWithKeeper sends a new keeper the processes and descriptors of earlier keepers that
// the new keeper lacks, and copies to the client the descriptors that an earlier agent has stored in
// the keeper.
func (c *Client) syncFDsAndProcsWithKeeper(ctx context.Context, l *clientConn) error {
	if managedProcs := c.pruneAndListManagedProcs(); len(managedProcs) > 0 {
		resp, _, err := l.call(ctx, &keeperwire.Request{Op: keeperwire.OpAdoptProcesses, ManagedProcs: managedProcs})
		if err == nil {
			err = resp.Err()
		}
		if err != nil {
			return err
		}
	}
	keeperKeys, err := c.copyFDsFromKeeper(ctx, l)
	if err != nil {
		return err
	}
	for keys := c.fdKeysNotIn(keeperKeys); len(keys) > 0; {
		n := min(len(keys), keeperwire.MaxMessageFDs)
		if err := c.storeFDsInKeeper(ctx, l, keys[:n]); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// copyFDsFromKeeper copies to the client the keeper's descriptors that the client does not
// have. It returns the keys of all descriptors that the keeper stores.
func (c *Client) copyFDsFromKeeper(ctx context.Context, l *clientConn) (keeperKeys []string, err error) {
	resp, _, err := l.call(ctx, &keeperwire.Request{Op: keeperwire.OpListFDs})
	if err == nil {
		err = resp.Err()
	}
	if err != nil {
		return nil, err
	}
	l.keeperIsEphemeral = resp.Ephemeral
	drain := map[string]bool{}
	c.mu.Lock()
	for i, key := range resp.Keys {
		if _, have := c.fdCopyByKey[key]; !have {
			drain[key] = i < len(resp.DrainWithoutAgent) && resp.DrainWithoutAgent[i]
		}
	}
	c.mu.Unlock()
	for keys := range slices.Chunk(slices.Collect(maps.Keys(drain)), keeperwire.MaxMessageFDs) {
		fdByKey, err := l.getFDs(ctx, keys)
		c.mu.Lock()
		for key, fd := range fdByKey {
			c.fdCopyByKey[key] = fdCopy{fd, drain[key]}
		}
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	return resp.Keys, nil
}

// getFDs returns copies of the keeper's descriptors with the given keys, without those that were removed after the keeper had
// listed them; some of them with an error.
func (l *clientConn) getFDs(ctx context.Context, keys []string) (fdByKey map[string]int, err error) {
	resp, fds, err := l.call(ctx, &keeperwire.Request{Op: keeperwire.OpGetFDs, Keys: keys})
	if err != nil {
		return nil, err
	}
	fdByKey = make(map[string]int)
	err = resp.Err()
	switch {
	case osprocess.IsResourceExhausted(err):
		return nil, fmt.Errorf("take %q: %w", keys, err)
	case err == nil && len(fds) == len(keys):
		for i, key := range keys {
			fdByKey[key] = fds[i]
		}
		return fdByKey, nil
	}
	framing.CloseAll(fds)
	if len(keys) == 1 {
		return nil, nil
	}
	for _, key := range keys { // the keeper sends none if it lacks one
		one, err := l.getFDs(ctx, []string{key})
		if err != nil {
			return fdByKey, err
		}
		maps.Copy(fdByKey, one)
	}
	return fdByKey, nil
}

// fdKeysNotIn returns the keys of the client's descriptors that keeperKeys lacks.
func (c *Client) fdKeysNotIn(keeperKeys []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := maps.Clone(c.fdCopyByKey)
	for _, key := range keeperKeys {
		delete(missing, key)
	}
	return slices.Collect(maps.Keys(missing))
}

// storeFDsInKeeper stores the client's descriptors with the given keys in the keeper.
func (c *Client) storeFDsInKeeper(ctx context.Context, l *clientConn, keys []string) error {
	req := &keeperwire.Request{Op: keeperwire.OpStoreFD}
	var fds []int
	defer func() { framing.CloseAll(fds) }()
	c.mu.Lock()
	for _, key := range keys {
		h, ok := c.fdCopyByKey[key]
		if !ok {
			continue
		}
		fd, err := keeperwire.DuplicateFD(h.fd)
		if err != nil {
			c.mu.Unlock()
			return err
		}
		req.Keys, req.DrainWithoutAgent, fds = append(req.Keys, key), append(req.DrainWithoutAgent, h.drainWithoutAgent), append(fds, fd)
	}
	c.mu.Unlock()
	if len(fds) == 0 {
		return nil
	}
	resp, _, err := l.call(ctx, req, fds...)
	if err == nil {
		err = resp.Err()
	}
	return err
}

const selfExePath = "/proc/self/exe"

// startAndConnectKeeper starts a keeper process and connects to it. The caller holds the lock of the
// directory.
func (c *Client) startAndConnectKeeper(ctx context.Context) (*clientConn, error) {
	c.mu.Lock()
	old, childProc, ephemeral := c.keeperChild, c.keeperChildID, c.cfg.Ephemeral
	c.keeperChild = nil
	c.mu.Unlock()
	reapKeeperChild(old, childProc, 2*time.Second)
	crashes := CrashLogPath(filepath.Join(c.cfg.DataDir, keeperwire.LogFileName))
	if said := crashes.ReadBeginning(); said != "" {
		c.cfg.Logger.Error("the last keeper crashed", "stderr", said)
	}

	lock, err := c.lockPIDFile(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	socket, err := c.listenForKeeper()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	log, err := crashes.Create()
	if err != nil {
		return nil, err
	}
	defer log.Close()

	conf, err := json.Marshal(keeperwire.Setup{Dir: c.cfg.DataDir, Ephemeral: ephemeral, IdleTimeout: c.cfg.IdleTimeout})
	if err != nil {
		return nil, err
	}
	opcount.Count(opcount.Fork)
	child, err := os.StartProcess(selfExePath, c.cfg.KeeperArgv, &os.ProcAttr{
		Dir:   "/",
		Env:   append(osprocess.GoRuntimeEnv(), keeperwire.SetupEnvVar+"="+string(conf), "GOMAXPROCS=1"),
		Files: []*os.File{null, null, log, keeperwire.ListenerFD: socket, keeperwire.LockFD: lock, keeperwire.DirFD: c.dataDir.Handle()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	// Only the keeper listens from here on: the connection to a keeper that dies before it accepts it then ends at once.
	socket.Close()
	p, err := osprocess.LookupID(child.Pid)
	c.mu.Lock()
	c.keeperChild, c.keeperChildID = child, p
	c.keeperStarts++
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	conn, err := c.dialKeeper()
	if err != nil {
		return nil, err
	}
	return newClientConn(ctx, conn, c.hello())
}

// lockPIDFile locks the PID file for the keeper that is started next, which inherits the lock and holds it as long as it
// lives. It retries for ten seconds, or until ctx ends, because a keeper that has just been killed may still hold the lock.
func (c *Client) lockPIDFile(ctx context.Context) (lock *os.File, err error) {
	err = wait.WhileError(ctx, filelock.ErrLocked, 10*time.Second, func() error {
		lock, err = c.dataDir.LockFile(keeperwire.PIDFileName, unix.LOCK_EX|unix.LOCK_NB) // a blocking flock(2) cannot be cancelled
		return err
	})
	return lock, err
}

// listenForKeeper returns a listening socket for a keeper that is started next, so that
// clients can connect before the keeper is ready.
func (c *Client) listenForKeeper() (*os.File, error) {
	listener, err := c.dataDir.ListenReplacingSocket(keeperwire.SocketName)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	return listener.File()
}

// reapKeeperChild reaps a keeper that this process has started, if it exits within timeout.
// Otherwise the exited keeper stays a zombie until this process exits.
func reapKeeperChild(child *os.Process, childID osprocess.ID, timeout time.Duration) {
	switch {
	case child == nil:
	case childID.EndsWithin(timeout):
		_, _ = child.Wait()
	default:
		_ = child.Release()
	}
}
