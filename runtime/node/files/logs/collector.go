package logs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/rpcmux"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// ErrClosed means that the CollectorClient was closed.
var ErrClosed = errors.New("log collector client is closed")

// TooManyTasksError means that a task's output cannot be collected because other tasks use all descriptors in this process or in
// the collector process.
type TooManyTasksError struct {
	CollectedTasks  int // tasks with collected output
	DescriptorLimit int // descriptors per process

	// DescriptorsFreed is closed when a descriptor may be free again.
	DescriptorsFreed <-chan struct{}
}

func (e *TooManyTasksError) Error() string {
	return fmt.Sprintf("%d tasks run, and the limit of %d open files (ulimit -n) has room for no more", e.CollectedTasks, e.DescriptorLimit)
}

// maxTasksForDescriptors returns how many tasks, at least one, a process can serve under a descriptor limit: their FIFOs and
// directories stay open.
func maxTasksForDescriptors(descriptorLimit int) int {
	return int(descriptors.ForTasks(uint64(descriptorLimit))) / descriptors.PerTask
}

// processDescriptorLimit returns this process's soft limit, which Go has raised to the hard limit.
func processDescriptorLimit() int {
	limit, err := osprocess.DescriptorLimit()
	if err != nil {
		return math.MaxInt32
	}
	return int(min(limit, math.MaxInt32))
}

// keeperClient has the *keeper.Client methods for a CollectorClient.
type keeperClient interface {
	Spawn(context.Context, keeper.Command) (osprocess.ID, error)
	StoreFDs(ctx context.Context, fileByKey map[string]*os.File, drainWithoutAgent bool) error
	DuplicateStoredFD(key string) (*os.File, error)
	RemoveFD(ctx context.Context, key string) error
	AdoptProcessOfEarlierKeeper(context.Context, osprocess.ID) error
	SameExecutable(context.Context, osprocess.ID, *os.File) (bool, error)
	StoredFDKeys() []string
	KeeperIsEphemeral() bool
}

// Config configures how a CollectorClient finds and starts the collector process.
type Config struct {
	Keeper        keeperClient
	DataDir       string   // the data directory; one collector process serves it, see keeper.DataDir
	CollectorArgv []string // command line, argv[0] included, that starts this program as a collector process

	// LingerTimeout is how long a collector process stays without an agent when no stream has a writer; 0 means ten minutes.
	LingerTimeout time.Duration

	// StartProcessWithoutTask means that New starts a collector process, while the caller prepares its first task. Otherwise the
	// process is started for the first task, which waits for it.
	StartProcessWithoutTask bool

	Logger hclog.Logger

	// MaxDescriptorsPerProcess limits the descriptors per process; 0 means this process's limit. Start returns a TooManyTasksError
	// when all are used. The collector process's limit applies if it is lower and cannot be raised.
	MaxDescriptorsPerProcess int

	// Tests set these.
	writersCloseTimeout time.Duration // time that Stop waits for writers to close the FIFOs
	idleProcessTimeout  time.Duration // time after which a collector process without tasks is stopped
	testProtocolVersion int           // protocol version that this Collector claims to have; 0 means protocolVersion
}

// CollectorClient is the agent's side of log collection: it makes the FIFOs, keeps a
// collector process running that reads them, and notifies followers of new output. All
// methods may be called concurrently.
type CollectorClient struct {
	conf          Config
	dir           *keeper.DataDir
	closeStarted  <-chan struct{} // closed by Close
	cancel        context.CancelFunc
	wg            sync.WaitGroup
	processConns  *rpcmux.Reconnector[*processConn]
	processStarts atomic.Int64 // collector processes that this CollectorClient has started

	losses *LossTracker

	mu                       sync.Mutex   // mu is locked before processConns' mutex
	lastProcess              osprocess.ID // collector process at the latest connection
	descriptorLimit          int          // descriptors per process: the lower one of Config.MaxDescriptorsPerProcess and the collector process's limit
	collectedTasks           map[taskKey]*collectedTask
	earlierAgentTasksWithFDs map[taskKey]bool // an earlier agent's tasks that use descriptors, until Start, StopCollectionOfEarlierAgent or StopUnlessStopped adds them to collectedTasks
	progressByStream         map[collectorwire.StreamKey]*streamProgress
	streamAdded              chan struct{} // channel, closed and replaced when a stream is added
	descriptorsFreed         chan struct{} // channel, closed and replaced when a task's collection stops
	hasTasksChanged          chan struct{} // receives a value when the first task is added and when the last task is removed; capacity 1
}

type taskKey struct{ allocID, name string }

// collectedTask is a task with collected output, or with stopped streams that still have a writer.
type collectedTask struct {
	mu       sync.Mutex // mu is held during this task's Start and Stop, and locked before Collector.mu
	logDirFD int        // log directory descriptor, -1 when the task is stopped; guarded by Collector.mu
	Task

	// stoppedStreamsWithWriter are the stopped streams that still have a writer, because the task may still
	// run. Guarded by Collector.mu.
	stoppedStreamsWithWriter map[Stream]bool
}

// streamProgress is what the agent knows about a stream's progress. Followers wait on it. Guarded by Collector.mu.
type streamProgress struct {
	newestFileIndex int64         // number of the newest file reported by the collector process
	changed         chan struct{} // channel, closed and replaced when newestFileIndex changes or the stream stops
	ended           bool          // Stop has ended the stream
}

// wakeFollowers wakes all Follow calls that wait for the stream. The caller holds Collector.mu.
func (s *streamProgress) wakeFollowers() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// New returns a CollectorClient. It connects to an earlier agent's process, or starts one for the first task (but see
// Config.StartProcessWithoutTask), and stops the process a minute after the last task was removed. It does not wait for the
// process.
func New(conf Config) (*CollectorClient, error) {
	if conf.Keeper == nil || conf.DataDir == "" || len(conf.CollectorArgv) == 0 {
		return nil, errors.New("log collector: keeper, directory and arguments are needed")
	}
	if conf.LingerTimeout == 0 {
		conf.LingerTimeout = 10 * time.Minute
	}
	if conf.writersCloseTimeout == 0 {
		conf.writersCloseTimeout = 2 * time.Second
	}
	if conf.idleProcessTimeout == 0 {
		conf.idleProcessTimeout = time.Minute
	}
	if conf.Logger == nil {
		conf.Logger = hclog.NewNullLogger()
	}
	if conf.MaxDescriptorsPerProcess == 0 {
		conf.MaxDescriptorsPerProcess = processDescriptorLimit()
	}
	dir, err := keeper.OpenOrCreateDataDir(conf.DataDir)
	if err != nil {
		return nil, fmt.Errorf("log collector: %w", err)
	}
	life, stop := context.WithCancel(context.Background())
	c := &CollectorClient{
		conf:                     conf,
		dir:                      dir,
		closeStarted:             life.Done(),
		cancel:                   stop,
		processConns:             rpcmux.NewReconnector[*processConn](life.Done(), ErrClosed),
		descriptorLimit:          conf.MaxDescriptorsPerProcess,
		collectedTasks:           map[taskKey]*collectedTask{},
		earlierAgentTasksWithFDs: tasksOfFDKeys(conf.Keeper.StoredFDKeys()),
		progressByStream:         map[collectorwire.StreamKey]*streamProgress{},
		streamAdded:              make(chan struct{}),
		descriptorsFreed:         make(chan struct{}),
		hasTasksChanged:          make(chan struct{}, 1),
		losses:                   &LossTracker{lossByStream: make(map[collectorwire.StreamKey]OutputLoss), unhandled: make(map[collectorwire.StreamKey]OutputLoss)},
	}
	c.wg.Go(func() { c.maintainConn(life) })
	return c, nil
}

// Close closes the connection. Unless the keeper is ephemeral, the collector process continues while tasks
// run. Follow returns ErrClosed after Close. Close may be called twice.
func (c *CollectorClient) Close() error {
	c.cancel()
	c.wg.Wait()
	c.dir.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.collectedTasks {
		if t.logDirFD >= 0 {
			unix.Close(t.logDirFD)
			t.logDirFD = -1
		}
	}
	return nil
}

// LastProcess returns the latest connection's collector process, which may have exited.
func (c *CollectorClient) LastProcess() osprocess.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastProcess
}

// Status describes the collector process for operators.
type Status struct {
	Process       osprocess.ID // from the latest connection
	Connected     bool         // false also when no process runs because there are no tasks
	ProcessStarts int          // collector processes that this CollectorClient has started

	// HasCounts is true if the process has replied. Otherwise the next fields are zero. The bytes are counted from the process
	// start.
	HasCounts               bool
	Streams                 int // streams read by the process
	WrittenBytes, LostBytes int64
}

// Status returns the collector process's state. It blocks until the process has replied or ctx ends.
func (c *CollectorClient) Status(ctx context.Context) Status {
	l := c.processConns.CurrentConn()
	s := Status{Process: c.LastProcess(), Connected: l != nil && !l.Ended(), ProcessStarts: int(c.processStarts.Load())}
	if !s.Connected {
		return s
	}
	if m, err := l.call(ctx, &collectorwire.Message{Op: collectorwire.OpStats}); err == nil {
		s.Process, s.HasCounts, s.Streams, s.WrittenBytes, s.LostBytes = l.process, true, m.StreamCount, m.WrittenBytes, m.LostBytes
	}
	return s
}

// Start starts to collect a task's output, and returns the paths of the FIFOs for the task. The caller calls it before each task
// start, and after it has restored a running task; a second call only checks that FIFOs and streams exist. The FIFOs are in the
// allocation's directory, to which no task can write, so a task cannot replace another task's FIFO.
func (c *CollectorClient) Start(ctx context.Context, task Task) (stdoutFIFO, stderrFIFO string, err error) {
	wrap := func(err error) error {
		return fmt.Errorf("collect logs of task %q: %w", task.Name, err)
	}
	if err := task.validate(); err != nil {
		return "", "", wrap(err)
	}
	t, err := c.getOrAddTaskIfDescriptorsFree(task)
	if err != nil {
		return "", "", wrap(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()

	alloc, dir, err := openAllocAndLogDirs(task.LogDir)
	if err != nil {
		return "", "", wrap(err)
	}
	defer unix.Close(alloc)
	c.mu.Lock()
	if t.logDirFD >= 0 {
		unix.Close(t.logDirFD)
	}
	t.logDirFD, t.Task = dir, task
	c.mu.Unlock()

	fifos, err := c.ensureFIFOs(ctx, alloc, task)
	defer closeFIFOs(fifos)
	if err != nil {
		return "", "", wrap(err)
	}
	c.mu.Lock()
	clear(t.stoppedStreamsWithWriter)
	for _, s := range bothStreams {
		if st := c.progressByStream[task.streamKey(s)]; st == nil || st.ended {
			c.progressByStream[task.streamKey(s)] = &streamProgress{newestFileIndex: -1, changed: make(chan struct{})}
			close(c.streamAdded)
			c.streamAdded = make(chan struct{})
		}
	}
	c.mu.Unlock()
	err = c.processConns.CallUntilConnStays(ctx, errDisconnected, func(l *processConn) error { return c.handOverStreams(ctx, l, t, fifos) })
	if err != nil {
		return "", "", wrap(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range bothStreams {
		// A follower that subscribed before the process had the stream gets no reply, so it is woken
		// here.
		if st := c.progressByStream[task.streamKey(s)]; st != nil {
			st.wakeFollowers()
		}
	}
	return task.fifoPath(Stdout), task.fifoPath(Stderr), nil
}

// getOrAddTaskIfDescriptorsFree returns a task's record. It adds a record if enough descriptors are free, or if the task's
// descriptors are already open since an earlier agent. Otherwise it returns a TooManyTasksError.
func (c *CollectorClient) getOrAddTaskIfDescriptorsFree(task Task) (*collectedTask, error) {
	has := false
	if f, err := c.conf.Keeper.DuplicateStoredFD(task.streamKey(Stdout).KeeperFDKey()); err == nil {
		f.Close()
		has = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.collectedTasks[taskKey{task.AllocID, task.Name}] != nil
	if n := len(c.collectedTasks) + len(c.earlierAgentTasksWithFDs); !known && !has && n >= maxTasksForDescriptors(c.descriptorLimit) {
		return nil, &TooManyTasksError{CollectedTasks: n, DescriptorLimit: c.descriptorLimit, DescriptorsFreed: c.descriptorsFreed}
	}
	return c.getOrAddTaskLocked(task), nil
}

// getOrAddTaskLocked returns a task's record, and adds a record if there is none.
func (c *CollectorClient) getOrAddTaskLocked(task Task) *collectedTask {
	k := taskKey{task.AllocID, task.Name}
	t := c.collectedTasks[k]
	if t == nil {
		t = &collectedTask{logDirFD: -1, Task: task, stoppedStreamsWithWriter: map[Stream]bool{}}
		c.collectedTasks[k] = t
		delete(c.earlierAgentTasksWithFDs, k)
		c.signalIfTaskCountLocked(1)
	}
	return t
}

// signalIfTaskCountLocked wakes maintainConn and waitConnDownOrIdle if there are count tasks.
func (c *CollectorClient) signalIfTaskCountLocked(count int) {
	if len(c.collectedTasks) != count {
		return
	}
	wait.Notify(c.hasTasksChanged)
}

// ensureFIFOs returns a task's FIFOs, and makes sure that they exist in the allocation's directory and are held by the keeper. The
// caller closes the files, also after an error.
//
// A running task keeps the keeper's FIFO, even if the FIFO is no longer in the directory: if its last reader closed it, SIGPIPE
// would kill the task. The next task start makes a new FIFO.
func (c *CollectorClient) ensureFIFOs(ctx context.Context, allocDirFD int, task Task) (fifos map[Stream]*os.File, err error) {
	fifos = make(map[Stream]*os.File)
	unstored := make(map[string]*os.File)
	for _, s := range bothStreams {
		k := task.streamKey(s)
		f, err := c.conf.Keeper.DuplicateStoredFD(k.KeeperFDKey())
		if err == nil {
			exists := isNameOfOpenFile(allocDirFD, k.FIFOName(), int(f.Fd()))
			if !exists {
				c.conf.Logger.Warn("FIFO was removed or replaced", "alloc_id", k.AllocID, "task", k.Task, "file", k.FIFOName(), "running", task.AlreadyRunning)
			}
			if exists || task.AlreadyRunning {
				fifos[s] = f
				continue
			}
			f.Close()
		} else if !errors.Is(err, keeper.ErrFDNotStored) {
			return fifos, err
		}
		fd, err := openOrMakeFIFOReader(allocDirFD, k.FIFOName())
		if err != nil {
			return fifos, err
		}
		fifos[s] = os.NewFile(uintptr(fd), k.FIFOName())
		unstored[k.KeeperFDKey()] = fifos[s]
	}
	if len(unstored) == 0 {
		return fifos, nil
	}
	return fifos, c.conf.Keeper.StoreFDs(ctx, unstored, false)
}

func closeFIFOs(fifos map[Stream]*os.File) {
	for _, fifo := range fifos {
		fifo.Close()
	}
}

// handOverStreams sends the collector process those streams of a task that have an element in fifos. It may do so again for a
// stream already there.
func (c *CollectorClient) handOverStreams(ctx context.Context, l *processConn, t *collectedTask, fifos map[Stream]*os.File) error {
	var fds []int
	c.mu.Lock()
	m := &collectorwire.Message{Op: collectorwire.OpStart, StreamKey: t.streamKey(""), Limits: make(map[Stream]StreamLimits)}
	for _, s := range slices.Sorted(maps.Keys(fifos)) {
		m.Limits[s] = t.limits(s)
		fds = append(fds, int(fifos[s].Fd()))
	}
	dir, err := -1, error(nil)
	if t.logDirFD >= 0 {
		dir, err = unix.FcntlInt(uintptr(t.logDirFD), unix.F_DUPFD_CLOEXEC, 3)
	}
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("duplicate descriptor: %w", err)
	}
	if dir < 0 {
		return nil // the task was stopped while its streams were handed over
	}
	defer unix.Close(dir)
	_, err = l.call(ctx, m, append(fds, dir)...)
	return err
}

// Stop ends a task's output collection. It waits up to two seconds until all writers have closed the FIFOs, and then collects
// their content. The streams' followers return after that. The FIFOs stay in the directory. Stop returns nil if the task's output
// is not collected. After an error the collection continues until a later Stop or StopUnlessStopped ends it.
//
// If taskEnded is true, the task's process is known to be dead: Stop closes the FIFOs, and a child gets SIGPIPE if it still
// writes. If taskEnded is false, the task may run, and SIGPIPE must not kill it: the collector process continues to read a FIFO
// that has a writer.
func (c *CollectorClient) Stop(ctx context.Context, allocID, task string, taskEnded bool) error {
	c.mu.Lock()
	t := c.collectedTasks[taskKey{allocID, task}]
	c.mu.Unlock()
	if t == nil {
		return nil
	}
	return c.stopTask(ctx, t, allocID, task, taskEnded)
}

// StopCollectionOfEarlierAgent is Stop for a task that will not be started again and may have output collected by an earlier
// agent: it first collects the output still in the FIFOs.
func (c *CollectorClient) StopCollectionOfEarlierAgent(ctx context.Context, task Task, taskEnded bool) error {
	c.mu.Lock()
	known := c.collectedTasks[taskKey{task.AllocID, task.Name}] != nil
	c.mu.Unlock()
	if known {
		return c.Stop(ctx, task.AllocID, task.Name, taskEnded)
	}
	left, err := c.findLeftoverOfEarlierAgent(task)
	if err != nil {
		return fmt.Errorf("end the logs of task %q: %w", task.Name, err)
	}
	switch left {
	case leftoverNone:
		return nil
	case leftoverFIFO:
		if _, _, err := c.Start(ctx, task); err != nil {
			return err
		}
		return c.Stop(ctx, task.AllocID, task.Name, taskEnded)
	}
	c.mu.Lock()
	t := c.getOrAddTaskLocked(task)
	c.mu.Unlock()
	return c.stopTask(ctx, t, task.AllocID, task.Name, taskEnded)
}

// StopUnlessStopped ends a task's output collection if Stop has failed or was never called, under this agent or an earlier one.
// Otherwise it returns nil at once. The caller calls it when the allocation is removed, and repeats it after an error. As after
// Stop with taskEnded false, a FIFO with a writer stays until the writer closes it.
func (c *CollectorClient) StopUnlessStopped(ctx context.Context, allocID, task string) error {
	k := taskKey{allocID, task}
	c.mu.Lock()
	t := c.collectedTasks[k]
	if t == nil && c.earlierAgentTasksWithFDs[k] {
		t = c.getOrAddTaskLocked(Task{AllocID: allocID, Name: task})
	}
	c.mu.Unlock()
	if t == nil {
		return nil
	}
	return c.stopTask(ctx, t, allocID, task, false)
}

// leftoverState says what an earlier agent has left from a task's output collection.
type leftoverState int

const (
	leftoverNone    leftoverState = iota
	leftoverFIFO                  // a FIFO and its log directory exist
	leftoverOnlyFDs               // the keeper holds a FIFO, but the allocation's directory has it no longer
)

// findLeftoverOfEarlierAgent looks for a task's FIFOs. The task is not in c.collectedTasks.
func (c *CollectorClient) findLeftoverOfEarlierAgent(task Task) (leftoverState, error) {
	held := false
	alloc, dir, err := openAllocAndLogDirs(task.LogDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return leftoverNone, err
	}
	if err == nil {
		defer unix.Close(alloc)
		defer unix.Close(dir)
	}
	for _, s := range bothStreams {
		k := task.streamKey(s)
		if err == nil && existsAt(alloc, k.FIFOName()) {
			return leftoverFIFO, nil
		}
		f, err := c.conf.Keeper.DuplicateStoredFD(k.KeeperFDKey())
		switch {
		case err == nil:
			f.Close()
			held = true
		case !errors.Is(err, keeper.ErrFDNotStored):
			return leftoverNone, err
		}
	}
	if held {
		return leftoverOnlyFDs, nil
	}
	return leftoverNone, nil
}

// stopTask is Stop for a task with a record.
func (c *CollectorClient) stopTask(ctx context.Context, t *collectedTask, allocID, task string, taskEnded bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	deadline := time.Now().Add(c.conf.writersCloseTimeout)
	var wg sync.WaitGroup
	errs := make([]error, len(bothStreams))
	for i, s := range bothStreams {
		k := collectorwire.StreamKey{AllocID: allocID, Task: task, Stream: s}
		wg.Go(func() { errs[i] = c.stopStream(ctx, t, k, deadline, taskEnded) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end the logs of task %q: %w", task, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeTaskUnlessWrittenLocked(t)
	return nil
}

// removeTaskUnlessWrittenLocked removes a task's record after its streams are stopped, unless one still has a writer.
func (c *CollectorClient) removeTaskUnlessWrittenLocked(t *collectedTask) {
	if len(t.stoppedStreamsWithWriter) > 0 {
		return
	}
	if t.logDirFD >= 0 {
		unix.Close(t.logDirFD)
		t.logDirFD = -1
	}
	delete(c.collectedTasks, taskKey{t.AllocID, t.Name})
	c.notifyDescriptorsFreedLocked()
	c.signalIfTaskCountLocked(0)
}

// notifyDescriptorsFreedLocked closes the channel in each TooManyTasksError returned since the last call.
func (c *CollectorClient) notifyDescriptorsFreedLocked() {
	close(c.descriptorsFreed)
	c.descriptorsFreed = make(chan struct{})
}

// removeFDOfStoppedStream makes the keeper close a stopped stream's FIFO if it had a writer at the stop and has none now, unless
// the task was started again.
func (c *CollectorClient) removeFDOfStoppedStream(k collectorwire.StreamKey) {
	c.mu.Lock()
	t := c.collectedTasks[taskKey{k.AllocID, k.Task}]
	c.mu.Unlock()
	if t != nil { // t is nil if an earlier agent has stopped the stream
		t.mu.Lock()
		defer t.mu.Unlock()
		c.mu.Lock()
		open := t.stoppedStreamsWithWriter[k.Stream]
		c.mu.Unlock()
		if !open {
			return
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeFDTimeout)
	defer cancel()
	if err := c.conf.Keeper.RemoveFD(ctx, k.KeeperFDKey()); err != nil {
		c.conf.Logger.Warn("a FIFO is still held", "alloc_id", k.AllocID, "task", k.Task, "error", err)
	}
	if t == nil {
		stored := tasksOfFDKeys(c.conf.Keeper.StoredFDKeys())
		c.mu.Lock()
		defer c.mu.Unlock()
		if task := (taskKey{k.AllocID, k.Task}); c.earlierAgentTasksWithFDs[task] && !stored[task] {
			delete(c.earlierAgentTasksWithFDs, task)
			c.notifyDescriptorsFreedLocked()
		}
	} else {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(t.stoppedStreamsWithWriter, k.Stream)
		if c.progressByStream[collectorwire.StreamKey{AllocID: k.AllocID, Task: k.Task, Stream: Stdout}] == nil && c.progressByStream[collectorwire.StreamKey{AllocID: k.AllocID, Task: k.Task, Stream: Stderr}] == nil {
			c.removeTaskUnlessWrittenLocked(t)
		}
	}
}

// removeFDTimeout is how long removeFDOfStoppedStream waits until the keeper has closed a FIFO.
const removeFDTimeout = 10 * time.Second

// stopStream stops one stream. The FIFO stays in the keeper while it has a writer, unless taskEnded is true.
func (c *CollectorClient) stopStream(ctx context.Context, t *collectedTask, k collectorwire.StreamKey, deadline time.Time, taskEnded bool) error {
	var reply *collectorwire.Message
	err := c.processConns.CallUntilConnStays(ctx, errDisconnected, func(l *processConn) (err error) {
		left := max(0, time.Until(deadline)) // a next collector process has the remaining time
		reply, err = l.call(ctx, &collectorwire.Message{Op: collectorwire.OpStop, StreamKey: k, GraceMillis: left.Milliseconds(), KeepReadingWhileWriterOpen: !taskEnded})
		return err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	if st := c.progressByStream[k]; st != nil {
		st.ended = true
		st.newestFileIndex = max(st.newestFileIndex, reply.FileIndex)
		st.wakeFollowers()
		delete(c.progressByStream, k)
	}
	c.losses.remove(k)
	delete(t.stoppedStreamsWithWriter, k.Stream)
	if reply.HasWriter {
		t.stoppedStreamsWithWriter[k.Stream] = true
	}
	c.mu.Unlock()
	if reply.HasWriter {
		return nil // the collector process sends collectorwire.OpEnd when the writers have closed the FIFO
	}
	return c.conf.Keeper.RemoveFD(ctx, k.KeeperFDKey())
}
