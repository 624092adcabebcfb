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

	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

const processSetupEnvVar = "NOMAD_LITE_COLLECTOR_SETUP"

// Files of a collector process in the data directory, except the socket, which is in the socket directory of [keeper.Directory].
const (
	socketName  = "collector.sock"
	lockName    = "collector.lock" // this file is locked while an agent starts a collector process, or a collector process exits
	pidFileName = "collector.pid"  // this file is locked by the collector process until it exits, and has the osprocess.ID of the process
	logName     = "collector.log"  // stderr of the collector process; empty unless the process has crashed
)

// processSetup is the configuration that a collector process reads at its start.
type processSetup struct {
	Dir           string
	Ephemeral     bool
	LingerTimeout time.Duration
}

// Serve runs the collector process; a hidden command calls it. It returns when no agent is connected and no stream has a
// writer, when an agent requests it, or when no agent is connected after ctx has ended. Only a Collector starts the process.
func Serve(ctx context.Context) error { return serve(ctx, protocolVersion) }

// serve is Serve with a version of the protocol.
func serve(ctx context.Context, version int) error {
	var conf processSetup
	text := os.Getenv(processSetupEnvVar)
	if text == "" {
		return errors.New("the log collector is started by nomad-lite itself; it is not run by hand")
	}
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		return fmt.Errorf("read collector setup: %w", err)
	}
	// The output of tasks is untrusted. A task that exploits a bug in this process must not get
	// privileges that the process does not need.
	confine.DenyProcessSyscalls(append(confine.ExecAndSystemAdminSyscalls(), confine.InternetSocketSyscalls()...)...)
	keeper.ProtectFromOOM()
	_ = os.WriteFile("/proc/self/comm", []byte("nomad-lite"), 0) // the process name in ps

	// Two collectors would write to the same offset of the same file. The previous collector may
	// still be shutting down.
	dir, err := keeper.OpenDirectory(conf.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	lock, err := dir.Lock(pidFileName, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()

	p, err := newServer(conf, dir, listenerFD, version)
	if err != nil {
		return err
	}
	if err := keeper.WriteLockOwner(lock, p.hello.Process); err != nil {
		return err
	}
	// CAP_SYS_RESOURCE permits enlarging FIFOs beyond the limits of a user. Capabilities belong to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := confine.KeepCapabilities(unix.CAP_SYS_RESOURCE); err != nil {
		return err
	}
	return p.run(ctx)
}

// server is the event loop of the collector process and its state, none of which a restart must preserve. Only
// the goroutine of run uses it.
type server struct {
	conf              processSetup
	dir               *keeper.Directory
	hello             framing.Hello // the hello message of this process
	epollFD           int
	wakeFD            int // an eventfd for signals
	listenFD          int
	spliceTools       *spliceTools
	streams           map[streamKey]*serverStream
	streamsByFIFO     map[int32]*serverStream
	agentsByFD        map[int32]*agentConn
	readyStreams      map[*serverStream]bool // streams that may have output
	deadlineStreams   map[*serverStream]bool // streams with a stop request or a write failure, for which the loop wakes up in time
	hadAgent          bool                   // an agent was connected at some time
	quitRequested     bool                   // an agent has requested that the process exits
	nextIdleCheck     time.Time              // without an agent: time of the next check whether a stream has a writer
	trimmer           *memtrim.Trimmer
	endedReadBytes    int64 // bytes that ended streams have read from FIFOs, whether written or dropped
	endedDroppedBytes int64 // bytes that ended streams have dropped
}

// serverStream is a stream with the requests of agents for it.
type serverStream struct {
	stream
	subscribers          []*agentConn // agents to which the next output is reported
	stopRequests         []pendingReply
	stopDeadline         time.Time // set while stopRequests is not empty
	keepOpenWhileWriter  bool      // the stream continues after the deadline while it has a writer
	endsWhenWritersClose bool      // the stop requests were answered with HasWriter: opEnd follows when the stream has no writer
}

// listenerFD is the descriptor of the listening socket.
const listenerFD = 0

// newServer returns a server that accepts connections on the descriptor listen, which it owns.
func newServer(conf processSetup, dir *keeper.Directory, listen, version int) (*server, error) {
	self, err := osprocess.LookupID(os.Getpid())
	if err != nil {
		return nil, err
	}
	hello := framing.NewHello(framing.RoleCollector, version)
	hello.Process = self
	p := &server{
		conf:            conf,
		dir:             dir,
		hello:           hello,
		listenFD:        listen,
		streams:         map[streamKey]*serverStream{},
		streamsByFIFO:   map[int32]*serverStream{},
		agentsByFD:      map[int32]*agentConn{},
		readyStreams:    map[*serverStream]bool{},
		deadlineStreams: map[*serverStream]bool{},
		nextIdleCheck:   time.Now().Add(conf.LingerTimeout),
		trimmer:         memtrim.New(25, 25),
	}
	if p.spliceTools, err = newSpliceTools(); err != nil {
		return nil, err
	}
	if p.epollFD, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	if p.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	unix.CloseOnExec(p.listenFD)
	if err := unix.SetNonblock(p.listenFD, true); err != nil {
		return nil, err
	}
	if err := errors.Join(p.addToEpoll(p.listenFD, unix.EPOLLIN), p.addToEpoll(p.wakeFD, unix.EPOLLIN)); err != nil {
		return nil, fmt.Errorf("watch socket: %w", err)
	}
	return p, nil
}

func (p *server) addToEpoll(fd int, events uint32) error {
	return unix.EpollCtl(p.epollFD, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// run runs the event loop until the process must exit.
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
			_, _ = unix.Write(p.wakeFD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			return
		}
	}()
	defer func() { close(stop); <-done }()

	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(p.epollFD, events, p.epollTimeout())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for output: %w", err)
		}
		for _, ev := range events[:max(n, 0)] {
			p.handleEpollEvent(ev)
		}
		now := time.Now()
		for e := range p.deadlineStreams {
			p.readyStreams[e] = true
		}
		for e := range p.readyStreams {
			p.moveAndReply(e, now)
		}
		if p.quitRequested {
			return nil // the client that sent opQuit removes the socket
		}
		if p.canExit(now, wait.IsClosed(term)) && p.prepareExit(wait.IsClosed(term)) {
			return nil
		}
	}
}

// epollTimeout returns how long epoll may block, in milliseconds.
func (p *server) epollTimeout() int {
	if len(p.readyStreams) > 0 {
		return 0
	}
	var nextDeadline time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (nextDeadline.IsZero() || t.Before(nextDeadline)) {
			nextDeadline = t
		}
	}
	for e := range p.deadlineStreams {
		earlier(e.stopDeadline)
		if e.writeFailure.err != nil {
			earlier(e.writeFailure.retryAt)
		}
	}
	if len(p.agentsByFD) == 0 {
		earlier(p.nextIdleCheck)
	}
	if nextDeadline.IsZero() {
		return -1
	}
	return int(max(0, time.Until(nextDeadline)).Milliseconds()) + 1
}

// handleEpollEvent marks a stream as ready, sends and receives messages of an agent, or accepts agents.
func (p *server) handleEpollEvent(ev unix.EpollEvent) {
	if e := p.streamsByFIFO[ev.Fd]; e != nil {
		p.readyStreams[e] = true
		return
	}
	if peer := p.agentsByFD[ev.Fd]; peer != nil {
		if ev.Events&unix.EPOLLOUT != 0 {
			p.sendQueued(peer)
		}
		if ev.Events&^unix.EPOLLOUT != 0 {
			p.receiveMessages(peer)
		}
		return
	}
	if int(ev.Fd) == p.wakeFD {
		var b [8]byte
		_, _ = unix.Read(p.wakeFD, b[:])
		return
	}
	if int(ev.Fd) == p.listenFD {
		p.acceptAgents()
	}
}

// moveAndReply moves output of one stream, notifies its subscribers, and handles its stop requests: the stream ends when
// it has no writer, or when the deadline has passed.
func (p *server) moveAndReply(e *serverStream, now time.Time) {
	index, size, dropping := e.fileIndex, e.fileSize, e.writeFailure.isDropping
	more := e.drainFIFO(p.spliceTools, now)
	if !more {
		delete(p.readyStreams, e)
	}
	if e.fileIndex != index || e.fileSize != size {
		p.notifySubscribers(e)
	}
	e.recordArrivalTimes(now)
	if e.writeFailure.isDropping != dropping {
		p.broadcast(e.lossMessage())
	}
	switch ended := !more && e.hasEnded(); {
	case e.endsWhenWritersClose && ended:
		p.removeStream(e, "")
		p.broadcast(&message{Op: opEnd, Key: e.key})
		return
	case len(e.stopRequests) == 0:
	case e.keepOpenWhileWriter && !ended && !now.Before(e.stopDeadline):
		p.notifySubscribers(e)
		p.replyToStopRequests(e, message{HasWriter: true})
		e.endsWhenWritersClose = true
	case ended || !now.Before(e.stopDeadline):
		p.endStream(e, now)
		return
	}
	if len(e.stopRequests) > 0 || e.writeFailure.err != nil {
		p.deadlineStreams[e] = true
	} else {
		delete(p.deadlineStreams, e)
	}
}

// notifySubscribers sends opOutput to the subscribers of a stream.
func (p *server) notifySubscribers(e *serverStream) {
	subscribers := e.subscribers
	e.subscribers = nil // reset first, because send may call disconnect, which changes e.subscribers
	for _, peer := range subscribers {
		p.sendOrQueue(peer, &message{Op: opOutput, Key: e.key, Index: e.fileIndex, Offset: e.fileSize})
	}
}

// lossMessage returns the opLoss event for the current or last write failure.
func (e *serverStream) lossMessage() *message {
	m := &message{Op: opLoss, Key: e.key, Bytes: e.failureDroppedBytes, WritingResumed: !e.writeFailure.isDropping}
	if e.writeFailure.err != nil {
		m.Error = e.writeFailure.err.Error()
	}
	return m
}

// endStream moves the content that the FIFO has at the time of the call, and removes the stream. A process that still
// writes to the FIFO gets SIGPIPE when the keeper has closed it too.
func (p *server) endStream(e *serverStream, now time.Time) {
	if e.writeFailure.err != nil {
		e.writeFailure.retryAt = now // the output is tried a last time; the rest is lost if that fails
		e.writeFailure.isDropping = true
	}
	lost, moved := e.failureDroppedBytes, e.readBytes
	inside, _ := unix.IoctlGetInt(e.fifoFD, unix.TIOCINQ)
	for e.readBytes-moved < int64(inside) && e.drainFIFO(p.spliceTools, now) {
	}
	e.recordArrivalTimes(now)
	e.replaceTailByMarker()
	if e.failureDroppedBytes != lost {
		p.broadcast(e.lossMessage())
	}
	p.removeStream(e, "")
}

// removeStream removes a stream and replies to its stop requests; errorText is the error in the replies, or empty.
func (p *server) removeStream(e *serverStream, errorText string) {
	p.notifySubscribers(e)
	p.replyToStopRequests(e, message{Error: errorText})
	// Closing the FIFO does not remove it from epoll, because the keeper has the same open file.
	_ = unix.EpollCtl(p.epollFD, unix.EPOLL_CTL_DEL, e.fifoFD, nil)
	delete(p.streamsByFIFO, int32(e.fifoFD))
	delete(p.streams, e.key)
	delete(p.readyStreams, e)
	delete(p.deadlineStreams, e)
	p.endedReadBytes += e.readBytes
	p.endedDroppedBytes += e.totalDroppedBytes
	e.close()
}

// countOutput returns the number of streams, and the output of all streams since the start of the process in bytes.
func (p *server) countOutput() (streams int, written, lost int64) {
	moved, lost := p.endedReadBytes, p.endedDroppedBytes
	for _, e := range p.streams {
		moved += e.readBytes
		lost += e.totalDroppedBytes
	}
	return len(p.streams), moved - lost, lost
}

// replyToStopRequests sends m, with the position of the newest output, as reply to all stop requests of a stream.
func (p *server) replyToStopRequests(e *serverStream, m message) {
	m.Op, m.Index, m.Offset = opReply, e.fileIndex, e.fileSize
	for _, w := range e.stopRequests {
		m.ID = w.requestID
		p.sendOrQueue(w.agent, &m)
	}
	e.stopRequests = nil
}

// startStream adds the stream of a start request. It owns both descriptors. An agent sends the same FIFO again after
// it has reconnected, or to change the limits.
func (p *server) startStream(m *message, fifo, dir int) error {
	if old := p.streams[m.Key]; old != nil {
		if isSameOpenFile(old.fifoFD, fifo) {
			unix.Close(fifo)
			unix.Close(old.dirFD)
			old.dirFD = dir
			old.limits = m.Limits
			old.closeRemovedFile()
			p.replyToStopRequests(old, message{Error: "started again"})
			old.endsWhenWritersClose = false
			p.readyStreams[old] = true
			if old.writeFailure.isDropping {
				p.broadcast(old.lossMessage()) // the agent may have connected after the last opLoss event
			}
			return nil
		}
		p.endStream(old, time.Now())
	}
	e := &serverStream{stream: stream{key: m.Key, limits: m.Limits, fifoFD: fifo, dirFD: dir, fileFD: -1}}
	if err := e.validate(); err != nil {
		e.close()
		return err
	}
	if err := p.addToEpoll(fifo, unix.EPOLLIN|unix.EPOLLET); err != nil {
		e.close()
		return fmt.Errorf("watch FIFO: %w", err)
	}
	p.streams[m.Key] = e
	p.streamsByFIFO[int32(fifo)] = e
	// moveAndReply opens the file, so that the client does not wait for it, and moves output
	// that is already in the FIFO, for which epoll reports no event.
	p.readyStreams[e] = true
	return nil
}

// validate rejects a descriptor that is not a FIFO, and keys and limits that are not valid.
func (e *serverStream) validate() error {
	var st unix.Stat_t
	if err := unix.Fstat(e.fifoFD, &st); err != nil {
		return fmt.Errorf("look at FIFO: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errors.New("what came is not a FIFO")
	}
	if err := e.key.validate(); err != nil {
		return err
	}
	t := Task{AllocID: e.key.AllocID, Name: e.key.Task, Stdout: e.limits, Stderr: e.limits}
	return t.validate()
}

// isSameOpenFile reports whether two descriptors are of the same file.
func isSameOpenFile(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// canExit reports whether the process can exit: no agent is connected, and either no stream has a writer, or the
// process was terminated, or the agent of an ephemeral keeper has disconnected.
func (p *server) canExit(now time.Time, terminated bool) bool {
	if len(p.agentsByFD) > 0 {
		return false
	}
	if terminated || p.conf.Ephemeral && p.hadAgent {
		return true
	}
	if now.Before(p.nextIdleCheck) {
		return false
	}
	for _, e := range p.streams {
		if !e.hasEnded() {
			p.nextIdleCheck = now.Add(p.conf.LingerTimeout)
			return false
		}
	}
	return true
}

// prepareExit removes the socket, so that no agent connects to a process that exits. It returns false
// if an agent has connected meanwhile, or is starting a process; then the process must continue.
func (p *server) prepareExit(terminated bool) bool {
	f, err := p.dir.Lock(lockName, unix.LOCK_EX|unix.LOCK_NB)
	p.acceptAgents() // accepts clients that connected before the lock was held
	if len(p.agentsByFD) > 0 && !terminated {
		if err == nil {
			f.Close()
		}
		return false
	}
	if err != nil {
		p.nextIdleCheck = time.Now().Add(100 * time.Millisecond)
		return terminated || !errors.Is(err, filelock.ErrLocked) // after another error the data directory is gone, and no agent can connect
	}
	defer f.Close()
	p.dir.RemoveSocket(socketName)
	if p.conf.Ephemeral {
		for _, name := range []string{logName, pidFileName, lockName} {
			p.dir.RemoveFile(name)
		}
	}
	return true
}

func (p *server) close() {
	for _, peer := range p.agentsByFD {
		peer.receiver.Close()
		unix.Close(peer.fd)
	}
	for _, e := range p.streams {
		e.close()
	}
	p.trimmer.Stop()
	p.spliceTools.close()
	unix.Close(p.epollFD)
	unix.Close(p.wakeFD)
	unix.Close(p.listenFD)
}
