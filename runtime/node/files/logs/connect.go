package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// setConn replaces the connection to the collector process; nil: the agent has no connection.
func (c *CollectorClient) setConn(l *processConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l != nil {
		c.lastProcess = l.process
	}
	c.processConns.SetConn(l, nil)
	c.losses.clear() // the process reports its losses on each new connection
	for _, st := range c.progressByStream {
		st.wakeFollowers() // the followers subscribe to the stream at the new collector process
	}
}

// maintainConn keeps a connection to a collector process while there are tasks, until ctx ends. It connects to an earlier
// agent's process before the first task is added: otherwise each task would wait until the streams of the tasks before it
// are handed over.
func (c *CollectorClient) maintainConn(ctx context.Context) {
	l, err := c.connectAndHandOverStreams(ctx, c.conf.StartProcessWithoutTask)
	if err != nil { // the next task to need a process starts one
		c.conf.Logger.Debug("there is no log collector of an earlier agent", "error", err)
	}
	for connected := err == nil; connected || c.waitUntilHasTasks(ctx); connected = false {
		if !connected {
			if l, connected = c.processConns.ConnectWithBackoff(ctx, c.connectOrSpawnAndHandOver, func(err error) { c.conf.Logger.Error("no log collector", "error", err) }); !connected {
				return
			}
		}
		c.setConn(l)
		c.waitConnDownOrIdle(ctx, l)
		c.setConn(nil)
		l.close()
	}
}

// waitUntilHasTasks waits for a task. It returns false when ctx has ended.
func (c *CollectorClient) waitUntilHasTasks(ctx context.Context) bool {
	for ctx.Err() == nil {
		if c.hasTasks() {
			return true
		}
		select {
		case <-c.hasTasksChanged:
		case <-ctx.Done():
		}
	}
	return false
}

func (c *CollectorClient) hasTasks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.collectedTasks) > 0
}

// waitConnDownOrIdle returns when the connection to the process is down, or when the process had no task for
// idleProcessTimeout. In the latter case it first requests the process to exit unless it has streams. It makes no request if
// there was never a task: the process may have streams for tasks that are restored later.
func (c *CollectorClient) waitConnDownOrIdle(ctx context.Context, l *processConn) {
	idle := time.NewTimer(c.conf.idleProcessTimeout)
	defer idle.Stop()
	used := false
	for {
		select {
		case <-l.Done():
			c.conf.Logger.Warn("log collector is gone", "pid", l.process.PID)
			return
		case <-ctx.Done():
			return
		case <-c.hasTasksChanged:
			used = true
			idle.Reset(c.conf.idleProcessTimeout)
		case <-idle.C:
			if c.dropConnIfNoTasks() {
				if used {
					_ = l.send(&collectorwire.Message{Op: collectorwire.OpIdle}) // the process continues if it still has an earlier agent's stream
				}
				return
			}
		}
	}
}

// dropConnIfNoTasks makes the connection unavailable and returns true if there is no task. Tasks added later wait for the
// next connection.
func (c *CollectorClient) dropConnIfNoTasks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.collectedTasks) > 0 {
		return false
	}
	c.processConns.SetConn(nil, nil)
	return true
}

// connectOrSpawnAndHandOver is connectAndHandOverStreams that starts a process if necessary.
func (c *CollectorClient) connectOrSpawnAndHandOver(ctx context.Context) (*processConn, error) {
	return c.connectAndHandOverStreams(ctx, true)
}

// connectAndHandOverStreams connects to a collector process and sends it all streams. Only if maySpawn is true, it starts a
// process, or replaces one from another build.
func (c *CollectorClient) connectAndHandOverStreams(ctx context.Context, maySpawn bool) (*processConn, error) {
	l, err := c.dialOrSpawn(ctx, maySpawn)
	if err != nil {
		return nil, err
	}
	limit := raiseDescriptorLimit(l.process, c.conf)
	c.mu.Lock()
	c.descriptorLimit = limit
	c.notifyDescriptorsFreedLocked() // the process can have a higher limit than the previous one had
	c.mu.Unlock()
	if err := c.handOverAllTasks(ctx, l); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// raiseDescriptorLimit raises the collector process p's open file limit to this process's limit, because an earlier agent
// with a lower limit may have started p. It returns how many descriptors both processes may open.
func raiseDescriptorLimit(p osprocess.ID, conf Config) (commonLimit int) {
	limit, err := p.RaiseDescriptorLimit()
	if err != nil {
		conf.Logger.Warn("the log collector keeps a lower limit of open files than the agent", "pid", p.PID, "error", err)
	}
	if limit == 0 {
		return conf.MaxDescriptorsPerProcess
	}
	return int(min(uint64(conf.MaxDescriptorsPerProcess), limit))
}

// handOverAllTasks sends all tasks' streams to a newly connected collector process. It logs the errors for single tasks, and
// returns an error only if the connection is down or ctx has ended.
func (c *CollectorClient) handOverAllTasks(ctx context.Context, l *processConn) error {
	c.mu.Lock()
	tasks := maps.Clone(c.collectedTasks)
	maps.DeleteFunc(tasks, func(_ taskKey, t *collectedTask) bool { return t.logDirFD < 0 })
	c.mu.Unlock()
	for k, t := range tasks {
		err := c.handOverStoredFIFOs(ctx, l, t)
		if errors.Is(err, errDisconnected) || ctx.Err() != nil {
			return err
		}
		if err != nil {
			c.conf.Logger.Error("output of a task is not collected", "alloc_id", k.allocID, "task", k.name, "error", err)
		}
	}
	return nil
}

// handOverStoredFIFOs sends a newly connected collector process those streams of a task that the keeper holds and that have not
// ended.
func (c *CollectorClient) handOverStoredFIFOs(ctx context.Context, l *processConn, t *collectedTask) error {
	c.mu.Lock()
	task, stopped := t.Task, maps.Clone(t.stoppedStreamsWithWriter)
	streams := slices.DeleteFunc(slices.Clone(bothStreams[:]), func(s Stream) bool { return !stopped[s] && c.progressByStream[task.streamKey(s)] == nil })
	c.mu.Unlock()
	fifos := make(map[Stream]*os.File)
	defer closeFIFOs(fifos)
	var errs []error
	for _, s := range streams {
		fifo, err := c.conf.Keeper.DuplicateStoredFD(task.streamKey(s).KeeperFDKey())
		if err == nil {
			fifos[s] = fifo
		} else if !errors.Is(err, keeper.ErrFDNotStored) {
			errs = append(errs, err)
		}
	}
	if len(fifos) == 0 {
		return errors.Join(errs...)
	}
	if err := c.handOverStreams(ctx, l, t, fifos); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for s := range fifos {
		if stopped[s] {
			k := task.streamKey(s)
			reply, err := l.call(ctx, &collectorwire.Message{Op: collectorwire.OpStop, StreamKey: k, KeepReadingWhileWriterOpen: true})
			if err == nil && !reply.HasWriter {
				c.wg.Go(func() { c.removeFDOfStoppedStream(k) })
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// dialOrSpawn connects to the collector process. If maySpawn is true and no process from this build runs, it starts one.
// Before, it makes a process from another build, or an unreachable one, exit.
func (c *CollectorClient) dialOrSpawn(ctx context.Context, maySpawn bool) (*processConn, error) {
	f, err := c.dir.LockFile(collectorwire.LockFileName, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := c.dialProcess(ctx)
	if err == nil {
		switch {
		case !c.isOtherBuild(ctx, l):
			// The current keeper adopts the process, because the keeper that started it may have
			// exited.
			if err := c.conf.Keeper.AdoptProcessOfEarlierKeeper(ctx, l.process); err != nil {
				l.close()
				return nil, err
			}
			return l, nil
		case maySpawn:
			c.conf.Logger.Info("replacing the log collector, which is another build", "pid", l.process.PID, "version", l.protocolVersion)
			if err := c.quitProcess(l); err != nil {
				l.close()
				return nil, err
			}
		}
		l.close()
		err = errDisconnected
	}
	if !maySpawn {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if osprocess.IsResourceExhausted(err) {
		return nil, err // a process may be running although the dial has failed, so it must not be killed
	}
	// One process serves a data directory's streams. Output not yet moved is in the FIFOs, so a kill loses nothing.
	p, running, lockErr := c.dir.LockOwner(collectorwire.PIDFileName)
	if lockErr != nil {
		return nil, lockErr
	}
	if running {
		if err := waitOrKillProcess(p, err, c.conf.Logger); err != nil {
			return nil, err
		}
	}
	if text := c.crashLog().ReadBeginning(); text != "" {
		c.conf.Logger.Error("the last log collector crashed", "stderr", text)
	}
	if err := c.spawnProcess(ctx); err != nil {
		return nil, err
	}
	if l, err = c.dialProcess(ctx); err != nil {
		return nil, fmt.Errorf("connect to log collector: %w", err)
	}
	return l, nil
}

// isOtherBuild reports whether a process runs a build other than this one.
func (c *CollectorClient) isOtherBuild(ctx context.Context, l *processConn) bool {
	if l.protocolVersion != c.protocolVersion() {
		return true
	}
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer exe.Close()
	same, err := c.conf.Keeper.SameExecutable(ctx, l.process, exe)
	return !same && (err == nil || errors.Is(err, os.ErrProcessDone))
}

// quitProcess makes a collector process exit and waits until it has exited. The next process reads the output still in the
// FIFOs.
func (c *CollectorClient) quitProcess(l *processConn) error {
	_ = l.send(&collectorwire.Message{Op: collectorwire.OpQuit})
	return waitOrKillProcess(l.process, errors.New("it was told to quit and does not exit"), c.conf.Logger)
}

// exitTimeout is how long waitOrKillProcess waits before it kills the process.
const exitTimeout = 2 * time.Second

// waitOrKillProcess waits until a collector process has exited that accepts no connection or was requested to quit. If the
// process has not exited after exitTimeout, waitOrKillProcess kills it and logs cause as the reason.
func waitOrKillProcess(p osprocess.ID, cause error, logger hclog.Logger) error {
	if p.EndsWithin(exitTimeout) {
		return nil
	}
	logger.Warn("log collector cannot be reached, killing it", "pid", p.PID, "error", cause)
	return p.KillAndWait(context.Background())
}

// FindCollector returns a data directory's collector process, and false if none runs. It returns the errors of
// [keeper.DataDir.LockOwner].
func FindCollector(d *keeper.DataDir) (osprocess.ID, bool, error) {
	return d.LockOwner(collectorwire.PIDFileName)
}

func (c *CollectorClient) crashLog() keeper.CrashLogPath {
	return keeper.CrashLogPath(filepath.Join(c.conf.DataDir, collectorwire.LogFileName))
}

// spawnProcess starts a collector process through the keeper. The process inherits a listening socket, so
// that the agent can connect at once.
func (c *CollectorClient) spawnProcess(ctx context.Context) error {
	listener, err := c.dir.ListenReplacingSocket(collectorwire.SocketName)
	if err != nil {
		return err
	}
	defer listener.Close()
	socket, err := listener.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	stderr, err := c.crashLog().Create()
	if err != nil {
		return err
	}
	defer stderr.Close()
	conf, err := json.Marshal(collectorwire.Setup{Dir: c.conf.DataDir, Ephemeral: c.conf.Keeper.KeeperIsEphemeral(), LingerTimeout: c.conf.LingerTimeout})
	if err != nil {
		return err
	}
	_, err = c.conf.Keeper.Spawn(ctx, keeper.Command{
		Name:   "log collector",
		Path:   "/proc/self/exe",
		Args:   c.conf.CollectorArgv,
		Env:    append(osprocess.GoRuntimeEnv(), collectorwire.SetupEnvVar+"="+string(conf)),
		Stdin:  socket,
		Stderr: stderr,
	})
	if err == nil {
		c.processStarts.Add(1)
	}
	return err
}

// applyProcessEvent applies an event from the collector process: new output, a stream's end, or an output loss.
func (c *CollectorClient) applyProcessEvent(m *collectorwire.Message) {
	switch m.Op {
	case collectorwire.OpOutput:
		c.mu.Lock()
		if st := c.progressByStream[m.StreamKey]; st != nil {
			st.newestFileIndex = max(st.newestFileIndex, m.FileIndex)
			st.wakeFollowers()
		}
		c.mu.Unlock()
	case collectorwire.OpEnd:
		c.losses.remove(m.StreamKey)
		c.wg.Go(func() { c.removeFDOfStoppedStream(m.StreamKey) })
	case collectorwire.OpLoss:
		loss := OutputLoss{AllocID: m.StreamKey.AllocID, Task: m.StreamKey.Task, Stream: m.StreamKey.Stream, DroppedBytes: m.DroppedBytes, Reason: m.Error, WritingResumed: m.WritingResumed}
		if c.losses.record(m.StreamKey, loss) {
			c.conf.Logger.Warn("output of a task is lost", "alloc_id", loss.AllocID, "task", loss.Task,
				"stream", loss.Stream, "bytes", loss.DroppedBytes, "over", loss.WritingResumed, "error", loss.Reason)
		}
	}
}
