package jobs

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// templateCase is a template with what Nomad makes of it: a text, an error or an event while it waits.
type templateCase struct {
	Name     string
	Template struct {
		Data, Source      string
		LeftDelimiter     *string `json:"left_delimiter"`
		RightDelimiter    *string `json:"right_delimiter"`
		ErrorOnMissingKey bool    `json:"error_on_missing_key"`
	}
	Agent     string
	DependsOn any `json:"depends_on"`
	Result    struct {
		Text, Error, Event, Waits *string
	}
}

// isSelfContained reports whether the result depends on nothing but variables and the environment that the job sets.
func (c *templateCase) isSelfContained() bool {
	if c.Agent != "" || c.DependsOn != nil || c.Template.Source != "" || strings.HasPrefix(c.Name, "first-pass/") {
		return false
	}
	for _, other := range []string{"files/", "ervice", "NOMAD_", "AGENT_ONLY", "HOME", "PATH"} {
		if strings.Contains(c.Template.Data, other) {
			return false
		}
	}
	for _, text := range []*string{c.Result.Text, c.Result.Error, c.Result.Waits} {
		if text != nil && !strings.Contains(*text, "[redacted]") && !strings.Contains(*text, "<alloc") {
			return true
		}
	}
	return false
}

func (c *templateCase) block(number int) *api.Template {
	return &api.Template{
		EmbeddedTmpl: &c.Template.Data, LeftDelim: c.Template.LeftDelimiter, RightDelim: c.Template.RightDelimiter, ErrMissingKey: &c.Template.ErrorOnMissingKey,
		DestPath: new(fmt.Sprintf("local/out/%03d", number)), Once: new(true), ChangeMode: new("noop"),
	}
}

// TestTemplatesOfNomadThroughAgent renders templates in tasks of an agent, and compares the files, and the events of tasks that fail or
// wait, with Nomad's. The tests of package template compare all cases.
func TestTemplatesOfNomadThroughAgent(t *testing.T) {
	t.Parallel()
	const perTask, interval = 50, 20
	dir := systemtest.SharedDirOrSkip(t, "corpus", "templates")
	var world struct {
		Base struct {
			Namespaces []string
			Variables  []*api.Variable
			Task       struct{ Env, Meta map[string]string }
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "worlds.json"))
	if err == nil {
		err = json.Unmarshal(text, &world)
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "templates.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var texts, others []*templateCase
	for decoder := json.NewDecoder(f); ; {
		c := &templateCase{}
		if err := decoder.Decode(c); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch {
		case !c.isSelfContained():
		case c.Result.Text != nil:
			texts = append(texts, c)
		default:
			others = append(others, c)
		}
	}

	s := systemtest.StartTestAgent(t, false, `
client {
  meta {
    rack = "r7"
  }
}
`)
	for _, name := range world.Base.Namespaces {
		if _, err := s.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil && name != api.DefaultNamespace {
			t.Fatal(err)
		}
	}
	for _, v := range world.Base.Variables {
		written := &api.Variable{Namespace: v.Namespace, Path: v.Path, Items: v.Items}
		if _, _, err := s.Variables().Create(written, &api.WriteOptions{Namespace: v.Namespace}); err != nil {
			t.Fatal(err)
		}
	}
	newTask := func(script string, blocks ...*api.Template) *api.Task {
		return systemtest.NewRawExecShellTask("t", script, systemtest.WithoutRestart, func(task *api.Task) {
			task.Templates, task.Env, task.Meta = blocks, world.Base.Task.Env, world.Base.Task.Meta
		})
	}

	for from := 0; from < len(texts); from += perTask {
		cases := texts[from:min(from+perTask, len(texts))]
		var blocks []*api.Template
		for i, c := range cases {
			blocks = append(blocks, c.block(i))
		}
		alloc := s.RunJobUntilStatus(fmt.Sprintf("texts-%d", from), "batch", "complete", newTask("true", blocks...))
		for i, c := range cases {
			r, err := s.AllocFS().Cat(alloc, fmt.Sprintf("t/local/out/%03d", i), nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			r.Close()
			if err != nil || string(got) != *c.Result.Text {
				t.Errorf("%s: rendered %q, %v, want %q", c.Name, got, err, *c.Result.Text)
			}
		}
	}

	for i := 0; i < len(others); i += interval {
		c := others[i]
		id := fmt.Sprintf("event-%d", i)
		group := api.NewTaskGroup("g", 1).AddTask(newTask("true", c.block(0)))
		group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
		s.RegisterJobWithGroup(id, "batch", group)
		eventType, want, status := "Template", c.Result.Waits, "pending"
		if c.Result.Error != nil {
			eventType, want, status = *c.Result.Event, c.Result.Error, "failed"
		}
		s.WaitUntil(c.Name+" has the event "+*want, func() (string, bool) {
			stubs, _, err := s.Jobs().Allocations(id, false, nil)
			if err != nil || len(stubs) != 1 {
				return fmt.Sprint(stubs, err), false
			}
			task := stubs[0].TaskStates["t"]
			if task == nil || stubs[0].ClientStatus != status {
				return stubs[0].ClientStatus, false
			}
			for _, e := range task.Events {
				if e.Type == eventType && strings.Contains(e.DisplayMessage, *want) {
					return "", true
				}
			}
			return systemtest.FormatEvents(task), false
		})
	}
	t.Logf("%d texts, and %d of %d errors and waits", len(texts), (len(others)+interval-1)/interval, len(others))
	if len(texts) < 400 || len(others) < 200 {
		t.Errorf("only %d texts and %d errors and waits are compared", len(texts), len(others))
	}
}
