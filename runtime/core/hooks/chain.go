package hooks

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// The order of hooks in the chain of an allocation or a task: hooks with a lower order
// come first. A hook plugin comes after the hooks that make directories and before the
// hooks that register services.
const (
	OrderFirst     = 100 // OrderFirst is for hooks that check and make directories
	OrderPlugin    = 300 // OrderPlugin is the default for plugins
	OrderLogs      = 400
	OrderPayload   = 500
	OrderArtifacts = 600
	OrderVolumes   = 650
	OrderDevices   = 700
	OrderTemplates = 800
	OrderLast      = 900 // OrderLast is for hooks that register and check services
)

// OrderedHook is a hook with its order.
type OrderedHook struct {
	Order int
	Hook  Hook
}

// CallLimits limit the calls of hooks.
type CallLimits struct {
	StartHookPointTimeout time.Duration // limit of a Prerun or Prestart call
	OtherHookPointTimeout time.Duration // limit of a call of any other hook point

	// BuiltinCallLimiter limits the number of calls of builtin hooks at one time. It applies to calls that start, stop
	// or remove an allocation or a task. It may be nil.
	BuiltinCallLimiter *descriptors.Limiter
}

// ChainConfig configures a Chain.
type ChainConfig struct {
	Limits    CallLimits
	EmitEvent func(*api.TaskEvent) // emits an event on the task, or on all tasks of the allocation
	Timeline  timeline.Recorder    // records the calls
	Observer  CallObserver         // may be nil
	Logger    hclog.Logger
}

// A CallObserver measures the calls of hooks. It may be called concurrently and does not block.
type CallObserver interface {
	ObserveHookCall(hook, hookPoint string, duration time.Duration, failed bool)
}

// Chain holds the hooks of one allocation or one task. [CallStartHooksUntilError], [CallEachAndReportErrors] and
// [CallAndJoinErrors] call the hooks of one hook point, one after the other; they differ in the handling of errors. The
// type parameters are the interface of the hook point and its response, which is the concern of the call. A nil Chain
// has no hooks.
type Chain struct {
	config ChainConfig
	hooks  []Hook
}

// NewChain returns a chain of the hooks by order. Hooks of the same order keep the order
// of list.
func NewChain(c ChainConfig, list []OrderedHook) *Chain {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b OrderedHook) int { return a.Order - b.Order })
	chain := &Chain{config: c, hooks: make([]Hook, len(list))}
	for i, e := range list {
		chain.hooks[i] = e.Hook
	}
	return chain
}

// Hooks returns the hooks in the order in which they are called. The slice must not be
// changed.
func (c *Chain) Hooks() []Hook {
	if c == nil {
		return nil
	}
	return c.hooks
}

// WithoutHooks returns the chain without the hooks for which skip returns true.
func (c *Chain) WithoutHooks(skip func(Hook) bool) *Chain {
	if c == nil {
		return nil
	}
	return &Chain{config: c.config, hooks: slices.DeleteFunc(slices.Clone(c.hooks), skip)}
}

// AttachmentByHookName returns the attachments of the hooks that have one, by name of the hook.
func (c *Chain) AttachmentByHookName() map[string]string {
	var attachments map[string]string
	for _, h := range c.Hooks() {
		if text := h.AttachmentJSON(); text != "" {
			if attachments == nil {
				attachments = make(map[string]string)
			}
			attachments[h.Name()] = text
		}
	}
	return attachments
}

// HooksImplementing yields the hooks that implement the interface of a hook point.
func HooksImplementing[H any](c *Chain) iter.Seq2[Hook, H] {
	return func(yield func(Hook, H) bool) {
		for _, h := range c.Hooks() {
			if impl, ok := h.(H); ok && !yield(h, impl) {
				return
			}
		}
	}
}

// startPointNames are the names of Prerun and Prestart in messages, which are Nomad's.
var startPointNames = map[hook.Point]string{hook.Prerun: "pre-run", hook.Prestart: "prestart"}

// CallStartHooksUntilError calls the hooks of Prerun or Prestart, up to the first error for which
// isTolerated returns false. A failed Prestart is also an event, and so is a tolerated error.
// When ctx is done, CallStartHooksUntilError returns the cause, or the error of the hook that was
// being called.
//
// A hook that found no free descriptor is called again until it finds one, unless the
// error is tolerated. That is an event.
func CallStartHooksUntilError[H, R any](ctx context.Context, c *Chain, point hook.Point, call func(context.Context, Hook, H) (R, error), isTolerated func(error) bool) error {
	for h, impl := range HooksImplementing[H](c) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := c.callUntilDescriptorsFree(ctx, h, func() error {
			err := callHook(ctx, c, point, h, impl, call)
			if err != nil && ctx.Err() == nil && isTolerated(err) {
				return toleratedError{err}
			}
			return err
		})
		if err == nil {
			continue
		}
		t, tolerated := err.(toleratedError)
		if tolerated {
			err = t.cause
		}
		if ctx.Err() == nil && (tolerated || point == hook.Prestart) {
			c.config.EmitEvent(hookFailureEvent(h, err))
		}
		if !tolerated {
			return fmt.Errorf("%s hook %q failed: %w", startPointNames[point], h.Name(), err)
		}
	}
	return nil
}

// toleratedError is an error of a hook after which the next hook is called. It does not unwrap, so that the call is not
// repeated.
type toleratedError struct{ cause error }

func (e toleratedError) Error() string { return e.cause.Error() }

// callUntilDescriptorsFree makes a call of a hook, and repeats it as long as the hook finds no free descriptor, with one event.
func (c *Chain) callUntilDescriptorsFree(ctx context.Context, h Hook, call func() error) error {
	onWait := func(err error) {
		c.config.EmitEvent(model.EventWaitingForFileDescriptors(h.Name() + ": " + err.Error()))
	}
	return descriptors.Retry(ctx, onWait, func() error { return c.builtinCallLimiterOrNil(h).Run(ctx, call) })
}

// builtinCallLimiterOrNil returns the limiter for the calls of a hook. Calls of plugins open no files in the agent, and
// a hook without a deadline can wait for other allocations.
func (c *Chain) builtinCallLimiterOrNil(h Hook) *descriptors.Limiter {
	if !IsBuiltin(h) || h.NoDeadline() {
		return nil
	}
	return c.config.Limits.BuiltinCallLimiter
}

// cleanupRetryTimeout is how long a hook that cleans up is repeated while there is no free descriptor. The error is
// then reported: the agent must be able to shut down.
const cleanupRetryTimeout = time.Minute

// callHookWithCleanupRetry makes a call of a hook point that a start does not include. It repeats a call of Stop,
// Postrun and Destroy that found no free descriptor.
func callHookWithCleanupRetry[H, R any](ctx context.Context, c *Chain, point hook.Point, h Hook, impl H, call func(context.Context, Hook, H) (R, error)) error {
	if point != hook.Stop && point != hook.Postrun && point != hook.Destroy {
		return callHook(ctx, c, point, h, impl, call)
	}
	attempt := func() error {
		return c.builtinCallLimiterOrNil(h).Run(context.WithoutCancel(ctx), func() error { return callHook(ctx, c, point, h, impl, call) })
	}
	err := attempt()
	if !osprocess.IsResourceExhausted(err) {
		return err
	}
	retryCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupRetryTimeout)
	defer cancel()
	return descriptors.Retry(retryCtx, func(error) {}, attempt)
}

// CallEachAndReportErrors calls the hooks of a hook point. An error does not end the chain: it is an event of
// the task, or a log line for a hook point of the allocation, unless ctx is done. When ctx
// is done, hooks of a task are not called any longer, except Stop.
func CallEachAndReportErrors[H, R any](ctx context.Context, c *Chain, point hook.Point, call func(context.Context, Hook, H) (R, error)) {
	for h, impl := range HooksImplementing[H](c) {
		if ctx.Err() != nil && point.IsTask() && point != hook.Stop {
			return
		}
		c.emitOrLogHookError(ctx, point, h, callHookWithCleanupRetry(ctx, c, point, h, impl, call))
	}
}

// CallAndJoinErrors calls the hooks of a hook point, and returns their errors.
func CallAndJoinErrors[H, R any](ctx context.Context, c *Chain, point hook.Point, call func(context.Context, Hook, H) (R, error)) error {
	var errs []error
	for h, impl := range HooksImplementing[H](c) {
		errs = append(errs, callHookWithCleanupRetry(ctx, c, point, h, impl, call))
	}
	return errors.Join(errs...)
}

// StartCallsAfterPluginRestarts calls a hook of a hook point again each time its plugin process was replaced,
// until ctx is done. It handles errors as CallEachAndReportErrors does. It does not block: each hook with a
// plugin process has a goroutine in wg.
func StartCallsAfterPluginRestarts[H, R any](ctx context.Context, wg *sync.WaitGroup, c *Chain, point hook.Point, call func(context.Context, Hook, H) (R, error)) {
	for h, impl := range HooksImplementing[H](c) {
		exited := h.PoststartPluginExited()
		if exited == nil {
			continue
		}
		wg.Go(func() {
			for ; exited != nil; exited = h.PoststartPluginExited() {
				select {
				case <-exited:
				case <-ctx.Done():
					return
				}
				if h.WaitPluginUp(ctx) != nil || ctx.Err() != nil {
					return
				}
				c.emitOrLogHookError(ctx, point, h, callHook(ctx, c, point, h, impl, call))
			}
		})
	}
}

// callHook makes one call, within the deadline of the hook point. It blocks until the hook
// returns.
func callHook[H, R any](ctx context.Context, c *Chain, point hook.Point, h Hook, impl H, call func(context.Context, Hook, H) (R, error)) error {
	if !h.NoDeadline() {
		deadline := c.config.Limits.OtherHookPointTimeout
		if point == hook.Prerun || point == hook.Prestart {
			deadline = c.config.Limits.StartHookPointTimeout
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	begin, span := time.Now(), c.config.Timeline.StartHookSpan(point.String(), h.Name(), IsBuiltin(h))
	response, err := call(span.ContextWithTraceparent(ctx), h, impl)
	span.End(summarizePrestartResponse(response), err)
	duration := time.Since(begin)
	if c.config.Observer != nil {
		c.config.Observer.ObserveHookCall(h.Name(), point.String(), duration, err != nil && !errors.Is(err, context.Canceled))
	}
	c.config.Logger.Trace("hook called", "hook", h.Name(), "hook_point", point, "duration", duration, "error", err)
	return err
}

// summarizePrestartResponse returns for people what a response contains. Only that of Prestart is not empty.
func summarizePrestartResponse(response any) string {
	r, ok := response.(hook.TaskPrestartResponse)
	if !ok {
		return ""
	}
	var parts []string
	for _, p := range []struct {
		count int
		name  string
	}{{len(r.Env), "variables"}, {len(r.Mounts), "mounts"}, {len(r.Devices), "devices"}, {len(r.State), "state entries"}} {
		if p.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.count, p.name))
		}
	}
	if r.Done {
		parts = append(parts, "done")
	}
	return strings.Join(parts, ", ")
}

// emitOrLogHookError reports the error of a hook that does not end the chain.
func (c *Chain) emitOrLogHookError(ctx context.Context, point hook.Point, h Hook, err error) {
	switch {
	case err == nil || ctx.Err() != nil:
	case point.IsTask():
		c.config.EmitEvent(hookFailureEvent(h, err))
	default:
		c.config.Logger.Error("hook failed", "hook", h.Name(), "hook_point", point, "error", err)
	}
}
