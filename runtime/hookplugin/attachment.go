package hookplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// attachment is the configuration of a hook for one allocation or task.
type attachment struct {
	made bool            // made is set if the operator, the job or the runner attached the hook
	job  string          // job is the job's attachment as JSON; "" for none
	raw  json.RawMessage // raw is the runner's JSON for a builtin hook, passed on unchanged
}

// merge returns the job's attachment, overridden by the operator's configuration.
func (a attachment) merge(operator map[string]any) (map[string]any, error) {
	config, err := parseAttachment(a.job)
	maps.Copy(config, operator)
	return config, err
}

// decode returns the JSON for the plugin, with the defaults of its schema.
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

// CheckAttachment validates a job's attachment, as JSON, together with the operator's
// configuration against the schema of the named plugin.
func (s *Set) CheckAttachment(name, text string, schema *hclspec.Spec) error {
	_, err := attachment{job: text}.decode(schema, s.rule(name).Config)
	return err
}

// CheckSyntax validates the JSON of an attachment without the plugin's schema.
func CheckSyntax(text string) error {
	_, err := parseAttachment(text)
	return err
}

// script is the builtin hook whose attachment names hook points.
const script = "script"

// CheckPlace rejects an attachment to one task for hook points of the allocation: these
// are called only for hooks that the group or the job attaches.
func CheckPlace(name, text string, d *hook.Description) error {
	var never []string
	forTasks := false
	for _, p := range d.Subscriptions {
		if p.Point.IsTask() {
			forTasks = true
		} else {
			never = append(never, p.Point.String())
		}
	}
	if forTasks {
		config, err := parseAttachment(text)
		if name != script || err != nil {
			return err
		}
		never = slices.DeleteFunc(never, func(point string) bool { return config[point] == nil })
	}
	if len(never) == 0 {
		return nil
	}
	return fmt.Errorf("%s: comes for the allocation, and never for one of its tasks: put it into the meta of the group or the job", strings.Join(never, ", "))
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

// literal escapes strings and keys, which a schema would evaluate as templates.
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
