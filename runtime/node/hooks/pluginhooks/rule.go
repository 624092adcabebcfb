package pluginhooks

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// OperatorRule is the operator's configuration for one hook plugin: a hook block.
type OperatorRule struct {
	Name        string
	Order       int           // 0 means hooks.OrderPlugin
	Timeout     time.Duration // Timeout limits each call; 0 means the plugin's timeout, or the default
	WarnOnError bool          // a hook failure is only an event
	// Match attaches the plugin to matching allocations and tasks. Others get it only from a job. If Match is nil, the plugin's
	// description decides.
	Match *RuleMatch
	// Config is merged into each attachment that Match matches, or into all if Match is nil, and overrides the job's keys: a job
	// must not weaken an operator's rule.
	Config map[string]any
	// ConfigRange is the rule's position in the configuration; zero for a rule made in code.
	ConfigRange hcl.Range
}

// RuleMatch selects allocations and tasks. Each field is a path.Match pattern, except that a slash is an ordinary character. An
// empty pattern matches everything. A job pattern also matches a periodic or parameterized job's children.
type RuleMatch struct {
	JobPattern, GroupPattern, DriverPattern string
	PatternByMetaKey                        map[string]string
}

func matchesOrEmptyPattern(pattern, name string) bool {
	const slashSubstitute = "\x00"
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", slashSubstitute), strings.ReplaceAll(name, "/", slashSubstitute))
	return pattern == "" || ok && err == nil
}

func (m *RuleMatch) matchesJob(a *api.Allocation) bool {
	if matchesOrEmptyPattern(m.JobPattern, a.JobID) {
		return true
	}
	parent := a.Job.ParentID
	return parent != nil && *parent != "" && matchesOrEmptyPattern(m.JobPattern, *parent)
}

// matches reports whether the rule matches the allocation or, if drivers has only one task's driver, that task.
func (m *RuleMatch) matches(a *api.Allocation, drivers []string, meta map[string]string) bool {
	if !m.matchesJob(a) || !matchesOrEmptyPattern(m.GroupPattern, a.TaskGroup) {
		return false
	}
	if !slices.ContainsFunc(drivers, func(name string) bool { return matchesOrEmptyPattern(m.DriverPattern, name) }) {
		return false
	}
	for key, pattern := range m.PatternByMetaKey {
		if value, ok := meta[key]; !ok || !matchesOrEmptyPattern(pattern, value) {
			return false
		}
	}
	return true
}

// appliesTo reports whether the rule's configuration applies to the allocation or, if drivers has only one task's driver, that
// task.
func (r *OperatorRule) appliesTo(a *api.Allocation, drivers []string, meta map[string]string) bool {
	return r.Match == nil || r.Match.matches(a, drivers, meta)
}

// appliesWithinAttachment reports whether the rule applies to any allocation or task covered by the job's attachment (matched),
// and whether it does not apply to any of them (unmatched).
func (r *OperatorRule) appliesWithinAttachment(job *api.Job, at model.HookAttachment) (matched, unmatched bool) {
	add := func(applies bool) {
		matched, unmatched = matched || applies, unmatched || !applies
	}
	for _, g := range job.TaskGroups {
		if at.Group != "" && *g.Name != at.Group {
			continue
		}
		alloc := &api.Allocation{JobID: *job.ID, Job: job, TaskGroup: *g.Name}
		if at.Task == "" {
			add(r.appliesTo(alloc, taskDrivers(g), model.MergeMetaLaterWins(job.Meta, g.Meta)))
		}
		for _, t := range g.Tasks {
			if at.Task == "" || t.Name == at.Task {
				add(r.appliesTo(alloc, []string{t.Driver}, model.MergeMetaLaterWins(job.Meta, g.Meta, t.Meta)))
			}
		}
	}
	return matched, unmatched
}

// taskDrivers returns the drivers of a group's tasks.
func taskDrivers(g *api.TaskGroup) (drivers []string) {
	for _, t := range g.Tasks {
		drivers = append(drivers, t.Driver)
	}
	return drivers
}

// ErrorWithPosition prefixes err with the rule's position.
func (r *OperatorRule) ErrorWithPosition(err error) error {
	if r.ConfigRange.Filename == "" {
		return err
	}
	return fmt.Errorf("%s: %w", r.ConfigRange, err)
}

// CheckRulesAgainstCatalog rejects rules that cannot be valid, whatever the catalog's plugins report about themselves.
func CheckRulesAgainstCatalog(rules []OperatorRule, plugins []catalog.Entry) error {
	var ruleErrs []error
	for _, r := range rules {
		if err := r.checkPluginCanExist(plugins); err != nil {
			ruleErrs = append(ruleErrs, r.ErrorWithPosition(fmt.Errorf("hook %q: %w", r.Name, err)))
		}
	}
	return errors.Join(ruleErrs...)
}

func (r *OperatorRule) checkPluginCanExist(plugins []catalog.Entry) error {
	if CheckNotBuiltinBlockHook(r.Name) != nil {
		if r.Order != 0 || r.Match != nil || r.Config != nil {
			return fmt.Errorf("order, match and config mean nothing for it: it is attached by %s blocks of tasks; only timeout and on_error can be set", r.Name)
		}
		return nil
	}
	unknown := false // a plugin may have any name
	for _, e := range plugins {
		switch {
		case !e.Builtin:
			unknown = true
		case e.Name == r.Name && e.Type == base.TypeHook:
			return nil
		case e.Name == r.Name:
			return errors.New("this is a task driver, and no hook: remove the block")
		}
	}
	if unknown {
		return nil
	}
	return fmt.Errorf("there is no plugin that could be it: name its program, which is in plugin_dir, in a plugin %q block, or remove the block", r.Name)
}

// ValidateAgainstDescription validates a rule against the plugin's description.
func (r *OperatorRule) ValidateAgainstDescription(d *hook.Description) error {
	if CheckNotBuiltinBlockHook(r.Name) != nil {
		return nil // the rule names a builtin hook, which has no configuration
	}
	if r.Match != nil || d.AllAllocs { // the operator's configuration is complete: no job adds keys to it
		_, err := attachment{}.encodeForPlugin(d.AttachmentSchema, r.Config)
		return err
	}
	if d.AttachmentSchema == nil && len(r.Config) > 0 {
		return errNoConfig
	}
	if d.AttachmentSchema == nil {
		return nil
	}
	if diags := block.CheckPart(d.AttachmentSchema, escapeTemplates(r.Config).(map[string]any)); diags.HasErrors() {
		return newAttachmentSchemaError(diags)
	}
	return nil
}

// ErrorIfUnattached returns an error with the remedies if the rule has settings for a hook, and attaches the hook to nothing: then only
// jobs can attach it. attachesItself means that the hook's description attaches it.
func (r *OperatorRule) ErrorIfUnattached(attachesItself bool) error {
	if r.Match != nil || r.Config == nil || attachesItself {
		return nil
	}
	return fmt.Errorf("hook %q: the block attaches it to no allocation, because it has no match block: write match {} for all allocations, or %s%s into the meta of a job, a group or a task", r.Name, model.HookPrefix, r.Name)
}

var errNoConfig = errors.New("attachment: the hook takes no configuration")
