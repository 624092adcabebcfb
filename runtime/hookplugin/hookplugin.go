package hookplugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// Remote is a hook in a separate process. *hook.Client implements it.
type Remote interface {
	hook.AllocPrerun
	hook.AllocUpdate
	hook.AllocPreTaskRestart
	hook.AllocPreKill
	hook.AllocPostrun
	hook.AllocDestroy
	hook.AllocShutdown
	hook.TaskPrestart
	hook.TaskPoststart
	hook.TaskUpdate
	hook.TaskPreKilling
	hook.TaskExited
	hook.TaskStop
	hook.TaskShutdown
}

var (
	_ Remote     = (*Hook)(nil) // runners treat a Hook like any Remote
	_ hooks.Hook = (*Hook)(nil)
)

// Find returns the hook of a name, and starts its plugin if necessary. A failed start is
// retried before until; after that it is an error. The hook points of a hook never
// change.
type Find func(ctx context.Context, name string, until time.Time) (Remote, *hook.Description, error)

// The timeouts of one call. The hook's description and the operator's rule override
// the first two.
const (
	startTimeout = time.Minute // Prerun and Prestart
	callTimeout  = 10 * time.Second
	mostTimeout  = time.Hour // mostTimeout limits the timeout that a hook may request for other hook points
)

// launchTimeout limits how long a call waits for the restart of a plugin that has died.
// It is longer than the restart delays of a plugin that dies during calls.
const launchTimeout = 2 * time.Second

// Hook is a hook plugin attached to one allocation or one task. It applies its own
// deadlines, restarts a plugin that has died and repeats the call, and handles the
// failure of a plugin as the operator's rule says.
type Hook struct {
	name       string
	rule       Rule
	attachment attachment
	detached   bool                             // detached is set if the hook is no longer attached and is only called to clean up
	takes      atomic.Pointer[hook.Description] // takes is nil until the plugin has been launched
	context    Target
	failed     func(error) *api.TaskEvent // failed makes the event of a failed Prestart; nil for the default event
	set        *Set
	logger     hclog.Logger

	verbatimEnv bool // see hooks.Hook

	mu     sync.Mutex
	exited <-chan struct{} // exited is the result of PluginExited
}

// Name implements hook.Hook.
func (h *Hook) Name() string { return h.name }

// ReportsHealth reports whether the allocation is healthy only when the plugin reports
// it healthy. It is false until the plugin has been launched.
func (h *Hook) ReportsHealth() bool {
	takes := h.takes.Load()
	return takes != nil && takes.ReportsHealth && h.applies(takes) && !h.detached
}

// Attachment returns the merged configuration of the attachment as JSON. It is empty
// for a builtin hook that the blocks of a task attach.
func (h *Hook) Attachment() string {
	if h.attachment.raw != nil {
		return ""
	}
	config, err := h.attachment.merge(h.rule.Config)
	if err != nil {
		return h.attachment.job
	}
	text, err := json.Marshal(config)
	if err != nil {
		return h.attachment.job
	}
	return string(text)
}

// NoDeadline implements hooks.Hook: a Hook applies its own deadlines.
func (*Hook) NoDeadline() bool { return true }

// VerbatimEnv implements hooks.Hook.
func (h *Hook) VerbatimEnv() bool { return h.verbatimEnv }

// call makes a call, and repeats it if the plugin dies during it. The error names the
// hook point and decides how the allocation or the task continues.
func (h *Hook) call(ctx context.Context, point hook.Point, f call) error {
	err := h.twice(ctx, point, f)
	if err != nil && ctx.Err() == nil {
		return h.fail(point, err)
	}
	return err
}

// callOrEnqueue is call for a cleanup hook point: a failed call is retried later.
func (h *Hook) callOrEnqueue(ctx context.Context, d state.PendingCleanup) error {
	err := h.twice(ctx, d.Point, cleanupCall(&d))
	if err != nil && ctx.Err() == nil {
		return h.fail(d.Point, h.enqueue(d, err))
	}
	return err
}

func (h *Hook) twice(ctx context.Context, point hook.Point, f call) error {
	if takes := h.takes.Load(); takes != nil && !h.takesPart(takes, point) || h.detached && !cleanupPoints[point] {
		return nil
	}
	err := h.once(ctx, point, f)
	if h.detached && errors.Is(err, supervisor.ErrNoHook) {
		h.logger.Warn("hook is not there any more, and cannot see the end of what it has begun", "hook", h.name, "hook_point", point, "error", err)
		return nil
	}
	if errors.Is(err, hook.ErrPluginDown) && ctx.Err() == nil {
		h.logger.Warn("hook plugin died, the call is repeated", "hook", h.name, "hook_point", point)
		err = h.repeat(ctx, point, f)
	}
	return err
}

// cleanupPoints are the hook points that a detached hook is called for.
var cleanupPoints = map[hook.Point]bool{hook.PreKill: true, hook.PreKilling: true, hook.Exited: true, hook.Stop: true, hook.Postrun: true, hook.Destroy: true}

// asked holds the request fields of a call that the runner does not fill in.
type asked struct {
	hook.RequestMeta
	whole []byte // whole is the whole allocation as JSON, if the description requests it
}

// call calls the plugin once.
type call func(context.Context, Remote, asked) error

func (h *Hook) once(ctx context.Context, point hook.Point, f call) error {
	// Prerun and Prestart wait for a plugin that currently fails to start.
	timeout, patience := callTimeout, launchTimeout
	if point == hook.Prerun || point == hook.Prestart {
		timeout, patience = startTimeout, startTimeout
	}
	found, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	remote, takes, err := h.find(found, point, time.Now().Add(patience))
	if err != nil {
		if found.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("the plugin did not start within %s: %w", timeout, err)
		}
		return &hooks.UnavailableError{Err: err}
	}
	h.takes.Store(takes)
	if !h.takesPart(takes, point) {
		return nil
	}
	a, err := h.ask(takes)
	if err != nil {
		return err
	}
	part, _ := takes.Subscription(point)
	if point != hook.Prerun && point != hook.Prestart { // Prerun and Prestart have no maximum: a kill ends them
		part.Timeout = min(part.Timeout, mostTimeout)
	}
	timeout = cmp.Or(h.rule.Timeout, part.Timeout, timeout)
	called, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = truncate(f(called, remote, a))
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, hook.ErrPluginDown):
		return &hooks.UnavailableError{Err: err}
	case called.Err() != nil || errors.Is(err, context.DeadlineExceeded): // the plugin's clock may be ahead
		return &hooks.UnavailableError{Err: fmt.Errorf("no answer within %s", timeout)}
	}
	return err
}

// eventDelay is how long a call waits for a plugin before it emits an event.
const eventDelay = 2 * time.Second

// find returns the plugin. A Prerun or Prestart that waits for it emits an event.
func (h *Hook) find(ctx context.Context, point hook.Point, until time.Time) (Remote, *hook.Description, error) {
	if point == hook.Prerun || point == hook.Prestart {
		told := make(chan struct{})
		tell := time.AfterFunc(eventDelay, func() {
			defer close(told)
			h.context.Emit(model.EventPluginAwaited("hook plugin " + h.name))
		})
		defer func() {
			if !tell.Stop() {
				<-told
			}
		}()
	}
	return h.set.config.Find(ctx, h.name, until)
}

// maxErrorLen limits the length of a plugin's error, in bytes. The error becomes an event.
const maxErrorLen = 1 << 10

// truncatedError is an error whose text is cut to maxErrorLen.
type truncatedError struct{ error }

func truncate(err error) error {
	if err == nil || len(err.Error()) <= maxErrorLen {
		return err
	}
	return truncatedError{err}
}

func (e truncatedError) Error() string {
	return strings.ToValidUTF8(e.error.Error()[:maxErrorLen], "") + " …"
}

func (e truncatedError) Unwrap() error { return e.error }

func (h *Hook) takesPart(d *hook.Description, point hook.Point) bool {
	_, takes := d.Subscription(point)
	return takes && h.applies(d)
}

func (h *Hook) applies(d *hook.Description) bool {
	return h.attachment.made || d.AllAllocs && h.rule.Match == nil
}

// fail applies the rule's on_error to err.
func (h *Hook) fail(point hook.Point, err error) error {
	if point == hook.Destroy { // no task is left that could have an event
		h.logger.Warn("hook failed", "hook", h.name, "hook_point", point, "error", err)
		return nil
	}
	h.logger.Info("hook failed", "hook", h.name, "hook_point", point, "error", err) // users see the event
	var trouble *hooks.UnavailableError
	is := errors.As(err, &trouble)
	cause := err
	err = fmt.Errorf("%s: %w", point, err)
	switch {
	case h.rule.Warn:
		h.context.Emit(model.EventHookFailed(h.name, err.Error()+" (on_error is warn)"))
		return nil
	case point == hook.Prestart && h.failed != nil:
		if is {
			cause = driver.Recoverable(cause)
		}
		return &hooks.EventError{Err: cause, Event: h.failed(cause)}
	case point == hook.Prestart && is:
		return driver.Recoverable(err)
	case !point.IsTask() && point != hook.Prerun:
		h.context.Emit(model.EventHookFailed(h.name, err.Error()))
	}
	return err
}

func (h *Hook) ask(d *hook.Description) (a asked, err error) {
	if a.Attachment, err = h.attachment.decode(d.Schema, h.rule.Config); err != nil {
		return a, err
	}
	if d.IncludeAllocJSON {
		if a.whole, err = h.context.AllocJSON(); err != nil {
			return a, err
		}
	}
	a.Token = h.set.config.Token(h.context.AllocID, h.context.Task, h.name)
	return a, nil
}
