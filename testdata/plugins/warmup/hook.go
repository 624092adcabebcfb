package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// warmup is the hook. A goroutine per task warms the task up; the record in the task's private
// directory tells the next process of the plugin what was done.
type warmup struct {
	host hook.Host

	mu             sync.Mutex
	defaultTimeout time.Duration
	running        map[string]*job // by allocation and task
}

// job is a warm-up in progress.
type job struct {
	cancel context.CancelFunc
	done   chan struct{}
}

var (
	_ sdk.HostSetter      = (*warmup)(nil)
	_ sdk.Configurer      = (*warmup)(nil)
	_ hook.TaskPrestart   = (*warmup)(nil)
	_ hook.TaskPoststart  = (*warmup)(nil)
	_ hook.TaskPreKilling = (*warmup)(nil)
	_ hook.TaskExited     = (*warmup)(nil)
	_ hook.TaskStop       = (*warmup)(nil)
)

func newWarmup() *warmup {
	return &warmup{defaultTimeout: time.Minute, running: map[string]*job{}}
}

func (*warmup) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:             "warmup",
		Version:          "0.1.0",
		ConfigSchema:     configSchema,
		AttachmentSchema: attachmentSchema,
		ReportsHealth:    true,
	}
}

func (w *warmup) SetHost(host hook.Host, _ hook.Node) { w.host = host }

func (w *warmup) Configure(_ context.Context, config *sdk.Config) error {
	var c pluginConfig
	if err := config.Decode(&c); err != nil {
		return err
	}
	d, err := positive("default_timeout", c.DefaultTimeout)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.defaultTimeout = d
	return nil
}

// plan returns what a request's attachment asks for.
func (w *warmup) plan(req hook.RequestMeta) (*plan, error) {
	var a attachment
	if err := req.DecodeConfig(&a); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return a.plan(w.defaultTimeout)
}

// Prestart rejects an attachment that cannot work, and begins the record of this start of the task. The
// State is a copy of the record, for the case that the directory is lost in a reboot.
func (w *warmup) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	failed := hook.TaskPrestartResponse{State: req.PreviousState}
	if _, err := w.plan(req.RequestMeta); err != nil {
		return failed, err
	}
	if req.Running { // another agent has taken the task over
		return failed, nil
	}
	if err := w.end(ctx, req.Alloc, req.Task); err != nil { // both would write the record
		return failed, err
	}
	r, err := loadRecord(req.Dir.PrivateDir)
	if err != nil {
		return failed, err
	}
	for name, value := range map[string]*int{"start": &r.Start, "warmups": &r.Warmups} {
		stored, _ := strconv.Atoi(req.PreviousState[name])
		*value = max(*value, stored)
	}
	r = record{Start: r.Start + 1, Warmups: r.Warmups}
	if err := r.save(req.Dir.PrivateDir); err != nil {
		return failed, err
	}
	return hook.TaskPrestartResponse{State: map[string]string{
		"start":   strconv.Itoa(r.Start),
		"warmups": strconv.Itoa(r.Warmups),
	}}, nil
}

// Poststart begins the warm-up, or continues that of an earlier process of the plugin.
func (w *warmup) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	p, err := w.plan(req.RequestMeta)
	if err != nil {
		return hook.TaskPoststartResponse{}, err
	}
	w.begin(req, p)
	return hook.TaskPoststartResponse{}, nil
}

func (w *warmup) PreKilling(ctx context.Context, req hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, w.end(ctx, req.Alloc, req.Task)
}

func (w *warmup) Exited(ctx context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, w.end(ctx, req.Alloc, req.Task)
}

func (w *warmup) Stop(ctx context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, w.end(ctx, req.Alloc, req.Task)
}

func key(alloc hook.Alloc, task hook.Task) string { return alloc.ID + "/" + task.Name }

// end cancels the warm-up of a task, if there is one, and waits for its end.
func (w *warmup) end(ctx context.Context, alloc hook.Alloc, task hook.Task) error {
	w.mu.Lock()
	j := w.running[key(alloc, task)]
	w.mu.Unlock()
	if j == nil {
		return nil
	}
	j.cancel()
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin starts the warm-up in a goroutine, unless this process is at it already, as when another agent
// has taken over.
func (w *warmup) begin(req hook.TaskPoststartRequest, p *plan) {
	k := key(req.Alloc, req.Task)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[k] != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	j := &job{cancel: cancel, done: make(chan struct{})}
	w.running[k] = j
	go func() {
		defer func() {
			if r := recover(); r != nil { // a panic here would exit the process
				hclog.Default().Error("panic in a warm-up", "alloc", req.Alloc.ID, "task", req.Task.Name, "panic", r, "stack", string(debug.Stack()))
			}
			cancel()
			w.mu.Lock()
			delete(w.running, k)
			w.mu.Unlock()
			close(j.done)
		}()
		if err := w.run(ctx, req, p); err != nil && ctx.Err() == nil {
			hclog.Default().Error("warm-up", "alloc", req.Alloc.ID, "task", req.Task.Name, "error", err)
			w.emit(ctx, req, hook.Event{Type: hook.EventFailed, Message: "warm-up: " + err.Error()})
		}
	}()
}

// run warms one start of a task up. It returns nil also when the task could not be warmed up, and fails.
func (w *warmup) run(ctx context.Context, req hook.TaskPoststartRequest, p *plan) error {
	dir := req.Dir.PrivateDir
	r, err := loadRecord(dir)
	if err != nil {
		return fmt.Errorf("reading %s: %w", recordFile, err)
	}
	if r.Deadline.IsZero() {
		r.Deadline = time.Now().Add(p.timeout)
		if err := r.save(dir); err != nil {
			return err
		}
	}
	if !r.Warm {
		if err := w.warm(ctx, req, p, r); ctx.Err() != nil {
			return nil // the task ends
		} else if err != nil {
			reason := fmt.Sprintf("not warmed up within %s: %v", p.timeout, err)
			w.emit(ctx, req, hook.Event{Type: hook.EventFailed, OperationID: r.operation(), Message: reason})
			return errors.Join(
				w.host.SetHealth(ctx, req.Scope(), hook.SetHealthRequest{Reason: reason}),
				w.host.Kill(ctx, req.Scope(), hook.KillRequest{Reason: reason}))
		}
		r.Warm, r.Warmups = true, r.Warmups+1
		if err := r.save(dir); err != nil {
			return err
		}
		w.emit(ctx, req, hook.Event{OperationID: r.operation(), Message: fmt.Sprintf("warmed up: %d of %d successes (warm-up %d, start %d of the task)", p.successes, p.successes, r.Warmups, r.Start)})
	}
	// Health is reported again after a restart: the last process may have died before it could.
	return w.host.SetHealth(ctx, req.Scope(), hook.SetHealthRequest{Healthy: true, Reason: "warmed up"})
}

// warm tries until p.successes attempts in a row have succeeded, or returns the last failure at the
// deadline. One attempt is always made, and more after the agent was away at the deadline.
func (w *warmup) warm(ctx context.Context, req hook.TaskPoststartRequest, p *plan, r record) error {
	successes, last := 0, "no attempt"
	for first := true; ; first = false {
		end := r.Deadline
		if earliest := time.Now().Add(p.interval); first && end.Before(earliest) {
			end = earliest
		}
		attemptCtx, cancel := context.WithDeadline(ctx, end)
		err := w.attempt(attemptCtx, req, p)
		expired := attemptCtx.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			successes = 0
			if first || !expired { // else the deadline cut it off: the last reason says more
				last = err.Error()
			}
		} else {
			if successes++; successes >= p.successes {
				return nil
			}
			last = fmt.Sprintf("%d of %d successes", successes, p.successes)
		}
		if time.Until(r.Deadline) <= 0 {
			if !w.wasAway(ctx, req) {
				return errors.New(last)
			}
			r.Deadline = time.Now().Add(10 * p.interval) // commands waited for the agent, and not for the task
		}
		w.emit(ctx, req, hook.Event{OperationID: r.operation(), Ongoing: true, Message: "warming up: " + last})
		select {
		case <-time.After(min(p.interval, time.Until(r.Deadline))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wasAway reports whether no agent runs, after one runs again: calls block until then.
func (w *warmup) wasAway(ctx context.Context, req hook.TaskPoststartRequest) bool {
	begin := time.Now()
	_, err := w.host.State(ctx, req.Scope())
	return err == nil && time.Since(begin) > time.Second
}

// emit shows an event to the user. A warm-up does not depend on it.
func (w *warmup) emit(ctx context.Context, req hook.TaskPoststartRequest, event hook.Event) {
	if err := w.host.EmitEvent(ctx, req.Scope(), event); err != nil && ctx.Err() == nil {
		hclog.Default().Warn("event of a warm-up", "alloc", req.Alloc.ID, "task", req.Task.Name, "error", err)
	}
}
