package pluginhooks

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
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Config configures a HookPluginSet.
type Config struct {
	FindOrLaunchHook FindOrLaunchHookFunc
	// LaunchedHooksByName returns the previously launched hooks, by name.
	LaunchedHooksByName func() map[string]*hook.Description
	// UnlaunchedAllAllocsHooks returns the unlaunched hooks believed to take part in every allocation.
	UnlaunchedAllAllocsHooks func() []string
	// PluginsOfUnknownType returns the plugins with a still unknown type. It closes changed when the result may have changed.
	PluginsOfUnknownType func() (plugins map[string]FirstLaunchState, changed <-chan struct{})
	Rules                []OperatorRule // see SetRules
	// LimitsByBuiltinHook are the operator's limits for builtin hooks, by name.
	LimitsByBuiltinHook map[string]map[string]any
	// NewCapabilityToken returns a hook's capability token for the host service.
	NewCapabilityToken func(allocID, task, hook string) string
	CleanupStore       CleanupStore
	// NoCallTimeouts means that a call lasts until the plugin answers or the caller's context ends.
	NoCallTimeouts bool
	Logger         hclog.Logger
}

// HookPluginSet holds a node's hook plugins. It makes their hooks for allocations and tasks, and retries their pending cleanups;
// see RetryCleanupsUntilCanceled.
type HookPluginSet struct {
	config       Config
	logger       hclog.Logger
	cleanupAdded chan struct{} // receives a value for each new pending cleanup
	rules        atomic.Pointer[[]OperatorRule]

	mu                 sync.Mutex
	retryQueueByPlugin map[string]*retryQueue // retry queues by plugin name; see Hook.callSerialized
}

// New returns a HookPluginSet. Pending cleanups are retried only while RetryCleanupsUntilCanceled runs.
func New(c Config) *HookPluginSet {
	s := &HookPluginSet{config: c, logger: c.Logger.Named("hooks"), cleanupAdded: make(chan struct{}, 1), retryQueueByPlugin: make(map[string]*retryQueue)}
	s.SetRules(c.Rules)
	return s
}

// Rules returns the operator's rules.
func (s *HookPluginSet) Rules() []OperatorRule { return *s.rules.Load() }

// SetRules replaces the rules. Already attached hooks keep their old rules.
func (s *HookPluginSet) SetRules(rules []OperatorRule) { s.rules.Store(&rules) }

// retryQueue returns a plugin's retry queue.
func (s *HookPluginSet) retryQueue(name string) *retryQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retryQueueByPlugin[name] == nil {
		s.retryQueueByPlugin[name] = newRetryQueue()
	}
	return s.retryQueueByPlugin[name]
}

// builtinBlockHook is a builtin hook that the runner attaches to tasks with its kind of block.
type builtinBlockHook struct {
	name                 string
	order                int
	attachmentFromBlocks func(*api.Task) map[string]any // returns the attachment for a task; nil if the task has no such blocks
	failureEvent         func(error) *api.TaskEvent     // makes the event for a failed Prestart; nil for the default event
	verbatimEnv          bool                           // see hooks.Hook
}

var builtinHooks = []*builtinBlockHook{
	{
		name:  "artifact",
		order: hooks.OrderArtifacts,
		attachmentFromBlocks: func(t *api.Task) map[string]any {
			if len(t.Artifacts) == 0 {
				return nil
			}
			return map[string]any{"artifacts": t.Artifacts}
		},
		failureEvent: func(err error) *api.TaskEvent {
			return &api.TaskEvent{
				Type: api.TaskArtifactDownloadFailed, Message: err.Error(), DownloadError: err.Error(),
				Details: map[string]string{"download_error": err.Error()},
			}
		},
	},
	{
		name:  "template",
		order: hooks.OrderTemplates,
		attachmentFromBlocks: func(t *api.Task) map[string]any {
			if len(t.Templates) == 0 {
				return nil
			}
			render := t.RestartPolicy != nil && t.RestartPolicy.RenderTemplates != nil && *t.RestartPolicy.RenderTemplates
			return map[string]any{"templates": t.Templates, "render_templates": render}
		},
		verbatimEnv: true,
	},
}

// CheckNotBuiltinBlockHook rejects a builtin hook that only task blocks attach. The operator sets the hook's limits, not a job.
func CheckNotBuiltinBlockHook(name string) error {
	for _, b := range builtinHooks {
		if b.name == name {
			return fmt.Errorf("the hook is attached by %s blocks of tasks, and by nothing else: remove the key", name)
		}
	}
	return nil
}

// BuiltinHooksUsedByBlocks returns the names of the builtin hooks that a job's blocks need.
func BuiltinHooksUsedByBlocks(job *api.Job) (names []string) {
	for _, b := range builtinHooks {
		for _, g := range job.TaskGroups {
			if g == nil {
				continue
			}
			for _, t := range g.Tasks {
				if t == nil {
					continue
				}
				if b.attachmentFromBlocks(t) != nil {
					names = append(names, b.name)
				}
			}
		}
	}
	return names
}

// NewAllocHooks returns an allocation's hooks, without those attached by only one task.
func (s *HookPluginSet) NewAllocHooks(a *api.Allocation, c hooks.AttachTarget) []hooks.OrderedHook {
	group := a.GetTaskGroup()
	return s.newAttachedHooks(a, taskDrivers(group), model.MergeMetaLaterWins(a.Job.Meta, group.Meta), c)
}

// NewTaskHooks returns a task's hooks.
func (s *HookPluginSet) NewTaskHooks(a *api.Allocation, t *api.Task, c hooks.AttachTarget) []hooks.OrderedHook {
	list := s.newAttachedHooks(a, []string{t.Driver}, model.MergeMetaLaterWins(a.Job.Meta, a.GetTaskGroup().Meta, t.Meta), c)
	for _, b := range builtinHooks {
		blocks := b.attachmentFromBlocks(t)
		if blocks == nil {
			continue
		}
		if limits := s.config.LimitsByBuiltinHook[b.name]; limits != nil {
			blocks["limits"] = limits
		}
		raw, err := json.Marshal(blocks)
		if err != nil {
			s.logger.Error("blocks of a task cannot be passed to their hook", "task", t.Name, "hook", b.name, "error", err)
			continue
		}
		h := s.newAttachedHook(b.name, attachment{isExplicit: true, builtinBlocksJSON: raw}, c)
		h.builtinBlockHook = b
		list = append(list, hooks.OrderedHook{Order: b.order, Hook: h})
	}
	return list
}

// newAttachedHooks returns the plugin hooks for an allocation or a task with these drivers and this meta, including the detached
// hooks in c.PreviousAttachmentJSONByHook.
func (s *HookPluginSet) newAttachedHooks(a *api.Allocation, drivers []string, meta map[string]string, c hooks.AttachTarget) []hooks.OrderedHook {
	known := s.config.LaunchedHooksByName()
	attached := make(map[string]bool)
	var list []hooks.OrderedHook
	for _, name := range s.candidateHookNames(known, meta) {
		h, d := s.newAttachedHook(name, attachment{}, c), known[name]
		match := h.rule.Match
		text, made := meta[model.HookPrefix+name]
		if h.rule.appliesTo(a, drivers, meta) {
			made = made || match != nil
		} else {
			h.rule.Config = nil
		}
		if !made && (match != nil || d != nil && !d.AllAllocs) {
			continue
		}
		h.attachment = attachment{isExplicit: made, jobAttachmentJSON: text}
		h.description.Store(d)
		attached[name] = true
		list = append(list, hooks.OrderedHook{Order: h.rule.Order, Hook: h})
	}
	for _, name := range slices.Sorted(maps.Keys(c.PreviousAttachmentJSONByHook)) {
		if !attached[name] && CheckNotBuiltinBlockHook(name) == nil {
			h := s.newAttachedHook(name, attachment{isExplicit: true, jobAttachmentJSON: c.PreviousAttachmentJSONByHook[name]}, c)
			h.cleanupOnly = true
			if !h.rule.appliesTo(a, drivers, meta) {
				h.rule.Config = nil
			}
			list = append(list, hooks.OrderedHook{Order: h.rule.Order, Hook: h})
		}
	}
	return list
}

// candidateHookNames returns the plugins that may take part for this meta: those named by the operator's rules or the job, and
// those for every allocation.
func (s *HookPluginSet) candidateHookNames(descriptionByKnownHook map[string]*hook.Description, meta map[string]string) (names []string) {
	named := make(map[string]bool)
	add := func(name string) {
		if !named[name] && CheckNotBuiltinBlockHook(name) == nil {
			named[name] = true
			names = append(names, name)
		}
	}
	for _, rule := range s.Rules() {
		add(rule.Name)
	}
	every := s.config.UnlaunchedAllAllocsHooks()
	for name, d := range descriptionByKnownHook {
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

func (s *HookPluginSet) ruleFor(name string) OperatorRule {
	rule := OperatorRule{Name: name}
	rules := s.Rules()
	if i := slices.IndexFunc(rules, func(r OperatorRule) bool { return r.Name == name }); i >= 0 {
		rule = rules[i]
	}
	if rule.Order == 0 {
		rule.Order = hooks.OrderPlugin
	}
	return rule
}

func (s *HookPluginSet) newAttachedHook(name string, a attachment, c hooks.AttachTarget) *Hook {
	return &Hook{name: name, rule: s.ruleFor(name), attachment: a, target: c, hookSet: s, logger: s.logger.With("alloc_id", c.AllocID, "task", c.TaskName)}
}
