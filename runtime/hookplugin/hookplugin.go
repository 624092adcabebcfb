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
)

// Remote is a hook in a process of its own. A *hook.Client is one.
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
	_ Remote           = (*Hook)(nil) // a runner cannot tell which it holds
	_ hooks.NoDeadline = (*Hook)(nil)
)

// Find returns the hook of a name, and starts it if need be; a start that has
// failed is tried again before until, or is an error. What it takes part in never
// changes.
type Find func(ctx context.Context, name string, until time.Time) (Remote, *hook.Description, error)

// The times that one call may take unless the hook or the operator says
// otherwise.
const (
	startTimeout  = time.Minute // Prerun and Prestart
	momentTimeout = 10 * time.Second
	mostTimeout   = time.Hour // that a hook may ask for at other moments
)

// launchTimeout is how long a call waits for a plugin that has died to be started
// again: more than the pauses of one that dies over calls.
const launchTimeout = 2 * time.Second

// Hook is a hook plugin as one allocation or one task sees it. It keeps to its
// own deadlines, starts a plugin that has died again and repeats the call once,
// and answers for a plugin that fails as the operator has decided.
type Hook struct {
	name       string
	rule       Rule
	attachment attachment
	detached   bool                             // it is attached no more, and is only there for what it has begun
	takes      atomic.Pointer[hook.Description] // nil as long as the plugin has not been up
	context    Target
	failed     func(error) *api.TaskEvent // of Prestart; nil for the event that all have
	set        *Set
	logger     hclog.Logger

	mu     sync.Mutex
	exited <-chan struct{} // see PluginExited
}

// Name implements hook.Hook.
func (h *Hook) Name() string { return h.name }

// DecidesHealth reports whether the allocation is healthy only when the plugin
// says so, as far as is known.
func (h *Hook) DecidesHealth() bool {
	takes := h.takes.Load()
	return takes != nil && takes.DecidesHealth && h.applies(takes) && !h.detached
}

// Attachment returns the whole configuration with which the plugin is attached, as
// JSON. It is empty for a hook in the box that the blocks of a task attach.
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

// NoDeadline says that the deadlines are its own.
func (*Hook) NoDeadline() {}

// call makes one call, twice if the plugin dies over it. An error is what
// becomes of the allocation or the task; it names the moment.
func (h *Hook) call(ctx context.Context, m hook.Point, f call) error {
	err := h.twice(ctx, m, f)
	if err != nil && ctx.Err() == nil {
		return h.fail(m, err)
	}
	return err
}

// callOrEnqueue is call for a moment that cleans up.
func (h *Hook) callOrEnqueue(ctx context.Context, d PendingCleanup) error {
	err := h.twice(ctx, d.Moment, d.call())
	if err != nil && ctx.Err() == nil {
		return h.fail(d.Moment, h.enqueue(d, err))
	}
	return err
}

func (h *Hook) twice(ctx context.Context, m hook.Point, f call) error {
	if takes := h.takes.Load(); takes != nil && !h.takesPart(takes, m) || h.detached && !cleanupPoints[m] {
		return nil
	}
	err := h.once(ctx, m, f)
	if h.detached && errors.Is(err, supervisor.ErrNoHook) {
		h.logger.Warn("hook is not there any more, and cannot see the end of what it has begun", "hook", h.name, "moment", m, "error", err)
		return nil
	}
	if errors.Is(err, hook.ErrPluginDown) && ctx.Err() == nil {
		h.logger.Warn("hook plugin died, the call is repeated", "hook", h.name, "moment", m)
		err = h.repeat(ctx, m, f)
	}
	return err
}

// cleanupPoints are the moments of a hook that was attached once.
var cleanupPoints = map[hook.Point]bool{hook.PreKill: true, hook.PreKilling: true, hook.Exited: true, hook.Stop: true, hook.Postrun: true, hook.Destroy: true}

// asked is what a request of this call has besides what the runner knows.
type asked struct {
	hook.RequestMeta
	whole []byte // the whole allocation, if the plugin wants it
}

// call makes one call of the plugin.
type call func(context.Context, Remote, asked) error

func (h *Hook) once(ctx context.Context, m hook.Point, f call) error {
	// What has not begun waits for a plugin that does not start for now.
	timeout, patience := momentTimeout, launchTimeout
	if m == hook.Prerun || m == hook.Prestart {
		timeout, patience = startTimeout, startTimeout
	}
	found, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	remote, takes, err := h.find(found, m, time.Now().Add(patience))
	if err != nil {
		if found.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("the plugin did not start within %s: %w", timeout, err)
		}
		return &unavailableError{err}
	}
	h.takes.Store(takes)
	if !h.takesPart(takes, m) {
		return nil
	}
	a, err := h.ask(takes)
	if err != nil {
		return err
	}
	part, _ := takes.Participation(m)
	if m != hook.Prerun && m != hook.Prestart { // which end on kill, however long they take
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
		return &unavailableError{err}
	case called.Err() != nil || errors.Is(err, context.DeadlineExceeded): // the plugin's clock may be ahead
		return &unavailableError{fmt.Errorf("no answer within %s", timeout)}
	}
	return err
}

// eventDelay is how long somebody waits for a plugin without a word about it.
const eventDelay = 2 * time.Second

// find returns the plugin. What does not begin because of it says so to the user.
func (h *Hook) find(ctx context.Context, m hook.Point, until time.Time) (Remote, *hook.Description, error) {
	if m == hook.Prerun || m == hook.Prestart {
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

// maxErrorLen bounds what a plugin may say about a failure, which becomes an event.
const maxErrorLen = 1 << 10

// truncatedError is an error of which the end is left out.
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

// unavailableError is about the plugin, and not about what it was asked: another try
// may help.
type unavailableError struct{ error }

func (e *unavailableError) Unwrap() error { return e.error }

// Trouble marks it for runners.
func (*unavailableError) Trouble() {}

func (h *Hook) takesPart(d *hook.Description, m hook.Point) bool {
	_, takes := d.Participation(m)
	return takes && h.applies(d)
}

func (h *Hook) applies(d *hook.Description) bool {
	return h.attachment.made || d.EveryAlloc && h.rule.Match == nil
}

// fail draws the consequences of an error.
func (h *Hook) fail(m hook.Point, err error) error {
	if m == hook.Destroy { // the tasks are gone that could have an event
		h.logger.Warn("hook failed", "hook", h.name, "moment", m, "error", err)
		return nil
	}
	h.logger.Info("hook failed", "hook", h.name, "moment", m, "error", err) // for users it is an event
	var trouble *unavailableError
	is := errors.As(err, &trouble)
	cause := err
	err = fmt.Errorf("%s: %w", m, err)
	switch {
	case h.rule.Warn:
		h.context.Emit(model.EventHookFailed(h.name, err.Error()+" (on_error is warn)"))
		return nil
	case m == hook.Prestart && h.failed != nil:
		if is {
			cause = driver.Recoverable(cause)
		}
		return &eventError{cause, h.failed(cause)}
	case m == hook.Prestart && is:
		return driver.Recoverable(err)
	case !m.IsTask() && m != hook.Prerun:
		h.context.Emit(model.EventHookFailed(h.name, err.Error()))
	}
	return err
}

// eventError is an error with the event that tells of it.
type eventError struct {
	error
	event *api.TaskEvent
}

func (e *eventError) Unwrap() error { return e.error }

// Event is asked for by who tells of the error.
func (e *eventError) Event() *api.TaskEvent { return e.event }

func (h *Hook) ask(d *hook.Description) (a asked, err error) {
	if a.Attachment, err = h.attachment.decode(d.Schema, h.rule.Config); err != nil {
		return a, err
	}
	if d.WholeAlloc {
		if a.whole, err = h.context.WholeAlloc(); err != nil {
			return a, err
		}
	}
	a.Capability = h.set.config.Capability(h.context.AllocID, h.context.Task, h.name)
	return a, nil
}
