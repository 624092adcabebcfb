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

// The hook order in an allocation's or a task's chain: hooks with a lower order come first. A hook
// plugin comes after the hooks that make directories and before those that register services.
const (
	OrderAllocDir  = 10  // OrderAllocDir is for the hook that makes the allocation's directory
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

// CallLimits limit hook calls.
type CallLimits struct {
	StartHookPointTimeout time.Duration // limit per Prerun or Prestart call
	OtherHookPointTimeout time.Duration // limit per call at any other hook point

	// BuiltinCallLimiter limits how many builtin hook calls run at once. It applies to calls that start, stop or
	// remove an allocation or a task. It may be nil.
	BuiltinCallLimiter *descriptors.Limiter
}

// ChainConfig configures a Chain.
type ChainConfig struct {
	Limits    CallLimits
	EmitEvent func(*api.TaskEvent) // emits an event on the task, or on all the allocation's tasks
	Timeline  timeline.Recorder    // records the calls
	Observer  CallObserver         // may be nil
	Logger    hclog.Logger
}

// A CallObserver measures hook calls. It may be called concurrently and does not block.
type CallObserver interface {
	ObserveHookCall(hook, hookPoint string, duration time.Duration, failed bool)
}

// Chain holds the hooks of one allocation or one task. [CallStartHooksUntilError], [CallEachAndReportErrors] and
// [CallAndJoinErrors] call one hook point's hooks, one after the other; they differ in error handling. The type
// parameters are the hook point's interface and its response, which only the call uses. A nil Chain has no hooks.
type Chain struct {
	config ChainConfig
	hooks  []Hook
}

// NewChain returns a chain sorted by order. Hooks with the same order keep their order in list.
func NewChain(c ChainConfig, list []OrderedHook) *Chain {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b OrderedHook) int { return a.Order - b.Order })
	chain := &Chain{config: c, hooks: make([]Hook, len(list))}
	for i, e := range list {
		chain.hooks[i] = e.Hook
	}
	return chain
}

// Hooks returns the hooks in call order. The slice must not be changed.
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

// AttachmentByHookName returns the hooks' attachments, by hook name. Hooks without an attachment are omitted.
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

// HooksImplementing yields the hooks that implement a hook point's interface.
func HooksImplementing[H any](c *Chain) iter.Seq2[Hook, H] {
	return func(yield func(Hook, H) bool) {
		for _, h := range c.Hooks() {
			if impl, ok := h.(H); ok && !yield(h, impl) {
				return
			}
		}
	}
}

// startPointNames holds Nomad's names for Prerun and Prestart in messages.
var startPointNames = map[hook.Point]string{hook.Prerun: "pre-run", hook.Prestart: "prestart"}

// CallStartHooksUntilError calls the Prerun or Prestart hooks, up to the first error for which
// isTolerated returns false. A failed Prestart is also an event, and so is a tolerated error. When
// ctx is done, CallStartHooksUntilError returns the cause, or the error of the hook that was being
// called.
//
// A hook that found no free descriptor is called again until it finds one, unless the error is
// tolerated. The retry emits an event.
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

// toleratedError is a hook error after which the next hook is called. It does not unwrap, so that the call is not
// repeated.
type toleratedError struct{ cause error }

func (e toleratedError) Error() string { return e.cause.Error() }

// callUntilDescriptorsFree calls a hook, and repeats the call while the hook finds no free descriptor. It emits one
// event.
func (c *Chain) callUntilDescriptorsFree(ctx context.Context, h Hook, call func() error) error {
	onWait := func(err error) {
		c.config.EmitEvent(model.EventWaitingForFileDescriptors(h.Name() + ": " + err.Error()))
	}
	return descriptors.Retry(ctx, onWait, func() error { return c.builtinCallLimiterOrNil(h).Run(ctx, call) })
}

// builtinCallLimiterOrNil returns the limiter for a hook's calls. Plugin calls open no files in the agent, and a hook
// without a deadline can wait for other allocations.
func (c *Chain) builtinCallLimiterOrNil(h Hook) *descriptors.Limiter {
	if !IsBuiltin(h) || h.NoDeadline() {
		return nil
	}
	return c.config.Limits.BuiltinCallLimiter
}

// cleanupRetryTimeout is how long a cleanup hook is retried while there is no free descriptor. Its error is then
// reported: the agent must be able to shut down.
const cleanupRetryTimeout = time.Minute

// callHookWithCleanupRetry calls a hook at a point outside a start. It repeats a Stop, Postrun or Destroy call
// that found no free descriptor.
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

// CallEachAndReportErrors calls a hook point's hooks. An error does not end the chain: unless ctx is done, it
// becomes a task event, or a log line at an allocation's hook point. When ctx is done, task hooks are no
// longer called, except Stop.
func CallEachAndReportErrors[H, R any](ctx context.Context, c *Chain, point hook.Point, call func(context.Context, Hook, H) (R, error)) {
	for h, impl := range HooksImplementing[H](c) {
		if ctx.Err() != nil && point.IsTask() && point != hook.Stop {
			return
		}
		c.emitOrLogHookError(ctx, point, h, callHookWithCleanupRetry(ctx, c, point, h, impl, call))
	}
}

// CallAndJoinErrors calls a hook point's hooks and returns their errors.
func CallAndJoinErrors[H, R any](ctx context.Context, c *Chain, point hook.Point, call func(context.Context, Hook, H) (R, error)) error {
	var errs []error
	for h, impl := range HooksImplementing[H](c) {
		errs = append(errs, callHookWithCleanupRetry(ctx, c, point, h, impl, call))
	}
	return errors.Join(errs...)
}

// StartCallsAfterPluginRestarts calls a hook again each time its plugin process was replaced, until ctx is
// done. It handles errors as CallEachAndReportErrors does. It does not block: each hook with a plugin process
// has a goroutine in wg.
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

// callHook makes one call, within the hook point's deadline. It blocks until the hook returns.
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

// summarizePrestartResponse returns a response summary for people. Only Prestart responses have one.
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

// emitOrLogHookError reports a hook error that does not end the chain.
func (c *Chain) emitOrLogHookError(ctx context.Context, point hook.Point, h Hook, err error) {
	switch {
	case err == nil || ctx.Err() != nil:
	case point.IsTask():
		c.config.EmitEvent(hookFailureEvent(h, err))
	default:
		c.config.Logger.Error("hook failed", "hook", h.Name(), "hook_point", point, "error", err)
	}
}
