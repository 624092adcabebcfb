package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/confine"
	"github.com/nomad-lite/nomad-lite/plugins/filelock"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/memtrim"
	"github.com/nomad-lite/nomad-lite/plugins/process"
)

const envSetup = "NOMAD_LITE_COLLECTOR_SETUP"

// Files of a collector process in the data directory. The socket is in the directory for sockets.
const (
	socketName  = "collector.sock"
	lockName    = "collector.lock" // locked while a client starts a process, or a process exits
	processName = "collector.pid"  // locked by the process until it exits; has its process.ID
	logName     = "collector.log"  // stderr of the process: empty unless the process crashed
)

// setup is the configuration that a collector process reads at its start.
type setup struct {
	Dir       string        `json:"dir"`
	Ephemeral bool          `json:"ephemeral"`
	Linger    time.Duration `json:"linger"`
}

// Serve is the collector process: the body of the hidden command. It returns when no stream has a
// writer and no agent is connected, or when ctx ends. Only a Collector starts it.
func Serve(ctx context.Context) error {
	var conf setup
	text := os.Getenv(envSetup)
	if text == "" {
		return errors.New("the log collector is started by nomad-lite itself; it is not run by hand")
	}
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		return fmt.Errorf("read collector setup: %w", err)
	}
	// The process reads untrusted output: a fault in that code must not have more privileges.
	confine.DenyProcess(append(confine.Powers(), confine.Internet()...)...)
	keeper.ProtectFromOOM()
	_ = os.WriteFile("/proc/self/comm", []byte("nomad-lite"), 0) // the process name in ps

	// Two collectors would write to the same offset of the same file. The previous collector may
	// still be shutting down.
	dir, err := keeper.OpenDirectory(conf.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	lock, err := dir.Lock(processName, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()

	p, err := newServer(conf, dir, stdin)
	if err != nil {
		return err
	}
	if err := keeper.WriteProcess(lock, p.self); err != nil {
		return err
	}
	// The process enlarges FIFOs, which is limited for a user without CAP_SYS_RESOURCE.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := confine.KeepCapabilities(unix.CAP_SYS_RESOURCE); err != nil {
		return err
	}
	return p.run(ctx)
}

// server is the collector: one thread, one loop, and no state that a restart must preserve.
type server struct {
	conf         setup
	dir          *keeper.Directory
	self         process.ID
	poll         int
	wake         int // an eventfd for signals
	listen       int
	tools        *tools
	streams      map[key]*entry
	fifos        map[int32]*entry
	peers        map[int32]*peer
	ready        map[*entry]bool // streams that may have output
	withDeadline map[*entry]bool // streams that have a deadline
	hadAgent     bool            // an agent was connected
	replaced     bool            // another process takes over
	idleCheck    time.Time       // when to check whether the process has work
	msg          []byte
	oob          []byte
	trim         *memtrim.Trimmer
}

// entry is a stream and its state in the process.
type entry struct {
	stream
	subscribers      []*peer
	stopWaiters      []waiter
	deadline         time.Time // set while stopping
	keepOpen         bool      // the stream outlives the deadline while it has a writer
	untilWriterClose bool      // the stream ends with its writers; clients can no longer stop it
}

// stdin is the descriptor of the listening socket.
const stdin = 0

// newServer returns a process that listens on a socket, which it owns.
func newServer(conf setup, dir *keeper.Directory, listen int) (*server, error) {
	self, err := process.LookupID(os.Getpid())
	if err != nil {
		return nil, err
	}
	p := &server{
		conf:         conf,
		dir:          dir,
		self:         self,
		listen:       listen,
		streams:      map[key]*entry{},
		fifos:        map[int32]*entry{},
		peers:        map[int32]*peer{},
		ready:        map[*entry]bool{},
		withDeadline: map[*entry]bool{},
		idleCheck:    time.Now().Add(conf.Linger),
		msg:          make([]byte, maxMessage),
		oob:          make([]byte, unix.CmsgSpace(4*maxFDs)),
		trim:         memtrim.New(25, 25),
	}
	if p.tools, err = newTools(); err != nil {
		return nil, err
	}
	if p.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	unix.CloseOnExec(p.listen)
	if err := unix.SetNonblock(p.listen, true); err != nil {
		return nil, err
	}
	if err := errors.Join(p.watch(p.listen, unix.EPOLLIN), p.watch(p.wake, unix.EPOLLIN)); err != nil {
		return nil, fmt.Errorf("watch socket: %w", err)
	}
	return p, nil
}

func (p *server) watch(fd int, events uint32) error {
	return unix.EpollCtl(p.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// run is the event loop.
func (p *server) run(ctx context.Context) error {
	defer p.close()
	// The process ignores the signals of a terminal; it handles SIGTERM when no agent is
	// connected.
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(sigs)
	stop := make(chan struct{})
	term := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case s := <-sigs:
				if s != unix.SIGTERM {
					continue
				}
			case <-ctx.Done():
			case <-stop:
				return
			}
			close(term)
			_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			return
		}
	}()
	defer func() { close(stop); <-done }()

	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(p.poll, events, p.timeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for output: %w", err)
		}
		for _, ev := range events[:max(n, 0)] {
			p.handle(ev)
		}
		now := time.Now()
		for e := range p.withDeadline {
			p.ready[e] = true
		}
		for e := range p.ready {
			p.service(e, now)
		}
		if p.replaced {
			return nil // the client that sent opQuit removes the socket
		}
		if p.done(now, isClosed(term)) && p.shutDown(isClosed(term)) {
			return nil
		}
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// timeout returns how long the loop may sleep, in milliseconds.
func (p *server) timeout() int {
	if len(p.ready) > 0 {
		return 0
	}
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for e := range p.withDeadline {
		earlier(e.deadline)
		if e.fail.err != nil {
			earlier(e.fail.retry)
		}
	}
	if len(p.peers) == 0 {
		earlier(p.idleCheck)
	}
	if next.IsZero() {
		return -1
	}
	return int(max(0, time.Until(next)).Milliseconds()) + 1
}

// handle records one epoll event.
func (p *server) handle(ev unix.EpollEvent) {
	if e := p.fifos[ev.Fd]; e != nil {
		p.ready[e] = true
		return
	}
	if peer := p.peers[ev.Fd]; peer != nil {
		if ev.Events&unix.EPOLLOUT != 0 {
			p.flush(peer)
		}
		if ev.Events&^unix.EPOLLOUT != 0 {
			p.receive(peer)
		}
		return
	}
	if int(ev.Fd) == p.wake {
		var b [8]byte
		_, _ = unix.Read(p.wake, b[:])
		return
	}
	if int(ev.Fd) == p.listen {
		p.accept()
	}
}

// service moves output of one stream, notifies its followers, and ends the stream when it has no
// writer or its deadline has passed.
func (p *server) service(e *entry, now time.Time) {
	index, size, dropping := e.index, e.size, e.fail.dropping
	more := e.drain(p.tools, now)
	if !more {
		delete(p.ready, e)
	}
	if e.index != index || e.size != size {
		p.notify(e)
	}
	if e.fail.dropping != dropping {
		p.broadcast(e.loss())
	}
	switch ended := !more && e.ended(); {
	case e.untilWriterClose && ended:
		p.remove(e, "")
		p.broadcast(&message{Op: opEnd, Key: e.key})
		return
	case len(e.stopWaiters) == 0:
	case e.keepOpen && !ended && !now.Before(e.deadline):
		p.notify(e)
		p.replyStops(e, message{Open: true})
		e.untilWriterClose = true
	case ended || !now.Before(e.deadline):
		p.end(e, now)
		return
	}
	if len(e.stopWaiters) > 0 || e.fail.err != nil {
		p.withDeadline[e] = true
	} else {
		delete(p.withDeadline, e)
	}
}

// notify sends opOutput to the subscribers of a stream.
func (p *server) notify(e *entry) {
	subscribers := e.subscribers
	e.subscribers = nil // reset before sending, which may disconnect a peer
	for _, peer := range subscribers {
		p.send(peer, &message{Op: opOutput, Key: e.key, Index: e.index, Offset: e.size})
	}
}

func (e *entry) loss() *message {
	m := &message{Op: opLoss, Key: e.key, Bytes: e.lost, Over: !e.fail.dropping}
	if e.fail.err != nil {
		m.Error = e.fail.err.Error()
	}
	return m
}

// end moves the current content of the FIFO and closes the stream. A task that still writes after
// that gets SIGPIPE, as documented for output after a stop.
func (p *server) end(e *entry, now time.Time) {
	if e.fail.err != nil {
		e.fail.retry = now // one last try; the remaining output is lost if it fails
		e.fail.dropping = true
	}
	lost, moved := e.lost, e.moved
	inside, _ := unix.IoctlGetInt(e.fifo, unix.TIOCINQ)
	for e.moved-moved < int64(inside) && e.drain(p.tools, now) {
	}
	if e.lost != lost {
		p.broadcast(e.loss())
	}
	p.remove(e, "")
}

// remove deletes a stream and replies to the clients that wait for its end.
func (p *server) remove(e *entry, problem string) {
	p.notify(e)
	p.replyStops(e, message{Error: problem})
	// Closing the FIFO does not remove it from epoll, because the keeper has the same open file.
	_ = unix.EpollCtl(p.poll, unix.EPOLL_CTL_DEL, e.fifo, nil)
	delete(p.fifos, int32(e.fifo))
	delete(p.streams, e.key)
	delete(p.ready, e)
	delete(p.withDeadline, e)
	e.close()
}

// replyStops replies to the clients that wait for the end of a stream.
func (p *server) replyStops(e *entry, m message) {
	m.Op, m.Index, m.Offset = opReply, e.index, e.size
	for _, w := range e.stopWaiters {
		m.ID = w.id
		p.send(w.peer, &m)
	}
	e.stopWaiters = nil
}

// start adds a stream. It owns both descriptors. A client that reconnected, or that has other
// limits, may hand over the same FIFO again.
func (p *server) start(m *message, fifo, dir int) error {
	if old := p.streams[m.Key]; old != nil {
		if sameOpenFile(old.fifo, fifo) {
			unix.Close(fifo)
			unix.Close(old.dir)
			old.dir = dir
			old.limits = m.Limits
			p.replyStops(old, message{Error: "started again"})
			old.untilWriterClose = false
			p.ready[old] = true
			return nil
		}
		p.end(old, time.Now())
	}
	e := &entry{stream: stream{key: m.Key, limits: m.Limits, fifo: fifo, dir: dir, file: -1}}
	if err := e.check(); err != nil {
		e.close()
		return err
	}
	if err := p.watch(fifo, unix.EPOLLIN|unix.EPOLLET); err != nil {
		e.close()
		return fmt.Errorf("watch FIFO: %w", err)
	}
	p.streams[m.Key] = e
	p.fifos[int32(fifo)] = e
	// service opens the file, so that the client does not wait for it, and moves output
	// that is already in the FIFO, for which epoll reports no event.
	p.ready[e] = true
	return nil
}

// check rejects descriptors and limits that no Collector sends.
func (e *entry) check() error {
	var st unix.Stat_t
	if err := unix.Fstat(e.fifo, &st); err != nil {
		return fmt.Errorf("look at FIFO: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errors.New("what came is not a FIFO")
	}
	if err := e.key.check(); err != nil {
		return err
	}
	t := Task{AllocID: e.key.AllocID, Name: e.key.Task, Stdout: e.limits, Stderr: e.limits}
	return t.check()
}

func sameOpenFile(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// done reports whether the process has no work left.
func (p *server) done(now time.Time, terminated bool) bool {
	if len(p.peers) > 0 {
		return false
	}
	if terminated || p.conf.Ephemeral && p.hadAgent {
		return true
	}
	if now.Before(p.idleCheck) {
		return false
	}
	for _, e := range p.streams {
		if !e.ended() {
			p.idleCheck = now.Add(p.conf.Linger)
			return false
		}
	}
	return true
}

// shutDown removes the socket, so that no client connects to a collector that exits. It returns false
// when a connection is pending; the process serves it.
func (p *server) shutDown(terminated bool) bool {
	f, err := p.dir.Lock(lockName, unix.LOCK_EX|unix.LOCK_NB)
	p.accept() // clients that connected before the lock was held
	if len(p.peers) > 0 && !terminated {
		if err == nil {
			f.Close()
		}
		return false
	}
	if err != nil {
		p.idleCheck = time.Now().Add(100 * time.Millisecond)
		return terminated || !errors.Is(err, filelock.ErrLocked) // the data directory is removed: no client can connect
	}
	defer f.Close()
	p.dir.RemoveSocket(socketName)
	if p.conf.Ephemeral {
		for _, name := range []string{logName, processName, lockName} {
			p.dir.Remove(name)
		}
	}
	return true
}

func (p *server) close() {
	for _, peer := range p.peers {
		unix.Close(peer.fd)
	}
	for _, e := range p.streams {
		e.close()
	}
	p.trim.Stop()
	p.tools.close()
	unix.Close(p.poll)
	unix.Close(p.wake)
	unix.Close(p.listen)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
