package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// The places of hooks in the one list of an allocation or a task: hooks of a lower
// order come first. A hook plugin comes between those that make directories and
// those that announce services.
const (
	OrderFirst     = 100 // what checks and makes directories
	OrderPlugin    = 300 // plugins, if nobody says otherwise
	OrderLogs      = 400
	OrderPayload   = 500
	OrderArtifacts = 600
	OrderTemplates = 800
	OrderLast      = 900 // what announces and checks services
)

// Ordered is a hook with its place.
type Ordered struct {
	Order int
	Hook  hook.Hook
}

// InOrder returns hooks by their places; those of one place as they are.
func InOrder(list []Ordered) []hook.Hook {
	slices.SortStableFunc(list, func(a, b Ordered) int { return a.Order - b.Order })
	hooks := make([]hook.Hook, len(list))
	for i, o := range list {
		hooks[i] = o.Hook
	}
	return hooks
}

// attachment is the configuration with which a plugin is attached.
type attachment struct {
	made bool            // somebody has attached it
	job  string          // JSON that the job says; "" for none
	raw  json.RawMessage // made by the runner, for a plugin that knows its shape
}

// merge returns what the job says, with what the operator says.
func (a attachment) merge(operator map[string]any) (map[string]any, error) {
	config, err := parseAttachment(a.job)
	maps.Copy(config, operator)
	return config, err
}

// decode returns the JSON for the plugin, with its defaults.
func (a attachment) decode(schema *hclspec.Spec, operator map[string]any) ([]byte, error) {
	if a.raw != nil {
		return a.raw, nil
	}
	config, err := a.merge(operator)
	switch {
	case err != nil:
		return nil, err
	case schema == nil && len(config) > 0:
		return nil, errNoConfig
	case schema == nil:
		return nil, nil
	}
	value, diags := schema.Decode(literal(config).(map[string]any), nil)
	if diags.HasErrors() {
		return nil, fmt.Errorf("attachment: %s", strings.Join(hclspec.Messages(diags), "; "))
	}
	return ctyjson.Marshal(value, value.Type())
}

// CheckAttachment tells what is wrong with the JSON of an attachment that a job
// makes, for the plugin of a name with a schema, and with what the operator adds.
func (p *Plugins) CheckAttachment(name, text string, schema *hclspec.Spec) error {
	_, err := attachment{job: text}.decode(schema, p.rule(name).Config)
	return err
}

// CheckSyntax is CheckAttachment without knowing the plugin.
func CheckSyntax(text string) error {
	_, err := parseAttachment(text)
	return err
}

func parseAttachment(text string) (map[string]any, error) {
	config := make(map[string]any)
	if strings.TrimSpace(text) == "" {
		return config, nil
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&config); err != nil {
		if other := new(json.UnmarshalTypeError); errors.As(err, &other) {
			err = fmt.Errorf("it is of type %s", other.Value)
		}
		return map[string]any{}, fmt.Errorf(`attachment: not a JSON object such as {"key": "value"}: %w`, err)
	}
	if decoder.More() || config == nil {
		return map[string]any{}, errors.New(`attachment: not one JSON object such as {"key": "value"}`)
	}
	return config, nil
}

// literal makes texts and keys survive a schema, which takes them for templates.
func literal(v any) any {
	switch v := v.(type) {
	case string:
		return hclspec.Verbatim(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for key := range v {
			out[hclspec.Verbatim(key)] = literal(v[key])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = literal(v[i])
		}
		return out
	}
	return v
}

// Context is what ties a plugin's hook to one allocation, or to one of its tasks.
type Context struct {
	AllocID    string
	Task       string // "" for the allocation
	WholeAlloc func() ([]byte, error)
	Emit       func(*api.TaskEvent) // to the task, or to all tasks
	// Before are the hooks that an earlier agent had attached, with their
	// attachments as JSON.
	Before map[string]string
}

// PluginsConfig is what Plugins are made of.
type PluginsConfig struct {
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
	Debts      Debts
	Logger     hclog.Logger
}

// Plugins makes the hooks of allocations and tasks that are in plugins.
type Plugins struct {
	config PluginsConfig
	logger hclog.Logger
	owed   chan struct{} // holds a tick when a debt is new
	rules  atomic.Pointer[[]Rule]

	mu      sync.Mutex
	repeats map[string]*repeats // by the plugin's name; see Plugin.repeat
}

// NewPlugins makes Plugins.
func NewPlugins(c PluginsConfig) *Plugins {
	p := &Plugins{config: c, logger: c.Logger.Named("hooks"), owed: make(chan struct{}, 1), repeats: make(map[string]*repeats)}
	p.SetRules(c.Rules)
	return p
}

// Rules returns what the operator says.
func (p *Plugins) Rules() []Rule { return *p.rules.Load() }

// SetRules has other rules from now on. What has hooks already keeps them, with the
// rules with which it got them.
func (p *Plugins) SetRules(rules []Rule) { p.rules.Store(&rules) }

// repeatsOf returns the repeated calls of a plugin.
func (p *Plugins) repeatsOf(name string) *repeats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.repeats[name] == nil {
		p.repeats[name] = newRepeats()
	}
	return p.repeats[name]
}

// built are the hooks in the box that the runner attaches, to tasks with blocks
// of their kind.
var built = []struct {
	name   string
	order  int
	blocks func(*api.Task) map[string]any // the attachment; nil without blocks
	failed func(error) *api.TaskEvent
}{
	{
		"artifact", OrderArtifacts,
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
		"template", OrderTemplates,
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
	for _, b := range built {
		if b.name == name {
			return fmt.Errorf("the hook is attached by %s blocks of tasks, and by nothing else: remove the key", name)
		}
	}
	return nil
}

// Built returns the names of the hooks in the box that the blocks of a job need.
func Built(job *api.Job) (names []string) {
	for _, b := range built {
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
func (p *Plugins) AllocHooks(a *api.Allocation, c Context) []Ordered {
	group := a.GetTaskGroup()
	var drivers []string
	for _, t := range group.Tasks {
		drivers = append(drivers, t.Driver)
	}
	return p.attach(a, drivers, model.MergedMeta(a.Job.Meta, group.Meta), c)
}

// TaskHooks returns the hooks of a task.
func (p *Plugins) TaskHooks(a *api.Allocation, t *api.Task, c Context) []Ordered {
	list := p.attach(a, []string{t.Driver}, model.MergedMeta(a.Job.Meta, a.GetTaskGroup().Meta, t.Meta), c)
	for _, b := range built {
		blocks := b.blocks(t)
		if blocks == nil {
			continue
		}
		if limits := p.config.Limits[b.name]; limits != nil {
			blocks["limits"] = limits
		}
		raw, err := json.Marshal(blocks)
		if err != nil {
			p.logger.Error("blocks of a task cannot be handed over", "task", t.Name, "hook", b.name, "error", err)
			continue
		}
		plugin := p.plugin(b.name, attachment{made: true, raw: raw}, c)
		plugin.failed = b.failed
		list = append(list, Ordered{b.order, plugin})
	}
	return list
}

// attach returns the plugins for what has these drivers and this meta.
func (p *Plugins) attach(a *api.Allocation, drivers []string, meta map[string]string, c Context) []Ordered {
	known := p.config.Known()
	attached := make(map[string]bool)
	var list []Ordered
	for _, name := range p.candidates(known, meta) {
		plugin, takes := p.plugin(name, attachment{}, c), known[name]
		match := plugin.rule.Match
		text, made := meta[model.HookPrefix+name]
		made = made || match != nil && match.matches(a, drivers, meta)
		if !made && (match != nil || takes != nil && !takes.EveryAlloc) {
			continue
		}
		plugin.attachment = attachment{made: made, job: text}
		plugin.takes.Store(takes)
		attached[name] = true
		list = append(list, Ordered{plugin.rule.Order, plugin})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Before)) {
		if !attached[name] && CheckName(name) == nil {
			plugin := p.plugin(name, attachment{made: true, job: c.Before[name]}, c)
			plugin.former = true
			list = append(list, Ordered{plugin.rule.Order, plugin})
		}
	}
	return list
}

// candidates are the plugins that may take part in what has this meta: those that the
// operator names, those that want everything, and those that the job names.
func (p *Plugins) candidates(known map[string]*hook.Description, meta map[string]string) (names []string) {
	named := make(map[string]bool)
	add := func(name string) {
		if !named[name] && CheckName(name) == nil {
			named[name] = true
			names = append(names, name)
		}
	}
	for _, rule := range p.Rules() {
		add(rule.Name)
	}
	every := p.config.Expected()
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

func (p *Plugins) rule(name string) Rule {
	rule := Rule{Name: name}
	rules := p.Rules()
	if i := slices.IndexFunc(rules, func(r Rule) bool { return r.Name == name }); i >= 0 {
		rule = rules[i]
	}
	if rule.Order == 0 {
		rule.Order = OrderPlugin
	}
	return rule
}

func (p *Plugins) plugin(name string, a attachment, c Context) *Plugin {
	return &Plugin{name: name, rule: p.rule(name), attachment: a, context: c, plugins: p, logger: p.logger.With("alloc_id", c.AllocID, "task", c.Task)}
}
