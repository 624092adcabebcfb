package pluginhooks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func TestCheckRules(t *testing.T) {
	known := []catalog.Entry{
		{Name: "raw_exec", Builtin: true, Type: base.TypeDriver},
		{Name: "script", Builtin: true, Type: base.TypeHook},
	}
	file := catalog.Entry{Name: "tools", Path: "/plugins/tools"}
	for name, c := range map[string]struct {
		rule    OperatorRule
		plugins []catalog.Entry
		want    string // want is the error; "" for none
	}{
		"a builtin hook":                  {OperatorRule{Name: "script", Order: 200}, known, ""},
		"a driver":                        {OperatorRule{Name: "raw_exec"}, known, "this is a task driver"},
		"nobody":                          {OperatorRule{Name: "gate"}, known, "there is no plugin that could be it"},
		"a file may call itself anything": {OperatorRule{Name: "gate"}, append(known, file), ""},
		"a builtin driver as a hook":      {OperatorRule{Name: "raw_exec"}, append(known, file), "this is a task driver"},
		"a limit for what blocks attach":  {OperatorRule{Name: "artifact", WarnOnError: true}, nil, ""},
		"an order for what blocks attach": {OperatorRule{Name: "artifact", Order: 200}, nil, "mean nothing for it"},
		"a match for what blocks attach":  {OperatorRule{Name: "template", Match: &RuleMatch{}}, nil, "mean nothing for it"},
	} {
		err := CheckRulesAgainstCatalog([]OperatorRule{c.rule}, c.plugins)
		if c.want == "" && err != nil || c.want != "" && !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestConfigOfARule(t *testing.T) {
	schema := hclspec.Object(map[string]*hclspec.Spec{
		"pool": hclspec.Attr("pool", "string", true), "size": hclspec.Attr("size", "number", false),
		"gate": hclspec.Block("gate", hclspec.Object(map[string]*hclspec.Spec{"a": hclspec.Attr("a", "string", false)}), true),
	})
	whole := map[string]any{"pool": "${x}", "size": 1, "gate": map[string]any{"a": "1"}}
	for name, c := range map[string]struct {
		rule  OperatorRule
		takes hook.Description
		want  string
	}{
		"all that there is":               {OperatorRule{Config: whole, Match: &RuleMatch{}}, hook.Description{AttachmentSchema: schema}, ""},
		"a part, and jobs say the rest":   {OperatorRule{Config: map[string]any{"size": 1}}, hook.Description{AttachmentSchema: schema}, ""},
		"nothing, and jobs say all":       {OperatorRule{}, hook.Description{AttachmentSchema: schema}, ""},
		"a part, and nobody says more":    {OperatorRule{Config: map[string]any{"size": 1}, Match: &RuleMatch{}}, hook.Description{AttachmentSchema: schema}, `"pool" is required`},
		"nothing, of each allocation":     {OperatorRule{}, hook.Description{AttachmentSchema: schema, AllAllocs: true}, `"pool" is required`},
		"a part with a wrong type":        {OperatorRule{Config: map[string]any{"size": "x"}}, hook.Description{AttachmentSchema: schema}, "a number is required"},
		"a part with a wrong name":        {OperatorRule{Config: map[string]any{"siez": 1}}, hook.Description{AttachmentSchema: schema}, "siez"},
		"something for who takes nothing": {OperatorRule{Config: whole}, hook.Description{}, "takes no configuration"},
		"nothing for who takes nothing":   {OperatorRule{Match: &RuleMatch{}}, hook.Description{}, ""},
	} {
		err := c.rule.ValidateAgainstDescription(&c.takes)
		if c.want == "" && err != nil || c.want != "" && !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A rule with a match must not configure the hook for non-matching jobs that attach it themselves.
func TestConfigAppliesToMatchingJobs(t *testing.T) {
	description := descriptionOfPoints(hook.Prestart)
	description.AttachmentSchema = hclspec.Object(map[string]*hclspec.Spec{"pool": hclspec.Attr("pool", "string", true), "zone": hclspec.Attr("zone", "string", false)})
	f := &pluginFixture{description: description}
	config := map[string]any{"pool": "operator"}
	for name, c := range map[string]struct {
		match     *RuleMatch
		attached  string // the job's attachment
		want      string // the hook's attachment
		wantError bool   // ValidateAttachmentConfig rejects the job's attachment
	}{
		"a matching job gets the config":              {&RuleMatch{JobPattern: "web"}, `{"zone":"job"}`, `{"pool":"operator","zone":"job"}`, false},
		"the config wins over the job":                {&RuleMatch{JobPattern: "web"}, `{"pool":"job"}`, `{"pool":"operator"}`, false},
		"another job keeps its own keys":              {&RuleMatch{JobPattern: "db"}, `{"pool":"job"}`, `{"pool":"job"}`, false},
		"another job lacks the keys of the config":    {&RuleMatch{JobPattern: "db"}, `{"zone":"job"}`, `{"zone":"job"}`, true},
		"another driver does not match":               {&RuleMatch{DriverPattern: "docker"}, `{"pool":"job"}`, `{"pool":"job"}`, false},
		"without match the config applies to all":     {nil, `{"pool":"job"}`, `{"pool":"operator"}`, false},
		"an empty match matches everything, as usual": {&RuleMatch{}, `{"pool":"job"}`, `{"pool":"operator"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			meta := map[string]string{"lite_hook_stamp": c.attached}
			task := &api.Task{Name: "t", Driver: "raw_exec", Meta: meta}
			job := &api.Job{ID: new("web"), TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{task}}}}
			alloc := &api.Allocation{ID: "a", JobID: "web", TaskGroup: "g", Job: job}
			set := f.newSet(OperatorRule{Name: "stamp", Match: c.match, Config: config})
			list := set.NewTaskHooks(alloc, task, f.target("t"))
			if len(list) != 1 {
				t.Fatalf("%d hooks attached, want 1", len(list))
			}
			if got := list[0].Hook.(*Hook).AttachmentJSON(); got != c.want {
				t.Errorf("attachment %s, want %s", got, c.want)
			}
			at := model.HookAttachment{Group: "g", Task: "t", Hook: "stamp", ConfigJSON: c.attached}
			if err := set.ValidateAttachmentConfig(job, at, description.AttachmentSchema); (err != nil) != c.wantError {
				t.Errorf("CheckAttachment: %v, want an error: %v", err, c.wantError)
			}
		})
	}
}
