package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// template has the settings of the client's template block. They are passed to the
// template hook under the same names.
var template = map[string]setting{
	"wait":                 templateLimit(item.interval),
	"wait_bounds":          templateLimit(item.interval),
	"function_denylist":    {set: setFunctionDenylist},
	"disable_file_sandbox": templateLimit(item.boolean),

	"block_query_wait": {ignored: localTemplates},
	"consul_retry":     {ignored: noConsul},
	"max_stale":        {ignored: localTemplates},
	"nomad_retry":      {ignored: localTemplates},
	"vault_retry":      {ignored: noVault},
}

const localTemplates = "what templates read is in this agent, which tells them when it changes"

func templateLimit[T any](read func(item) (T, error)) setting {
	return hookLimit(func(c *Config) *map[string]any { return &c.Template }, read)
}

// interval parses a block that has the settings min and max.
func (i item) interval() (map[string]time.Duration, error) {
	if !i.isBlock() {
		return nil, fmt.Errorf("is a block: %s { min = … max = … }", i.name)
	}
	bounds := map[string]time.Duration{}
	for _, child := range i.body {
		if child.name != "min" && child.name != "max" {
			return nil, fmt.Errorf("has min and max, and no %s", child.name)
		}
		d, err := child.duration()
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

// missingFunctions are template functions that this build does not have. Nomad denies them by default.
var missingFunctions = []string{"executeTemplate", "plugin", "writeToFile"}

func setFunctionDenylist(c *Config, i item) error {
	if err := templateLimit(item.list).set(c, i); err != nil {
		return err
	}
	denied := c.Template[i.name].([]string)
	if open := slices.DeleteFunc(slices.Clone(missingFunctions), func(name string) bool { return slices.Contains(denied, name) }); len(open) > 0 {
		return &weakSettingError{strings.Join(open, ", ") + " stay denied: nomad-lite does not have them"}
	}
	return nil
}

// list parses a value that is a list of texts.
func (i item) list() ([]string, error) {
	elements, ok := i.value.([]any)
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
