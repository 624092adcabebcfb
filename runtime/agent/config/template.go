package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// templateSettings has the settings of the client's template block. The agent passes their values to the
// template hook under the same names.
var templateSettings = map[string]settingSpec{
	// Minimum and maximum time that a change of the data waits for further changes: min and max. [default: 5s and 4m]
	"wait": templateHookSetting(configItem.parseMinMaxDurations),
	// Limits of the wait blocks of jobs: min and max.
	"wait_bounds": templateHookSetting(configItem.parseMinMaxDurations),
	// Functions that templates cannot call, as names or patterns such as "sprig_*"; plugin and writeToFile stay denied. [default: executeTemplate, plugin and writeToFile; type: list of strings]
	"function_denylist": {setInConfig: setTemplateFunctionDenylist},
	// The function file and the setting source read files outside of the directory of the task.
	"disable_file_sandbox": templateHookSetting(configItem.parseBoolean),

	// Maximum time that a server of a cluster blocks one query until the data change. [default: 5m]
	"block_query_wait": durationSetting(func(c *Config) *time.Duration { return &c.Cluster.TemplateMaxBlock }),
	// Maximum age of an answer: the time since the answering server last heard from the leader. An older answer is discarded and the leader is queried. With 0, only the leader answers. [default: no limit]
	"max_stale": parsedSetting(configItem.parseDuration, func(c *Config) *time.Duration {
		c.Cluster.TemplateMaxStale = new(time.Duration)
		return c.Cluster.TemplateMaxStale
	}),
	// Delays after a failed read: backoff, which doubles with each failure, and max_backoff. Reads are retried without limit, and a failed read stops no task. Without this block, a read from the servers of a cluster is retried after 1s. [default: 250ms and 1m; type: block]
	"nomad_retry": {setInConfig: setTemplateRetry},

	"consul_retry": {ignoredReason: noConsulReason},
	"vault_retry":  {ignoredReason: noVaultReason},
}

func templateHookSetting[T any](read func(configItem) (T, error)) settingSpec {
	return builtinHookSetting(func(c *Config) *map[string]any { return &c.TemplateSettings }, read)
}

// setTemplateRetry reads the block nomad_retry. attempts is checked and then ignored.
func setTemplateRetry(c *Config, i configItem) error {
	attempts := 0
	err := templateHookSetting(func(i configItem) (map[string]time.Duration, error) {
		delays, err := i.parseDurationRange("backoff", "max_backoff", "attempts", func(child configItem) (err error) {
			attempts, err = child.parseWholeNumber()
			return err
		})
		if longest, ok := delays["max_backoff"]; ok && longest == 0 {
			delays["max_backoff"] = max(24*time.Hour, delays["backoff"]) // Nomad: no limit
		}
		for name, delay := range delays {
			if delay < time.Millisecond {
				return nil, fmt.Errorf("%s must be at least 1ms", name)
			}
		}
		return delays, err
	}).setInConfig(c, i)
	if err == nil && attempts > 0 {
		return &settingWarning{"attempts is ignored: a failed read is retried until it succeeds, and stops no task"}
	}
	return err
}

// TemplateRetryDelays returns backoff and max_backoff of nomad_retry; zero means the default.
func (c *Config) TemplateRetryDelays() (backoff, maxBackoff time.Duration) {
	delays, _ := c.TemplateSettings["nomad_retry"].(map[string]time.Duration)
	return delays["backoff"], delays["max_backoff"]
}

// parseMinMaxDurations parses a block that has the settings min and max.
func (i configItem) parseMinMaxDurations() (map[string]time.Duration, error) {
	return i.parseDurationRange(minMaxSettingNames[0], minMaxSettingNames[1], "", nil)
}

// parseDurationRange parses a block with the durations low and high. parseOther parses the setting other, if other is not empty.
func (i configItem) parseDurationRange(low, high, other string, parseOther func(configItem) error) (map[string]time.Duration, error) {
	if !i.isBlock() {
		return nil, fmt.Errorf("is a block: %s { %s = … %s = … }", i.name, low, high)
	}
	durations := map[string]time.Duration{}
	for _, child := range i.children {
		var err error
		switch {
		case child.name == low || child.name == high:
			durations[child.name], err = child.parseDuration()
		case child.name == other:
			err = parseOther(*child)
		default:
			names := []string{low, high}
			if other != "" {
				names = append(names, other)
			}
			return nil, fmt.Errorf("has %s, and no %s%s", joinNames(names), child.name, didYouMean(child.name, slices.Values(names)))
		}
		if err != nil {
			return nil, fmt.Errorf("%s %w", child.name, err)
		}
	}
	if durations[high] > 0 && durations[low] > durations[high] {
		return nil, fmt.Errorf("%s %v is greater than %s %v", low, durations[low], high, durations[high])
	}
	return durations, nil
}

// deniedTemplateFunctions are template functions that an operator cannot allow: they start programs and write files outside of a task.
var deniedTemplateFunctions = []string{"plugin", "writeToFile"}

func setTemplateFunctionDenylist(c *Config, i configItem) error {
	if err := templateHookSetting(configItem.parseStringList).setInConfig(c, i); err != nil {
		return err
	}
	denied := c.TemplateSettings[i.name].([]string)
	if open := slices.DeleteFunc(slices.Clone(deniedTemplateFunctions), func(name string) bool { return slices.Contains(denied, name) }); len(open) > 0 {
		return &settingWarning{strings.Join(open, ", ") + " stay denied: a template of nomad-lite starts no programs and writes no other files"}
	}
	return nil
}

// parseStringList parses a value that is a list of texts.
func (i configItem) parseStringList() ([]string, error) {
	elements, ok := i.scalarOrListValue.([]any)
	list := []string{}
	for _, element := range elements {
		text, isText := element.(string)
		ok = ok && isText
		list = append(list, text)
	}
	if !ok {
		return nil, errors.New(`must be a list, such as ["a", "b"]`)
	}
	return list, nil
}
