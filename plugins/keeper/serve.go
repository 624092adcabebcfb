package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envSetup carries a setup from the client that starts a keeper.
const envSetup = "NOMAD_LITE_KEEPER_SETUP"

// listenerFD is where a keeper finds its listening socket.
const listenerFD = 3

const (
	socketName = "keeper.sock"
	lockName   = "keeper.lock" // held while somebody starts a keeper, or one ends
	logName    = "keeper.log"  // stderr of the keeper: empty unless it crashed
)

// setup is what a keeper has to know at its start.
type setup struct {
	Dir       string        `json:"dir"`
	Ephemeral bool          `json:"ephemeral"`
	Linger    time.Duration `json:"linger"`
	Legacy    *legacy       `json:"legacy,omitempty"` // of a keeper that has executed us in its place
}

// Serve is the keeper process: the body of the hidden command. It returns when
// the keeper has nothing left to do, or ctx ends.
//
// It must be the only thing that runs in its process: it reaps every child,
// closes descriptors that it was not given, and becomes the child subreaper.
// It answers only a client's Start; by hand it says so and returns an error.
func Serve(ctx context.Context) error {
	var s setup
	text := os.Getenv(envSetup)
	if text == "" {
		return errors.New("the keeper is started by nomad-lite itself; it is not run by hand")
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("read keeper setup: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become child subreaper: %w", err)
	}
	estate, err := s.Legacy.take()
	if err != nil {
		return err
	}
	listener, err := takeListener(s.Legacy.listener())
	if err != nil {
		return err
	}
	defer listener.Close()

	// One thread at a time is plenty here, and each one costs memory.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	// By its name, not by the number of the descriptor that it was executed
	// through, is how a person finds the process.
	_ = os.WriteFile("/proc/self/comm", []byte("nomad-lite"), 0)

	self, err := ProcessOf(os.Getpid())
	if err != nil {
		return err
	}
	k := newServer(s, self)
	estate.restore(k)
	return k.run(ctx, listener)
}

// takeListener takes the inherited socket and closes whatever else leaked in:
// the programs between a login shell and us are not all careful, and a pipe
// that stays open here keeps its reader waiting for ever.
func takeListener(fd int) (*net.UnixListener, error) {
	unix.CloseOnExec(fd)
	if err := closeInherited(); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take listening socket: %w", err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("take listening socket: it is %T", l)
	}
	return ul, nil
}

// closeInherited closes the descriptors above stderr that lack close-on-exec.
// Everything that this process has opened itself has it.
func closeInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list inherited descriptors: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// server is the state of a keeper.
type server struct {
	setup setup
	self  Process
	wake  chan struct{} // capacity 1: something changed that may be the end
	wg    sync.WaitGroup

	ephemeral atomic.Bool // set once, at the start or by opEphemeral

	// forkMu is held from a fork until the child's start time is read, and from
	// before a child is reaped until its status is remembered: nobody may look
	// for a child in between. It is taken before mu.
	forkMu  sync.Mutex
	closing bool // nothing is started any more

	listener *net.UnixListener // set by run

	mu      sync.Mutex
	conns   map[*serverConn]bool
	agents  int       // connections that said they are an agent's
	since   time.Time // since when agents is 0
	joined  bool      // an agent has been here
	held    map[string]*heldFD
	wards   []Process // started by a keeper before this one, and still there
	known   statuses
	tidy    *time.Timer // gives memory back after a burst of requests
	waiters map[Process][]waiter
	watches map[Process]*os.File // a pidfd for each process that is waited for
}

// waiter is one wait request that has no answer yet.
type waiter struct {
	conn *serverConn
	id   uint64
}

func newServer(s setup, self Process) *server {
	k := &server{
		setup:   s,
		self:    self,
		wake:    make(chan struct{}, 1),
		conns:   map[*serverConn]bool{},
		since:   time.Now(),
		held:    map[string]*heldFD{},
		waiters: map[Process][]waiter{},
		watches: map[Process]*os.File{},
	}
	k.ephemeral.Store(s.Ephemeral)
	return k
}

// run serves until the keeper's work is done.
func (k *server) run(ctx context.Context, listener *net.UnixListener) error {
	sigs := make(chan os.Signal, 8)
	// Caught, not ignored: an ignored signal would stay ignored in every child.
	signal.Notify(sigs, unix.SIGCHLD, unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(sigs)

	k.listener = listener
	k.tidy = time.AfterFunc(time.Second, debug.FreeOSMemory)
	defer k.tidy.Stop()
	timer := time.NewTimer(k.patience())
	defer timer.Stop()
	k.wg.Go(func() { k.accept(listener) })
	k.reap() // children may have come before the handler
	terminated := false
	for {
		if k.done(terminated) {
			// A client that starts a keeper holds the lock until it is connected to
			// one: after that, look again.
			lock, err := lockDir(k.setup.Dir)
			if k.done(terminated) {
				k.leave(listener, err == nil)
				return nil
			}
			if err == nil {
				lock.Close()
			}
		}
		select {
		case <-ctx.Done():
			terminated = true
		case sig := <-sigs:
			switch sig {
			case unix.SIGCHLD:
				k.reap()
			case unix.SIGTERM:
				// Not while an agent is there: "kill everything named nomad-lite"
				// must not cut short the order in which it stops its tasks.
				terminated = true
			}
		case <-timer.C:
		case <-k.wake:
		}
		timer.Reset(k.patience())
	}
}

// done reports whether the keeper should end.
func (k *server) done(terminated bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.agents > 0 {
		return false
	}
	idle := time.Since(k.since) >= k.patience()
	if k.ephemeral.Load() {
		return k.joined || terminated || idle
	}
	return terminated || idle && !hasChildren() && !k.inUseLocked()
}

// patience is how long the keeper waits for an agent. The agent of an ephemeral
// one is there at once or not at all.
func (k *server) patience() time.Duration {
	if k.ephemeral.Load() {
		return min(k.setup.Linger, 10*time.Second)
	}
	return k.setup.Linger
}

// leave ends what an ephemeral keeper has started, all connections, and the
// keeper's files. The lock is kept until the process is gone.
func (k *server) leave(listener *net.UnixListener, locked bool) {
	k.forkMu.Lock()
	k.closing = true
	if k.ephemeral.Load() {
		k.mu.Lock()
		wards := k.wards
		k.mu.Unlock()
		for _, p := range wards {
			killTree(p)
		}
		killDescendants()
	}
	k.forkMu.Unlock()
	if locked {
		_ = os.Remove(filepath.Join(k.setup.Dir, socketName))
	}
	listener.Close()
	k.mu.Lock()
	for c := range k.conns {
		c.wire.conn.Close()
	}
	for key := range k.held {
		k.dropLocked(key)
	}
	k.mu.Unlock()
	k.wg.Wait()
	if k.ephemeral.Load() && locked {
		removeLeftovers(k.setup.Dir)
	}
}

// removeLeftovers removes what the dead leave in a runtime directory: sockets,
// and files that are named as locks, pids or logs. The directory stays if there is
// anything else in it.
func removeLeftovers(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch ext := filepath.Ext(e.Name()); {
		case e.IsDir():
			removeLeftovers(path)
		case e.Type()&os.ModeSocket != 0,
			e.Type().IsRegular() && (ext == ".lock" || ext == ".pid" || ext == ".log"):
			_ = os.Remove(path)
		}
	}
	_ = os.Remove(dir)
}

func (k *server) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// reap takes every child that has ended and remembers how.
func (k *server) reap() {
	for {
		k.forkMu.Lock()
		pid, err := nextZombie()
		if err != nil || pid == 0 {
			k.forkMu.Unlock()
			return
		}
		st, statErr := readStat(pid)
		var word unix.WaitStatus
		_, err = unix.Wait4(pid, &word, 0, nil)
		if err == nil && statErr == nil {
			k.ended(Process{PID: pid, StartTime: st.start}, statusOf(int(word)), st.session == pid)
		}
		k.forkMu.Unlock()
	}
}

// nextZombie names a child that has ended and leaves it as it is.
func nextZombie() (int, error) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return siginfoPID(&info), err
		}
	}
}

// ended answers those who wait for p and remembers the status.
func (k *server) ended(p Process, status Status, leader bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known.add(p, status, leader)
	k.answerWaitsLocked(p, response{Status: status})
}

// answerWaitsLocked gives all who wait for p the same answer.
func (k *server) answerWaitsLocked(p Process, resp response) {
	for _, w := range k.waiters[p] {
		own := resp // it is queued, and each waiter's has an id of its own
		own.ID = w.id
		w.conn.answer(&own, nil)
		delete(w.conn.waits, w.id)
	}
	k.forgetWaitsLocked(p)
}

// forgetWaitsLocked ends the watch over a process that nobody waits for.
func (k *server) forgetWaitsLocked(p Process) {
	delete(k.waiters, p)
	if f := k.watches[p]; f != nil {
		f.Close()
		delete(k.watches, p)
	}
}

// accept serves connections until the listener is closed.
func (k *server) accept(listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, for example: children and held descriptors matter
			// more than a new connection.
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if SameUser(conn) != nil {
			conn.Close()
			continue
		}
		c := &serverConn{server: k, wire: &wire{conn: conn}, waits: map[uint64]Process{}, ready: make(chan struct{}, 1)}
		k.mu.Lock()
		k.conns[c] = true
		k.mu.Unlock()
		k.wg.Go(c.serve)
	}
}

// serverConn is one client's connection.
type serverConn struct {
	server *server
	wire   *wire
	ready  chan struct{} // capacity 1: queue is not empty

	// guarded by server.mu
	agent bool
	gone  bool
	waits map[uint64]Process
	queue []answer
}

type answer struct {
	msg *response
	fds []int // owned by the answer
}

// answer queues a response, so that nobody waits for a client that does not read.
// server.mu is held.
func (c *serverConn) answer(msg *response, fds []int) {
	if c.gone {
		closeAll(fds)
		return
	}
	c.queue = append(c.queue, answer{msg, fds})
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// serve reads requests until the connection ends.
func (c *serverConn) serve() {
	k := c.server
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() { c.write(stop) })

	for {
		var req request
		fds, err := c.wire.receive(&req)
		if err != nil {
			break
		}
		if !c.handle(&req, fds) {
			break
		}
	}

	c.wire.conn.Close()
	close(stop)
	writer.Wait()
	k.mu.Lock()
	c.gone = true
	for _, a := range c.queue {
		closeAll(a.fds)
	}
	for id, p := range c.waits {
		k.unwaitLocked(c, id, p)
	}
	delete(k.conns, c)
	if c.agent {
		k.agents--
		if k.agents == 0 {
			k.since = time.Now()
			k.drainLocked()
		}
	}
	k.mu.Unlock()
	k.poke()
}

// write sends queued answers until stop is closed.
func (c *serverConn) write(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-c.ready:
		}
		c.server.mu.Lock()
		queue := c.queue
		c.queue = nil
		c.server.mu.Unlock()
		for _, a := range queue {
			_ = c.wire.send(a.msg, a.fds...) // a failure closes the connection
			closeAll(a.fds)
		}
	}
}

// handle does what one request wants. It owns fds. False ends the connection.
func (c *serverConn) handle(req *request, fds []int) bool {
	k := c.server
	resp := &response{ID: req.ID}
	fail := func(format string, args ...any) { resp.Error = fmt.Sprintf(format, args...) }
	k.tidy.Reset(time.Second)

	k.mu.Lock()
	agent := c.agent
	k.mu.Unlock()
	if !agent && req.Op != opHello && req.Op != opWait && req.Op != opCancel {
		closeAll(fds)
		fail("operation %q is the agent's", req.Op)
		k.mu.Lock()
		c.answer(resp, nil)
		k.mu.Unlock()
		return true
	}
	if req.Op == opSpawn {
		resp = k.spawn(req, fds)
		k.mu.Lock()
		c.answer(resp, nil)
		k.mu.Unlock()
		return true
	}

	if req.Op == opReplace {
		resp.Error = k.replace(req.Args, fds).Error()
		closeAll(fds)
		k.mu.Lock()
		c.answer(resp, nil)
		k.mu.Unlock()
		return true
	}

	if req.Op == opWait {
		// A child that is being reaped is not in /proc any more, and not yet known.
		k.forkMu.Lock()
		defer k.forkMu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []int
	switch req.Op {
	case opHello:
		resp.Process, resp.Ephemeral = k.self, k.ephemeral.Load()
		if req.Agent && !c.agent {
			c.agent = true
			k.agents++
			k.joined = true
			k.undrainLocked()
		}
	case opEphemeral:
		k.ephemeral.Store(true)
	case opWait:
		if len(c.waits) >= maxWaiting {
			fail("more than %d waits on one connection", maxWaiting)
			break
		}
		if k.waitLocked(c, req.ID, req.Process) {
			closeAll(fds)
			return true // answered later
		}
		if status, ok := k.known.get(req.Process); ok {
			resp.Status = status
		} else {
			resp.Code = codeUnknown
		}
	case opCancel:
		if p, ok := c.waits[req.ID]; ok {
			k.unwaitLocked(c, req.ID, p)
		}
		closeAll(fds)
		return true
	case opHold:
		if len(req.Keys) != len(fds) || len(req.Drain) > len(fds) {
			fail("hold: %d keys with %d descriptors", len(req.Keys), len(fds))
			break
		}
		for i, key := range req.Keys {
			k.holdLocked(key, fds[i], i < len(req.Drain) && req.Drain[i])
		}
		fds = nil
	case opTake:
		out, resp = k.takeLocked(req)
	case opDrop:
		for _, key := range req.Keys {
			k.dropLocked(key)
		}
	case opAdopt:
		k.wards = req.Wards
	case opKeys:
		for key := range k.held {
			resp.Keys = append(resp.Keys, key)
		}
		slices.Sort(resp.Keys)
		for _, key := range resp.Keys {
			resp.Drain = append(resp.Drain, k.held[key].drain)
		}
	default:
		fail("operation %q is unknown", req.Op)
	}
	closeAll(fds)
	c.answer(resp, out)
	return true
}

// spawn starts a child. It owns fds.
func (k *server) spawn(req *request, fds []int) *response {
	defer closeAll(fds)
	resp := &response{ID: req.ID}
	p := req.Spawn
	if p == nil {
		resp.Error = "spawn: no command"
		return resp
	}
	next := func(present bool) int {
		if !present || len(fds) == 0 {
			return -1
		}
		fd := fds[0]
		fds = fds[1:]
		return fd
	}
	want := 0
	for _, b := range [...]bool{p.Exec, p.Stdin, p.Stdout, p.Stderr} {
		if b {
			want++
		}
	}
	if want != len(fds) {
		resp.Error = fmt.Sprintf("spawn %q: %d descriptors came, %d were announced", p.Name, len(fds), want)
		return resp
	}
	path := p.Path
	if fd := next(p.Exec); fd >= 0 {
		path = "/proc/self/fd/" + strconv.Itoa(fd)
	}
	stdio := []int{next(p.Stdin), next(p.Stdout), next(p.Stderr)}

	null := -1
	attr := &syscall.ProcAttr{Dir: p.Dir, Env: p.Env, Sys: &syscall.SysProcAttr{Setsid: true}}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	if attr.Env == nil {
		attr.Env = []string{}
	}
	for _, fd := range stdio {
		if fd < 0 {
			if null < 0 {
				var err error
				if null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
					resp.Error = fmt.Sprintf("spawn %q: open /dev/null: %v", p.Name, err)
					return resp
				}
				defer unix.Close(null)
			}
			fd = null
		}
		// Programs expect blocking stdio, and Go's pipes are not.
		_ = unix.SetNonblock(fd, false)
		attr.Files = append(attr.Files, uintptr(fd))
	}
	argv := p.Args
	if len(argv) == 0 {
		argv = []string{path}
	}

	k.forkMu.Lock()
	defer k.forkMu.Unlock()
	if k.closing {
		resp.Error = fmt.Sprintf("spawn %q: the keeper is ending", p.Name)
		return resp
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			resp.Errno = int(errno)
			resp.Error = fmt.Sprintf("spawn %q", p.Name)
		} else {
			resp.Error = fmt.Sprintf("spawn %q: %v", p.Name, err)
		}
		return resp
	}
	resp.Process, err = ProcessOf(pid)
	if err != nil {
		// Nobody can have reaped it, so /proc itself does not work.
		_ = unix.Kill(pid, unix.SIGKILL)
		resp.Error = fmt.Sprintf("spawn %q: read start time of pid %d: %v", p.Name, pid, err)
	}
	return resp
}

// waitLocked registers a wait and reports true, or false when the answer is
// known now or never.
func (k *server) waitLocked(c *serverConn, id uint64, p Process) bool {
	if _, ok := k.known.get(p); ok {
		return false
	}
	fd, err := p.open()
	if errors.Is(err, os.ErrProcessDone) {
		return false
	}
	if err != nil {
		// No pidfd: only a child is sure to be heard of again.
		if st, err := readStat(p.PID); err != nil || st.start != p.StartTime || st.ppid != os.Getpid() {
			return false
		}
	}
	k.waiters[p] = append(k.waiters[p], waiter{c, id})
	c.waits[id] = p
	switch {
	case fd < 0:
	case k.watches[p] == nil:
		f := os.NewFile(uintptr(fd), "pidfd")
		k.watches[p] = f
		k.wg.Go(func() { k.watch(p, f) })
	default:
		unix.Close(fd)
	}
	return true
}

// watch waits for the end of a process that may not be a child of ours: the
// child of a driver that lives, or one that a keeper before us has started. It
// returns early when nobody waits any more.
func (k *server) watch(p Process, f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	if err != nil {
		return // closed
	}

	k.forkMu.Lock() // so that a child is either still there or already remembered
	defer k.forkMu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.waiters[p]) == 0 {
		return
	}
	if st, err := readStat(p.PID); err == nil && st.start == p.StartTime && st.ppid == os.Getpid() {
		return // reap answers
	}
	var status Status
	ok := false
	if err := raw.Control(func(fd uintptr) { status, ok = exited(p, int(fd)) }); err != nil || !ok {
		k.answerWaitsLocked(p, response{Code: codeUnknown})
		return
	}
	k.known.add(p, status, true)
	k.answerWaitsLocked(p, response{Status: status})
}

// unwaitLocked forgets one wait.
func (k *server) unwaitLocked(c *serverConn, id uint64, p Process) {
	delete(c.waits, id)
	k.waiters[p] = slices.DeleteFunc(k.waiters[p], func(w waiter) bool { return w == waiter{c, id} })
	if len(k.waiters[p]) == 0 {
		k.forgetWaitsLocked(p)
	}
}

// siginfoPID returns si_pid, which stands behind three numbers, aligned as a pointer.
func siginfoPID(info *unix.Siginfo) int {
	const offset = (12 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}

// hasChildren reports whether this process has children, zombies included.
func hasChildren() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return !errors.Is(err, unix.ECHILD)
}

// children lists the children of this process.
func children() []int {
	return childrenOf(os.Getpid())
}

// childrenOf lists the children of a process.
func childrenOf(parent int) []int {
	var pids []int
	dir := "/proc/" + strconv.Itoa(parent) + "/task"
	tasks, _ := os.ReadDir(dir)
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			return scanChildren(parent) // a kernel without CONFIG_PROC_CHILDREN, or a thread that ended just now
		}
		for _, field := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func scanChildren(parent int) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil && st.ppid == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killDescendants kills every process below this one and reaps it. The
// children of a process that is killed become ours, so it goes on until there
// is no child left; a child that another user owns and that we may not kill
// is left alone.
func killDescendants() {
	for {
		killed := 0
		for _, pid := range children() {
			if unix.Kill(pid, unix.SIGKILL) == nil {
				killed++
				thaw(strconv.Itoa(pid))
			}
		}
		var word unix.WaitStatus
		flags := 0
		if killed == 0 {
			flags = unix.WNOHANG
		}
		pid, err := unix.Wait4(-1, &word, flags, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return // ECHILD
		case pid == 0 && len(children()) > 0:
			return // not ours to kill
		}
	}
}

// killTree kills a process that is no child of ours, and what is below it. Each
// is stopped before its children are listed, so that none is forked meanwhile.
func killTree(p Process) {
	if p.Signal(unix.SIGSTOP) != nil {
		return
	}
	for _, pid := range childrenOf(p.PID) {
		if child, err := ProcessOf(pid); err == nil {
			killTree(child)
		}
	}
	_ = p.Signal(unix.SIGKILL)
}
