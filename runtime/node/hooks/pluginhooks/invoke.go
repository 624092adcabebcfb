package pluginhooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// RemoteHook is a hook in a separate process. *hookwire.Client implements it.
type RemoteHook interface {
	allHookPoints

	// Done returns a channel that is closed when the process has exited.
	Done() <-chan struct{}
}

// FindOrLaunchHookFunc returns the hook with this name, and starts its plugin if necessary. A failed start is retried until
// retryStartUntil, and then returns a *driver.UnavailableError. A hook's hook points never change.
type FindOrLaunchHookFunc func(ctx context.Context, name string, retryStartUntil time.Time) (RemoteHook, *hook.Description, error)

// Timeouts for one call. The hook's description and the operator's rule override the first two.
const (
	startTimeout        = time.Minute // Prerun and Prestart, and their wait for a plugin where it has a limit
	callTimeout         = 10 * time.Second
	maxRequestedTimeout = time.Hour // the longest timeout that a hook can request for other hook points
)

// launchTimeout limits how long a call waits for a dead plugin's restart. It is longer than the restart delays for a plugin that
// dies during calls.
const launchTimeout = 2 * time.Second

// waitingEventDelay is how long a call waits for a plugin before it emits an event.
const waitingEventDelay = 2 * time.Second

// retryWindows are the windows for a call's first and second retry, see [Hook.callSerialized].
var retryWindows = []time.Duration{5 * time.Second, time.Minute}

// deathCountTexts are the words in messages for a plugin's number of deaths.
var deathCountTexts = []string{2: "twice", 3: "three times"}

// commonRequestFields holds the request fields that the runner does not fill in.
type commonRequestFields struct {
	hook.RequestMeta
	allocJSON []byte // allocation as JSON; nil unless the description requests it
}

// callPluginFunc calls the plugin once.
type callPluginFunc func(context.Context, RemoteHook, commonRequestFields) error

// callWithRetries calls the plugin at a hook point, if the hook takes part in it. If the plugin dies during the call,
// callWithRetries repeats the call.
//
// When a plugin dies, many calls may be running, and any of them may have killed it. So the calls are repeated one after the
// other: the killing call does not fail the others again. If it kills the plugin only after its retry window, the cause is
// unknown again, and each call is repeated a last time.
func (h *Hook) callWithRetries(ctx context.Context, point hook.Point, f callPluginFunc) error {
	if d := h.description.Load(); d != nil && !h.isCalledAt(d, point) || h.cleanupOnly && !cleanupPoints[point] {
		return nil
	}
	err := h.callOnce(ctx, point, func() {}, f)
	if h.cleanupOnly && errors.Is(err, supervisor.ErrNoHook) {
		h.logger.Warn("hook was removed and cannot clean up", "hook", h.name, "hook_point", point, "error", err)
		return nil
	}
	alone := false // whether no other call to the plugin was retried at the same time as this call
	for deaths := 1; errors.Is(err, hook.ErrPluginDown) && ctx.Err() == nil; deaths++ {
		if alone || deaths > len(retryWindows) {
			return &hooks.PluginUnavailableError{Err: fmt.Errorf("%w: it died at this call, %s; the agent's log has its last words", hook.ErrPluginDown, deathCountTexts[deaths])}
		}
		h.logger.Warn("hook plugin died, the call is repeated", "hook", h.name, "hook_point", point)
		alone, err = h.callSerialized(ctx, point, retryWindows[deaths-1], f)
	}
	return err
}

// callSerialized waits for the call's turn in the plugin's retry queue and makes the call. The turn ends with the call, after the
// retry window, or when the call has to wait for an unavailable plugin, because other calls do not wait as long. ranAlone reports
// whether no other repeated call ran at the same time.
func (h *Hook) callSerialized(ctx context.Context, point hook.Point, retryWindow time.Duration, f callPluginFunc) (ranAlone bool, err error) {
	r := h.hookSet.retryQueue(h.name)
	select {
	case r.semaphore <- struct{}{}:
	case <-ctx.Done():
		return true, ctx.Err()
	}
	endTurn := sync.OnceFunc(func() { <-r.semaphore })
	defer endTurn()
	c := r.addRepeatedCall()
	err = h.callOnce(ctx, point, endTurn, func(ctx context.Context, remote RemoteHook, meta commonRequestFields) error {
		defer time.AfterFunc(retryWindow, endTurn).Stop()
		return f(ctx, remote, meta)
	})
	return r.removeRepeatedCall(c), err
}

// callOnce calls the plugin once. It calls onOutage if it has to wait for an unavailable plugin.
func (h *Hook) callOnce(ctx context.Context, point hook.Point, onOutage func(), f callPluginFunc) error {
	remote, d, err := h.findPlugin(ctx, point, onOutage)
	if err != nil {
		return &hooks.PluginUnavailableError{Err: err}
	}
	h.description.Store(d)
	if !h.isCalledAt(d, point) {
		return nil
	}
	meta, err := h.newCommonRequestFields(d)
	if err != nil {
		return err
	}
	meta.Traceparent = base.Traceparent(ctx)
	subscription, _ := d.Subscription(point)
	timeout := startTimeout
	if !isStartPoint(point) { // Prerun and Prestart have no maximum timeout, because a kill ends them
		timeout = callTimeout
		subscription.Timeout = min(subscription.Timeout, maxRequestedTimeout)
	}
	timeout = cmp.Or(h.rule.Timeout, subscription.Timeout, timeout)
	called := ctx
	if !h.hookSet.config.NoCallTimeouts {
		var cancel context.CancelFunc
		called, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	err = truncateError(h.target.Secrets.Error(f(called, remote, meta)))
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, hook.ErrPluginDown):
		return &hooks.PluginUnavailableError{Err: err}
	case called.Err() != nil || errors.Is(err, context.DeadlineExceeded): // the plugin returns DeadlineExceeded early if its clock is ahead
		return &hooks.PluginUnavailableError{Err: fmt.Errorf("no answer within %s", timeout)}
	}
	return err
}

// isStartPoint reports whether an allocation or a task cannot start before the hook point.
func isStartPoint(point hook.Point) bool { return point == hook.Prerun || point == hook.Prestart }

// findPlugin returns the plugin. At Prerun and Prestart it waits while the plugin is unavailable, and emits an event: a failed
// start does not get the plugin back. It does not wait for a plugin that is not launched again. The wait has a limit at other
// hook points, with on_error = "warn", and for running tasks.
func (h *Hook) findPlugin(ctx context.Context, point hook.Point, onOutage func()) (RemoteHook, *hook.Description, error) {
	if !isStartPoint(point) {
		return h.findPluginWithin(ctx, callTimeout, launchTimeout)
	}
	var slowStartEvent sync.Once
	timer := time.AfterFunc(waitingEventDelay, func() {
		slowStartEvent.Do(func() { h.target.EmitEvent(model.EventWaitingForPlugin("hook plugin " + h.name)) })
	})
	preventSlowStartEvent := func() {
		timer.Stop()
		slowStartEvent.Do(func() {}) // blocks while the event is being emitted
	}
	defer preventSlowStartEvent()
	if h.rule.WarnOnError || h.target.TasksRun != nil && h.target.TasksRun() {
		return h.findPluginWithin(ctx, startTimeout, startTimeout)
	}
	found, err := driver.WaitWhileUnavailable(ctx, func(ctx context.Context) (foundPlugin, error) {
		// A launch after a short back-off is not an outage.
		remote, d, err := h.hookSet.config.FindOrLaunchHook(ctx, h.name, time.Now().Add(launchTimeout))
		if unavailableErr, ok := errors.AsType[*driver.UnavailableError](err); ok && unavailableErr.NotLaunchedAgain {
			err = unavailableErr.Err
		}
		return foundPlugin{remote, d}, err
	}, func(err error) {
		preventSlowStartEvent()
		onOutage()
		h.target.EmitEvent(model.EventWaitingForHookPlugin(err.Error()))
	})
	return found.remote, found.description, err
}

// foundPlugin is a plugin returned by FindOrLaunchHookFunc.
type foundPlugin struct {
	remote      RemoteHook
	description *hook.Description
}

// findPluginWithin returns the plugin. It waits up to timeout for a launch, and for an unavailable plugin's next launch if it is
// due within retryWait.
func (h *Hook) findPluginWithin(ctx context.Context, timeout, retryWait time.Duration) (RemoteHook, *hook.Description, error) {
	untilTimeout, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	remote, d, err := h.hookSet.config.FindOrLaunchHook(untilTimeout, h.name, time.Now().Add(retryWait))
	if err != nil && untilTimeout.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("the plugin did not start within %s: %w", timeout, err)
	}
	return remote, d, err
}

func (h *Hook) newCommonRequestFields(d *hook.Description) (m commonRequestFields, err error) {
	if m.AttachmentJSON, err = h.attachment.encodeForPlugin(d.AttachmentSchema, h.rule.Config); err != nil {
		return m, err
	}
	if d.IncludeAllocJSON {
		if m.allocJSON, err = h.target.AllocJSON(); err != nil {
			return m, err
		}
	}
	m.Token = h.hookSet.config.NewCapabilityToken(h.target.AllocID, h.target.TaskName, h.name)
	return m, nil
}

// maxErrorLen limits a plugin's error in bytes. The error becomes an event.
const maxErrorLen = 1 << 10

// truncatedError truncates an error's text to maxErrorLen.
type truncatedError struct{ error }

func truncateError(err error) error {
	if err == nil || len(err.Error()) <= maxErrorLen {
		return err
	}
	return truncatedError{err}
}

func (e truncatedError) Error() string {
	return strings.ToValidUTF8(e.error.Error()[:maxErrorLen], "") + " …"
}

func (e truncatedError) Unwrap() error { return e.error }
