package collector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/memtrim"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// Serve runs the collector process. It returns when no agent is connected and no stream has a writer, when an agent requests it,
// or when no agent is connected after ctx has ended. version is the protocol version reported to agents. Only a
// logs.CollectorClient starts the process: without the setup in the environment Serve returns an error.
func Serve(ctx context.Context, version int) error {
	var conf collectorwire.Setup
	text := os.Getenv(collectorwire.SetupEnvVar)
	if text == "" {
		return errors.New("the log collector is started by nomad-lite itself; it is not run by hand")
	}
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		return fmt.Errorf("read collector setup: %w", err)
	}
	// Task output is untrusted. If a task exploits a bug in this process, it must not get unneeded privileges.
	confine.DenyProcessSyscalls(append(confine.ExecAndSystemAdminSyscalls(), confine.InternetSocketSyscalls()...)...)
	osprocess.ProtectFromOOM()
	_ = os.WriteFile("/proc/self/comm", []byte("nomad-lite"), 0) // the process name in ps

	// Two collectors would write to the same file offset. The previous collector may still be shutting down.
	dir, err := helperdir.OpenOrCreate(conf.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	lock, err := dir.LockFile(collectorwire.PIDFileName, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()

	p, err := newServer(conf, dir, listenerFD, version)
	if err != nil {
		return err
	}
	if err := helperdir.WriteLockOwner(lock, p.ownHello.Process); err != nil {
		return err
	}
	// CAP_SYS_RESOURCE permits enlarging FIFOs beyond a user's limits. Capabilities belong to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := confine.KeepCapabilities(unix.CAP_SYS_RESOURCE); err != nil {
		return err
	}
	return p.run(ctx)
}

// collectorServer is the collector process's event loop and its state, which a restart need not preserve. Only run's goroutine
// uses it.
type collectorServer struct {
	conf                       collectorwire.Setup
	dir                        *helperdir.Dir
	ownHello                   framing.Hello
	epollFD                    int
	signalEventFD              int // an eventfd for signals
	listenFD                   int
	spliceTools                *spliceTools
	streamByKey                map[collectorwire.StreamKey]*serverStream
	streamByFIFOFD             map[int32]*serverStream
	agentsByFD                 map[int32]*agentConn
	readyStreams               map[*serverStream]bool // streams with possible output
	streamsWithDeadline        map[*serverStream]bool // streams with a stop request or a write failure, for which the loop wakes up in time
	hadAgent                   bool                   // an agent was connected at some time
	quitRequested              bool                   // an agent has requested the process to exit
	nextIdleCheck              time.Time              // without an agent: when to check next whether a stream has a writer
	nextFileCheck              time.Time              // when to call closeIdleFiles next; zero while no stream has an open file
	exitDeadline               time.Time              // when the process exits because of SIGTERM; zero without it
	memoryTrimmer              *memtrim.Trimmer
	readBytesOfEndedStreams    int64 // bytes that ended streams have read from FIFOs, whether written or dropped
	droppedBytesOfEndedStreams int64 // bytes that ended streams have dropped
}

// serverStream is a stream with the agents' requests for it.
// It is large because it is a stream, too.
type serverStream struct {
	stream
	subscribers                 []*agentConn // agents that get a report of the next output
	stopRequests                []pendingReply
	stopDeadline                time.Time // set while stopRequests is not empty
	keepsReadingWhileWriterOpen bool      // the stream continues after the deadline while it has a writer
	endsWhenWritersClose        bool      // the stop requests were answered with HasWriter: collectorwire.OpEnd follows when the stream has no writer
}

// listenerFD is the listening socket's descriptor.
const listenerFD = 0

// newServer returns a server that accepts connections on listenerSocketFD, which it owns.
func newServer(conf collectorwire.Setup, dir *helperdir.Dir, listenerSocketFD, ownProtocolVersion int) (*collectorServer, error) {
	self, err := osprocess.LookupID(os.Getpid())
	if err != nil {
		return nil, err
	}
	hello := framing.NewHello(framing.RoleCollector, ownProtocolVersion)
	hello.Process = self
	p := &collectorServer{
		conf:                conf,
		dir:                 dir,
		ownHello:            hello,
		listenFD:            listenerSocketFD,
		streamByKey:         map[collectorwire.StreamKey]*serverStream{},
		streamByFIFOFD:      map[int32]*serverStream{},
		agentsByFD:          map[int32]*agentConn{},
		readyStreams:        map[*serverStream]bool{},
		streamsWithDeadline: map[*serverStream]bool{},
		nextIdleCheck:       time.Now().Add(conf.LingerTimeout),
		memoryTrimmer:       memtrim.New(),
	}
	if p.spliceTools, err = newSpliceTools(); err != nil {
		return nil, err
	}
	if p.epollFD, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	if p.signalEventFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	unix.CloseOnExec(p.listenFD)
	if err := unix.SetNonblock(p.listenFD, true); err != nil {
		return nil, err
	}
	if err := errors.Join(p.addToEpoll(p.listenFD, unix.EPOLLIN), p.addToEpoll(p.signalEventFD, unix.EPOLLIN)); err != nil {
		return nil, fmt.Errorf("watch socket: %w", err)
	}
	return p, nil
}

func (se *collectorServer) addToEpoll(fd int, events uint32) error {
	return unix.EpollCtl(se.epollFD, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// run runs the event loop until the process must exit.
func (se *collectorServer) run(ctx context.Context) error {
	defer se.close()
	// The process ignores a terminal's signals; it handles SIGTERM when no agent is connected.
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
			_, _ = unix.Write(se.signalEventFD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			return
		}
	}()
	defer func() { close(stop); <-done }()

	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(se.epollFD, events, se.epollTimeoutMillis())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for output: %w", err)
		}
		for _, ev := range events[:max(n, 0)] {
			se.dispatchEpollEvent(ev)
		}
		now := time.Now()
		for e := range se.streamsWithDeadline {
			se.readyStreams[e] = true
		}
		for e := range se.readyStreams {
			se.moveOutputAndReplyToStops(e, now)
		}
		se.closeIdleFiles(now)
		if se.quitRequested {
			return nil // the client that sent collectorwire.OpQuit removes the socket
		}
		terminated := wait.IsClosed(term)
		if terminated && se.exitDeadline.IsZero() {
			se.exitDeadline = now.Add(maxTermination)
		}
		if se.canExit(now, terminated) && se.prepareExit(terminated) {
			return nil
		}
	}
}

// epollTimeoutMillis returns how long epoll may block, in milliseconds.
func (se *collectorServer) epollTimeoutMillis() int {
	if len(se.readyStreams) > 0 {
		return 0
	}
	var nextDeadline time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (nextDeadline.IsZero() || t.Before(nextDeadline)) {
			nextDeadline = t
		}
	}
	for e := range se.streamsWithDeadline {
		earlier(e.stopDeadline)
		if e.writeFailure.lastErr != nil {
			earlier(e.writeFailure.retryAt)
		}
	}
	if len(se.agentsByFD) == 0 {
		earlier(se.nextIdleCheck)
	}
	earlier(se.nextFileCheck)
	if nextDeadline.IsZero() {
		return -1
	}
	return int(max(0, time.Until(nextDeadline)).Milliseconds()) + 1 // rounded up, so that the deadline has passed when epoll returns
}

// dispatchEpollEvent marks a stream as ready, sends and receives an agent's messages, or accepts agents.
func (se *collectorServer) dispatchEpollEvent(ev unix.EpollEvent) {
	if e := se.streamByFIFOFD[ev.Fd]; e != nil {
		se.readyStreams[e] = true
		return
	}
	if peer := se.agentsByFD[ev.Fd]; peer != nil {
		if ev.Events&unix.EPOLLOUT != 0 {
			se.sendQueued(peer)
		}
		if ev.Events&^unix.EPOLLOUT != 0 {
			se.receiveMessages(peer)
		}
		return
	}
	if int(ev.Fd) == se.signalEventFD {
		var b [8]byte
		_, _ = unix.Read(se.signalEventFD, b[:])
		return
	}
	if int(ev.Fd) == se.listenFD {
		se.acceptAgents()
	}
}

// moveOutputAndReplyToStops moves one stream's output, notifies its subscribers, and handles its stop requests: the stream ends
// when it has no writer, or when the deadline has passed.
func (se *collectorServer) moveOutputAndReplyToStops(e *serverStream, now time.Time) {
	index, size, dropping := e.fileIndex, e.fileSize, e.writeFailure.isDropping
	more := e.drainFIFO(se.spliceTools, now, max(minDrainBytes, maxDrainBytes/int64(max(1, len(se.readyStreams)))))
	if e.fileFD >= 0 {
		e.usedFileSinceCheck = true
		if se.nextFileCheck.IsZero() {
			se.nextFileCheck = now.Add(fileIdleTimeout)
		}
	}
	if !more {
		delete(se.readyStreams, e)
	}
	if e.fileIndex != index || e.fileSize != size {
		se.notifySubscribers(e)
	}
	e.storeArrivalTimes(now)
	if e.writeFailure.isDropping != dropping {
		se.broadcastToSameVersion(e.lossMessage())
	}
	switch ended := !more && e.hasEnded(); {
	case e.endsWhenWritersClose && ended:
		se.removeStream(e, "")
		se.broadcastToSameVersion(&collectorwire.Message{Op: collectorwire.OpEnd, StreamKey: e.key})
		return
	case len(e.stopRequests) == 0:
	case e.keepsReadingWhileWriterOpen && !ended && !now.Before(e.stopDeadline):
		se.notifySubscribers(e)
		se.replyToStopRequests(e, collectorwire.Message{HasWriter: true})
		e.endsWhenWritersClose = true
	case ended || !now.Before(e.stopDeadline):
		se.drainAndRemoveStream(e, now)
		return
	}
	if len(e.stopRequests) > 0 || e.writeFailure.lastErr != nil {
		se.streamsWithDeadline[e] = true
	} else {
		delete(se.streamsWithDeadline, e)
	}
}

// fileIdleTimeout is the time without output after which a stream's log file is closed, to save a descriptor. It takes up to
// twice as long, because one timer serves all streams.
const fileIdleTimeout = 10 * time.Second

// closeIdleFiles closes the files of streams without output since the last check, when the time for the next check has come. A
// stream keeps its file while the file system rejects its output, because the file may be the only place for the loss marker.
func (se *collectorServer) closeIdleFiles(now time.Time) {
	if se.nextFileCheck.IsZero() || now.Before(se.nextFileCheck) {
		return
	}
	se.nextFileCheck = time.Time{}
	for _, e := range se.streamByKey {
		if !e.usedFileSinceCheck && e.writeFailure.lastErr == nil {
			e.closeFile()
		}
		e.usedFileSinceCheck = false
		if e.fileFD >= 0 {
			se.nextFileCheck = now.Add(fileIdleTimeout)
		}
	}
}

// notifySubscribers sends collectorwire.OpOutput to a stream's subscribers.
func (se *collectorServer) notifySubscribers(e *serverStream) {
	subscribers := e.subscribers
	e.subscribers = nil // reset first, because sendOrQueue may call disconnect, which changes e.subscribers
	for _, peer := range subscribers {
		se.sendOrQueue(peer, &collectorwire.Message{Op: collectorwire.OpOutput, StreamKey: e.key, FileIndex: e.fileIndex, FileOffset: e.fileSize})
	}
}

// lossMessage returns the collectorwire.OpLoss event for the current or last write failure.
func (s *serverStream) lossMessage() *collectorwire.Message {
	m := &collectorwire.Message{Op: collectorwire.OpLoss, StreamKey: s.key, DroppedBytes: s.lastFailureDroppedBytes, WritingResumed: !s.writeFailure.isDropping}
	if s.writeFailure.lastErr != nil {
		m.Error = s.writeFailure.lastErr.Error()
	}
	return m
}

// drainAndRemoveStream moves what the FIFO has at the time of the call, and removes the stream. If a process still writes to the
// FIFO, it gets SIGPIPE when the keeper has closed it too.
func (se *collectorServer) drainAndRemoveStream(e *serverStream, now time.Time) {
	if e.writeFailure.lastErr != nil {
		e.writeFailure.retryAt = now // the output is tried a last time; the rest is lost if that fails
		e.writeFailure.isDropping = true
	}
	lost, moved := e.lastFailureDroppedBytes, e.fifoReadBytes
	inside, _ := unix.IoctlGetInt(e.fifoFD, unix.TIOCINQ)
	for e.fifoReadBytes-moved < int64(inside) && e.drainFIFO(se.spliceTools, now, maxDrainBytes) {
	}
	e.storeArrivalTimes(now)
	e.replaceTailByLossMarker()
	if e.lastFailureDroppedBytes != lost {
		se.broadcastToSameVersion(e.lossMessage())
	}
	se.removeStream(e, "")
}

// removeStream removes a stream and replies to its stop requests; errorText is the error in the replies, or empty.
func (se *collectorServer) removeStream(e *serverStream, errorText string) {
	se.notifySubscribers(e)
	se.replyToStopRequests(e, collectorwire.Message{Error: errorText})
	// Closing the FIFO does not remove it from epoll, because the keeper has the same open file.
	_ = unix.EpollCtl(se.epollFD, unix.EPOLL_CTL_DEL, e.fifoFD, nil)
	delete(se.streamByFIFOFD, int32(e.fifoFD))
	delete(se.streamByKey, e.key)
	delete(se.readyStreams, e)
	delete(se.streamsWithDeadline, e)
	se.readBytesOfEndedStreams += e.fifoReadBytes
	se.droppedBytesOfEndedStreams += e.totalDroppedBytes
	se.closeStream(e)
}

// countOutput returns how many streams there are, and their whole output since the process start in bytes.
func (se *collectorServer) countOutput() (streams int, written, lost int64) {
	moved, lost := se.readBytesOfEndedStreams, se.droppedBytesOfEndedStreams
	for _, e := range se.streamByKey {
		moved += e.fifoReadBytes
		lost += e.totalDroppedBytes
	}
	return len(se.streamByKey), moved - lost, lost
}

// replyToStopRequests sends m, with the newest output's position, as reply to all of a stream's stop requests.
func (se *collectorServer) replyToStopRequests(e *serverStream, m collectorwire.Message) {
	m.Op, m.FileIndex, m.FileOffset = collectorwire.OpReply, e.fileIndex, e.fileSize
	for _, w := range e.stopRequests {
		m.ID = w.requestID
		se.sendOrQueue(w.agent, &m)
	}
	e.stopRequests = nil
}

// startStreams adds a start request's streams, and owns fds. The streams share the log directory's descriptor. An
// error for one stream does not prevent the other from starting.
func (se *collectorServer) startStreams(m *collectorwire.Message, fds []int) error {
	if len(m.Limits) == 0 || len(fds) != len(m.Limits)+1 {
		framing.CloseAll(fds)
		return fmt.Errorf("%d descriptors came with %d streams", len(fds), len(m.Limits))
	}
	logDirFD, logDirUsed := fds[len(m.Limits)], false
	var errs []error
	for i, name := range slices.Sorted(maps.Keys(m.Limits)) {
		key := m.StreamKey
		key.Stream = name
		err := se.startStream(stream{key: key, limits: m.Limits[name], fifoFD: fds[i], logDirFD: logDirFD, fileFD: -1})
		errs, logDirUsed = append(errs, err), logDirUsed || err == nil
	}
	if !logDirUsed {
		unix.Close(logDirFD)
	}
	return errors.Join(errs...)
}

// startStream adds a stream. It owns the FIFO, and if it succeeds, the log directory. An agent sends the same FIFO again after
// it has reconnected, or to change the limits.
func (se *collectorServer) startStream(s stream) error {
	if err := s.validate(); err != nil {
		unix.Close(s.fifoFD)
		return err
	}
	if old := se.streamByKey[s.key]; old != nil {
		if areFDsOfSameFile(old.fifoFD, s.fifoFD) {
			unix.Close(s.fifoFD)
			se.closeLogDir(old)
			old.logDirFD = s.logDirFD
			old.limits = s.limits
			old.closeFileIfRemoved()
			se.replyToStopRequests(old, collectorwire.Message{Error: "started again"})
			old.endsWhenWritersClose = false
			se.readyStreams[old] = true
			if old.writeFailure.isDropping {
				se.broadcastToSameVersion(old.lossMessage()) // the agent may have connected after the last collectorwire.OpLoss event
			}
			return nil
		}
		se.drainAndRemoveStream(old, time.Now())
	}
	if err := se.addToEpoll(s.fifoFD, unix.EPOLLIN|unix.EPOLLET); err != nil {
		unix.Close(s.fifoFD)
		return fmt.Errorf("watch FIFO: %w", err)
	}
	e := &serverStream{stream: s}
	se.streamByKey[s.key] = e
	se.streamByFIFOFD[int32(s.fifoFD)] = e
	// moveOutputAndReplyToStops opens the file, so that the client does not wait for it. It also moves output already in the FIFO,
	// for which epoll reports no event.
	se.readyStreams[e] = true
	return nil
}

// closeLogDir closes a stream's log directory, unless the task's other stream shares the descriptor.
func (se *collectorServer) closeLogDir(e *serverStream) {
	if other := se.otherStreamOfTask(e); e.logDirFD >= 0 && (other == nil || other.logDirFD != e.logDirFD) {
		unix.Close(e.logDirFD)
	}
	e.logDirFD = -1
}

// otherStreamOfTask returns the other stream of e's task, or nil if there is none.
func (se *collectorServer) otherStreamOfTask(e *serverStream) *serverStream {
	key := e.key
	key.Stream = collectorwire.Stdout
	if e.key.Stream == collectorwire.Stdout {
		key.Stream = collectorwire.Stderr
	}
	return se.streamByKey[key]
}

// closeStream closes a stream's descriptors.
func (se *collectorServer) closeStream(e *serverStream) {
	se.closeLogDir(e)
	e.close()
}

// validate rejects a descriptor for any file but a FIFO, and invalid keys and limits.
func (s *stream) validate() error {
	var st unix.Stat_t
	if err := unix.Fstat(s.fifoFD, &st); err != nil {
		return fmt.Errorf("look at FIFO: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return errors.New("what came is not a FIFO")
	}
	if err := s.key.Validate(); err != nil {
		return err
	}
	return s.limits.Validate()
}

// areFDsOfSameFile reports whether two descriptors refer to the same file.
func areFDsOfSameFile(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// maxTermination is how long the process stays after SIGTERM while a stream has a writer. A machine that shuts down sends SIGTERM to
// all processes at once, and kills them later: systemd after 90 seconds.
const maxTermination = 80 * time.Second

// canExit reports whether the process can exit: no agent is connected, and either no stream has a writer, or the time after
// SIGTERM is over, or an ephemeral keeper's agent has disconnected.
func (se *collectorServer) canExit(now time.Time, terminated bool) bool {
	if len(se.agentsByFD) > 0 {
		return false
	}
	if terminated && !now.Before(se.exitDeadline) || se.conf.Ephemeral && se.hadAgent {
		return true
	}
	if !terminated && now.Before(se.nextIdleCheck) {
		return false
	}
	for _, e := range se.streamByKey {
		if !e.hasEnded() {
			se.nextIdleCheck = now.Add(se.conf.LingerTimeout)
			if terminated {
				se.nextIdleCheck = se.exitDeadline
			}
			return false
		}
	}
	return true
}

// prepareExit removes the socket, so that no agent connects to an exiting process. mayExit is false if an agent has connected
// meanwhile, or is starting a process; then the process must continue.
func (se *collectorServer) prepareExit(terminated bool) (mayExit bool) {
	f, err := se.dir.LockFile(collectorwire.LockFileName, unix.LOCK_EX|unix.LOCK_NB)
	se.acceptAgents() // accepts clients that connected before the lock was held
	if len(se.agentsByFD) > 0 && !terminated {
		if err == nil {
			f.Close()
		}
		return false
	}
	if err != nil {
		se.nextIdleCheck = time.Now().Add(100 * time.Millisecond)
		return terminated || !errors.Is(err, filelock.ErrLocked) // after another error the data directory is gone, and no agent can connect
	}
	defer f.Close()
	se.dir.RemoveSocket(collectorwire.SocketName)
	if se.conf.Ephemeral {
		for _, name := range []string{collectorwire.LogFileName, collectorwire.PIDFileName, collectorwire.LockFileName} {
			se.dir.RemoveFile(name)
		}
	}
	return true
}

func (se *collectorServer) close() {
	for _, peer := range se.agentsByFD {
		peer.receiver.Close()
		unix.Close(peer.fd)
	}
	for _, e := range se.streamByKey {
		se.closeStream(e)
	}
	se.memoryTrimmer.Stop()
	se.spliceTools.close()
	unix.Close(se.epollFD)
	unix.Close(se.signalEventFD)
	unix.Close(se.listenFD)
}
