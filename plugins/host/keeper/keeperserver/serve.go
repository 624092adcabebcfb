package keeperserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// Serve runs the keeper in this process. It returns when no process, agent or stored
// descriptor needs the keeper any longer, or when ctx ends. version is the version of the protocol that it reports to clients.
//
// No other code may run in the process: Serve reaps every child, closes inherited
// descriptors that are not its own, and becomes the child subreaper. Only keeper.ConnectOrStart can start
// such a process; without the setup in the environment Serve returns an error.
func Serve(ctx context.Context, version int) error {
	var s keeperwire.Setup
	text := os.Getenv(keeperwire.SetupEnvVar)
	if text == "" {
		return errors.New("the keeper is started by nomad-lite itself; it is not run by hand")
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("read keeper setup: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become child subreaper: %w", err)
	}
	inherited := osprocess.ProtectFromOOM()
	handoff, err := readHandoffState(s.Handoff)
	if err != nil {
		return err
	}
	endpoint, err := openEndpointAndCloseOtherFDs(&s)
	if err != nil {
		return err
	}

	// More threads would cost memory and are not needed.
	runtime.GOMAXPROCS(1)
	// The process name is set because it would be a number: the program is executed as
	// /proc/self/fd/N.
	_ = os.WriteFile("/proc/self/comm", []byte("nomad-lite"), 0)

	self, err := osprocess.LookupID(os.Getpid())
	if err != nil {
		return err
	}
	hello := framing.NewHello(framing.RoleKeeper, version)
	hello.Process = self
	k := newServer(s, hello)
	k.endpoint, k.childOOMScore = *endpoint, inherited
	if err := k.endpoint.writePIDFile(self); err != nil {
		return err
	}
	handoff.restoreTo(k)
	return k.run(ctx)
}

// keeperEndpoint is the listener of a keeper, with the data directory and the locked PID file by which
// clients find the keeper.
type keeperEndpoint struct {
	listener      *os.File
	lockedPIDFile *os.File
	dataDir       *helperdir.Dir
}

// writePIDFile writes the keeper's osprocess.ID to the PID file, from which [helperdir.Dir.LockOwner] reads it.
func (k *keeperEndpoint) writePIDFile(self osprocess.ID) error {
	return helperdir.WriteLockOwner(k.lockedPIDFile, self)
}

// openEndpointAndCloseOtherFDs takes ownership of the inherited descriptors and closes all others.
func openEndpointAndCloseOtherFDs(s *keeperwire.Setup) (*keeperEndpoint, error) {
	fds := keeperwire.Handoff{ListenerFD: keeperwire.ListenerFD, LockFD: keeperwire.LockFD, DirFD: keeperwire.DirFD}
	if s.Handoff != nil {
		fds = *s.Handoff
	}
	unix.CloseOnExec(fds.LockFD)
	unix.CloseOnExec(fds.DirFD)
	listener, err := openListenerAndCloseOtherFDs(fds.ListenerFD)
	return &keeperEndpoint{
		listener:      listener,
		lockedPIDFile: os.NewFile(uintptr(fds.LockFD), keeperwire.PIDFileName),
		dataDir:       helperdir.New(s.Dir, os.NewFile(uintptr(fds.DirFD), s.Dir)),
	}, err
}

// openListenerAndCloseOtherFDs takes ownership of the inherited socket. It closes all other inherited descriptors,
// because a pipe has no end of file as long as this process has its write end.
func openListenerAndCloseOtherFDs(fd int) (*os.File, error) {
	unix.CloseOnExec(fd)
	if err := closeFDsWithoutCloexec(); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("take listening socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "listener"), nil
}

// closeFDsWithoutCloexec closes the descriptors above stderr that lack close-on-exec. Every descriptor
// that this process has opened has the flag.
func closeFDsWithoutCloexec() error {
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

// agentConnState counts the connected agents, and records when the last one has disconnected and whether the keeper then exits.
type agentConnState struct {
	connectedCount   int
	lastDisconnectAt time.Time // time at which connectedCount became 0; before the first agent, the start of the keeper
	everConnected    bool      // an agent has connected at least once

	// exitWhenNoTasks means that the last agent has sent keeperwire.OpEndWithoutTasks: the keeper exits when no task runs below it.
	exitWhenNoTasks bool
}

// server is the state of a keeper.
type server struct {
	setup         keeperwire.Setup
	hello         framing.Hello // the keeper's hello message
	childOOMScore string        // OOM score for children; empty means that they inherit the keeper's score
	wakeRun       chan struct{} // capacity 1; a value makes run call shouldExit
	wg            sync.WaitGroup

	ephemeral atomic.Bool // see keeper.Config.Ephemeral; set at the start or by keeperwire.OpSetEphemeral, and never cleared

	// forkMu is held from a fork until the child's start time has been read, and from the
	// reaping of a child until its status is recorded. Code that looks up children must
	// hold forkMu too. A goroutine that needs both locks takes forkMu before mu.
	forkMu       sync.Mutex
	rejectSpawns bool // requests to start a process are rejected, because the keeper shuts down

	mu                 sync.Mutex
	endpoint           keeperEndpoint
	conns              map[*serverConn]bool // nil after shutDown has closed the connections
	agentConns         agentConnState
	storedFDByKey      map[string]*storedFD
	adoptedProcs       []osprocess.ID       // processes of an earlier keeper, which the agent has passed to AdoptProcessOfEarlierKeeper
	spawnedProcs       []osprocess.ID       // processes that this keeper started on request: plugins and the log collector
	executableFDByProc map[osprocess.ID]int // descriptors of the programs of spawnedProcs that were started from a descriptor
	exitStatuses       exitStatusCache
	memoryTrimmer      *memtrim.Trimmer
	exitWaitersByProc  map[osprocess.ID][]exitWaiter
	watchedPidfdByProc map[osprocess.ID]*osprocess.Pidfd // pidfds of the processes that clients have waited for, until the processes have ended
}

func newServer(s keeperwire.Setup, hello framing.Hello) *server {
	k := &server{
		setup:              s,
		hello:              hello,
		wakeRun:            make(chan struct{}, 1),
		conns:              map[*serverConn]bool{},
		agentConns:         agentConnState{lastDisconnectAt: time.Now()},
		storedFDByKey:      map[string]*storedFD{},
		executableFDByProc: map[osprocess.ID]int{},
		exitWaitersByProc:  map[osprocess.ID][]exitWaiter{},
		watchedPidfdByProc: map[osprocess.ID]*osprocess.Pidfd{},
	}
	k.exitStatuses.sessionLeaders.completeSince = osprocess.StartTimeNow()
	k.ephemeral.Store(s.Ephemeral)
	return k
}

// run serves clients until [server.shouldExit] returns that the keeper must exit.
func (se *server) run(ctx context.Context) error {
	sigs := make(chan os.Signal, 8)
	// The signals are handled and not ignored, because children would inherit that they are ignored.
	signal.Notify(sigs, unix.SIGCHLD, unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(sigs)

	se.memoryTrimmer = memtrim.New()
	defer se.memoryTrimmer.Stop()
	timer := time.NewTimer(se.checkDelay())
	defer timer.Stop()
	listener := se.endpoint.listener
	se.wg.Go(func() { se.acceptConns(listener) })
	terminated := false
	for {
		delay := se.checkDelay()
		if se.reapChildren() != nil { // at first reaps the children that have ended before signal.Notify
			delay = min(delay, exhaustedRetryDelay)
		}
		timer.Reset(delay)
		if exit, _ := se.shouldExit(terminated); exit {
			// A client that starts a keeper holds the lock until it has connected.
			// Therefore the condition is checked again under the lock.
			lock := se.lockDataDir()
			if exit, killAll := se.shouldExit(terminated); exit {
				se.shutDown(lock != nil, killAll)
				runtime.KeepAlive(lock) // the finalizer of an unused file would close it, and release the lock, during a long shutDown
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
			switch sig { // after SIGCHLD, the next iteration reaps the child
			case unix.SIGHUP:
				se.recreateSocket()
			case unix.SIGTERM:
				// SIGTERM has no effect while an agent is connected: "killall nomad-lite"
				// must not kill the tasks before the agent has stopped them in order.
				terminated = true
			}
		case <-timer.C:
		case <-se.wakeRun:
		}
	}
}

// exhaustedRetryDelay is the time after which the keeper repeats an operation that has failed because the keeper has no
// free descriptors or memory.
const exhaustedRetryDelay = 50 * time.Millisecond

// shouldExit reports whether the keeper must shut down, and whether it must then kill all its descendants. terminated
// means that the keeper has received SIGTERM, or that the context of Serve has ended.
func (se *server) shouldExit(terminated bool) (exit, killAll bool) {
	if se.mustExitWhenNoTasks() {
		if parents, err := se.processesThatMayHaveTasks(); err == nil && len(parents) == 0 {
			return true, true
		}
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.agentConns.connectedCount > 0 {
		return false, false
	}
	idle := time.Since(se.agentConns.lastDisconnectAt) >= se.idleTimeout()
	if se.ephemeral.Load() {
		return se.agentConns.everConnected || terminated || idle, true
	}
	return terminated || idle && !hasChildren() && !se.anyStoredFDHasOpenPeerLocked(), false
}

// mustExitWhenNoTasks reports whether no agent is connected, and the last agent has sent keeperwire.OpEndWithoutTasks, or the data
// directory was removed.
func (se *server) mustExitWhenNoTasks() bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.agentConns.connectedCount > 0 {
		return false
	}
	return se.agentConns.exitWhenNoTasks || time.Since(se.agentConns.lastDisconnectAt) >= se.removedDirTimeout() && helperdir.IsRemoved(se.endpoint.dataDir.Handle())
}

// checkDelay returns the time after which shouldExit must be called again without an event. The kernel reports no event when an open
// directory is removed.
func (se *server) checkDelay() time.Duration {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.agentConns.connectedCount > 0 {
		return se.idleTimeout()
	}
	return se.removedDirTimeout()
}

// removedDirTimeout returns how long the keeper runs without a connected agent and without tasks after the data directory was removed.
func (se *server) removedDirTimeout() time.Duration { return min(se.idleTimeout(), 30*time.Second) }

// idleTimeout returns how long the keeper runs without a connected agent. For an ephemeral
// keeper it is at most ten seconds, because its agent connects immediately or not at all.
func (se *server) idleTimeout() time.Duration {
	if se.ephemeral.Load() {
		return min(se.setup.IdleTimeout, 10*time.Second)
	}
	return se.setup.IdleTimeout
}

// lockDataDir returns the lock that a client holds while it starts a keeper, or nil if locking fails.
func (se *server) lockDataDir() *os.File {
	lock, err := se.endpoint.dataDir.LockFile(keeperwire.LockFileName, unix.LOCK_EX)
	if err != nil {
		return nil
	}
	return lock
}

// recreateSocket creates the socket again after its removal. Existing connections are not
// affected.
func (se *server) recreateSocket() {
	se.mu.Lock()
	defer se.mu.Unlock()
	listener, err := se.endpoint.dataDir.ListenReplacingSocket(keeperwire.SocketName)
	if err != nil {
		return // a SIGHUP has no response; a client that waits for the socket gives up after two seconds
	}
	se.endpoint.listener.Close()
	se.endpoint.listener = listener
	se.wg.Go(func() { se.acceptConns(listener) })
}

// shutDown closes all connections and removes the keeper's socket. If killAll is true, it first kills all descendants
// of the keeper, and finally removes all files of the keeper. Without the lock of keeperwire.LockFileName (dataDirLocked is
// false) it removes no file, because a client may be starting another keeper. The process holds the lock of its PID
// file until it has exited.
func (se *server) shutDown(dataDirLocked, killAll bool) {
	dir := se.endpoint.dataDir
	se.forkMu.Lock()
	se.rejectSpawns = true
	if killAll {
		se.mu.Lock()
		adoptedProcs := se.adoptedProcs
		se.mu.Unlock()
		for _, p := range adoptedProcs {
			killProcessTree(p)
		}
		killAndReapDescendants()
	}
	se.forkMu.Unlock()
	if dataDirLocked {
		dir.RemoveSocket(keeperwire.SocketName)
	}
	se.mu.Lock()
	se.endpoint.listener.Close()
	for c := range se.conns {
		c.conn.Close()
	}
	se.conns = nil
	for _, fd := range se.watchedPidfdByProc {
		fd.Close()
	}
	for key := range se.storedFDByKey {
		se.removeFDLocked(key)
	}
	se.mu.Unlock()
	se.wg.Wait()
	if killAll && dataDirLocked {
		dir.RemoveSocketDir()
		for _, name := range []string{keeperwire.LogFileName, keeperwire.PIDFileName, keeperwire.LockFileName} {
			dir.RemoveFile(name)
		}
	}
}

func (se *server) wakeRunLoop() {
	wait.Notify(se.wakeRun)
}
