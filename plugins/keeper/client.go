package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Config says where a keeper is and how to start it.
type Config struct {
	// Dir is the runtime directory: ours, mode 0700. It is made if it is missing.
	// It is for sockets and the like: an ephemeral keeper removes in the end what
	// is a socket, or is named *.lock, *.pid or *.log, and then what is empty.
	Dir string

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
	cfg   Config // Ephemeral is guarded by mu: see EndWithAgent
	agent bool   // may start keepers
	stop  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup

	mu        sync.Mutex
	link      *link         // nil while there is none
	changed   chan struct{} // closed and replaced when link changes
	held      map[string]copyFD
	spawned   map[Process]bool // what a next keeper has to know of
	child     *os.Process      // the keeper that this process has started last, to be reaped
	born      Process          // the same
	keeper    Process          // the one that we were connected to last
	ephemeral bool
	err       error // why the last try to get a keeper failed
}

// copyFD is our own descriptor of something that the keeper holds.
type copyFD struct {
	fd    int
	drain bool
}

// Start joins the keeper of a directory, or starts one if there is none. The
// keeper leads a session of its own and outlives this process.
func Start(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.Linger == 0 {
		cfg.Linger = 10 * time.Minute
	}
	return open(ctx, cfg, true)
}

// Attach joins the keeper behind a socket (EnvSocket) without ever starting
// one. Such a client may only Wait.
func Attach(ctx context.Context, socket string) (*Client, error) {
	return open(ctx, Config{Dir: filepath.Dir(socket)}, false)
}

func open(ctx context.Context, cfg Config, agent bool) (*Client, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	c := &Client{
		cfg:     cfg,
		agent:   agent,
		stop:    make(chan struct{}),
		changed: make(chan struct{}),
		held:    map[string]copyFD{},
		spawned: map[Process]bool{},
	}
	l, err := c.connect(ctx)
	if err != nil {
		c.drop()
		return nil, fmt.Errorf("keeper in %s: %w", cfg.Dir, err)
	}
	c.publish(l, nil)
	c.wg.Go(func() { c.maintain(l) })
	return c, nil
}

// Socket returns the path of the keeper's socket, the value of EnvSocket.
func (c *Client) Socket() string { return filepath.Join(c.cfg.Dir, socketName) }

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
	c.once.Do(func() { close(c.stop) })
	c.wg.Wait()
	c.drop()

	c.mu.Lock()
	child, born, keeper, ephemeral := c.child, c.born, c.keeper, c.ephemeral
	c.child = nil
	c.mu.Unlock()
	if c.agent && ephemeral && !gone(keeper, 10*time.Second) {
		return fmt.Errorf("keeper with pid %d has not ended everything in 10 seconds", keeper.PID)
	}
	reapChild(child, born, 0)
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
	params := &spawnParams{Name: cmd.Name, Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir}
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

	l, err := c.current(ctx)
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
	if _, _, err := c.repeat(ctx, &request{Op: opAdopt, Wards: c.wards()}); err != nil {
		return fmt.Errorf("adopt process %d: %w", p.PID, err)
	}
	return nil
}

// wards returns what was spawned and is still there.
func (c *Client) wards() []Process {
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
func (c *Client) awaitKeeper(ctx context.Context, p Process) (*link, error) {
	if c.agent {
		return c.current(ctx)
	}
	for {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		l, err := c.current(limited)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return l, err
		}
		if !p.Alive() {
			return nil, ErrUnknown
		}
	}
}

// Hold gives the keeper a descriptor to hold, for example the read end of a
// FIFO; what was held under the key is replaced. The caller keeps f. It is for
// pipes, FIFOs and sockets: the keeper takes one with nobody at its other end
// for one that is not in use.
func (c *Client) Hold(ctx context.Context, key string, f *os.File) error {
	return c.hold(ctx, key, f, false)
}

// HoldSink is Hold for the read end of a plugin's stderr: while no agent is
// connected, the keeper reads and drops what comes, so that the plugin never
// waits for an agent. While one is connected, it is the agent that must read.
func (c *Client) HoldSink(ctx context.Context, key string, f *os.File) error {
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
	c.held[key] = copyFD{own, drain}
	c.mu.Unlock()

	_, _, err = c.repeat(ctx, &request{Op: opHold, Keys: []string{key}, Drain: []bool{drain}}, fd)
	if err != nil {
		return fmt.Errorf("hold %q: %w", key, err)
	}
	return nil
}

// Take returns a descriptor of what is held under a key, and the keeper holds
// on. The caller closes it. The error is ErrNotHeld if there is nothing.
func (c *Client) Take(ctx context.Context, key string) (*os.File, error) {
	_, fds, err := c.repeat(ctx, &request{Op: opTake, Keys: []string{key}})
	if err != nil {
		return nil, fmt.Errorf("take %q: %w", key, err)
	}
	return os.NewFile(uintptr(fds[0]), key), nil
}

// Drop makes the keeper close what it holds under a key, if there is anything.
func (c *Client) Drop(ctx context.Context, key string) error {
	c.mu.Lock()
	if h, ok := c.held[key]; ok {
		unix.Close(h.fd)
		delete(c.held, key)
	}
	c.mu.Unlock()
	if _, _, err := c.repeat(ctx, &request{Op: opDrop, Keys: []string{key}}); err != nil {
		return fmt.Errorf("drop %q: %w", key, err)
	}
	return nil
}

// Keys returns the keys under which something is held, in order.
func (c *Client) Keys(ctx context.Context) ([]string, error) {
	resp, _, err := c.repeat(ctx, &request{Op: opKeys})
	if err != nil {
		return nil, fmt.Errorf("list held descriptors: %w", err)
	}
	return resp.Keys, nil
}

// EndWithAgent makes a keeper ephemeral that was not (see Config.Ephemeral):
// what runs now ends with the agent, and Close waits for that.
func (c *Client) EndWithAgent(ctx context.Context) error {
	if _, _, err := c.repeat(ctx, &request{Op: opEphemeral}); err != nil {
		return fmt.Errorf("end with the agent: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Ephemeral, c.ephemeral = true, true
	return nil
}

// repeat makes a request that does no harm when a dead keeper has done it already.
func (c *Client) repeat(ctx context.Context, req *request, fds ...int) (*response, []int, error) {
	for {
		l, err := c.current(ctx)
		if err != nil {
			return nil, nil, err
		}
		resp, got, err := l.call(ctx, req, fds...)
		if errors.Is(err, errDown) {
			continue
		}
		if err == nil {
			err = resp.err()
		}
		if err == nil && req.Op == opTake && len(got) != len(req.Keys) {
			err = fmt.Errorf("%d descriptors came for %d keys", len(got), len(req.Keys))
		}
		if err != nil {
			closeAll(got)
			return nil, nil, err
		}
		return resp, got, nil
	}
}

// current returns the connection, and waits for one while there is none.
func (c *Client) current(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, changed, last := c.link, c.changed, c.err
		c.mu.Unlock()
		if l != nil && !l.Ended() {
			return l, nil
		}
		select {
		case <-changed:
		case <-c.stop:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), last)
		}
	}
}

func (c *Client) publish(l *link, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l != nil {
		c.keeper, c.ephemeral = l.keeper, l.ephemeral
	}
	c.link, c.err = l, err
	close(c.changed)
	c.changed = make(chan struct{})
}

// maintain replaces the connection whenever it ends, until Close.
func (c *Client) maintain(l *link) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.wg.Go(func() {
		select {
		case <-c.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	for {
		select {
		case <-l.Done():
		case <-c.stop:
			c.publish(nil, ErrClosed)
			l.close()
			return
		}
		l.close()
		c.publish(nil, nil)
		if c.agent {
			c.cfg.Logger.Warn("keeper is gone", "pid", l.keeper.PID, "dir", c.cfg.Dir)
		}
		for delay := 20 * time.Millisecond; ; delay = min(2*delay, 2*time.Second) {
			next, err := c.connect(ctx)
			if err == nil {
				l = next
				break
			}
			c.publish(nil, err)
			if c.agent && ctx.Err() == nil {
				c.cfg.Logger.Error("no keeper", "dir", c.cfg.Dir, "error", err)
			}
			select {
			case <-time.After(delay):
			case <-c.stop:
				return
			}
		}
		c.publish(l, nil)
	}
}

// connect returns a connection to a keeper that holds all that ours holds.
func (c *Client) connect(ctx context.Context) (*link, error) {
	if !c.agent {
		conn, err := dial(c.Socket())
		if err != nil {
			return nil, err
		}
		return newLink(ctx, conn, false)
	}

	if err := prepareDir(c.cfg.Dir); err != nil {
		return nil, err
	}
	lock, err := lockDir(c.cfg.Dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	var l *link
	if conn, err := dial(c.Socket()); err == nil {
		l, err = newLink(ctx, conn, true)
		if err != nil {
			c.cfg.Logger.Debug("keeper does not answer", "dir", c.cfg.Dir, "error", err)
		}
	} else if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
		return nil, err
	}
	if l != nil {
		if l, err = c.upgrade(ctx, l); err != nil {
			return nil, err
		}
	}
	if l == nil {
		if err := c.start(); err != nil {
			return nil, err
		}
		conn, err := dial(c.Socket())
		if err != nil {
			return nil, err
		}
		if l, err = newLink(ctx, conn, true); err != nil {
			return nil, err
		}
	}
	if err := c.handOver(ctx, l); err != nil {
		l.close()
		return nil, fmt.Errorf("hand over descriptors: %w", err)
	}
	return l, nil
}

// upgrade has a keeper of another build execute our program in its place. It
// returns the connection to whoever is there then, nil if that is nobody. One
// that cannot do it stays as it is.
func (c *Client) upgrade(ctx context.Context, l *link) (*link, error) {
	exe, err := os.Open(selfExe)
	if err != nil {
		return l, nil
	}
	defer exe.Close()
	if same, err := l.keeper.Runs(exe); same || err != nil {
		return l, nil
	}
	logger := c.cfg.Logger.With("pid", l.keeper.PID, "dir", c.cfg.Dir)
	resp, _, err := l.call(ctx, &request{Op: opReplace, Args: c.cfg.Args}, int(exe.Fd()))
	if !errors.Is(err, errDown) {
		if err == nil {
			err = resp.err()
		}
		logger.Warn("keeper stays another build", "error", err)
		return l, ctx.Err()
	}
	l.close()
	logger.Info("keeper was replaced by this build")
	conn, err := dial(c.Socket())
	if err != nil {
		return nil, nil // it has not survived that
	}
	if l, err = newLink(ctx, conn, true); err != nil {
		return nil, nil
	}
	return l, nil
}

// handOver tells a keeper what was started before it, gives it what it does not
// hold yet, and takes a copy of what it holds for somebody before us.
func (c *Client) handOver(ctx context.Context, l *link) error {
	if wards := c.wards(); len(wards) > 0 {
		if _, _, err := l.call(ctx, &request{Op: opAdopt, Wards: wards}); err != nil {
			return err
		}
	}
	there, err := c.takeCopies(ctx, l)
	if err != nil {
		return err
	}
	for keys := c.heldBut(there); len(keys) > 0; {
		n := min(len(keys), maxFiles)
		if err := c.give(ctx, l, keys[:n]); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// takeCopies takes what the keeper holds and we do not. It returns all that the
// keeper holds.
func (c *Client) takeCopies(ctx context.Context, l *link) (there []string, err error) {
	resp, _, err := l.call(ctx, &request{Op: opKeys})
	if err != nil {
		return nil, err
	}
	for i, key := range resp.Keys {
		c.mu.Lock()
		_, have := c.held[key]
		c.mu.Unlock()
		if have {
			continue
		}
		taken, fds, err := l.call(ctx, &request{Op: opTake, Keys: []string{key}})
		if err != nil {
			return nil, err
		}
		if taken.err() != nil || len(fds) != 1 {
			closeAll(fds)
			continue // dropped meanwhile
		}
		c.mu.Lock()
		c.held[key] = copyFD{fds[0], i < len(resp.Drain) && resp.Drain[i]}
		c.mu.Unlock()
	}
	return resp.Keys, nil
}

// heldBut returns the keys of what we hold and somebody else does not.
func (c *Client) heldBut(there []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := maps.Clone(c.held)
	for _, key := range there {
		delete(missing, key)
	}
	return slices.Collect(maps.Keys(missing))
}

// give lets the keeper hold what is under some keys, as far as it is still held.
func (c *Client) give(ctx context.Context, l *link, keys []string) error {
	req := &request{Op: opHold}
	var fds []int
	defer func() { closeAll(fds) }()
	c.mu.Lock()
	for _, key := range keys {
		h, ok := c.held[key]
		if !ok {
			continue
		}
		fd, err := duplicateFD(h.fd)
		if err != nil {
			c.mu.Unlock()
			return err
		}
		req.Keys, req.Drain, fds = append(req.Keys, key), append(req.Drain, h.drain), append(fds, fd)
	}
	c.mu.Unlock()
	if len(fds) == 0 {
		return nil
	}
	resp, _, err := l.call(ctx, req, fds...)
	if err == nil {
		err = resp.err()
	}
	return err
}

const selfExe = "/proc/self/exe"

// start starts a keeper process. The lock of the directory is held.
func (c *Client) start() error {
	c.mu.Lock()
	old, born, ephemeral := c.child, c.born, c.cfg.Ephemeral
	c.child = nil
	c.mu.Unlock()
	reapChild(old, born, 2*time.Second)
	if tail := readTail(filepath.Join(c.cfg.Dir, logName)); tail != "" {
		c.cfg.Logger.Error("the last keeper crashed", "stderr", tail)
	}

	path := c.Socket()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	name, release, err := shortName(path)
	if err != nil {
		return err
	}
	defer release()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return err
	}
	socket, err := listener.File()
	if err != nil {
		return err
	}
	defer socket.Close()

	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	log, err := os.OpenFile(filepath.Join(c.cfg.Dir, logName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	conf, err := json.Marshal(setup{Dir: c.cfg.Dir, Ephemeral: ephemeral, Linger: c.cfg.Linger})
	if err != nil {
		return err
	}
	child, err := os.StartProcess(selfExe, c.cfg.Args, &os.ProcAttr{
		Dir:   "/",
		Env:   append(RuntimeEnv(), envSetup+"="+string(conf), "GOMAXPROCS=1"),
		Files: []*os.File{null, null, log, listenerFD: socket},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	p, err := ProcessOf(child.Pid)
	c.mu.Lock()
	c.child, c.born = child, p
	c.mu.Unlock()
	return err
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

// reapChild reaps a keeper of ours that is about to end, if it does so in time.
// One that lives on is left to init, or to the exit of this process.
func reapChild(child *os.Process, p Process, patience time.Duration) {
	switch {
	case child == nil:
	case gone(p, patience):
		_, _ = child.Wait()
	default:
		_ = child.Release()
	}
}

// prepareDir makes the runtime directory, or refuses one that others can enter.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not %d", dir, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%s has mode %04o: others can enter it; it must be 0700", dir, st.Mode&0o7777)
	}
	return nil
}

// lockDir waits for the lock of a runtime directory. Closing the file releases it.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// gone reports whether a process has ended, and waits for that for a while.
func gone(p Process, patience time.Duration) bool {
	fd, err := p.open()
	if err != nil {
		return !p.Alive()
	}
	defer unix.Close(fd)
	for end := time.Now().Add(patience); ; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(max(0, time.Until(end).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0
	}
}

func readTail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	const limit = 4 << 10
	if len(b) > limit {
		b = b[:limit] // a panic begins with its reason
	}
	return strings.TrimSpace(string(b))
}
