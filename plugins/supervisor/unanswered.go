package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// How long a driver has to answer a call before it counts as one that hangs. StartTask
// has no limit: it can pull an image. WaitTask and commands last as long as what they
// wait for.
const (
	// answerTimeout is for a call that has nothing to wait for, and for StopTask in
	// addition to the kill timeout.
	answerTimeout = 10 * time.Second

	// workTimeout is for a call that looks for a task or removes what it left.
	workTimeout = time.Minute
)

// callWatch finds the calls that the driver in one plugin process does not answer. A
// call that is late is a warning in the log, an event on its task, and makes the driver
// unhealthy until the call is answered. If its caller gave up, and no other call is
// answered either, the driver is asked about the task, until it answers that.
//
// It ends no call and no process: a driver that hangs in one call can be the parent of
// tasks that run well.
type callWatch struct {
	s      *Supervisor
	sl     *managedPlugin
	inst   instance
	driver string
	silent string // why the driver is unhealthy, "" if it is not; guarded by Supervisor.mu

	mu        sync.Mutex
	calls     map[*watchedCall]struct{}
	answered  time.Time     // when the driver answered a call last
	abandoned *watchedCall  // whose caller gave up, if nothing was answered since
	next      time.Time     // when run looks again; zero means when it is woken
	wake      chan struct{} // holds the request to look at once
}

// watchedCall is a call that is under way.
type watchedCall struct {
	ctx       context.Context // of the caller
	method    string
	taskID    string // "" for a call that is not about a task
	started   time.Time
	deadline  time.Time
	late      bool
	waitError bool // the caller did, before the driver answered
}

func (s *Supervisor) newCallWatch(sl *managedPlugin, inst instance) *callWatch {
	return &callWatch{
		s: s, sl: sl, inst: inst, driver: inst.Info().Name,
		calls: map[*watchedCall]struct{}{}, wake: make(chan struct{}, 1),
	}
}

// begin notes a call, which end ends.
func (w *callWatch) begin(ctx context.Context, method, taskID string, timeout time.Duration) *watchedCall {
	now := time.Now()
	c := &watchedCall{ctx: ctx, method: method, taskID: taskID, started: now, deadline: now.Add(timeout)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addLocked(c)
	return c
}

func (w *callWatch) addLocked(c *watchedCall) {
	w.calls[c] = struct{}{}
	if w.next.IsZero() || c.deadline.Before(w.next) {
		w.wakeLocked()
	}
}

// end notes that the call has returned with err.
func (w *callWatch) end(c *watchedCall, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, c)
	if c.late {
		w.wakeLocked()
	}
	now := time.Now()
	switch {
	case errors.Is(err, driver.ErrPluginDown):
	case err == nil || c.ctx.Err() == nil:
		w.answered, w.abandoned = now, nil
	case c.late:
		w.abandoned = c
	default:
		c.waitError = true
		if limit := now.Add(answerTimeout); limit.Before(c.deadline) {
			c.deadline = limit
		}
		w.addLocked(c)
	}
}

func (w *callWatch) wakeLocked() {
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
}

// run watches until ctx ends, which it does with the process.
func (w *callWatch) run(ctx context.Context) {
	defer w.setSilent("")
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		late, waiting, abandoned := w.look()
		for _, c := range late {
			w.report(c)
		}
		if !waiting && abandoned != nil {
			abandoned = w.ask(ctx, abandoned)
		}
		if !waiting && abandoned == nil {
			w.setSilent("")
		}
		timer.Reset(w.untilNext(!waiting && abandoned != nil))
		select {
		case <-timer.C:
		case <-w.wake:
		case <-ctx.Done():
			return
		}
	}
}

// look marks the calls that are late, and returns those that have just become it,
// whether any is, and the call to ask about.
func (w *callWatch) look() (late []*watchedCall, waiting bool, abandoned *watchedCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for c := range w.calls {
		over := !c.deadline.After(now)
		switch {
		case c.waitError && over:
			delete(w.calls, c)
			if w.abandoned == nil && !w.answered.After(c.started) {
				w.abandoned = c
			}
		case !c.late && !c.waitError && over:
			c.late = true
			late = append(late, c)
		}
		waiting = waiting || c.late
	}
	return late, waiting, w.abandoned
}

// untilNext returns how long nothing can change by itself. asking says that the driver
// is asked again.
func (w *callWatch) untilNext(asking bool) time.Duration {
	const idle = time.Hour
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.next = time.Time{}
	if asking {
		w.next = now.Add(answerTimeout)
	}
	for c := range w.calls {
		if !c.late && (w.next.IsZero() || c.deadline.Before(w.next)) {
			w.next = c.deadline
		}
	}
	if w.next.IsZero() {
		return idle
	}
	return w.next.Sub(now)
}

// ask asks the driver about the task of a call whose caller gave up. It returns nil
// after any answer.
func (w *callWatch) ask(ctx context.Context, c *watchedCall) *watchedCall {
	asking, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := w.inst.Driver().InspectTask(asking, c.taskID)
	w.mu.Lock()
	answered := asking.Err() == nil && !errors.Is(err, driver.ErrPluginDown)
	if answered {
		w.answered, w.abandoned = time.Now(), nil
	}
	report := !answered && !c.late && ctx.Err() == nil
	c.late = c.late || report
	w.mu.Unlock()
	if answered {
		return nil
	}
	if report {
		w.report(c)
	}
	return c
}

// report tells the operator and the user of a late call.
func (w *callWatch) report(c *watchedCall) {
	after := time.Since(c.started).Round(time.Second)
	name, pid := w.sl.entry.Name, w.inst.PID()
	w.s.logger.Warn("driver does not answer", "driver", w.driver, "plugin", name, "pid", pid, "call", c.method, "task_id", c.taskID, "after", after)
	w.setSilent(fmt.Sprintf("no answer to %s for %v (plugin %s, pid %d)", c.method, after, name, pid))
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

// setSilent makes the driver unhealthy for the given reason, or as healthy as it
// reports for "".
func (w *callWatch) setSilent(why string) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	was := w.silent
	if why == was || why != "" && was != "" {
		return // the first reason stays, or each late call would change the node
	}
	w.silent = why
	if why == "" && !ended(w.inst) {
		s.logger.Info("driver answers again", "driver", w.driver, "plugin", w.sl.entry.Name, "pid", w.inst.PID())
	}
	if info, ok := s.drivers[w.driver]; ok && s.owners[driverOf(w.driver)] == w.sl {
		info.UpdatedAt = time.Now()
		s.drivers[w.driver] = info
	}
	s.notifyLocked()
}

// applyLocked changes what is known of the driver while a call is late.
func (w *callWatch) applyLocked(info *Info) {
	if w.silent != "" {
		info.Healthy, info.Description = false, w.silent
	}
}

// watchedDriver is a driver whose calls a callWatch watches.
type watchedDriver struct {
	driver.Driver
	calls *callWatch
}

func (d *watchedDriver) TaskConfigSchema(ctx context.Context) (_ *hclspec.Spec, err error) {
	c := d.calls.begin(ctx, "TaskConfigSchema", "", answerTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.TaskConfigSchema(ctx)
}

func (d *watchedDriver) Capabilities(ctx context.Context) (_ *driver.Capabilities, err error) {
	c := d.calls.begin(ctx, "Capabilities", "", answerTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.Capabilities(ctx)
}

func (d *watchedDriver) RecoverTask(ctx context.Context, handle *driver.Handle) (err error) {
	id := ""
	if handle != nil && handle.Config != nil {
		id = handle.Config.ID
	}
	c := d.calls.begin(ctx, "RecoverTask", id, workTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.RecoverTask(ctx, handle)
}

func (d *watchedDriver) StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) (err error) {
	c := d.calls.begin(ctx, "StopTask", taskID, max(timeout, 0)+answerTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.StopTask(ctx, taskID, timeout, signal)
}

func (d *watchedDriver) DestroyTask(ctx context.Context, taskID string, force bool) (err error) {
	c := d.calls.begin(ctx, "DestroyTask", taskID, workTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.DestroyTask(ctx, taskID, force)
}

func (d *watchedDriver) InspectTask(ctx context.Context, taskID string) (_ *driver.TaskStatus, err error) {
	c := d.calls.begin(ctx, "InspectTask", taskID, answerTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.InspectTask(ctx, taskID)
}

func (d *watchedDriver) SignalTask(ctx context.Context, taskID, signal string) (err error) {
	c := d.calls.begin(ctx, "SignalTask", taskID, answerTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.SignalTask(ctx, taskID, signal)
}

func (d *watchedDriver) CreateNetwork(ctx context.Context, allocID, hostname string) (_ *driver.NetworkIsolation, _ bool, err error) {
	c := d.calls.begin(ctx, "CreateNetwork", "", workTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.CreateNetwork(ctx, allocID, hostname)
}

func (d *watchedDriver) DestroyNetwork(ctx context.Context, allocID string, isolation *driver.NetworkIsolation) (err error) {
	c := d.calls.begin(ctx, "DestroyNetwork", "", workTimeout)
	defer func() { d.calls.end(c, err) }()
	return d.Driver.DestroyNetwork(ctx, allocID, isolation)
}
