package pluginhooks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// attachment is a hook's configuration for one allocation or task.
type attachment struct {
	isExplicit        bool            // the operator, the job or the runner attached the hook
	jobAttachmentJSON string          // the job's attachment as JSON; "" for none
	builtinBlocksJSON json.RawMessage // the task's blocks as JSON for a builtin hook, which gets them unchanged; nil for other hooks
}

// mergeOperatorConfig returns the job's attachment, overridden by the operator's configuration.
func (a attachment) mergeOperatorConfig(operatorConfig map[string]any) (map[string]any, error) {
	config, err := parseAttachment(a.jobAttachmentJSON)
	maps.Copy(config, operatorConfig)
	return config, err
}

// newAttachmentSchemaError returns an error for an attachment that does not fit its hook's schema. It replaces Nomad's title for
// unknown arguments, which is about a driver config block in JSON.
func newAttachmentSchemaError(diags hcl.Diagnostics) error {
	text := strings.Join(block.Messages(diags), "; ")
	return fmt.Errorf("attachment: %s", strings.ReplaceAll(text, "Invalid label: ", "Unsupported argument: "))
}

// encodeForPlugin returns the JSON for the plugin, with its schema's defaults.
func (a attachment) encodeForPlugin(schema *hclspec.Spec, operatorConfig map[string]any) ([]byte, error) {
	if a.builtinBlocksJSON != nil {
		return a.builtinBlocksJSON, nil
	}
	config, err := a.mergeOperatorConfig(operatorConfig)
	switch {
	case err != nil:
		return nil, err
	case schema == nil && len(config) > 0:
		return nil, errNoConfig
	case schema == nil:
		return nil, nil
	}
	value, diags := block.Decode(schema, escapeTemplates(config).(map[string]any), nil)
	if diags.HasErrors() {
		return nil, newAttachmentSchemaError(diags)
	}
	return ctyjson.Marshal(value, value.Type())
}

// ValidateAttachmentConfig validates a canonical job's attachment against its plugin's schema: with the operator's configuration
// for the allocations and tasks that the operator's rule matches, and without it for the others.
func (s *HookPluginSet) ValidateAttachmentConfig(job *api.Job, at model.HookAttachment, schema *hclspec.Spec) error {
	rule := s.ruleFor(at.Hook)
	matched, unmatched := rule.appliesWithinAttachment(job, at)
	var errs []error
	if matched {
		_, err := attachment{jobAttachmentJSON: at.ConfigJSON}.encodeForPlugin(schema, rule.Config)
		errs = append(errs, err)
	}
	if unmatched {
		_, err := attachment{jobAttachmentJSON: at.ConfigJSON}.encodeForPlugin(schema, nil)
		errs = append(errs, err)
	}
	return cmp.Or(errs...)
}

// CheckAttachmentSyntax validates an attachment's JSON without the plugin's schema.
func CheckAttachmentSyntax(attachmentJSON string) error {
	_, err := parseAttachment(attachmentJSON)
	return err
}

// ScriptHook is the builtin hook with hook points in its attachment. Its description attaches it to nothing.
const ScriptHook = "script"

// CheckTaskAttachmentPoints rejects an attachment to one task for allocation hook points: these are called only for hooks
// attached by the group or the job.
func CheckTaskAttachmentPoints(hookName, attachmentJSON string, d *hook.Description) error {
	var allocPoints []string
	forTasks := false
	for _, p := range d.Subscriptions {
		if p.Point.IsTask() {
			forTasks = true
		} else {
			allocPoints = append(allocPoints, p.Point.String())
		}
	}
	if forTasks {
		config, err := parseAttachment(attachmentJSON)
		if hookName != ScriptHook || err != nil {
			return err
		}
		allocPoints = slices.DeleteFunc(allocPoints, func(point string) bool { return config[point] == nil })
	}
	if len(allocPoints) == 0 {
		return nil
	}
	return fmt.Errorf("%s: comes for the allocation, and never for one of its tasks: put it into the meta of the group or the job", strings.Join(allocPoints, ", "))
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

// escapeTemplates escapes strings and keys, because a schema would evaluate them as templates.
func escapeTemplates(v any) any {
	switch v := v.(type) {
	case string:
		return hclspec.Verbatim(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for key := range v {
			out[hclspec.Verbatim(key)] = escapeTemplates(v[key])
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = escapeTemplates(v[i])
		}
		return out
	}
	return v
}
