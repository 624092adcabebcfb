package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/calls"
)

// Config says where a keeper is and how to start it.
type Config struct {
	// Dir is the data directory. One keeper serves it, whatever the path by which it is
	// reached. It is made if it is missing. See [Directory] for the files in it.
	Dir string

	// Former are directories in which a keeper of an earlier version may listen for
	// the data directory. One that runs there is moved to Dir.
	Former []string

	// Args start the program of this process again as a keeper, with argv[0].
	Args []string

	// Ephemeral ties everything to the agent: when its connection is gone, the
	// keeper kills all that it has started and all that was orphaned to it.
	// It counts when a keeper is started, not when one is joined.
	Ephemeral bool

	// Linger is how long a keeper without any work waits for an agent; ten
	// minutes if it is 0.
	Linger time.Duration

	Logger hclog.Logger
}

// Client talks to a keeper. All methods may be called concurrently. When the
// keeper dies, an agent's client starts another one, hands it everything that was
// held, and repeats what can be repeated; callers notice only that they waited.
type Client struct {
	cfg   Config      // Ephemeral is guarded by mu: see SetEphemeral
	agent bool        // may start keepers
	dir   *Directory  // of an agent
	found *socketPath // of a client that is not an agent
	stop  context.CancelFunc
	wg    sync.WaitGroup
	line  *calls.Reconnector[*clientConn]

	mu        sync.Mutex
	held      map[string]fdCopy
	spawned   map[Process]bool // what a next keeper has to know of
	child     *os.Process      // the keeper that this process has started last, to be reaped
	childProc Process          // the same
	keeper    Process          // the one that we were connected to last
	ephemeral bool
}

// fdCopy is our own descriptor of something that the keeper holds.
type fdCopy struct {
	fd    int
	drain bool
}

// Start joins the keeper of a directory, or starts one if there is none. The
// keeper leads a session of its own and outlives this process.
func Start(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.Linger == 0 {
		cfg.Linger = 10 * time.Minute
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	dir, err := OpenDirectory(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("keeper in %s: %w", cfg.Dir, err)
	}
	c, err := open(ctx, &Client{cfg: cfg, agent: true, dir: dir})
	if err != nil {
		dir.Close()
	}
	return c, err
}

// Attach joins the keeper behind a socket (EnvSocket) without ever starting
// one. Such a client may only Wait.
func Attach(ctx context.Context, socket string) (*Client, error) {
	found := &socketPath{path: socket}
	c, err := open(ctx, &Client{
		cfg:   Config{Dir: filepath.Dir(filepath.Dir(socket)), Logger: hclog.NewNullLogger()},
		found: found,
	})
	if err != nil {
		found.close()
	}
	return c, err
}

// open connects a client and keeps it connected.
func open(ctx context.Context, c *Client) (*Client, error) {
	life, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.line = calls.NewReconnector[*clientConn](life.Done(), ErrClosed)
	c.held = map[string]fdCopy{}
	c.spawned = map[Process]bool{}
	l, err := c.connect(ctx)
	if err != nil {
		stop()
		c.drop()
		return nil, fmt.Errorf("keeper in %s: %w", c.cfg.Dir, err)
	}
	c.use(l)
	c.wg.Go(func() { c.maintain(life, l) })
	return c, nil
}

// Socket returns the path of the keeper's socket, the value of EnvSocket.
func (c *Client) Socket() string { return filepath.Join(SocketDir(c.cfg.Dir), socketName) }

// RestoreSocket makes the directory for sockets if it is missing, and has the keeper
// listen again if its socket is missing. It does not wait for the keeper.
func (c *Client) RestoreSocket() error {
	if err := c.dir.MakeSocketDir(); err != nil {
		return err
	}
	if c.dir.HasSocket(socketName) {
		return nil
	}
	err := c.Process().Signal(unix.SIGHUP)
	if errors.Is(err, os.ErrProcessDone) {
		return nil // the next keeper has a socket
	}
	return err
}

// Process returns the keeper that the client was connected to last.
func (c *Client) Process() Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keeper
}

// Ephemeral reports whether the keeper ends everything when its agent is gone.
func (c *Client) Ephemeral() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ephemeral
}

// Close ends the connection. A keeper that is not ephemeral lives on; of an
// ephemeral one, Close waits until it has ended everything, for ten seconds at
// most. Close may be called twice.
func (c *Client) Close() error {
	c.stop()
	c.wg.Wait()
	c.drop()
	if c.dir != nil {
		c.dir.Close()
	}
	if c.found != nil {
		c.found.close()
	}

	c.mu.Lock()
	child, childProc, keeper, ephemeral := c.child, c.childProc, c.keeper, c.ephemeral
	c.child = nil
	c.mu.Unlock()
	if c.agent && ephemeral && !keeper.EndsWithin(10*time.Second) {
		return fmt.Errorf("keeper with pid %d has not ended everything in 10 seconds", keeper.PID)
	}
	reapChild(child, childProc, 0)
	return nil
}

// drop closes our copies of held descriptors.
func (c *Client) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, h := range c.held {
		unix.Close(h.fd)
		delete(c.held, key)
	}
}

// Spawn starts a child of the keeper in a session of its own. It returns once
// the program is executed. An error of the kernel (no such file, permission)
// is wrapped as a syscall.Errno. It is never repeated: see ErrLost.
func (c *Client) Spawn(ctx context.Context, cmd Command) (Process, error) {
	params := &spawnParams{Name: cmd.Name, Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, Provisional: cmd.Provisional}
	if params.Env == nil {
		params.Env = []string{}
	}
	exe := cmd.Exec
	if exe == nil && cmd.Path == selfExe {
		f, err := os.Open(selfExe) // by path it would be the keeper's own
		if err != nil {
			return Process{}, fmt.Errorf("spawn %q: %w", cmd.Name, err)
		}
		defer f.Close()
		exe = f
	}
	var fds []int
	defer func() { closeAll(fds) }()
	for _, f := range []struct {
		file *os.File
		has  *bool
	}{{exe, &params.Exec}, {cmd.Stdin, &params.Stdin}, {cmd.Stdout, &params.Stdout}, {cmd.Stderr, &params.Stderr}} {
		if f.file == nil {
			continue
		}
		fd, err := duplicate(f.file)
		if err != nil {
			return Process{}, fmt.Errorf("spawn %q: %w", cmd.Name, err)
		}
		fds = append(fds, fd)
		*f.has = true
	}

	l, err := c.line.Wait(ctx)
	if err != nil {
		return Process{}, fmt.Errorf("spawn %q: %w", cmd.Name, err)
	}
	// Not cut short: a child must not be started for a caller that is gone.
	resp, _, err := l.call(context.WithoutCancel(ctx), &request{Op: opSpawn, Spawn: params}, fds...)
	if errors.Is(err, errDown) {
		err = ErrLost
	}
	if err != nil {
		return Process{}, fmt.Errorf("spawn %q: %w", cmd.Name, err)
	}
	if err := resp.err(); err != nil {
		return Process{}, err
	}
	c.mu.Lock()
	c.spawned[resp.Process] = true
	c.mu.Unlock()
	return resp.Process, nil
}

// Confirm has a provisional child outlive this client, which has made sure that the next
// one finds it. A child that has ended, or is not provisional, is no error. A keeper of a
// build without provisional children refuses the call.
func (c *Client) Confirm(ctx context.Context, p Process) error {
	if _, err := c.repeat(ctx, &request{Op: opConfirm, Process: p}); err != nil {
		return fmt.Errorf("confirm process %d: %w", p.PID, err)
	}
	return nil
}

// Adopt makes a process that a lost keeper has started, for another agent, the
// business of this one: it ends with the agent if what the keeper has started
// does. A process that is known already, or gone, is no error.
func (c *Client) Adopt(ctx context.Context, p Process) error {
	c.mu.Lock()
	known := c.spawned[p]
	c.spawned[p] = true
	c.mu.Unlock()
	if known {
		return nil
	}
	if _, err := c.repeat(ctx, &request{Op: opAdopt, ManagedProcs: c.managedProcs()}); err != nil {
		return fmt.Errorf("adopt process %d: %w", p.PID, err)
	}
	return nil
}

// managedProcs returns what was spawned and is still there.
func (c *Client) managedProcs() []Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	var alive []Process
	for p := range c.spawned {
		if p.Alive() {
			alive = append(alive, p)
		} else {
			delete(c.spawned, p)
		}
	}
	return alive
}

// Wait returns how a process ended, and waits for that if it still runs. It
// works for children of the keeper, for orphans that it has adopted, and for
// any other process as far as the kernel tells. ErrUnknown means that nobody
// knows. Any number of callers may wait for the same process, also later.
func (c *Client) Wait(ctx context.Context, p Process) (Status, error) {
	for {
		l, err := c.awaitKeeper(ctx, p)
		if err != nil {
			return Status{}, err
		}
		resp, _, err := l.call(ctx, &request{Op: opWait, Process: p})
		if errors.Is(err, errDown) {
			continue // the next keeper watches it, or says that nobody knows
		}
		if err != nil {
			return Status{}, err
		}
		if err := resp.err(); err != nil {
			return Status{}, err
		}
		c.mu.Lock()
		delete(c.spawned, p)
		c.mu.Unlock()
		return resp.Status, nil
	}
}

// awaitKeeper returns the connection. A client that cannot start a keeper gives
// up once the process has ended and no keeper has come for five seconds.
func (c *Client) awaitKeeper(ctx context.Context, p Process) (*clientConn, error) {
	if c.agent {
		return c.line.Wait(ctx)
	}
	for {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		l, err := c.line.Wait(limited)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return l, err
		}
		if !p.Alive() {
			return nil, ErrUnknown
		}
	}
}

// StoreFD gives the keeper a descriptor to hold, for example the read end of a
// FIFO; what was held under the key is replaced. The caller keeps f. It is for
// pipes, FIFOs and sockets: the keeper takes one with nobody at its other end
// for one that is not in use.
func (c *Client) StoreFD(ctx context.Context, key string, f *os.File) error {
	return c.hold(ctx, key, f, false)
}

// StoreDrainedFD is Hold for the read end of a plugin's stderr: while no agent is
// connected, the keeper reads and drops what comes, so that the plugin never
// waits for an agent. While one is connected, it is the agent that must read.
func (c *Client) StoreDrainedFD(ctx context.Context, key string, f *os.File) error {
	return c.hold(ctx, key, f, true)
}

func (c *Client) hold(ctx context.Context, key string, f *os.File, drain bool) error {
	own, err := duplicate(f)
	if err != nil {
		return fmt.Errorf("hold %q: %w", key, err)
	}
	fd, err := duplicateFD(own)
	if err != nil {
		unix.Close(own)
		return fmt.Errorf("hold %q: %w", key, err)
	}
	defer unix.Close(fd)

	// Before the request: should the keeper die now, the next one gets it too.
	c.mu.Lock()
	if old, ok := c.held[key]; ok {
		unix.Close(old.fd)
	}
	c.held[key] = fdCopy{own, drain}
	c.mu.Unlock()

	_, err = c.repeat(ctx, &request{Op: opHold, ListFDs: []string{key}, Drain: []bool{drain}}, fd)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.held[key].fd == own {
			unix.Close(own)
			delete(c.held, key)
		}
		return fmt.Errorf("hold %q: %w", key, err)
	}
	return nil
}

// GetFD returns a descriptor of what is held under a key, and the keeper holds
// on. The caller closes it. The error is ErrNotHeld if there is nothing. It does
// not ask the keeper: an agent has a copy of all that is held.
func (c *Client) GetFD(key string) (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own, ok := c.held[key]
	if !ok {
		return nil, fmt.Errorf("take %q: %w", key, ErrNotHeld)
	}
	fd, err := duplicateFD(own.fd)
	if err != nil {
		return nil, fmt.Errorf("take %q: %w", key, err)
	}
	return os.NewFile(uintptr(fd), key), nil
}

// RemoveFD makes the keeper close what it holds under a key, if there is anything.
func (c *Client) RemoveFD(ctx context.Context, key string) error {
	c.mu.Lock()
	if h, ok := c.held[key]; ok {
		unix.Close(h.fd)
		delete(c.held, key)
	}
	c.mu.Unlock()
	if _, err := c.repeat(ctx, &request{Op: opDrop, ListFDs: []string{key}}); err != nil {
		return fmt.Errorf("drop %q: %w", key, err)
	}
	return nil
}

// ListFDs returns the keys under which something is held, in order.
func (c *Client) ListFDs(ctx context.Context) ([]string, error) {
	resp, err := c.repeat(ctx, &request{Op: opKeys})
	if err != nil {
		return nil, fmt.Errorf("list held descriptors: %w", err)
	}
	return resp.ListFDs, nil
}

// Parents returns the keeper and those processes that keepers have started on
// request below which others run: what runs there can be a task. Without an error,
// none means that no task is below the keeper.
func (c *Client) Parents(ctx context.Context) ([]Process, error) {
	resp, err := c.repeat(ctx, &request{Op: opParents})
	if err != nil {
		return nil, fmt.Errorf("list processes below the keeper: %w", err)
	}
	return resp.Parents, nil
}

// SetEphemeral makes a keeper ephemeral that was not (see Config.Ephemeral):
// what runs now ends with the agent, and Close waits for that.
func (c *Client) SetEphemeral(ctx context.Context) error {
	if _, err := c.repeat(ctx, &request{Op: opEphemeral}); err != nil {
		return fmt.Errorf("end with the agent: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Ephemeral, c.ephemeral = true, true
	return nil
}

// repeat makes a request that does no harm when a dead keeper has done it already, and
// that no descriptors answer.
func (c *Client) repeat(ctx context.Context, req *request, fds ...int) (*response, error) {
	for {
		l, err := c.line.Wait(ctx)
		if err != nil {
			return nil, err
		}
		resp, got, err := l.call(ctx, req, fds...)
		closeAll(got)
		if errors.Is(err, errDown) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return resp, resp.err()
	}
}

// RuntimeEnv returns those variables of this process that Go's runtime looks at.
// It is the environment of a helper process: the agent's secrets are not its.
func RuntimeEnv() []string {
	env := []string{}
	for _, name := range []string{"GODEBUG", "GORACE", "GOTRACEBACK", "GOCOVERDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}
