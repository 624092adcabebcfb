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

// Target is what ties a plugin's hook to one allocation, or to one of its tasks.
type Target struct {
	AllocID    string
	Task       string // "" for the allocation
	WholeAlloc func() ([]byte, error)
	Emit       func(*api.TaskEvent) // to the task, or to all tasks
	// Before are the hooks that an earlier agent had attached, with their
	// attachments as JSON.
	Before map[string]string
}

// Config is what a Set is made of.
type Config struct {
	Find Find
	// Known returns the hooks that have been up, by name.
	Known func() map[string]*hook.Description
	// Expected returns the hooks that take part in every allocation, as far as is
	// known, and have not been up.
	Expected func() []string
	// Unknown returns the plugins of which nobody knows what they are, with whether
	// they are being started for the first time, and what is closed when there may be
	// another answer.
	Unknown func() (plugins map[string]bool, changed <-chan struct{})
	Rules   []Rule // see SetRules
	// Limits are what the operator says to the hooks in the box, by name.
	Limits map[string]map[string]any
	// Capability makes what a hook shows to the host.
	Capability func(allocID, task, hook string) string
	Debts      CleanupStore
	Logger     hclog.Logger
}

// Set are the hook plugins of a node. It makes their hooks for allocations and tasks,
// and makes up for what these owe; see Run.
type Set struct {
	config Config
	logger hclog.Logger
	owed   chan struct{} // holds a tick when a debt is new
	rules  atomic.Pointer[[]Rule]

	mu      sync.Mutex
	repeats map[string]*retryQueue // by the plugin's name; see Hook.repeat
}

// New makes a Set.
func New(c Config) *Set {
	s := &Set{config: c, logger: c.Logger.Named("hooks"), owed: make(chan struct{}, 1), repeats: make(map[string]*retryQueue)}
	s.SetRules(c.Rules)
	return s
}

// Rules returns what the operator says.
func (s *Set) Rules() []Rule { return *s.rules.Load() }

// SetRules has other rules from now on. What has hooks already keeps them, with the
// rules with which it got them.
func (s *Set) SetRules(rules []Rule) { s.rules.Store(&rules) }

// repeatsOf returns the repeated calls of a plugin.
func (s *Set) repeatsOf(name string) *retryQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.repeats[name] == nil {
		s.repeats[name] = newRetryQueue()
	}
	return s.repeats[name]
}

// builtins are the hooks in the box that the runner attaches, to tasks with blocks
// of their kind.
var builtins = []struct {
	name   string
	order  int
	blocks func(*api.Task) map[string]any // the attachment; nil without blocks
	failed func(error) *api.TaskEvent
}{
	{
		"artifact", hooks.OrderArtifacts,
		func(t *api.Task) map[string]any {
			if len(t.Artifacts) == 0 {
				return nil
			}
			return map[string]any{"artifacts": t.Artifacts}
		},
		func(err error) *api.TaskEvent {
			return &api.TaskEvent{
				Type: api.TaskArtifactDownloadFailed, Message: err.Error(), DownloadError: err.Error(),
				Details: map[string]string{"download_error": err.Error()},
			}
		},
	},
	{
		"template", hooks.OrderTemplates,
		func(t *api.Task) map[string]any {
			if len(t.Templates) == 0 {
				return nil
			}
			again := t.RestartPolicy != nil && t.RestartPolicy.RenderTemplates != nil && *t.RestartPolicy.RenderTemplates
			return map[string]any{"templates": t.Templates, "render_templates": again}
		},
		nil,
	},
}

// CheckName refuses a hook that only its blocks attach: what goes with them is the
// operator's to say, and not a job's.
func CheckName(name string) error {
	for _, b := range builtins {
		if b.name == name {
			return fmt.Errorf("the hook is attached by %s blocks of tasks, and by nothing else: remove the key", name)
		}
	}
	return nil
}

// BuiltinHooks returns the names of the hooks in the box that the blocks of a job need.
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

// AllocHooks returns the hooks of an allocation. Those that only one of its tasks
// attaches are not among them.
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
			s.logger.Error("blocks of a task cannot be handed over", "task", t.Name, "hook", b.name, "error", err)
			continue
		}
		h := s.hook(b.name, attachment{made: true, raw: raw}, c)
		h.failed = b.failed
		list = append(list, hooks.Entry{Order: b.order, Hook: h})
	}
	return list
}

// attach returns the plugins for what has these drivers and this meta.
func (s *Set) attach(a *api.Allocation, drivers []string, meta map[string]string, c Target) []hooks.Entry {
	known := s.config.Known()
	attached := make(map[string]bool)
	var list []hooks.Entry
	for _, name := range s.candidates(known, meta) {
		h, takes := s.hook(name, attachment{}, c), known[name]
		match := h.rule.Match
		text, made := meta[model.HookPrefix+name]
		made = made || match != nil && match.matches(a, drivers, meta)
		if !made && (match != nil || takes != nil && !takes.EveryAlloc) {
			continue
		}
		h.attachment = attachment{made: made, job: text}
		h.takes.Store(takes)
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

// candidates are the plugins that may take part in what has this meta: those that the
// operator names, those that want everything, and those that the job names.
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
	for name, takes := range known {
		if takes.EveryAlloc {
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
	return &Hook{name: name, rule: s.rule(name), attachment: a, context: c, set: s, logger: s.logger.With("alloc_id", c.AllocID, "task", c.Task)}
}
