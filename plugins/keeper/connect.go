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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// use makes a connection the one for all.
func (c *Client) use(l *link) {
	c.mu.Lock()
	c.keeper, c.ephemeral = l.keeper, l.ephemeral
	c.mu.Unlock()
	c.line.Set(l, nil)
}

// maintain replaces the connection whenever it ends, until ctx does.
func (c *Client) maintain(ctx context.Context, l *link) {
	for ok := true; ok; {
		select {
		case <-l.Done():
		case <-ctx.Done():
		}
		c.line.Set(nil, nil)
		l.close()
		if c.agent && ctx.Err() == nil {
			c.cfg.Logger.Warn("keeper is gone", "pid", l.keeper.PID, "dir", c.cfg.Dir)
		}
		if l, ok = c.line.Reach(ctx, c.connect, c.noKeeper); ok {
			c.use(l)
		}
	}
}

func (c *Client) noKeeper(err error) {
	if c.agent {
		c.cfg.Logger.Error("no keeper", "dir", c.cfg.Dir, "error", err)
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
	crashes := CrashLog(filepath.Join(c.cfg.Dir, logName))
	if said := crashes.Read(); said != "" {
		c.cfg.Logger.Error("the last keeper crashed", "stderr", said)
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
	socket, err := Listen(&net.UnixAddr{Name: name, Net: "unix"}, path)
	if err != nil {
		return err
	}
	defer socket.Close()

	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	log, err := crashes.Create()
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

// Listen returns a socket that listens, for a process that is still to be started:
// nobody has to wait for it. path is where the address leads.
func Listen(address *net.UnixAddr, path string) (*os.File, error) {
	listener, err := net.ListenUnix(address.Net, address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return listener.File()
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
