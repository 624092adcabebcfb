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

	"block_query_wait": {ignoredReason: localTemplatesReason},
	"consul_retry":     {ignoredReason: noConsulReason},
	"max_stale":        {ignoredReason: localTemplatesReason},
	"nomad_retry":      {ignoredReason: localTemplatesReason},
	"vault_retry":      {ignoredReason: noVaultReason},
}

const localTemplatesReason = "what templates read is in this agent, which tells them when it changes"

func templateHookSetting[T any](read func(configItem) (T, error)) settingSpec {
	return builtinHookSetting(func(c *Config) *map[string]any { return &c.TemplateSettings }, read)
}

// parseMinMaxDurations parses a block that has the settings min and max.
func (i configItem) parseMinMaxDurations() (map[string]time.Duration, error) {
	if !i.isBlock() {
		return nil, fmt.Errorf("is a block: %s { min = … max = … }", i.name)
	}
	bounds := map[string]time.Duration{}
	for _, child := range i.children {
		if !slices.Contains(minMaxSettingNames, child.name) {
			return nil, fmt.Errorf("has %s, and no %s%s", joinNames(minMaxSettingNames), child.name, didYouMean(child.name, slices.Values(minMaxSettingNames)))
		}
		d, err := child.parseDuration()
		if err != nil {
			return nil, fmt.Errorf("%s %w", child.name, err)
		}
		bounds[child.name] = d
	}
	if low, high := bounds["min"], bounds["max"]; high > 0 && low > high {
		return nil, fmt.Errorf("min %v is greater than max %v", low, high)
	}
	return bounds, nil
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
