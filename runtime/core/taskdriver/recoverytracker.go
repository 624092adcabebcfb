package taskdriver

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// RecoveryTracker records for each running task on a node which plugin process has it. After a plugin process has died,
// starts wait until the next process has recovered the driver's running tasks. Otherwise a start that kills the plugin
// again would leave these tasks unwatched. Its methods may be called concurrently; a nil pointer records nothing.
type RecoveryTracker struct {
	mu                  sync.Mutex
	trackerByDriverName map[string]*Plugins
}

// NewRecoveryTracker returns a tracker without running tasks.
func NewRecoveryTracker() *RecoveryTracker {
	return &RecoveryTracker{trackerByDriverName: make(map[string]*Plugins)}
}

// ForDriver returns the tracker's part for one driver. It is nil for a nil tracker.
func (r *RecoveryTracker) ForDriver(driverName string) *Plugins {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.trackerByDriverName[driverName]
	if d == nil {
		d = &Plugins{
			pluginByTask:      make(map[*Process]driver.Driver),
			taskCountByPlugin: make(map[driver.Driver]int),
			changed:           make(chan struct{}),
		}
		r.trackerByDriverName[driverName] = d
	}
	return d
}

// Plugins records which of one driver's plugin processes has each running task. A nil pointer records nothing.
type Plugins struct {
	mu                sync.Mutex
	pluginByTask      map[*Process]driver.Driver // each running task's plugin process; nil if none has it
	taskCountByPlugin map[driver.Driver]int      // number of running tasks per plugin process
	changed           chan struct{}              // closed and replaced after each change
}

// SetPluginOfTask records that the plugin process d has a task; a nil d means no plugin process has it.
func (r *Plugins) SetPluginOfTask(p *Process, d driver.Driver) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was, known := r.pluginByTask[p]
	if known && was == d {
		return
	}
	if known {
		r.decrementTaskCountLocked(was)
	}
	r.pluginByTask[p] = d
	r.taskCountByPlugin[d]++
	r.announceChangeLocked()
}

// removeTask removes a task when it no longer runs or is no longer watched.
func (r *Plugins) removeTask(p *Process) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, known := r.pluginByTask[p]; known {
		delete(r.pluginByTask, p)
		r.decrementTaskCountLocked(was)
		r.announceChangeLocked()
	}
}

func (r *Plugins) decrementTaskCountLocked(d driver.Driver) {
	if r.taskCountByPlugin[d]--; r.taskCountByPlugin[d] == 0 {
		delete(r.taskCountByPlugin, d)
	}
}

func (r *Plugins) announceChangeLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// recoveryTimeout limits how long a start waits until other tasks are recovered: a driver that
// hangs in one recovery must not block all starts.
const recoveryTimeout = 30 * time.Second

// AwaitTasksRecoveredOrTimeout returns the driver when its plugin process has recovered all the driver's
// running tasks, or after recoveryTimeout.
func (r *Plugins) AwaitTasksRecoveredOrTimeout(ctx context.Context, dispense DispenseFunc) (driver.Driver, error) {
	if r == nil {
		return dispense(ctx)
	}
	limit := time.NewTimer(recoveryTimeout)
	defer limit.Stop()
	for {
		d, err := dispense(ctx)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		complete, changed := r.taskCountByPlugin[d] == len(r.pluginByTask), r.changed
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
