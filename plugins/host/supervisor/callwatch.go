package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Timeouts after which a call is late. StartTask has none, because it can pull an image.
// WaitTask and exec calls have none, because they last as long as the task or command.
const (
	// answerTimeout is for a call that the driver can answer immediately, and for StopTask
	// in addition to the kill timeout.
	answerTimeout = 10 * time.Second

	// slowCallTimeout is for a call that searches for a task or removes its resources.
	slowCallTimeout = time.Minute
)

// callWatch detects calls that the driver in one plugin process does not answer. A late
// call is logged as a warning, sent as an event to its task, and makes the driver unhealthy
// until the call is answered. If the caller of a late call cancels it, and no other call is
// answered, callWatch calls InspectTask for the task until the driver responds.
//
// callWatch neither cancels calls nor kills the process: a driver that hangs in one call
// can be the parent of tasks that run well.
type callWatch struct {
	s      *Supervisor
	plugin *managedPlugin
	inst   pluginInstance
	driver string
	// lateReason: why the driver is unhealthy because of a late call; "" if no call is
	// late; guarded by Supervisor.mu.
	lateReason string

	mu           sync.Mutex
	calls        map[*watchedCall]struct{}
	lastResponse time.Time // time of the driver's latest response
	// abandonedCall: cancelled call that the driver has not answered; nil after any response of
	// the driver.
	abandonedCall *watchedCall
	nextCheck     time.Time     // time of the next call of check; zero while run waits for wake
	wake          chan struct{} // wake: capacity 1; makes run call check immediately
}

// watchedCall is a call of a driver that has not returned.
type watchedCall struct {
	ctx       context.Context // context of the caller
	method    string
	taskID    string // taskID: "" for a call without a task
	started   time.Time
	deadline  time.Time
	late      bool
	abandoned bool // abandoned: the caller has cancelled the call before the driver answered
}

func (s *Supervisor) newCallWatch(m *managedPlugin, inst pluginInstance) *callWatch {
	return &callWatch{
		s: s, plugin: m, inst: inst, driver: inst.Info().Name,
		calls: map[*watchedCall]struct{}{}, wake: make(chan struct{}, 1),
	}
}

// beginCall registers a call. When the call returns, end must be called.
func (w *callWatch) beginCall(ctx context.Context, method, taskID string, timeout time.Duration) *watchedCall {
	now := time.Now()
	c := &watchedCall{ctx: ctx, method: method, taskID: taskID, started: now, deadline: now.Add(timeout)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addLocked(c)
	return c
}

func (w *callWatch) addLocked(c *watchedCall) {
	w.calls[c] = struct{}{}
	if w.nextCheck.IsZero() || c.deadline.Before(w.nextCheck) {
		w.wakeLocked()
	}
}

// endCall records that the call has returned with err.
func (w *callWatch) endCall(c *watchedCall, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, c)
	if c.late {
		w.wakeLocked()
	}
	now := time.Now()
	switch {
	case errors.Is(err, driver.ErrPluginDown):
	case !isAbandonedCall(c.ctx, err):
		w.lastResponse, w.abandonedCall = now, nil
	case c.late:
		w.abandonedCall = c
	default:
		c.abandoned = true
		if limit := now.Add(answerTimeout); limit.Before(c.deadline) {
			c.deadline = limit
		}
		w.addLocked(c)
	}
}

// isAbandonedCall reports whether a call with context ctx failed because ctx ended. The plugin
// can return DeadlineExceeded before ctx ends, see basewire.Conn.Err.
func isAbandonedCall(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded))
}

func (w *callWatch) wakeLocked() {
	select {
	case w.wake <- struct{}{}:
	default: // wake already has a value that run has not received
	}
}

// run watches the calls until ctx ends, which is when the plugin process ends.
func (w *callWatch) run(ctx context.Context) {
	defer w.setLateReason("")
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		late, waiting, abandoned := w.findLateCalls()
		for _, c := range late {
			w.reportLateCall(c)
		}
		if !waiting && abandoned != nil {
			abandoned = w.probeDriver(ctx, abandoned)
		}
		if !waiting && abandoned == nil {
			w.setLateReason("")
		}
		timer.Reset(w.untilNextCheck(!waiting && abandoned != nil))
		select {
		case <-timer.C:
		case <-w.wake:
		case <-ctx.Done():
			return
		}
	}
}

// findLateCalls finds late calls. It returns the calls that have become late since the last check,
// whether any call is late, and the abandoned call for probe.
func (w *callWatch) findLateCalls() (late []*watchedCall, waiting bool, abandoned *watchedCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for c := range w.calls {
		expired := !c.deadline.After(now)
		switch {
		case c.abandoned && expired:
			delete(w.calls, c)
			if w.abandonedCall == nil && !w.lastResponse.After(c.started) {
				w.abandonedCall = c
			}
		case !c.late && !c.abandoned && expired:
			c.late = true
			late = append(late, c)
		}
		waiting = waiting || c.late
	}
	return late, waiting, w.abandonedCall
}

// untilNextCheck returns the time until run must call check. If probing is true, run must
// also call probe again.
func (w *callWatch) untilNextCheck(probing bool) time.Duration {
	const idleSleep = time.Hour
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.nextCheck = time.Time{}
	if probing {
		w.nextCheck = now.Add(answerTimeout)
	}
	for c := range w.calls {
		if !c.late && (w.nextCheck.IsZero() || c.deadline.Before(w.nextCheck)) {
			w.nextCheck = c.deadline
		}
	}
	if w.nextCheck.IsZero() {
		return idleSleep
	}
	return w.nextCheck.Sub(now)
}

// probeDriver calls InspectTask for the task of the abandoned call c. It returns nil after any
// response, and c if there is none.
func (w *callWatch) probeDriver(ctx context.Context, c *watchedCall) *watchedCall {
	probeCtx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := w.inst.Driver().InspectTask(probeCtx, c.taskID)
	w.mu.Lock()
	answered := !isAbandonedCall(probeCtx, err) && !errors.Is(err, driver.ErrPluginDown)
	if answered {
		w.lastResponse, w.abandonedCall = time.Now(), nil
	}
	report := !answered && !c.late && ctx.Err() == nil
	c.late = c.late || report
	w.mu.Unlock()
	if answered {
		return nil
	}
	if report {
		w.reportLateCall(c)
	}
	return c
}

// reportLateCall logs a late call, makes the driver unhealthy and sends an event to the task.
func (w *callWatch) reportLateCall(c *watchedCall) {
	after := time.Since(c.started).Round(time.Second)
	name, pid := w.plugin.entry.Name, w.inst.PID()
	w.s.logger.Warn("driver does not answer", "driver", w.driver, "plugin", name, "pid", pid, "call", c.method, "task_id", c.taskID, "after", after)
	w.setLateReason(fmt.Sprintf("no answer to %s for %v (plugin %s, pid %d)", c.method, after, name, pid))
	allocID, rest, ok := strings.Cut(c.taskID, "/")
	if !ok || w.s.cfg.OnTaskEvent == nil {
		return
	}
	task := rest[:max(0, strings.LastIndexByte(rest, '/'))]
	w.s.cfg.OnTaskEvent(w.driver, driver.TaskEvent{
		TaskID: c.taskID, AllocID: allocID, TaskName: task, Timestamp: time.Now(),
		Message:     fmt.Sprintf("driver %q has not answered %s for %v (plugin %s, pid %d); the task may still run", w.driver, c.method, after, name, pid),
		Annotations: map[string]string{"plugin": name, "pid": fmt.Sprint(pid), "call": c.method},
	})
}

// setLateReason makes the driver unhealthy for the given reason. With an empty reason the
// driver has the health of its fingerprint again.
func (w *callWatch) setLateReason(reason string) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	was := w.lateReason
	if reason == was || reason != "" && was != "" {
		return // the first reason stays, so that further late calls do not update the node
	}
	w.lateReason = reason
	if reason == "" && !hasExited(w.inst) {
		s.logger.Info("driver answers again", "driver", w.driver, "plugin", w.plugin.entry.Name, "pid", w.inst.PID())
	}
	if info, ok := s.registry.drivers[w.driver]; ok && s.registry.owners[driverKey(w.driver)] == w.plugin {
		info.UpdatedAt = time.Now()
		s.registry.drivers[w.driver] = info
	}
	s.notifyLocked()
}

// overrideHealthLocked sets the health in info to unhealthy while a call is late.
func (w *callWatch) overrideHealthLocked(info *DriverInfo) {
	if w.lateReason != "" {
		info.Healthy, info.Description = false, w.lateReason
	}
}

// watchedDriver is a driver whose calls are watched by a callWatch.
type watchedDriver struct {
	driver.Driver
	callWatch    *callWatch
	mayHaveTasks atomic.Bool // the process was called to start or recover a task, or to create a network
}

func (d *watchedDriver) StartTask(ctx context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	d.mayHaveTasks.Store(true)
	return d.Driver.StartTask(ctx, c)
}

func (d *watchedDriver) TaskConfigSchema(ctx context.Context) (_ *hclspec.Spec, err error) {
	c := d.callWatch.beginCall(ctx, "TaskConfigSchema", "", answerTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.TaskConfigSchema(ctx)
}

func (d *watchedDriver) Capabilities(ctx context.Context) (_ *driver.Capabilities, err error) {
	c := d.callWatch.beginCall(ctx, "Capabilities", "", answerTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.Capabilities(ctx)
}

func (d *watchedDriver) RecoverTask(ctx context.Context, handle *driver.Handle) (err error) {
	d.mayHaveTasks.Store(true)
	id := ""
	if handle != nil && handle.Config != nil {
		id = handle.Config.ID
	}
	c := d.callWatch.beginCall(ctx, "RecoverTask", id, slowCallTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.RecoverTask(ctx, handle)
}

func (d *watchedDriver) StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) (err error) {
	c := d.callWatch.beginCall(ctx, "StopTask", taskID, max(timeout, 0)+answerTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.StopTask(ctx, taskID, timeout, signal)
}

func (d *watchedDriver) DestroyTask(ctx context.Context, taskID string, force bool) (err error) {
	c := d.callWatch.beginCall(ctx, "DestroyTask", taskID, slowCallTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.DestroyTask(ctx, taskID, force)
}

func (d *watchedDriver) InspectTask(ctx context.Context, taskID string) (_ *driver.TaskStatus, err error) {
	c := d.callWatch.beginCall(ctx, "InspectTask", taskID, answerTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.InspectTask(ctx, taskID)
}

func (d *watchedDriver) SignalTask(ctx context.Context, taskID, signal string) (err error) {
	c := d.callWatch.beginCall(ctx, "SignalTask", taskID, answerTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.SignalTask(ctx, taskID, signal)
}

func (d *watchedDriver) CreateNetwork(ctx context.Context, allocID, hostname string) (_ *driver.NetworkIsolation, _ bool, err error) {
	d.mayHaveTasks.Store(true)
	c := d.callWatch.beginCall(ctx, "CreateNetwork", "", slowCallTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.CreateNetwork(ctx, allocID, hostname)
}

func (d *watchedDriver) DestroyNetwork(ctx context.Context, allocID string, isolation *driver.NetworkIsolation) (err error) {
	c := d.callWatch.beginCall(ctx, "DestroyNetwork", "", slowCallTimeout)
	defer func() { d.callWatch.endCall(c, err) }()
	return d.Driver.DestroyNetwork(ctx, allocID, isolation)
}
