package hookplugin

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// Target is the allocation, or the task of an allocation, that a Hook is attached to.
type Target struct {
	AllocID   string
	Task      string // "" for the allocation
	AllocJSON func() ([]byte, error)
	Emit      func(*api.TaskEvent) // Emit emits an event on the task, or on all tasks
	// Before holds the hooks that an earlier agent had attached, with their
	// attachments as JSON.
	Before map[string]string
}

// Config configures a Set.
type Config struct {
	Find Find
	// Known returns the hooks that have been launched before, by name.
	Known func() map[string]*hook.Description
	// Expected returns the hooks that are believed to take part in every allocation
	// and have not been launched.
	Expected func() []string
	// Unknown returns the plugins whose type is not yet known, each with whether it is
	// being launched for the first time. It closes changed when the result may have
	// changed.
	Unknown func() (plugins map[string]bool, changed <-chan struct{})
	Rules   []Rule // see SetRules
	// Limits are the operator's limits for builtin hooks, by name.
	Limits map[string]map[string]any
	// Token returns the capability token that a hook presents to the host service.
	Token    func(allocID, task, hook string) string
	Cleanups CleanupStore
	Logger   hclog.Logger
}

// Set holds the hook plugins of a node. It makes their hooks for allocations and tasks,
// and retries their pending cleanups; see Run.
type Set struct {
	config   Config
	logger   hclog.Logger
	enqueued chan struct{} // holds a tick when a pending cleanup is new
	rules    atomic.Pointer[[]Rule]

	mu      sync.Mutex
	retries map[string]*retryQueue // by plugin name; see Hook.invoke
}

// New returns a Set. Pending cleanups are retried only while Run runs.
func New(c Config) *Set {
	s := &Set{config: c, logger: c.Logger.Named("hooks"), enqueued: make(chan struct{}, 1), retries: make(map[string]*retryQueue)}
	s.SetRules(c.Rules)
	return s
}

// Rules returns the operator's rules.
func (s *Set) Rules() []Rule { return *s.rules.Load() }

// SetRules replaces the rules. Hooks that are already attached keep their old rules.
func (s *Set) SetRules(rules []Rule) { s.rules.Store(&rules) }

// retryQueue returns the retry queue of a plugin.
func (s *Set) retryQueue(name string) *retryQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retries[name] == nil {
		s.retries[name] = newRetryQueue()
	}
	return s.retries[name]
}

// builtin is a builtin hook that the runner attaches to tasks with blocks of its kind.
type builtin struct {
	name        string
	order       int
	blocks      func(*api.Task) map[string]any // returns the attachment; nil without blocks
	failed      func(error) *api.TaskEvent     // makes the event of a failed Prestart; nil for the default event
	verbatimEnv bool                           // see hooks.Hook
}

var builtins = []*builtin{
	{
		name:  "artifact",
		order: hooks.OrderArtifacts,
		blocks: func(t *api.Task) map[string]any {
			if len(t.Artifacts) == 0 {
				return nil
			}
			return map[string]any{"artifacts": t.Artifacts}
		},
		failed: func(err error) *api.TaskEvent {
			return &api.TaskEvent{
				Type: api.TaskArtifactDownloadFailed, Message: err.Error(), DownloadError: err.Error(),
				Details: map[string]string{"download_error": err.Error()},
			}
		},
	},
	{
		name:  "template",
		order: hooks.OrderTemplates,
		blocks: func(t *api.Task) map[string]any {
			if len(t.Templates) == 0 {
				return nil
			}
			render := t.RestartPolicy != nil && t.RestartPolicy.RenderTemplates != nil && *t.RestartPolicy.RenderTemplates
			return map[string]any{"templates": t.Templates, "render_templates": render}
		},
		verbatimEnv: true,
	},
}

// CheckName rejects the name of a builtin hook that only blocks of tasks attach. Its
// limits are set by the operator, not by a job.
func CheckName(name string) error {
	for _, b := range builtins {
		if b.name == name {
			return fmt.Errorf("the hook is attached by %s blocks of tasks, and by nothing else: remove the key", name)
		}
	}
	return nil
}

// BuiltinHooks returns the names of the builtin hooks that the blocks of a job need.
func BuiltinHooks(job *api.Job) (names []string) {
	for _, b := range builtins {
		for _, g := range job.TaskGroups {
			if g == nil {
				continue
			}
			for _, t := range g.Tasks {
				if t == nil {
					continue
				}
				if b.blocks(t) != nil {
					names = append(names, b.name)
				}
			}
		}
	}
	return names
}

// AllocHooks returns the hooks of an allocation, without the hooks that only one of
// its tasks attaches.
func (s *Set) AllocHooks(a *api.Allocation, c Target) []hooks.Entry {
	group := a.GetTaskGroup()
	var drivers []string
	for _, t := range group.Tasks {
		drivers = append(drivers, t.Driver)
	}
	return s.attach(a, drivers, model.MergedMeta(a.Job.Meta, group.Meta), c)
}

// TaskHooks returns the hooks of a task.
func (s *Set) TaskHooks(a *api.Allocation, t *api.Task, c Target) []hooks.Entry {
	list := s.attach(a, []string{t.Driver}, model.MergedMeta(a.Job.Meta, a.GetTaskGroup().Meta, t.Meta), c)
	for _, b := range builtins {
		blocks := b.blocks(t)
		if blocks == nil {
			continue
		}
		if limits := s.config.Limits[b.name]; limits != nil {
			blocks["limits"] = limits
		}
		raw, err := json.Marshal(blocks)
		if err != nil {
			s.logger.Error("blocks of a task cannot be passed to their hook", "task", t.Name, "hook", b.name, "error", err)
			continue
		}
		h := s.hook(b.name, attachment{made: true, raw: raw}, c)
		h.builtin = b
		list = append(list, hooks.Entry{Order: b.order, Hook: h})
	}
	return list
}

// attach returns the plugin hooks for an allocation or a task with these drivers and
// this meta, including the detached hooks of c.Before.
func (s *Set) attach(a *api.Allocation, drivers []string, meta map[string]string, c Target) []hooks.Entry {
	known := s.config.Known()
	attached := make(map[string]bool)
	var list []hooks.Entry
	for _, name := range s.candidates(known, meta) {
		h, d := s.hook(name, attachment{}, c), known[name]
		match := h.rule.Match
		text, made := meta[model.HookPrefix+name]
		made = made || match != nil && match.matches(a, drivers, meta)
		if !made && (match != nil || d != nil && !d.AllAllocs) {
			continue
		}
		h.attachment = attachment{made: made, job: text}
		h.description.Store(d)
		attached[name] = true
		list = append(list, hooks.Entry{Order: h.rule.Order, Hook: h})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Before)) {
		if !attached[name] && CheckName(name) == nil {
			h := s.hook(name, attachment{made: true, job: c.Before[name]}, c)
			h.detached = true
			list = append(list, hooks.Entry{Order: h.rule.Order, Hook: h})
		}
	}
	return list
}

// candidates returns the plugins that may take part for this meta: the plugins that
// the operator's rules name, that want every allocation, or that the job names.
func (s *Set) candidates(known map[string]*hook.Description, meta map[string]string) (names []string) {
	named := make(map[string]bool)
	add := func(name string) {
		if !named[name] && CheckName(name) == nil {
			named[name] = true
			names = append(names, name)
		}
	}
	for _, rule := range s.Rules() {
		add(rule.Name)
	}
	every := s.config.Expected()
	for name, d := range known {
		if d.AllAllocs {
			every = append(every, name)
		}
	}
	for _, name := range slices.Sorted(slices.Values(every)) {
		add(name)
	}
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		if name, ok := strings.CutPrefix(key, model.HookPrefix); ok {
			add(name)
		}
	}
	return names
}

func (s *Set) rule(name string) Rule {
	rule := Rule{Name: name}
	rules := s.Rules()
	if i := slices.IndexFunc(rules, func(r Rule) bool { return r.Name == name }); i >= 0 {
		rule = rules[i]
	}
	if rule.Order == 0 {
		rule.Order = hooks.OrderPlugin
	}
	return rule
}

func (s *Set) hook(name string, a attachment, c Target) *Hook {
	return &Hook{name: name, rule: s.rule(name), attachment: a, target: c, set: s, logger: s.logger.With("alloc_id", c.AllocID, "task", c.Task)}
}
