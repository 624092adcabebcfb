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
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
)

// Timeouts after which a call is late. StartTask has none, because it can pull an image.
// WaitTask and exec calls have none, because they last as long as the task or command.
const (
	// answerTimeout is the timeout of a call that the driver can answer immediately. For StopTask the kill timeout is
	// added.
	answerTimeout = 10 * time.Second

	// slowCallTimeout is the timeout of a call that searches for a task or removes the resources of a task.
	slowCallTimeout = time.Minute
)

// lateCallMonitor detects calls that the driver in one plugin process does not answer. A late
// call is logged as a warning, sent as an event to its task, and makes the driver unhealthy
// until the call is answered. If the caller of a late call cancels it, and no other call is
// answered, lateCallMonitor calls InspectTask for the task until the driver responds.
//
// lateCallMonitor neither cancels calls nor kills the process: a driver that hangs in one call
// can be the parent of tasks that run well.
type lateCallMonitor struct {
	supervisor *Supervisor
	plugin     *managedPlugin
	inst       pluginInstance
	driverName string
	// unresponsiveReason is the health description of the driver while a call is late, and "" if no call is
	// late. Supervisor.mu guards it.
	unresponsiveReason string

	mu              sync.Mutex
	unansweredCalls map[*watchedCall]struct{}
	lastResponseAt  time.Time // time of the driver's latest response to any call
	// abandonedCall is a call that its caller has cancelled and that the driver has not answered; nil after any
	// response of the driver.
	abandonedCall *watchedCall
	nextCheckAt   time.Time     // time of the next call of findLateCalls; zero while run waits for wakeRun
	wakeRun       chan struct{} // capacity 1; a value makes run call findLateCalls immediately
}

// watchedCall is a call of a driver that has not returned.
type watchedCall struct {
	callerCtx   context.Context // context of the caller; its end means that the caller has cancelled the call
	method      string
	taskID      string // "" for a call without a task
	startedAt   time.Time
	deadline    time.Time
	isLate      bool
	isAbandoned bool // the caller has cancelled the call before the driver answered
}

func (s *Supervisor) newLateCallMonitor(m *managedPlugin, inst pluginInstance) *lateCallMonitor {
	return &lateCallMonitor{
		supervisor: s, plugin: m, inst: inst, driverName: inst.Info().Name,
		unansweredCalls: map[*watchedCall]struct{}{}, wakeRun: make(chan struct{}, 1),
	}
}

// beginCall registers a call that is late after the duration lateAfter. The caller must call endCall when the call has
// returned.
func (w *lateCallMonitor) beginCall(ctx context.Context, method, taskID string, lateAfter time.Duration) *watchedCall {
	now := time.Now()
	c := &watchedCall{callerCtx: ctx, method: method, taskID: taskID, startedAt: now, deadline: now.Add(lateAfter)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addCallLocked(c)
	return c
}

func (w *lateCallMonitor) addCallLocked(c *watchedCall) {
	w.unansweredCalls[c] = struct{}{}
	if w.nextCheckAt.IsZero() || c.deadline.Before(w.nextCheckAt) {
		w.wakeRunLocked()
	}
}

// endCall records that a registered call has returned with err. A call that its caller has cancelled stays registered for
// up to answerTimeout, in which the driver can respond to another call.
func (w *lateCallMonitor) endCall(c *watchedCall, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.unansweredCalls, c)
	if c.isLate {
		w.wakeRunLocked()
	}
	now := time.Now()
	switch {
	case errors.Is(err, driver.ErrPluginDown):
	case !isAbandonedCall(c.callerCtx, err):
		w.lastResponseAt, w.abandonedCall = now, nil
	case c.isLate:
		w.abandonedCall = c
	default:
		c.isAbandoned = true
		if limit := now.Add(answerTimeout); limit.Before(c.deadline) {
			c.deadline = limit
		}
		w.addCallLocked(c)
	}
}

// isAbandonedCall reports whether a call with context ctx failed because ctx ended. The plugin
// can return DeadlineExceeded before ctx ends, see basewire.Conn.ConvertErr.
func isAbandonedCall(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded))
}

func (w *lateCallMonitor) wakeRunLocked() {
	wait.Notify(w.wakeRun)
}

// run watches the calls until ctx ends, which is when the plugin process ends.
func (w *lateCallMonitor) run(ctx context.Context) {
	defer w.setUnresponsiveReason("")
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		late, anyLate, abandoned := w.findLateCalls()
		for _, c := range late {
			w.reportLateCall(c)
		}
		if !anyLate && abandoned != nil {
			abandoned = w.probeDriver(ctx, abandoned)
		}
		if !anyLate && abandoned == nil {
			w.setUnresponsiveReason("")
		}
		timer.Reset(w.updateNextCheckDelay(!anyLate && abandoned != nil))
		select {
		case <-timer.C:
		case <-w.wakeRun:
		case <-ctx.Done():
			return
		}
	}
}

// findLateCalls returns the calls that have become late since its last call, whether any call is late, and the abandoned
// call for probeDriver, or nil.
func (w *lateCallMonitor) findLateCalls() (newlyLate []*watchedCall, anyLate bool, abandoned *watchedCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for c := range w.unansweredCalls {
		expired := !c.deadline.After(now)
		switch {
		case c.isAbandoned && expired:
			delete(w.unansweredCalls, c)
			if w.abandonedCall == nil && !w.lastResponseAt.After(c.startedAt) {
				w.abandonedCall = c
			}
		case !c.isLate && !c.isAbandoned && expired:
			c.isLate = true
			newlyLate = append(newlyLate, c)
		}
		anyLate = anyLate || c.isLate
	}
	return newlyLate, anyLate, w.abandonedCall
}

// updateNextCheckDelay returns the time until run must call findLateCalls again. If probing is true, that is at most
// answerTimeout, because run must also call probeDriver again.
func (w *lateCallMonitor) updateNextCheckDelay(probing bool) time.Duration {
	const idleSleep = time.Hour
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.nextCheckAt = time.Time{}
	if probing {
		w.nextCheckAt = now.Add(answerTimeout)
	}
	for c := range w.unansweredCalls {
		if !c.isLate && (w.nextCheckAt.IsZero() || c.deadline.Before(w.nextCheckAt)) {
			w.nextCheckAt = c.deadline
		}
	}
	if w.nextCheckAt.IsZero() {
		return idleSleep
	}
	return w.nextCheckAt.Sub(now)
}

// probeDriver calls InspectTask for the task of the abandoned call c, to find out whether the driver answers. It returns
// nil after any response, and c if the driver does not respond.
func (w *lateCallMonitor) probeDriver(ctx context.Context, c *watchedCall) (stillUnanswered *watchedCall) {
	probeCtx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := w.inst.Driver().InspectTask(probeCtx, c.taskID)
	w.mu.Lock()
	answered := !isAbandonedCall(probeCtx, err) && !errors.Is(err, driver.ErrPluginDown)
	if answered {
		w.lastResponseAt, w.abandonedCall = time.Now(), nil
	}
	report := !answered && !c.isLate && ctx.Err() == nil
	c.isLate = c.isLate || report
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
func (w *lateCallMonitor) reportLateCall(c *watchedCall) {
	after := time.Since(c.startedAt).Round(time.Second)
	name, pid := w.plugin.entry.Name, w.inst.PID()
	w.supervisor.logger.Warn("driver does not answer", "driver", w.driverName, "plugin", name, "pid", pid, "call", c.method, "task_id", c.taskID, "after", after)
	w.setUnresponsiveReason(fmt.Sprintf("no answer to %s for %v (plugin %s, pid %d)", c.method, after, name, pid))
	allocID, rest, ok := strings.Cut(c.taskID, "/")
	if !ok || w.supervisor.tasks.OnEvent == nil {
		return
	}
	task := rest[:max(0, strings.LastIndexByte(rest, '/'))]
	w.supervisor.tasks.OnEvent(w.driverName, driver.TaskEvent{
		TaskID: c.taskID, AllocID: allocID, TaskName: task, Timestamp: time.Now(),
		Message:     fmt.Sprintf("driver %q has not answered %s for %v (plugin %s, pid %d); the task may still run", w.driverName, c.method, after, name, pid),
		Annotations: map[string]string{"plugin": name, "pid": fmt.Sprint(pid), "call": c.method},
	})
}

// setUnresponsiveReason makes the driver unhealthy for the given reason. With an empty reason the
// driver has the health of its fingerprint again.
func (w *lateCallMonitor) setUnresponsiveReason(reason string) {
	s := w.supervisor
	s.mu.Lock()
	defer s.mu.Unlock()
	was := w.unresponsiveReason
	if reason == was || reason != "" && was != "" {
		return // the first reason stays, so that further late calls do not update the node
	}
	w.unresponsiveReason = reason
	if reason == "" && !hasExited(w.inst) {
		s.logger.Info("driver answers again", "driver", w.driverName, "plugin", w.plugin.entry.Name, "pid", w.inst.PID())
	}
	if info, ok := s.registry.driverInfoByName[w.driverName]; ok && s.registry.ownerByKey[driverKey(w.driverName)] == w.plugin {
		info.UpdatedAt = time.Now()
		s.registry.driverInfoByName[w.driverName] = info
	}
	s.notifyInfoLocked()
}

// overrideHealthIfLateLocked sets the driver to unhealthy in info if a call is late.
func (w *lateCallMonitor) overrideHealthIfLateLocked(info *DriverInfo) {
	if w.unresponsiveReason != "" {
		info.Healthy, info.Description = false, w.unresponsiveReason
	}
}

// watchedDriver is a driver whose calls are watched by a lateCallMonitor.
type watchedDriver struct {
	driver.Driver
	lateCallMonitor *lateCallMonitor
	mayHaveTasks    atomic.Bool // the process was called to start or recover a task, or to create a network
}

func (d *watchedDriver) StartTask(ctx context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	d.mayHaveTasks.Store(true)
	return d.Driver.StartTask(driverwire.OmitHandleConfig(ctx), c)
}

// NotifyExit implements driver.ExitNotifier.
func (d *watchedDriver) NotifyExit(ctx context.Context, taskID string, onExit func(*driver.ExitResult, error)) {
	driver.NotifyExit(ctx, d.Driver, taskID, onExit)
}

// SampleTaskTotals implements driver.TasksSampler.
func (d *watchedDriver) SampleTaskTotals(ctx context.Context, taskIDs []string, onSample func(int, driver.TaskTotal)) error {
	if s, ok := d.Driver.(driver.TasksSampler); ok {
		return s.SampleTaskTotals(ctx, taskIDs, onSample)
	}
	return errors.ErrUnsupported
}

func (d *watchedDriver) TaskConfigSchema(ctx context.Context) (_ *hclspec.Spec, err error) {
	c := d.lateCallMonitor.beginCall(ctx, "TaskConfigSchema", "", answerTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.TaskConfigSchema(ctx)
}

func (d *watchedDriver) Capabilities(ctx context.Context) (_ *driver.Capabilities, err error) {
	c := d.lateCallMonitor.beginCall(ctx, "Capabilities", "", answerTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.Capabilities(ctx)
}

func (d *watchedDriver) RecoverTask(ctx context.Context, handle *driver.Handle) (err error) {
	d.mayHaveTasks.Store(true)
	id := ""
	if handle != nil && handle.Config != nil {
		id = handle.Config.ID
	}
	c := d.lateCallMonitor.beginCall(ctx, "RecoverTask", id, slowCallTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.RecoverTask(ctx, handle)
}

func (d *watchedDriver) StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) (err error) {
	c := d.lateCallMonitor.beginCall(ctx, "StopTask", taskID, max(timeout, 0)+answerTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.StopTask(ctx, taskID, timeout, signal)
}

func (d *watchedDriver) DestroyTask(ctx context.Context, taskID string, force bool) (err error) {
	c := d.lateCallMonitor.beginCall(ctx, "DestroyTask", taskID, slowCallTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.DestroyTask(ctx, taskID, force)
}

func (d *watchedDriver) InspectTask(ctx context.Context, taskID string) (_ *driver.TaskStatus, err error) {
	c := d.lateCallMonitor.beginCall(ctx, "InspectTask", taskID, answerTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.InspectTask(ctx, taskID)
}

func (d *watchedDriver) SignalTask(ctx context.Context, taskID, signal string) (err error) {
	c := d.lateCallMonitor.beginCall(ctx, "SignalTask", taskID, answerTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.SignalTask(ctx, taskID, signal)
}

func (d *watchedDriver) CreateNetwork(ctx context.Context, allocID, hostname string) (_ *driver.NetworkIsolation, _ bool, err error) {
	d.mayHaveTasks.Store(true)
	c := d.lateCallMonitor.beginCall(ctx, "CreateNetwork", "", slowCallTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.CreateNetwork(ctx, allocID, hostname)
}

func (d *watchedDriver) DestroyNetwork(ctx context.Context, allocID string, isolation *driver.NetworkIsolation) (err error) {
	c := d.lateCallMonitor.beginCall(ctx, "DestroyNetwork", "", slowCallTimeout)
	defer func() { d.lateCallMonitor.endCall(c, err) }()
	return d.Driver.DestroyNetwork(ctx, allocID, isolation)
}
