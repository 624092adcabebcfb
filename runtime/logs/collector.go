package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// ErrClosed means that the Collector was closed.
var ErrClosed = errors.New("log collector client is closed")

// holder is the part of the keeper that a Collector uses; *keeper.Client is one.
type holder interface {
	Spawn(context.Context, keeper.Command) (keeper.Process, error)
	Hold(ctx context.Context, key string, f *os.File) error
	Take(ctx context.Context, key string) (*os.File, error)
	Drop(ctx context.Context, key string) error
	Adopt(context.Context, keeper.Process) error
	Ephemeral() bool
}

// Config says how a Collector finds and starts its process.
type Config struct {
	Keeper holder
	Dir    string   // the runtime directory, which the keeper has made private
	Args   []string // start this program again as a collector, with argv[0]

	// Linger is how long a collector process without work waits for an agent; ten
	// minutes if it is 0.
	Linger time.Duration

	// OnLoss is told when output of a task cannot be written, and when it can
	// again. It must not block.
	OnLoss func(Loss)

	Logger hclog.Logger

	// A test sets these.
	grace time.Duration // how long Stop waits for the writers
	quiet time.Duration // how long the process stays when no task is left
}

// Collector is the agent's side: it makes the FIFOs, keeps a collector process
// alive that reads them, and tells followers of new output. All methods may be
// called concurrently.
type Collector struct {
	conf Config
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu      sync.Mutex
	link    *link         // nil while there is none
	changed chan struct{} // closed and replaced when link changes
	err     error         // why there is no link
	process keeper.Process
	tasks   map[taskKey]*taskState
	streams map[key]*streamState
	started chan struct{} // closed and replaced when there is another stream
	tasked  chan struct{} // capacity 1: the first task has come, or the last one gone
}

type taskKey struct{ allocID, name string }

// taskState is a task that is collected.
type taskState struct {
	mu  sync.Mutex // held during Start and Stop of this task; taken before Collector.mu
	dir int        // the log directory, -1 when the task is stopped; guarded by Collector.mu
	Task
}

// streamState is what followers look at. Guarded by Collector.mu.
type streamState struct {
	index   int64         // the newest file, as far as the collector said
	changed chan struct{} // closed and replaced when there is news
	ended   bool
}

func (s *streamState) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// New makes a Collector. It finds or starts its process when the first task
// comes, and ends it a minute after the last one has gone.
func New(conf Config) (*Collector, error) {
	if conf.Keeper == nil || conf.Dir == "" || len(conf.Args) == 0 {
		return nil, errors.New("log collector: keeper, directory and arguments are needed")
	}
	if conf.Linger == 0 {
		conf.Linger = 10 * time.Minute
	}
	if conf.grace == 0 {
		conf.grace = 2 * time.Second
	}
	if conf.quiet == 0 {
		conf.quiet = time.Minute
	}
	if conf.Logger == nil {
		conf.Logger = hclog.NewNullLogger()
	}
	if conf.OnLoss == nil {
		conf.OnLoss = func(Loss) {}
	}
	c := &Collector{
		conf:    conf,
		stop:    make(chan struct{}),
		changed: make(chan struct{}),
		tasks:   map[taskKey]*taskState{},
		streams: map[key]*streamState{},
		started: make(chan struct{}),
		tasked:  make(chan struct{}, 1),
	}
	c.wg.Go(c.maintain)
	return c, nil
}

// Close ends the connection; the process goes on, with what it has, as long as
// tasks write (but not that of an ephemeral keeper). Followers end with ErrClosed.
// Close may be called twice.
func (c *Collector) Close() error {
	c.once.Do(func() { close(c.stop) })
	c.wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tasks {
		if t.dir >= 0 {
			unix.Close(t.dir)
			t.dir = -1
		}
	}
	return nil
}

// Process returns the collector process that was connected last.
func (c *Collector) Process() keeper.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

// Start begins to collect the output of a task, and returns the FIFOs that it
// writes to. It is to be called before each start of the task, and by an agent
// that has taken over a running one; called again it only makes sure that all
// is in place. A FIFO that a task has replaced by something else is made anew.
func (c *Collector) Start(ctx context.Context, task Task) (stdout, stderr string, err error) {
	wrap := func(err error) error {
		return fmt.Errorf("collect logs of task %q: %w", task.Name, err)
	}
	if err := task.check(); err != nil {
		return "", "", wrap(err)
	}
	t := c.task(task)
	t.mu.Lock()
	defer t.mu.Unlock()

	dir, err := openDir(task.Dir)
	if err != nil {
		return "", "", wrap(err)
	}
	c.mu.Lock()
	if t.dir >= 0 {
		unix.Close(t.dir)
	}
	t.dir, t.Task = dir, task
	c.mu.Unlock()

	// Together, so that the second one does not wait for the first one's answers.
	var wg sync.WaitGroup
	var paths [len(streams)]string
	var errs [len(streams)]error
	for i, s := range streams {
		k := key{task.AllocID, task.Name, s}
		paths[i] = filepath.Join(task.Dir, k.fifoName())
		wg.Go(func() { errs[i] = c.startStream(ctx, t, dir, k) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return "", "", wrap(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range streams {
		// Who has asked for news before the process had the stream gets no answer.
		if st := c.streams[key{task.AllocID, task.Name, s}]; st != nil {
			st.wake()
		}
	}
	return paths[0], paths[1], nil
}

// startStream gives one stream to the collector process that is there, or comes.
func (c *Collector) startStream(ctx context.Context, t *taskState, dir int, k key) error {
	fifo, err := c.ensure(ctx, dir, k)
	if err != nil {
		return err
	}
	defer fifo.Close()
	c.mu.Lock()
	if st := c.streams[k]; st == nil || st.ended {
		c.streams[k] = &streamState{index: -1, changed: make(chan struct{})}
		close(c.started)
		c.started = make(chan struct{})
	}
	c.mu.Unlock()
	for {
		l, err := c.current(ctx)
		if err != nil {
			return err
		}
		if err := c.handOver(ctx, l, t, k, fifo); !errors.Is(err, errDown) {
			return err
		}
	}
}

// task returns the record of a task, which is made if there is none.
func (c *Collector) task(task Task) *taskState {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := taskKey{task.AllocID, task.Name}
	t := c.tasks[k]
	if t == nil {
		t = &taskState{dir: -1, Task: task}
		c.tasks[k] = t
		c.tellLocked(1)
	}
	return t
}

// tellLocked tells maintain that there are so many tasks now.
func (c *Collector) tellLocked(tasks int) {
	if len(c.tasks) != tasks {
		return
	}
	select {
	case c.tasked <- struct{}{}:
	default:
	}
}

// ensure makes sure that the FIFO lies under its name and that the keeper holds
// it, and returns it.
func (c *Collector) ensure(ctx context.Context, dir int, k key) (*os.File, error) {
	f, err := c.conf.Keeper.Take(ctx, k.held())
	if err == nil {
		if sameFile(dir, k.fifoName(), int(f.Fd())) {
			return f, nil
		}
		f.Close()
		c.conf.Logger.Warn("FIFO was replaced, making a new one", "alloc_id", k.AllocID, "task", k.Task, "file", k.fifoName())
	} else if !errors.Is(err, keeper.ErrNotHeld) {
		return nil, err
	}
	fd, err := openFIFO(dir, k.fifoName())
	if err != nil {
		return nil, err
	}
	// Blocking, so that Go's poller leaves it alone: it would wake this process
	// for each line. Who reads it says for each call that it does not want to wait.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	fifo := os.NewFile(uintptr(fd), k.fifoName())
	if err := c.conf.Keeper.Hold(ctx, k.held(), fifo); err != nil {
		fifo.Close()
		return nil, err
	}
	return fifo, nil
}

// handOver gives one stream to the collector process. That it may have it
// already does no harm.
func (c *Collector) handOver(ctx context.Context, l *link, t *taskState, k key, fifo *os.File) error {
	c.mu.Lock()
	limits := t.limits(k.Stream)
	dir, err := -1, error(nil)
	if t.dir >= 0 {
		dir, err = unix.FcntlInt(uintptr(t.dir), unix.F_DUPFD_CLOEXEC, 3)
	}
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("duplicate descriptor: %w", err)
	}
	if dir < 0 {
		return nil // stopped meanwhile
	}
	defer unix.Close(dir)
	_, err = l.call(ctx, &message{Op: opStart, Key: k, Limits: limits}, int(fifo.Fd()), dir)
	return err
}

// Stop ends the collection of a task's output. It waits up to two seconds for
// all writers to be gone, takes what is in the FIFOs then, and lets go of them;
// whoever still writes gets SIGPIPE. Followers end after the last byte. The FIFOs
// stay in the directory. A task that is not collected is no error.
func (c *Collector) Stop(ctx context.Context, allocID, task string) error {
	c.mu.Lock()
	t := c.tasks[taskKey{allocID, task}]
	c.mu.Unlock()
	if t == nil {
		return nil
	}
	return c.stopTask(ctx, t, allocID, task)
}

// Finish is Stop for a task that an earlier agent may have had collected, and
// that will not be started again: what is left of its output is collected first.
func (c *Collector) Finish(ctx context.Context, task Task) error {
	c.mu.Lock()
	known := c.tasks[taskKey{task.AllocID, task.Name}] != nil
	c.mu.Unlock()
	if known {
		return c.Stop(ctx, task.AllocID, task.Name)
	}
	left, err := c.leftOver(ctx, task)
	if err != nil {
		return fmt.Errorf("end the logs of task %q: %w", task.Name, err)
	}
	switch left {
	case nothingLeft:
		return nil
	case outputLeft:
		if _, _, err := c.Start(ctx, task); err != nil {
			return err
		}
		return c.Stop(ctx, task.AllocID, task.Name)
	}
	return c.stopTask(ctx, c.task(task), task.AllocID, task.Name)
}

// leftOver is what an earlier agent may have left of a task's collection.
type leftOver int

const (
	nothingLeft leftOver = iota
	outputLeft           // there is a FIFO to read from, and a place for it
	holdLeft             // nothing but descriptors in other processes
)

func (c *Collector) leftOver(ctx context.Context, task Task) (leftOver, error) {
	held := false
	dir, err := openDir(task.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nothingLeft, err
	}
	if err == nil {
		defer unix.Close(dir)
	}
	for _, s := range streams {
		k := key{task.AllocID, task.Name, s}
		var st unix.Stat_t
		if err == nil && unix.Fstatat(dir, k.fifoName(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return outputLeft, nil
		}
		f, err := c.conf.Keeper.Take(ctx, k.held())
		switch {
		case err == nil:
			f.Close()
			held = true
		case !errors.Is(err, keeper.ErrNotHeld):
			return nothingLeft, err
		}
	}
	if held {
		return holdLeft, nil
	}
	return nothingLeft, nil
}

func (c *Collector) stopTask(ctx context.Context, t *taskState, allocID, task string) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	deadline := time.Now().Add(c.conf.grace)
	var wg sync.WaitGroup
	errs := make([]error, len(streams))
	for i, s := range streams {
		k := key{allocID, task, s}
		wg.Go(func() { errs[i] = c.stopStream(ctx, t, k, deadline) })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err == nil {
		c.mu.Lock()
		if t.dir >= 0 {
			unix.Close(t.dir)
			t.dir = -1
		}
		delete(c.tasks, taskKey{allocID, task})
		c.tellLocked(0)
		c.mu.Unlock()
		return nil
	}
	return fmt.Errorf("end the logs of task %q: %w", task, err)
}

func (c *Collector) stopStream(ctx context.Context, t *taskState, k key, deadline time.Time) error {
	for {
		l, err := c.current(ctx)
		if err != nil {
			return err
		}
		left := max(0, time.Until(deadline))
		reply, err := l.call(ctx, &message{Op: opStop, Key: k, Grace: left.Milliseconds()})
		if errors.Is(err, errDown) {
			continue // the next process gets the stream, and the rest of the time
		}
		if err != nil {
			return err
		}
		c.mu.Lock()
		if st := c.streams[k]; st != nil {
			st.ended = true
			st.index = max(st.index, reply.Index)
			st.wake()
			delete(c.streams, k)
		}
		c.mu.Unlock()
		return c.conf.Keeper.Drop(ctx, k.held())
	}
}

// current returns the connection, and waits for one while there is none.
func (c *Collector) current(ctx context.Context) (*link, error) {
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

func (c *Collector) publish(l *link, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link, c.err = l, err
	if l != nil {
		c.process = l.process
	}
	close(c.changed)
	c.changed = make(chan struct{})
	for _, st := range c.streams {
		st.wake() // followers ask the new process for news
	}
}

// maintain keeps a connection to a collector process, while there are tasks, until
// Close.
func (c *Collector) maintain() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.wg.Go(func() {
		select {
		case <-c.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	for c.needed(ctx) {
		l := c.connect(ctx)
		if l == nil {
			break
		}
		c.publish(l, nil)
		c.use(ctx, l)
		c.publish(nil, nil)
		l.close()
	}
	c.publish(nil, ErrClosed)
}

// needed waits for a task. It is false when ctx has ended.
func (c *Collector) needed(ctx context.Context) bool {
	for ctx.Err() == nil {
		if c.hasTasks() {
			return true
		}
		select {
		case <-c.tasked:
		case <-ctx.Done():
		}
	}
	return false
}

func (c *Collector) hasTasks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.tasks) > 0
}

// use waits until a process cannot be used any more, or has not been for a while; it
// is ended then.
func (c *Collector) use(ctx context.Context, l *link) {
	quiet := time.NewTimer(c.conf.quiet)
	defer quiet.Stop()
	for {
		select {
		case <-l.Done():
			c.conf.Logger.Warn("log collector is gone", "pid", l.process.PID)
			return
		case <-ctx.Done():
			return
		case <-c.tasked:
			quiet.Reset(c.conf.quiet)
		case <-quiet.C:
			if c.giveUp() {
				quit(l)
				return
			}
		}
	}
}

// giveUp lets go of the process, unless there is a task: the next one waits for the
// next process.
func (c *Collector) giveUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tasks) > 0 {
		return false
	}
	c.link = nil
	return true
}

// connect returns a connection to a process that has all streams. It tries
// until ctx ends, and returns nil then.
func (c *Collector) connect(ctx context.Context) *link {
	for delay := 20 * time.Millisecond; ctx.Err() == nil; delay = min(2*delay, 2*time.Second) {
		l, err := c.join(ctx)
		if err == nil {
			err = c.handOverAll(ctx, l)
			if err == nil {
				return l
			}
			l.close()
		}
		if ctx.Err() != nil {
			break
		}
		c.conf.Logger.Error("no log collector", "error", err)
		c.publish(nil, err)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
	return nil
}

func (c *Collector) handOverAll(ctx context.Context, l *link) error {
	c.mu.Lock()
	tasks := make([]*taskState, 0, len(c.tasks))
	for _, t := range c.tasks {
		if t.dir >= 0 {
			tasks = append(tasks, t)
		}
	}
	c.mu.Unlock()
	for _, t := range tasks {
		for _, s := range streams {
			c.mu.Lock()
			k := key{t.AllocID, t.Name, s}
			wanted := c.streams[k] != nil
			c.mu.Unlock()
			if !wanted {
				continue
			}
			fifo, err := c.conf.Keeper.Take(ctx, k.held())
			if err == nil {
				err = c.handOver(ctx, l, t, k, fifo)
				fifo.Close()
			}
			if errors.Is(err, errDown) || ctx.Err() != nil {
				return err
			}
			if err != nil && !errors.Is(err, keeper.ErrNotHeld) {
				c.conf.Logger.Error("output of a task is not collected", "alloc_id", k.AllocID, "task", k.Task, "error", err)
			}
		}
	}
	return nil
}

// join connects to the collector process, and starts one if there is none.
func (c *Collector) join(ctx context.Context) (*link, error) {
	f, err := lock(filepath.Join(c.conf.Dir, lockName), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	path := filepath.Join(c.conf.Dir, socketName)
	dir, err := os.OpenFile(c.conf.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// Through a handle: the path of a data directory may be longer than a socket
	// address can be.
	address := &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName)}

	l, err := c.dial(ctx, address)
	if err == nil {
		if !replace(l, c.conf.Logger) {
			// The keeper that started it may be gone.
			if err := c.conf.Keeper.Adopt(ctx, l.process); err != nil {
				l.close()
				return nil, err
			}
			return l, nil
		}
		err = errDown
	}
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, errDown) {
		return nil, fmt.Errorf("connect to log collector: %w", err)
	}
	if b, err := os.ReadFile(filepath.Join(c.conf.Dir, logName)); err == nil && len(b) > 0 {
		c.conf.Logger.Error("the last log collector crashed", "stderr", strings.TrimSpace(string(b[:min(len(b), 4<<10)])))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	if err := c.spawn(ctx, address, path); err != nil {
		return nil, err
	}
	if l, err = c.dial(ctx, address); err != nil {
		return nil, fmt.Errorf("connect to log collector: %w", err)
	}
	return l, nil
}

// replace ends a process that runs another build than ours. What it has not
// moved is in the FIFOs, for the next one.
func replace(l *link, logger hclog.Logger) bool {
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer exe.Close()
	if same, err := l.process.Runs(exe); same || err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false
	}
	logger.Info("replacing the log collector, which is another build", "pid", l.process.PID)
	quit(l)
	l.close()
	return true
}

// quit ends a process.
func quit(l *link) {
	_ = l.send(&message{Op: opQuit})
	select {
	case <-l.Done():
	case <-time.After(time.Second):
		_ = l.process.Signal(unix.SIGKILL) // nothing is lost by that, either
	}
}

// spawn starts a collector process through the keeper. It gets a socket that
// listens already, so that nobody has to wait for it.
func (c *Collector) spawn(ctx context.Context, address *net.UnixAddr, path string) error {
	listener, err := net.ListenUnix("unixpacket", address)
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
	stderr, err := os.OpenFile(filepath.Join(c.conf.Dir, logName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer stderr.Close()
	conf, err := json.Marshal(setup{Dir: c.conf.Dir, Ephemeral: c.conf.Keeper.Ephemeral(), Linger: c.conf.Linger})
	if err != nil {
		return err
	}
	_, err = c.conf.Keeper.Spawn(ctx, keeper.Command{
		Name:   "log collector",
		Path:   "/proc/self/exe",
		Args:   c.conf.Args,
		Env:    append(keeper.RuntimeEnv(), envSetup+"="+string(conf)),
		Stdin:  socket,
		Stderr: stderr,
	})
	return err
}

// event handles what the process says on its own accord.
func (c *Collector) event(m *message) {
	switch m.Op {
	case opOutput:
		c.mu.Lock()
		if st := c.streams[m.Key]; st != nil {
			st.index = max(st.index, m.Index)
			st.wake()
		}
		c.mu.Unlock()
	case opLoss:
		loss := Loss{AllocID: m.Key.AllocID, Task: m.Key.Task, Stream: m.Key.Stream, Bytes: m.Bytes, Reason: m.Error, Over: m.Over}
		c.conf.Logger.Warn("output of a task is lost", "alloc_id", loss.AllocID, "task", loss.Task,
			"stream", loss.Stream, "bytes", loss.Bytes, "over", loss.Over, "error", loss.Reason)
		c.conf.OnLoss(loss)
	}
}
