package hooks

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

var _ Remote = (*Plugin)(nil) // a runner cannot tell which it holds

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

// launchPatience is how long a call waits for a plugin that has died to be started
// again: more than the pauses of one that dies over calls.
const launchPatience = 2 * time.Second

// Plugin is a hook plugin as one allocation or one task sees it. It keeps to its
// own deadlines, starts a plugin that has died again and repeats the call once,
// and answers for a plugin that fails as the operator has decided.
type Plugin struct {
	name       string
	rule       Rule
	attachment attachment
	former     bool                             // it is attached no more, and is only there for what it has begun
	takes      atomic.Pointer[hook.Description] // nil as long as the plugin has not been up
	context    Context
	failed     func(error) *api.TaskEvent // of Prestart; nil for the event that all have
	plugins    *Plugins
	logger     hclog.Logger

	mu   sync.Mutex
	gone <-chan struct{} // see Gone
}

// Name implements hook.Hook.
func (p *Plugin) Name() string { return p.name }

// DecidesHealth reports whether the allocation is healthy only when the plugin
// says so, as far as is known.
func (p *Plugin) DecidesHealth() bool {
	takes := p.takes.Load()
	return takes != nil && takes.DecidesHealth && p.applies(takes) && !p.former
}

// Attachment returns the whole configuration with which the plugin is attached, as
// JSON. It is empty for a hook in the box that the blocks of a task attach.
func (p *Plugin) Attachment() string {
	if p.attachment.raw != nil {
		return ""
	}
	config, err := p.attachment.merge(p.rule.Config)
	if err != nil {
		return p.attachment.job
	}
	text, err := json.Marshal(config)
	if err != nil {
		return p.attachment.job
	}
	return string(text)
}

// Patient says that the deadlines are its own.
func (*Plugin) Patient() {}

// call makes one call, twice if the plugin dies over it. An error is what
// becomes of the allocation or the task; it names the moment.
func (p *Plugin) call(ctx context.Context, m hook.Moment, f call) error {
	err := p.twice(ctx, m, f)
	if err != nil && ctx.Err() == nil {
		return p.fail(m, err)
	}
	return err
}

// callOrOwe is call for a moment that cleans up.
func (p *Plugin) callOrOwe(ctx context.Context, d Debt, f call) error {
	err := p.twice(ctx, d.Moment, f)
	if err != nil && ctx.Err() == nil {
		return p.fail(d.Moment, p.owe(d, err))
	}
	return err
}

func (p *Plugin) twice(ctx context.Context, m hook.Moment, f call) error {
	if takes := p.takes.Load(); takes != nil && !p.takesPart(takes, m) || p.former && !ends[m] {
		return nil
	}
	err := p.once(ctx, m, f)
	if p.former && errors.Is(err, supervisor.ErrNoHook) {
		p.logger.Warn("hook is not there any more, and cannot see the end of what it has begun", "hook", p.name, "moment", m, "error", err)
		return nil
	}
	if errors.Is(err, hook.ErrPluginDown) && ctx.Err() == nil {
		p.logger.Warn("hook plugin died, the call is repeated", "hook", p.name, "moment", m)
		err = p.repeat(ctx, m, f)
	}
	return err
}

// ends are the moments of a hook that was attached once.
var ends = map[hook.Moment]bool{hook.PreKill: true, hook.PreKilling: true, hook.Exited: true, hook.Stop: true, hook.Postrun: true, hook.Destroy: true}

// asked is what a request of this call has besides what the runner knows.
type asked struct {
	hook.Grant
	whole []byte // the whole allocation, if the plugin wants it
}

// call makes one call of the plugin.
type call func(context.Context, Remote, asked) error

func (p *Plugin) once(ctx context.Context, m hook.Moment, f call) error {
	// What has not begun waits for a plugin that does not start for now.
	timeout, patience := momentTimeout, launchPatience
	if m == hook.Prerun || m == hook.Prestart {
		timeout, patience = startTimeout, startTimeout
	}
	found, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	remote, takes, err := p.find(found, m, time.Now().Add(patience))
	if err != nil {
		if found.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("the plugin did not start within %s: %w", timeout, err)
		}
		return &troubleError{err}
	}
	p.takes.Store(takes)
	if !p.takesPart(takes, m) {
		return nil
	}
	a, err := p.ask(takes)
	if err != nil {
		return err
	}
	part, _ := takes.Participation(m)
	if m != hook.Prerun && m != hook.Prestart { // which end on kill, however long they take
		part.Timeout = min(part.Timeout, mostTimeout)
	}
	timeout = cmp.Or(p.rule.Timeout, part.Timeout, timeout)
	called, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = brief(f(called, remote, a))
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, hook.ErrPluginDown):
		return &troubleError{err}
	case called.Err() != nil || errors.Is(err, context.DeadlineExceeded): // the plugin's clock may be ahead
		return &troubleError{fmt.Errorf("no answer within %s", timeout)}
	}
	return err
}

// tellAfter is how long somebody waits for a plugin without a word about it.
const tellAfter = 2 * time.Second

// find returns the plugin. What does not begin because of it says so to the user.
func (p *Plugin) find(ctx context.Context, m hook.Moment, until time.Time) (Remote, *hook.Description, error) {
	if m == hook.Prerun || m == hook.Prestart {
		told := make(chan struct{})
		tell := time.AfterFunc(tellAfter, func() {
			defer close(told)
			p.context.Emit(model.EventPluginAwaited("hook plugin " + p.name))
		})
		defer func() {
			if !tell.Stop() {
				<-told
			}
		}()
	}
	return p.plugins.config.Find(ctx, p.name, until)
}

// maxSaid bounds what a plugin may say about a failure, which becomes an event.
const maxSaid = 1 << 10

// briefError is an error of which the end is left out.
type briefError struct{ error }

func brief(err error) error {
	if err == nil || len(err.Error()) <= maxSaid {
		return err
	}
	return briefError{err}
}

func (e briefError) Error() string {
	return strings.ToValidUTF8(e.error.Error()[:maxSaid], "") + " …"
}

func (e briefError) Unwrap() error { return e.error }

// troubleError is about the plugin, and not about what it was asked: another try
// may help.
type troubleError struct{ error }

func (e *troubleError) Unwrap() error { return e.error }

// Trouble marks it for runners.
func (*troubleError) Trouble() {}

func (p *Plugin) takesPart(d *hook.Description, m hook.Moment) bool {
	_, takes := d.Participation(m)
	return takes && p.applies(d)
}

func (p *Plugin) applies(d *hook.Description) bool {
	return p.attachment.made || d.EveryAlloc && p.rule.Match == nil
}

// fail draws the consequences of an error.
func (p *Plugin) fail(m hook.Moment, err error) error {
	if m == hook.Destroy { // the tasks are gone that could have an event
		p.logger.Warn("hook failed", "hook", p.name, "moment", m, "error", err)
		return nil
	}
	p.logger.Info("hook failed", "hook", p.name, "moment", m, "error", err) // for users it is an event
	var trouble *troubleError
	is := errors.As(err, &trouble)
	cause := err
	err = fmt.Errorf("%s: %w", m, err)
	switch {
	case p.rule.Warn:
		p.context.Emit(model.EventHookFailed(p.name, err.Error()+" (on_error is warn)"))
		return nil
	case m == hook.Prestart && p.failed != nil:
		if is {
			cause = driver.Recoverable(cause)
		}
		return &toldError{cause, p.failed(cause)}
	case m == hook.Prestart && is:
		return driver.Recoverable(err)
	case !m.OfTask() && m != hook.Prerun:
		p.context.Emit(model.EventHookFailed(p.name, err.Error()))
	}
	return err
}

// toldError is an error with the event that tells of it.
type toldError struct {
	error
	event *api.TaskEvent
}

func (e *toldError) Unwrap() error { return e.error }

// Event is asked for by who tells of the error.
func (e *toldError) Event() *api.TaskEvent { return e.event }

func (p *Plugin) ask(d *hook.Description) (a asked, err error) {
	if a.Attachment, err = p.attachment.decode(d.Schema, p.rule.Config); err != nil {
		return a, err
	}
	if d.WholeAlloc {
		if a.whole, err = p.context.WholeAlloc(); err != nil {
			return a, err
		}
	}
	a.Capability = p.plugins.config.Capability(p.context.AllocID, p.context.Task, p.name)
	return a, nil
}
