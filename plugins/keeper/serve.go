package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/footprint"
)

// envSetup carries a setup from the client that starts a keeper.
const envSetup = "NOMAD_LITE_KEEPER_SETUP"

// The descriptors that a keeper inherits.
const (
	listenerFD = 3 // the socket that listens
	lockFD     = 4 // the file processName, locked
	homeFD     = 5 // the data directory
)

// The files of a keeper in the data directory. The socket is in the directory for
// sockets; the others are not, because that one may be removed and made again.
const (
	socketName  = "keeper.sock"
	lockName    = "keeper.lock" // locked while a client starts a keeper, or a keeper ends
	processName = "keeper.pid"  // locked by the keeper as long as it lives, with its Process
	logName     = "keeper.log"  // stderr of the keeper: empty unless it crashed
)

// setup is what a keeper has to know at its start.
type setup struct {
	Dir       string        `json:"dir"`
	Ephemeral bool          `json:"ephemeral"`
	Linger    time.Duration `json:"linger"`
	Handoff   *execHandoff  `json:"legacy,omitempty"` // of a keeper that has executed us in its place
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
	inherited := ProtectFromOOM()
	handoff, err := s.Handoff.take()
	if err != nil {
		return err
	}
	place, err := s.takePlace()
	if err != nil {
		return err
	}

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
	k.place, k.oomScore = *place, inherited
	if err := k.place.record(self); err != nil {
		return err
	}
	handoff.restore(k)
	return k.run(ctx)
}

// place is where a keeper is found. The directory and the lock are missing while a
// keeper that an earlier version has started is not moved yet.
type place struct {
	listener *net.UnixListener
	lock     *os.File
	dir      *Directory
}

// record makes a process the one that is found by the lock.
func (p *place) record(self Process) error {
	if p.lock == nil {
		return nil
	}
	return WriteProcess(p.lock, self)
}

// takePlace takes the inherited descriptors and closes all others.
func (s *setup) takePlace() (*place, error) {
	fds := execHandoff{Listener: listenerFD, Lock: lockFD, Home: homeFD}
	if s.Handoff != nil {
		fds = *s.Handoff
	}
	p := &place{}
	if fds.Lock > 0 {
		unix.CloseOnExec(fds.Lock)
		p.lock = os.NewFile(uintptr(fds.Lock), processName)
	}
	if fds.Home > 0 {
		unix.CloseOnExec(fds.Home)
		p.dir = &Directory{s.Dir, os.NewFile(uintptr(fds.Home), s.Dir)}
	}
	var err error
	p.listener, err = takeListener(fds.Listener)
	return p, err
}

// takeListener takes the inherited socket and closes whatever else leaked in:
// the programs between a login shell and us are not all careful, and a pipe
// that stays open here keeps its reader waiting for ever.
func takeListener(fd int) (*net.UnixListener, error) {
	unix.CloseOnExec(fd)
	if err := closeInherited(); err != nil {
		return nil, err
	}
	return takeSocket(fd)
}

// takeSocket makes a listener of a descriptor, which it closes.
func takeSocket(fd int) (*net.UnixListener, error) {
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
	ul.SetUnlinkOnClose(false)
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
	setup    setup
	self     Process
	oomScore string        // of children; empty: that of the keeper
	wake     chan struct{} // capacity 1: something changed that may be the end
	wg       sync.WaitGroup

	ephemeral atomic.Bool // set once, at the start or by opEphemeral

	// forkMu is held from a fork until the child's start time is read, and from
	// before a child is reaped until its status is remembered: nobody may look
	// for a child in between. It is taken before mu.
	forkMu  sync.Mutex
	closing bool // nothing is started any more

	mu           sync.Mutex
	place        place
	conns        map[*serverConn]bool
	agents       int       // connections that said they are an agent's
	agentGoneAt  time.Time // since when agents is 0
	joined       bool      // an agent has been here
	held         map[string]*storedFD
	managedProcs []Process // started by a keeper before this one, and still there
	spawned      []Process // started by this one on request: plugins and the log collector
	known        statuses
	tidy         *time.Timer // gives memory back after a burst of requests
	waiters      map[Process][]waiter
	watches      map[Process]*os.File // a pidfd for each process that is waited for
}

func newServer(s setup, self Process) *server {
	k := &server{
		setup:       s,
		self:        self,
		wake:        make(chan struct{}, 1),
		conns:       map[*serverConn]bool{},
		agentGoneAt: time.Now(),
		held:        map[string]*storedFD{},
		waiters:     map[Process][]waiter{},
		watches:     map[Process]*os.File{},
	}
	k.ephemeral.Store(s.Ephemeral)
	return k
}

// run serves until the keeper's work is done.
func (k *server) run(ctx context.Context) error {
	sigs := make(chan os.Signal, 8)
	// Caught, not ignored: an ignored signal would stay ignored in every child.
	signal.Notify(sigs, unix.SIGCHLD, unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(sigs)

	k.tidy = time.AfterFunc(time.Second, footprint.Release)
	defer k.tidy.Stop()
	timer := time.NewTimer(k.patience())
	defer timer.Stop()
	listener := k.place.listener
	k.wg.Go(func() { k.accept(listener) })
	k.reap() // children may have come before the handler
	terminated := false
	for {
		if k.done(terminated) {
			// A client that starts a keeper holds the lock until it is connected to
			// one: after that, look again.
			dir, lock := k.lockDirectory()
			if k.done(terminated) {
				k.leave(dir, lock != nil)
				return nil
			}
			if lock != nil {
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
			case unix.SIGHUP:
				k.listenAgain()
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
	idle := time.Since(k.agentGoneAt) >= k.patience()
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

// lockDirectory returns the data directory and the lock that a client holds while it
// starts a keeper: nil if there is none.
func (k *server) lockDirectory() (*Directory, *os.File) {
	k.mu.Lock()
	dir := k.place.dir
	k.mu.Unlock()
	if dir == nil {
		return nil, nil
	}
	lock, err := dir.Lock(lockName, unix.LOCK_EX)
	if err != nil {
		return dir, nil
	}
	return dir, lock
}

// listenAgain replaces the socket, which was removed. Connections are not affected.
func (k *server) listenAgain() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.place.dir == nil {
		return
	}
	listener, err := k.place.dir.Listen("unix", socketName)
	if err != nil {
		return // the client that wants it sees that there is no socket
	}
	k.serveLocked(listener)
}

// serveLocked accepts connections from another listener than before.
func (k *server) serveLocked(listener *net.UnixListener) {
	k.place.listener.Close()
	k.place.listener = listener
	k.wg.Go(func() { k.accept(listener) })
}

// moveTo has the keeper serve a directory, where it is found by a socket and a lock. It
// owns the three descriptors.
func (k *server) moveTo(path string, fds []int) error {
	if len(fds) != 3 {
		closeAll(fds)
		return fmt.Errorf("move: %d descriptors came", len(fds))
	}
	lock, home := os.NewFile(uintptr(fds[1]), processName), os.NewFile(uintptr(fds[2]), path)
	listener, err := takeSocket(fds[0])
	if err == nil {
		err = WriteProcess(lock, k.self)
	}
	if err != nil {
		lock.Close()
		home.Close()
		return fmt.Errorf("move: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.place.dir != nil {
		k.place.dir.Close()
		k.place.lock.Close()
	}
	k.setup.Dir = path
	k.place.dir, k.place.lock = &Directory{path, home}, lock
	k.serveLocked(listener)
	return nil
}

// leave ends what an ephemeral keeper has started, all connections, and the
// keeper's files. The lock is kept until the process is gone.
func (k *server) leave(dir *Directory, locked bool) {
	k.forkMu.Lock()
	k.closing = true
	if k.ephemeral.Load() {
		k.mu.Lock()
		managedProcs := k.managedProcs
		k.mu.Unlock()
		for _, p := range managedProcs {
			killTree(p)
		}
		killDescendants()
	}
	k.forkMu.Unlock()
	if locked {
		dir.RemoveSocket(socketName)
	}
	k.mu.Lock()
	k.place.listener.Close()
	for c := range k.conns {
		c.wire.conn.Close()
	}
	for key := range k.held {
		k.dropLocked(key)
	}
	k.mu.Unlock()
	k.wg.Wait()
	if k.ephemeral.Load() && locked {
		dir.RemoveSocketDir()
		for _, name := range []string{logName, processName, lockName} {
			dir.Remove(name)
		}
	}
}

func (k *server) wakeUp() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}
