package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/rpcmux"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// Config describes a keeper and how to start it.
type Config struct {
	// Dir is the data directory; it is created if it is missing. One keeper serves a data
	// directory, whatever path leads to it. See [DataDir] for the files in it.
	DataDir string

	// KeeperArgv are the arguments, with argv[0], that start this executable as a keeper.
	KeeperArgv []string

	// Ephemeral ties the keeper to the agent: when the agent's connection ends, the keeper
	// kills every process that it has started and every orphan that it has adopted. It applies
	// when a keeper is started, not when the client connects to a running one.
	Ephemeral bool

	// IdleTimeout is the time after which a keeper exits that has no agent, no children and no stored descriptor
	// whose other end is open; 0 means ten minutes.
	IdleTimeout time.Duration

	Logger hclog.Logger

	testProtocolVersion int // protocol version; only tests set it; 0 means keeperwire.ProtocolVersion
}

// Client is a connection to a keeper. All methods may be called concurrently. When the keeper
// dies, the client of an agent starts another keeper, hands it the stored descriptors, and
// repeats the requests that can be repeated, so that callers only notice a delay. The type has many methods because each
// request of the protocol is a method.
type Client struct {
	cfg              Config        // mu guards cfg.Ephemeral; the other fields never change
	isAgent          bool          // an agent starts a keeper if none runs; a plugin does not
	dataDir          *DataDir      // the data directory; nil for a plugin
	pluginDialer     *keeperDialer // connects a plugin to the socket in its environment; nil for an agent
	stopReconnecting context.CancelFunc
	wg               sync.WaitGroup
	conns            *rpcmux.Reconnector[*clientConn]

	mu                sync.Mutex
	fdCopyByKey       map[string]fdCopy
	managedProcs      map[osprocess.ID]bool // spawned and adopted processes, which the next keeper must adopt
	keeperChild       *os.Process           // the keeper that this process has started last and must reap; nil if there is none
	keeperChildID     osprocess.ID          // ID of keeperChild
	keeperID          osprocess.ID          // ID of the keeper of the latest connection
	keeperIsEphemeral bool
	keeperStarts      int // number of keepers that this process has started
}

// fdCopy is the client's own duplicate of a descriptor that the keeper stores.
type fdCopy struct {
	fd                int
	drainWithoutAgent bool
}

// ConnectOrStart connects to the keeper of a directory, or starts a keeper if none runs. The keeper
// leads a session of its own and outlives this process. ConnectOrStart returns when the connection is
// established, or when ctx ends. A keeper that dies meanwhile is replaced. The caller calls Close.
func ConnectOrStart(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = 10 * time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	dir, err := OpenOrCreateDataDir(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("keeper in %s: %w", cfg.DataDir, err)
	}
	c, err := connectAndKeepConnected(ctx, &Client{cfg: cfg, isAgent: true, dataDir: dir})
	if err != nil {
		dir.Close()
	}
	return c, err
}

// ConnectFromPlugin connects a plugin to the keeper that listens on socketPath, the value of the environment variable
// EnvSocket. It never starts a keeper. The plugin may only call Wait, EndedSessionLeaders and Close.
func ConnectFromPlugin(ctx context.Context, socketPath string) (*Client, error) {
	found := &keeperDialer{socketPath: socketPath}
	c, err := connectAndKeepConnected(ctx, &Client{
		cfg:          Config{DataDir: filepath.Dir(filepath.Dir(socketPath)), Logger: hclog.NewNullLogger()},
		pluginDialer: found,
	})
	if err != nil {
		found.closeDataDir()
	}
	return c, err
}

// maxDeathsDuringStart is the number of keepers that may die while ConnectOrStart connects to them. After one more,
// ConnectOrStart returns an error: a keeper that crashes at each start must not make ConnectOrStart block forever.
const maxDeathsDuringStart = 5

// isKeeperExitError reports whether an error of connectOrStartKeeper means that the keeper has exited while the client
// connected to it, or has not answered: then the next call kills it. It is also true if a killed keeper has not ended yet.
func isKeeperExitError(err error) bool {
	return slices.ContainsFunc([]error{errConnDown, framing.ErrDown, io.EOF, unix.ECONNRESET, unix.ECONNREFUSED, os.ErrDeadlineExceeded, filelock.ErrLocked, osprocess.ErrStillRunning}, func(end error) bool {
		return errors.Is(err, end)
	})
}

// connectAndKeepConnected connects a client and starts the goroutine that reconnects it.
func connectAndKeepConnected(ctx context.Context, c *Client) (*Client, error) {
	life, stop := context.WithCancel(context.Background())
	c.stopReconnecting = stop
	c.conns = rpcmux.NewReconnector[*clientConn](life.Done(), ErrClosed)
	c.fdCopyByKey = map[string]fdCopy{}
	c.managedProcs = map[osprocess.ID]bool{}
	l, err := c.connectOrStartKeeper(ctx)
	for deaths := 1; c.isAgent && deaths <= maxDeathsDuringStart && isKeeperExitError(err) && ctx.Err() == nil; deaths++ {
		c.cfg.Logger.Warn("keeper is gone, the start continues with another", "dir", c.cfg.DataDir, "error", err)
		l, err = c.connectOrStartKeeper(ctx)
	}
	if err != nil {
		stop()
		c.closeFDCopies()
		return nil, fmt.Errorf("keeper in %s: %w", c.cfg.DataDir, err)
	}
	c.setConn(l)
	c.wg.Go(func() { c.keepConnected(life, l) })
	return c, nil
}

// SocketPath returns the path of the keeper's socket, which the environment variable EnvSocket
// passes to plugins.
func (c *Client) SocketPath() string { return SocketPath(c.cfg.DataDir) }

// RequestSocketRecreation creates the directory for sockets if it is missing, and makes the keeper
// create its socket again if that is missing. It does not wait for the keeper.
func (c *Client) RequestSocketRecreation() error {
	if err := c.dataDir.EnsurePrivateSocketDir(); err != nil {
		return err
	}
	if c.dataDir.HasSocket(keeperwire.SocketName) {
		return nil
	}
	err := c.Status().KeeperProcess.Signal(unix.SIGHUP)
	if errors.Is(err, os.ErrProcessDone) {
		return nil // the keeper has exited: the client starts another keeper, which creates a socket
	}
	return err
}

// Status is the state of the keeper from the point of view of its client.
type Status struct {
	KeeperProcess osprocess.ID // process of the keeper to which the client is or was last connected
	Connected     bool
	KeeperStarts  int // number of keepers that this client has started
	StoredFDs     int // number of descriptors that the keeper stores
}

// Status returns the state of the keeper. It does not block.
func (c *Client) Status() Status {
	l := c.conns.CurrentConn()
	c.mu.Lock()
	defer c.mu.Unlock()
	return Status{KeeperProcess: c.keeperID, Connected: l != nil && !l.Ended(), KeeperStarts: c.keeperStarts, StoredFDs: len(c.fdCopyByKey)}
}

// KeeperIsEphemeral reports whether the keeper shuts down with its agent: see Config.Ephemeral.
func (c *Client) KeeperIsEphemeral() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keeperIsEphemeral
}

// Close ends the connection. A persistent keeper continues to run. For an ephemeral keeper,
// Close blocks until the keeper has exited, at most ten seconds. Close may be called twice.
func (c *Client) Close() error {
	c.stopReconnecting()
	c.wg.Wait()
	c.closeFDCopies()
	if c.dataDir != nil {
		c.dataDir.Close()
	}
	if c.pluginDialer != nil {
		c.pluginDialer.closeDataDir()
	}

	c.mu.Lock()
	child, childProc, keeper, ephemeral := c.keeperChild, c.keeperChildID, c.keeperID, c.keeperIsEphemeral
	c.keeperChild = nil
	c.mu.Unlock()
	if c.isAgent && ephemeral && !keeper.EndsWithin(10*time.Second) {
		return fmt.Errorf("keeper with pid %d has not ended everything in 10 seconds", keeper.PID)
	}
	reapKeeperChild(child, childProc, 0)
	return nil
}

// closeFDCopies closes the client's copies of stored descriptors.
func (c *Client) closeFDCopies() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, h := range c.fdCopyByKey {
		unix.Close(h.fd)
		delete(c.fdCopyByKey, key)
	}
}

// Spawn starts a child of the keeper in a session of its own. It returns once the program is
// executed. An error of the kernel (no such file, permission) is wrapped as a syscall.Errno.
// Spawn is never repeated: see ErrKeeperDied.
func (c *Client) Spawn(ctx context.Context, cmd Command) (osprocess.ID, error) {
	params := &keeperwire.SpawnParams{Name: cmd.Name, Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, KillOnDisconnect: cmd.KillOnDisconnect}
	if params.Env == nil {
		params.Env = []string{}
	}
	exe := cmd.Executable
	if exe == nil && cmd.Path == selfExePath {
		// The client opens the file, because in the keeper /proc/self/exe is the keeper's
		// executable.
		f, err := os.Open(selfExePath)
		if err != nil {
			return osprocess.ID{}, fmt.Errorf("spawn %q: %w", cmd.Name, err)
		}
		defer f.Close()
		exe = f
	}
	var fds []int
	defer func() { framing.CloseAll(fds) }()
	for _, f := range []struct {
		file *os.File
		has  *bool
	}{{exe, &params.HasExec}, {cmd.Stdin, &params.HasStdin}, {cmd.Stdout, &params.HasStdout}, {cmd.Stderr, &params.HasStderr}} {
		if f.file == nil {
			continue
		}
		fd, err := keeperwire.DuplicateFile(f.file)
		if err != nil {
			return osprocess.ID{}, fmt.Errorf("spawn %q: %w", cmd.Name, err)
		}
		fds = append(fds, fd)
		*f.has = true
	}

	l, err := c.conns.WaitForConn(ctx)
	if err != nil {
		return osprocess.ID{}, fmt.Errorf("spawn %q: %w", cmd.Name, err)
	}
	// The call ignores the end of ctx: otherwise the caller could miss a child that was
	// started.
	resp, _, err := l.call(context.WithoutCancel(ctx), &keeperwire.Request{Op: keeperwire.OpSpawn, Spawn: params}, fds...)
	if errors.Is(err, errConnDown) {
		err = ErrKeeperDied
	}
	if err != nil {
		return osprocess.ID{}, fmt.Errorf("spawn %q: %w", cmd.Name, err)
	}
	if err := resp.Err(); err != nil {
		return osprocess.ID{}, err
	}
	c.mu.Lock()
	c.managedProcs[resp.Process] = true
	c.mu.Unlock()
	return resp.Process, nil
}

// KeepProcessAfterDisconnect clears KillOnDisconnect of a child: the keeper no longer kills it when this
// client disconnects. The caller must have stored what the next client needs to find the
// child. KeepProcessAfterDisconnect does nothing if the child has ended or was started without
// KillOnDisconnect.
func (c *Client) KeepProcessAfterDisconnect(ctx context.Context, p osprocess.ID) error {
	if _, err := c.retryIdempotentCall(ctx, &keeperwire.Request{Op: keeperwire.OpKeepAfterDisconnect, Process: p}); err != nil {
		return fmt.Errorf("confirm process %d: %w", p.PID, err)
	}
	return nil
}

// AdoptProcessOfEarlierKeeper adds a process, which an earlier keeper started for another agent, to the processes
// that an ephemeral keeper kills. A process that was added before, or has ended, is no
// error.
func (c *Client) AdoptProcessOfEarlierKeeper(ctx context.Context, p osprocess.ID) error {
	c.mu.Lock()
	known := c.managedProcs[p]
	c.managedProcs[p] = true
	c.mu.Unlock()
	if known {
		return nil
	}
	if _, err := c.retryIdempotentCall(ctx, &keeperwire.Request{Op: keeperwire.OpAdoptProcesses, ManagedProcs: c.pruneAndListManagedProcs()}); err != nil {
		return fmt.Errorf("adopt process %d: %w", p.PID, err)
	}
	return nil
}

// pruneAndListManagedProcs returns the spawned and adopted processes that are still alive.
func (c *Client) pruneAndListManagedProcs() []osprocess.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var aliveProcs []osprocess.ID
	for p := range c.managedProcs {
		if p.Alive() {
			aliveProcs = append(aliveProcs, p)
		} else {
			delete(c.managedProcs, p)
		}
	}
	return aliveProcs
}

// Wait blocks until a process has ended and returns its exit status. It works for children of
// the keeper, for orphans that the keeper has adopted, and for other processes as far as the
// kernel reports their status. The error is ErrExitStatusUnknown if the exit status is unknown. An
// error that satisfies [osprocess.IsResourceExhausted] means that the caller can repeat the call. Any
// number of callers may wait for the same process, also after it has ended.
func (c *Client) Wait(ctx context.Context, p osprocess.ID) (osprocess.ExitStatus, error) {
	for {
		l, err := c.waitForConnOrProcessEnd(ctx, p)
		if err != nil {
			return osprocess.ExitStatus{}, err
		}
		resp, _, err := l.call(ctx, &keeperwire.Request{Op: keeperwire.OpWait, Process: p})
		if errors.Is(err, errConnDown) {
			continue // after the connection has ended, the next keeper gets the request
		}
		if err != nil {
			return osprocess.ExitStatus{}, err
		}
		if err := resp.Err(); err != nil {
			return osprocess.ExitStatus{}, err
		}
		c.mu.Lock()
		delete(c.managedProcs, p)
		c.mu.Unlock()
		return resp.Status, nil
	}
}

// EndedSessionLeaders returns the session leaders whose exits the keeper has recorded, and that were not started before
// startTime, which has the unit of [osprocess.ID]. Some are missing if the keeper has replaced a
// keeper that died, or has recorded the exits of thousands of other processes since; completeForChildrenOf is the pid of the
// keeper if none is missing that has ended as its child, and 0 otherwise. An error that satisfies
// [osprocess.IsResourceExhausted] means that the caller can repeat the call.
func (c *Client) EndedSessionLeaders(ctx context.Context, startTime uint64) (ended []EndedProcess, completeForChildrenOf int, err error) {
	resp, err := c.retryIdempotentCall(ctx, &keeperwire.Request{Op: keeperwire.OpListEndedSessionLeaders, StartTime: startTime})
	if err != nil {
		return nil, 0, fmt.Errorf("list the session leaders that have ended: %w", err)
	}
	if resp.CompleteSince < startTime {
		completeForChildrenOf = resp.KeeperPID // 0 in the response of a keeper of an earlier build
	}
	return resp.EndedProcesses, completeForChildrenOf, nil
}

// waitForConnOrProcessEnd returns the connection. A client that cannot start a keeper returns ErrExitStatusUnknown
// once the process has ended and no keeper was reachable for five seconds.
func (c *Client) waitForConnOrProcessEnd(ctx context.Context, p osprocess.ID) (*clientConn, error) {
	if c.isAgent {
		return c.conns.WaitForConn(ctx)
	}
	for {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		l, err := c.conns.WaitForConn(limited)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return l, err
		}
		if !p.Alive() {
			return nil, ErrExitStatusUnknown
		}
	}
}

// StoreFD makes the keeper store a duplicate of the descriptor of f, for example of the read end of a FIFO. It
// replaces the descriptor that was stored under the key. The caller remains the owner of f. StoreFD is for
// pipes, FIFOs and sockets, because the keeper considers a descriptor unused when its other
// end is closed. A socket that listens is always unused. Its connections wait for the next agent while no agent is
// connected; after two seconds the keeper resets them.
func (c *Client) StoreFD(ctx context.Context, key string, f *os.File) error {
	return c.StoreFDs(ctx, map[string]*os.File{key: f}, false)
}

// StoreFDDrainedWithoutAgent stores the read end of a plugin's stdout or stderr like StoreFD. While no agent is
// connected, the keeper reads and discards the output, so that the plugin never blocks.
// While an agent is connected, the agent must read.
func (c *Client) StoreFDDrainedWithoutAgent(ctx context.Context, key string, f *os.File) error {
	return c.StoreFDs(ctx, map[string]*os.File{key: f}, true)
}

// StoreFDs is StoreFD, or if drainWithoutAgent is true StoreFDDrainedWithoutAgent, for up to keeperwire.MaxMessageFDs files. It
// sends one request: the keeper stores all of the files, or none.
func (c *Client) StoreFDs(ctx context.Context, fileByKey map[string]*os.File, drainWithoutAgent bool) error {
	keys := slices.Sorted(maps.Keys(fileByKey))
	copies := make([]fdCopy, len(keys))
	for i, key := range keys {
		fd, err := keeperwire.DuplicateFile(fileByKey[key])
		if err != nil {
			for _, own := range copies[:i] {
				unix.Close(own.fd)
			}
			return fmt.Errorf("hold %q: %w", key, err)
		}
		copies[i] = fdCopy{fd, drainWithoutAgent}
	}

	// The copies are recorded before the request: if the keeper dies during the request, the
	// client stores the copies in the next keeper.
	c.mu.Lock()
	for i, key := range keys {
		if old, ok := c.fdCopyByKey[key]; ok {
			unix.Close(old.fd)
		}
		c.fdCopyByKey[key] = copies[i]
	}
	c.mu.Unlock()

	err := c.conns.CallUntilConnStays(ctx, errConnDown, func(l *clientConn) error { return c.storeFDsInKeeper(ctx, l, keys) })
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, key := range keys {
			if c.fdCopyByKey[key] == copies[i] {
				unix.Close(copies[i].fd)
				delete(c.fdCopyByKey, key)
			}
		}
		return fmt.Errorf("hold %q: %w", keys, err)
	}
	return nil
}

// DuplicateStoredFD returns a duplicate of the descriptor that is stored under a key; the keeper still stores its
// own. The caller closes the file. The error is ErrFDNotStored if no descriptor is stored under the
// key. DuplicateStoredFD does not call the keeper: the client of an agent has a copy of every stored
// descriptor.
func (c *Client) DuplicateStoredFD(key string) (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own, ok := c.fdCopyByKey[key]
	if !ok {
		return nil, fmt.Errorf("take %q: %w", key, ErrFDNotStored)
	}
	fd, err := keeperwire.DuplicateFD(own.fd)
	if err != nil {
		return nil, fmt.Errorf("take %q: %w", key, err)
	}
	return os.NewFile(uintptr(fd), key), nil
}

// StoredFDKeys returns the keys of the stored descriptors. Like DuplicateStoredFD it does not call the keeper.
func (c *Client) StoredFDKeys() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.fdCopyByKey))
}

// RemoveFD makes the keeper close the descriptor that is stored under a key. A key without a
// descriptor is no error.
func (c *Client) RemoveFD(ctx context.Context, key string) error {
	c.mu.Lock()
	if h, ok := c.fdCopyByKey[key]; ok {
		unix.Close(h.fd)
		delete(c.fdCopyByKey, key)
	}
	c.mu.Unlock()
	if _, err := c.retryIdempotentCall(ctx, &keeperwire.Request{Op: keeperwire.OpRemoveFD, Keys: []string{key}}); err != nil {
		return fmt.Errorf("drop %q: %w", key, err)
	}
	return nil
}

// FetchStoredFDKeys returns the keys of the stored descriptors, sorted.
func (c *Client) FetchStoredFDKeys(ctx context.Context) ([]string, error) {
	resp, err := c.retryIdempotentCall(ctx, &keeperwire.Request{Op: keeperwire.OpListFDs})
	if err != nil {
		return nil, fmt.Errorf("list held descriptors: %w", err)
	}
	return resp.Keys, nil
}

// ListProcessesThatMayHaveTasks returns the keeper and its spawned or adopted processes, but only
// those with a living child that is not itself such a process. The child can be a task: an
// empty list without an error means that no task runs below the keeper.
func (c *Client) ListProcessesThatMayHaveTasks(ctx context.Context) ([]osprocess.ID, error) {
	resp, err := c.retryIdempotentCall(ctx, &keeperwire.Request{Op: keeperwire.OpListParentProcesses})
	if err != nil {
		return nil, fmt.Errorf("list processes below the keeper: %w", err)
	}
	return resp.ParentProcesses, nil
}

// SetEphemeral makes a persistent keeper ephemeral (see Config.Ephemeral): it kills the
// processes below it when the agent's connection ends, and Close blocks until it has
// exited.
func (c *Client) SetEphemeral(ctx context.Context) error {
	if _, err := c.retryIdempotentCall(ctx, &keeperwire.Request{Op: keeperwire.OpSetEphemeral}); err != nil {
		return fmt.Errorf("end with the agent: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Ephemeral, c.keeperIsEphemeral = true, true
	return nil
}

// RequestExitWhenNoTasks makes the keeper exit as soon as this client is closed and ListProcessesThatMayHaveTasks would
// return an empty list; the keeper then kills its spawned processes. RequestExitWhenNoTasks returns before the keeper
// exits. The keeper discards the request when another agent connects.
func (c *Client) RequestExitWhenNoTasks(ctx context.Context) error {
	if _, err := c.retryIdempotentCall(ctx, &keeperwire.Request{Op: keeperwire.OpEndWithoutTasks}); err != nil {
		return fmt.Errorf("end without tasks: %w", err)
	}
	return nil
}

// retryIdempotentCall sends a request, and sends it again on each new connection until the
// keeper responds. The request must be idempotent, and its response carries no descriptors.
func (c *Client) retryIdempotentCall(ctx context.Context, req *keeperwire.Request) (resp *keeperwire.Response, err error) {
	err = c.conns.CallUntilConnStays(ctx, errConnDown, func(l *clientConn) error {
		var got []int
		resp, got, err = l.call(ctx, req)
		framing.CloseAll(got)
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, resp.Err()
}
