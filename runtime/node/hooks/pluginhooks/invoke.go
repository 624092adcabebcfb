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
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
)

// RemoteHook is a hook in a separate process. *hookwire.Client implements it.
type RemoteHook interface {
	allHookPoints

	// Done returns a channel that is closed when the process has exited.
	Done() <-chan struct{}
}

// FindHookFunc returns the hook of a name, and starts its plugin if necessary. A failed start is
// retried before until; after that it is an error. The hook points of a hook never
// change.
type FindHookFunc func(ctx context.Context, name string, until time.Time) (RemoteHook, *hook.Description, error)

// The timeouts of one call. The hook's description and the operator's rule override
// the first two.
const (
	startTimeout        = time.Minute // Prerun and Prestart
	callTimeout         = 10 * time.Second
	maxRequestedTimeout = time.Hour // limit of the timeout that a hook can request for other hook points
)

// launchTimeout limits how long a call waits for the restart of a plugin that has died.
// It is longer than the restart delays of a plugin that dies during calls.
const launchTimeout = 2 * time.Second

// waitingEventDelay is how long a call waits for a plugin before it emits an event.
const waitingEventDelay = 2 * time.Second

// retryWindows are the windows of the first and the second retry of a call, see
// [Hook.callSerialized].
var retryWindows = []time.Duration{5 * time.Second, time.Minute}

// deathCountTexts are the words in messages for the number of times that a plugin has died.
var deathCountTexts = []string{2: "twice", 3: "three times"}

// commonRequestFields holds the request fields of a call that the runner does not fill in.
type commonRequestFields struct {
	hook.RequestMeta
	allocJSON []byte // allocation as JSON; nil unless the description requests it
}

// callPluginFunc calls the plugin once.
type callPluginFunc func(context.Context, RemoteHook, commonRequestFields) error

// callWithRetries calls the plugin at a hook point, if the hook takes part in it. If the plugin
// dies during the call, callWithRetries repeats the call.
//
// When a plugin dies, many calls may be running, and any of them may have killed it. So the
// calls are repeated one after the other: the call that kills the plugin does not fail the
// others again. A call that kills the plugin only after its retry window leaves the cause
// unknown again, and each call is repeated a last time.
func (h *Hook) callWithRetries(ctx context.Context, point hook.Point, f callPluginFunc) error {
	if d := h.description.Load(); d != nil && !h.isCalledAt(d, point) || h.cleanupOnly && !cleanupPoints[point] {
		return nil
	}
	err := h.callOnce(ctx, point, f)
	if h.cleanupOnly && errors.Is(err, supervisor.ErrNoHook) {
		h.logger.Warn("hook was removed and cannot clean up", "hook", h.name, "hook_point", point, "error", err)
		return nil
	}
	alone := false // whether no other call to the plugin was retried at the same time as this call
	for deaths := 1; errors.Is(err, hook.ErrPluginDown) && ctx.Err() == nil; deaths++ {
		if alone || deaths > len(retryWindows) {
			return &runnerhooks.UnavailableError{Err: fmt.Errorf("%w: it died at this call, %s; the agent's log has its last words", hook.ErrPluginDown, deathCountTexts[deaths])}
		}
		h.logger.Warn("hook plugin died, the call is repeated", "hook", h.name, "hook_point", point)
		alone, err = h.callSerialized(ctx, point, retryWindows[deaths-1], f)
	}
	return err
}

// callSerialized waits for the call's turn in the retry queue of the plugin and makes
// the call. The turn ends with the call, or after the retry window. alone reports
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
	err = h.callOnce(ctx, point, func(ctx context.Context, remote RemoteHook, meta commonRequestFields) error {
		defer time.AfterFunc(retryWindow, endTurn).Stop()
		return f(ctx, remote, meta)
	})
	return r.removeRepeatedCall(c), err
}

// callOnce calls the plugin once.
func (h *Hook) callOnce(ctx context.Context, point hook.Point, f callPluginFunc) error {
	// Prerun and Prestart wait for a plugin that currently fails to start.
	timeout, launch := callTimeout, launchTimeout
	if isStartPoint(point) {
		timeout, launch = startTimeout, startTimeout
	}
	found, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	remote, d, err := h.findPlugin(found, point, time.Now().Add(launch))
	if err != nil {
		if found.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("the plugin did not start within %s: %w", timeout, err)
		}
		return &runnerhooks.UnavailableError{Err: err}
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
	if !isStartPoint(point) { // Prerun and Prestart have no maximum timeout, because a kill ends them
		subscription.Timeout = min(subscription.Timeout, maxRequestedTimeout)
	}
	timeout = cmp.Or(h.rule.Timeout, subscription.Timeout, timeout)
	called := ctx
	if !h.hookSet.config.NoCallTimeouts {
		called, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	err = truncateError(f(called, remote, meta))
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, hook.ErrPluginDown):
		return &runnerhooks.UnavailableError{Err: err}
	case called.Err() != nil || errors.Is(err, context.DeadlineExceeded): // the plugin returns DeadlineExceeded early if its clock is ahead
		return &runnerhooks.UnavailableError{Err: fmt.Errorf("no answer within %s", timeout)}
	}
	return err
}

// isStartPoint reports whether an allocation or a task cannot start before the hook point.
func isStartPoint(point hook.Point) bool { return point == hook.Prerun || point == hook.Prestart }

// findPlugin returns the plugin. A Prerun or Prestart that waits for it emits an event.
func (h *Hook) findPlugin(ctx context.Context, point hook.Point, until time.Time) (RemoteHook, *hook.Description, error) {
	if isStartPoint(point) {
		emitted := make(chan struct{})
		timer := time.AfterFunc(waitingEventDelay, func() {
			defer close(emitted)
			h.target.EmitEvent(model.EventWaitingForPlugin("hook plugin " + h.name))
		})
		defer func() {
			if !timer.Stop() {
				<-emitted
			}
		}()
	}
	return h.hookSet.config.FindHook(ctx, h.name, until)
}

func (h *Hook) newCommonRequestFields(d *hook.Description) (m commonRequestFields, err error) {
	if m.Attachment, err = h.attachment.encodeForPlugin(d.Schema, h.rule.Config); err != nil {
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

// maxErrorLen limits the length of a plugin's error, in bytes. The error becomes an event.
const maxErrorLen = 1 << 10

// truncatedError is an error whose text is truncated to maxErrorLen.
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
