package config

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
)

// addOrReplaceHookRules stores a block hook "NAME" { … } in c.HookRules. A later block with the same name replaces the
// earlier block; two blocks with the same name in one file cause a warning.
func addOrReplaceHookRules(c *Config, i configItem) (err error) {
	if len(i.children) == 0 && i.objectJSONValue == nil {
		return errInvalidHookName
	}
	for _, block := range i.children {
		if !base.ValidName(block.name) || !block.isBlock() {
			return errInvalidHookName
		}
		rule, wrong := parseHookRule(block)
		if wrong != nil {
			return wrong
		}
		at := slices.IndexFunc(c.HookRules, func(r pluginhooks.OperatorRule) bool { return r.Name == rule.Name })
		if at < 0 {
			c.HookRules = append(c.HookRules, rule)
			continue
		}
		if before := c.HookRules[at].ConfigRange; before.Filename == rule.ConfigRange.Filename {
			err = &settingWarning{fmt.Sprintf("%q replaces the block of the same name at %s", rule.Name, before)}
		}
		c.HookRules[at] = rule
	}
	for _, r := range c.HookRules {
		if unattached := r.ErrorIfUnattached(r.Name != pluginhooks.ScriptHook); unattached != nil && err == nil {
			err = &settingWarning{unattached.Error()}
		}
	}
	return err
}

var errInvalidHookName = errors.New(`is a block with the name of a plugin: hook "NAME" { … }`)

func parseHookRule(block *configItem) (rule pluginhooks.OperatorRule, err error) {
	rule.Name, rule.ConfigRange = block.name, block.sourceRange
	for _, i := range block.children {
		switch i.name {
		// Place among the hooks of a task: plugins have 300, artifacts 600, devices 700, templates 800. [type: whole number; default: 300; reload]
		case "order":
			rule.Order, err = i.parseHookOrder()
		// Timeout of each call, at least 1ms. [type: duration; default: that of the plugin, or 1m for prerun and prestart and 10s for others; reload]
		case "timeout":
			if rule.Timeout, err = i.parseDuration(); err == nil && rule.Timeout < time.Millisecond {
				err = errors.New(`must be a duration of at least 1ms, such as "90s"`)
			}
		// fail lets an error of the hook fail the task, warn makes it an event. [type: string; default: fail; reload]
		case "on_error":
			var onErrorText string
			onErrorText, err = i.parseScalarAsString()
			if rule.WarnOnError = onErrorText == "warn"; err == nil && !rule.WarnOnError && onErrorText != "fail" {
				err = errors.New("must be fail or warn")
			}
		// Allocations to which the hook is attached. [type: block; default: those that the description of the hook names, and for script none; reload]
		case "match":
			rule.Match, err = i.parseHookMatch()
		// Settings of the hook, which has their schema. [type: block; reload]
		case "config":
			blocks := jsonObjectsOrNil(i.toJSONValue())
			if len(blocks) != 1 {
				err = errors.New("is one block: config { … }")
				break
			}
			rule.Config = blocks[0]
		default:
			err = fmt.Errorf("is not known: a hook has %s%s", joinNames(hookSettingNames), didYouMean(i.name, slices.Values(hookSettingNames)))
		}
		if err != nil {
			return rule, block.hookSettingError(i, err)
		}
	}
	return rule, nil
}

// hookSettingError returns an error with the range of the setting in a hook block that caused it, or, in JSON, with the range of
// the block.
func (hookBlock *configItem) hookSettingError(setting *configItem, err error) error {
	var innerErr *errorWithRange
	at := hookBlock.sourceRange
	switch {
	case errors.As(err, &innerErr):
		at, err = innerErr.sourceRange, innerErr.err
	case hookBlock.objectJSONValue == nil && setting.sourceRange.Filename != "":
		at = setting.sourceRange
	}
	return &errorWithRange{at, fmt.Errorf("hook %q: %s %w", hookBlock.name, setting.name, err)}
}

// parseHookOrder parses a hook order, which must be greater than hooks.OrderFirst and less than hooks.OrderLast.
func (i configItem) parseHookOrder() (int, error) {
	f, err := i.parseNumber()
	if order := int(f); err == nil && float64(order) == f && order > hooks.OrderFirst && order < hooks.OrderLast {
		return order, nil
	}
	return 0, fmt.Errorf("must be a whole number from %d to %d", hooks.OrderFirst+1, hooks.OrderLast-1)
}

func (i configItem) parseHookMatch() (*pluginhooks.RuleMatch, error) {
	m := &pluginhooks.RuleMatch{}
	if !i.isBlock() {
		return nil, errors.New("is a block: match { … }")
	}
	for _, child := range i.children {
		var err error
		switch child.name {
		// Pattern of the id of the job. [type: string; reload]
		case "job":
			m.JobPattern, err = child.parseGlobPattern()
		// Pattern of the name of the group. [type: string; reload]
		case "group":
			m.GroupPattern, err = child.parseGlobPattern()
		// Pattern of the name of the driver. [type: string; reload]
		case "driver":
			m.DriverPattern, err = child.parseGlobPattern()
		// Patterns of values of metadata, by key. [type: block of strings; reload]
		case "meta":
			m.PatternByMetaKey, err = child.parseStringMap()
			for _, pattern := range m.PatternByMetaKey {
				if _, bad := path.Match(pattern, ""); bad != nil && err == nil {
					err = errInvalidPattern
				}
			}
		default:
			err = fmt.Errorf("is not known: match has %s%s", joinNames(hookMatchSettingNames), didYouMean(child.name, slices.Values(hookMatchSettingNames)))
		}
		if err != nil {
			err = fmt.Errorf("%s %w", child.name, err)
			if i.objectJSONValue == nil && child.sourceRange.Filename != "" {
				err = &errorWithRange{child.sourceRange, err}
			}
			return nil, err
		}
	}
	return m, nil
}

var errInvalidPattern = errors.New(`must be a name, or a pattern such as "web-*"`)

func (i configItem) parseGlobPattern() (string, error) {
	text, err := i.parseScalarAsString()
	if _, bad := path.Match(text, ""); bad != nil && err == nil {
		err = errInvalidPattern
	}
	return text, err
}

// toJSONValue returns the value of the item in the types to which encoding/json decodes. Blocks with the same name become a list.
func (i configItem) toJSONValue() any {
	switch {
	case i.objectJSONValue != nil:
		return i.objectJSONValue
	case !i.isBlock():
		return i.scalarOrListValue
	}
	m := make(map[string]any, len(i.children))
	for _, child := range i.children {
		v := child.toJSONValue()
		if before, twice := m[child.name]; twice {
			list, ok := before.([]any)
			if !ok {
				list = []any{before}
			}
			v = append(list, v)
		}
		m[child.name] = v
	}
	return m
}
