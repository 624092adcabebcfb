package taskrunner

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// RecoveryTracker records for each running task of a node which plugin process has it. After the death of a plugin process,
// starts wait until the next process has recovered the running tasks of the driver, so that a start that kills the plugin
// again does not leave these tasks unwatched. Its methods may be called concurrently; a nil pointer records nothing.
type RecoveryTracker struct {
	mu              sync.Mutex
	trackerOfDriver map[string]*pluginTaskTracker
}

// NewRecoveryTracker returns a tracker that knows no running tasks.
func NewRecoveryTracker() *RecoveryTracker {
	return &RecoveryTracker{trackerOfDriver: make(map[string]*pluginTaskTracker)}
}

// trackerForDriver returns the part of the tracker for one driver. It is nil for a nil tracker.
func (r *RecoveryTracker) trackerForDriver(name string) *pluginTaskTracker {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.trackerOfDriver[name]
	if d == nil {
		d = &pluginTaskTracker{
			pluginOfTask:      make(map[*process]driver.Driver),
			taskCountOfPlugin: make(map[driver.Driver]int),
			changed:           make(chan struct{}),
		}
		r.trackerOfDriver[name] = d
	}
	return d
}

// pluginTaskTracker records which plugin process of one driver has each running task. A nil pointer records nothing.
type pluginTaskTracker struct {
	mu                sync.Mutex
	pluginOfTask      map[*process]driver.Driver // plugin process that has each running task; nil if none has it
	taskCountOfPlugin map[driver.Driver]int      // number of running tasks that each plugin process has
	changed           chan struct{}              // closed and replaced after each change
}

// setPluginOfTask records that the plugin process d has a task; a nil d means that no plugin process has it.
func (r *pluginTaskTracker) setPluginOfTask(p *process, d driver.Driver) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was, known := r.pluginOfTask[p]
	if known && was == d {
		return
	}
	if known {
		r.decrementTaskCountLocked(was)
	}
	r.pluginOfTask[p] = d
	r.taskCountOfPlugin[d]++
	r.announceChangeLocked()
}

// removeTask removes a task that no longer runs or is no longer watched.
func (r *pluginTaskTracker) removeTask(p *process) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, known := r.pluginOfTask[p]; known {
		delete(r.pluginOfTask, p)
		r.decrementTaskCountLocked(was)
		r.announceChangeLocked()
	}
}

func (r *pluginTaskTracker) decrementTaskCountLocked(d driver.Driver) {
	if r.taskCountOfPlugin[d]--; r.taskCountOfPlugin[d] == 0 {
		delete(r.taskCountOfPlugin, d)
	}
}

func (r *pluginTaskTracker) announceChangeLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// recoveryTimeout limits how long a start waits for the recovery of other tasks: a
// driver that hangs in one recovery must not block all starts.
const recoveryTimeout = 30 * time.Second

// awaitTasksRecovered returns the driver when its plugin process has recovered all running tasks of
// the driver, or after recoveryTimeout.
func (r *pluginTaskTracker) awaitTasksRecovered(ctx context.Context, find dispenseDriverFunc) (driver.Driver, error) {
	if r == nil {
		return find(ctx)
	}
	limit := time.NewTimer(recoveryTimeout)
	defer limit.Stop()
	for {
		d, err := find(ctx)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		complete, changed := r.taskCountOfPlugin[d] == len(r.pluginOfTask), r.changed
		r.mu.Unlock()
		if complete {
			return d, nil
		}
		select {
		case <-changed:
		case <-limit.C:
			return d, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
