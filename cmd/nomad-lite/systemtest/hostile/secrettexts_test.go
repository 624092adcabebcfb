package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/redact"
)

// secretTask returns a task that reads the item of the variable of its job and fails because of it, or whose check does.
type secretTask struct {
	name, value string
	edit        func(*api.Task)
	silent      bool // the error itself has no part of the value
}

func templateOf(text string) func(*api.Task) {
	return func(t *api.Task) {
		t.Templates = []*api.Template{{EmbeddedTmpl: new(text), DestPath: new("local/out")}}
	}
}

// withItem returns a template that applies an expression to the item, which is called $v.
func withItem(expression string) func(*api.Task) {
	return templateOf(`{{ with nomadVar "secret/JOB" }}{{ $v := .key.Value }}{{ ` + expression + ` }}{{ end }}`)
}

func withSecretBlock(edit func(*api.Task)) func(*api.Task) {
	return func(t *api.Task) {
		t.Secrets = []*api.Secret{{Name: "s", Provider: "nomad", Path: "secret/JOB"}}
		edit(t)
	}
}

var secretTasks = []secretTask{
	{"parse-int", "hunter2-\"int\"-<1>", withItem("parseInt $v"), false},
	{"parse-bool", "hunter2-bool-&-yes", withItem("parseBool $v"), false},
	{"fail", "hunter2-fail-ß", withItem("sprig_fail $v"), false},
	{"regexp", "(hunter2-regexp", withItem(`regexMatch $v "x"`), false},
	{"must-env", "HUNTER2_MUST_ENV", withItem("mustEnv $v"), false},
	{"lines", "hunter2\nsecond-line-7431", withItem(`parseInt (printf "%s" $v)`), false},
	{"driver-error", "/hunter2/no/such/program", withSecretBlock(func(t *api.Task) { t.SetConfig("command", "${secret.s.key}") }), false},
	{"artifact", "hunter2-artifact password", withSecretBlock(func(t *api.Task) {
		t.Artifacts = []*api.TaskArtifact{{GetterSource: new("http://127.0.0.1:1/${secret.s.key}"), GetterHeaders: map[string]string{"Authorization": "${secret.s.key}"}}}
	}), true},
	{"env-file", "hunter2-no-pair-at-all", func(t *api.Task) {
		withItem("$v")(t)
		t.Templates[0].Envvars = new(true)
	}, true},
	{"parse-json", "hunter2-json", withItem("parseJSON $v"), true},
}

// The value of a variable that makes a template, an artifact or a driver fail is in no text: not in the log at its lowest
// level, in no event, time line or debug bundle, and in no stored byte outside of the encrypted parts, also after the agent
// was killed and the task fails under the next one.
func TestNoTextHasASecret(t *testing.T) {
	s := systemtest.StartPersistentAgent(t, nil, "log_level = \"TRACE\"\nenable_debug = true\n")
	for _, task := range secretTasks {
		if _, _, err := s.Variables().Create(&api.Variable{Path: "secret/" + task.name, Items: api.VariableItems{"key": task.value}}, nil); err != nil {
			t.Fatal(err)
		}
		api := systemtest.NewRawExecShellTask("t", "exit 0", task.edit)
		s.RegisterJobWithGroup(task.name, "batch", newSecretGroup(task.name, api))
	}
	waitRedacted := func(since time.Time) {
		t.Helper()
		for _, task := range secretTasks {
			s.WaitUntil(task.name+" has failed, and the event of it is redacted", func() (string, bool) {
				allocs, _, err := s.Jobs().Allocations(task.name, true, nil)
				if err != nil || len(allocs) == 0 {
					return fmt.Sprint(err), false
				}
				texts := "no state"
				for _, a := range allocs {
					state := a.TaskStates["t"]
					if state == nil {
						continue
					}
					for _, e := range state.Events {
						if e.Time >= since.UnixNano() && (strings.Contains(e.DisplayMessage, redact.Placeholder) || task.silent && e.Type != api.TaskReceived) {
							return "", true
						}
					}
					texts = systemtest.FormatEvents(state)
				}
				return texts, false
			})
		}
	}
	waitRedacted(time.Time{})
	s.SignalAndWait(unix.SIGKILL)
	s.StartAndWaitReady()
	restarted := time.Now()
	waitRedacted(restarted)

	checkNoSecret := func(where string, text []byte) {
		t.Helper()
		for _, task := range secretTasks {
			quoted := strconv.Quote(task.value)
			inJSON, err := json.Marshal(task.value)
			if err != nil {
				t.Fatal(err)
			}
			for _, form := range []string{task.value, quoted[1 : len(quoted)-1], string(inJSON[1 : len(inJSON)-1]), url.PathEscape(task.value)} {
				if n := bytes.Count(text, []byte(form)); n > 0 {
					at := bytes.Index(text, []byte(form))
					t.Errorf("%s has the secret of %s %d times: …%q", where, task.name, n, text[max(0, at-200):min(len(text), at+len(form)+20)])
				}
			}
		}
	}
	for _, file := range []string{s.LogFile, filepath.Join(s.DataDir, "state.db")} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		checkNoSecret(file, text)
	}
	for _, task := range secretTasks {
		allocs, _, err := s.Jobs().Allocations(task.name, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range allocs {
			for _, path := range []string{"/v1/allocation/" + a.ID, "/v1/allocation/" + a.ID + "/timeline", "/v1/allocation/" + a.ID + "/checks"} {
				body, err := s.Raw().Response(path, nil)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(body)
				body.Close()
				if err != nil {
					t.Fatal(err)
				}
				checkNoSecret(path, text)
			}
		}
	}
	checkDebugBundle(t, s, checkNoSecret)
}

// newSecretGroup returns a group whose task is started again and again, also in other allocations if its driver has rejected it.
func newSecretGroup(name string, task *api.Task) *api.TaskGroup {
	for _, template := range task.Templates {
		*template.EmbeddedTmpl = strings.ReplaceAll(*template.EmbeddedTmpl, "JOB", name)
	}
	for _, secret := range task.Secrets {
		secret.Path = strings.ReplaceAll(secret.Path, "JOB", name)
	}
	group := api.NewTaskGroup("g", 1).AddTask(task)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(1000), Interval: new(24 * time.Hour), Delay: new(500 * time.Millisecond), Mode: new("delay"), RenderTemplates: new(true)}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Interval: new(time.Duration(0)), Delay: new(5 * time.Second), DelayFunction: new("constant"), Unlimited: new(true)}
	return group
}
