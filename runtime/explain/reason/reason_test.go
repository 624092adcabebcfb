package reason

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

var testTime = time.Date(2026, 5, 4, 12, 0, 0, 0, time.Local)

// newTaskState returns a task state with these events, one second apart; the last one was two seconds before testTime.
func newTaskState(state string, failed bool, events ...*api.TaskEvent) *api.TaskState {
	var s api.TaskState
	for i, e := range events {
		copied := *e
		copied.Time = 0
		model.AppendTaskEvent(&s, &copied, testTime.Add(time.Duration(i-len(events)-1)*time.Second))
	}
	s.State, s.Failed = state, failed
	return &s
}

func TestReasonOfTask(t *testing.T) {
	t.Parallel()
	received, started := model.EventReceived(), model.EventStarted()
	exit3 := func() *api.TaskEvent { return model.EventTerminated(3, 0, false, "") }
	progress := func(eventType, operation, message string) *api.TaskEvent {
		e := model.EventHookMessage(eventType, message, nil)
		model.SetEventOperation(e, operation, true)
		return e
	}
	const rpc = "rpc error: code = Unknown desc = "
	for name, test := range map[string]struct {
		state *api.TaskState
		want  string
	}{
		"no state":   {nil, ""},
		"running":    {newTaskState("running", false, started), ""},
		"successful": {newTaskState("dead", false, started, model.EventTerminated(0, 0, false, "")), ""},
		"no event":   {newTaskState("pending", false, received), "is being set up"},
		"a restart to come": {
			newTaskState("pending", false, started, exit3(), model.EventRestarting("", 14*time.Second)),
			"exit code 3, restarts in 12s",
		},
		"a restart that is due":        {newTaskState("pending", false, exit3(), model.EventRestarting("", time.Second)), "exit code 3, restarts now"},
		"a service that ends":          {newTaskState("pending", false, model.EventTerminated(0, 0, false, ""), model.EventRestarting("", 14*time.Second)), `ended with exit code 0, but a service must keep running, restarts in 12s. Use type = "batch" for a job that ends`},
		"a restart on request":         {newTaskState("pending", false, started, model.EventRestartSignal("a watched file has changed"), model.EventTerminated(0, 0, false, ""), model.EventRestarting("", 0)), "a watched file has changed, restarts now"},
		"an end after a restart":       {newTaskState("pending", false, model.EventRestartSignal("x"), started, exit3(), model.EventRestarting("", 14*time.Second)), "exit code 3, restarts in 12s"},
		"a hook after the exit":        {newTaskState("pending", false, started, exit3(), model.EventHookMessage("", "exited: /bin/true", nil), model.EventRestarting("", 14*time.Second)), "exit code 3, restarts in 12s"},
		"a failed hook after it":       {newTaskState("pending", false, started, exit3(), model.EventHookFailed("script", "exited: exit code 1"), model.EventRestarting("", 14*time.Second)), "exit code 3, restarts in 12s"},
		"a hook during the delay":      {newTaskState("pending", false, started, exit3(), model.EventRestarting("", 14*time.Second), model.EventHookMessage("", "exited: /bin/true", nil)), "exit code 3, restarts in 11s"},
		"a hook of the next start":     {newTaskState("pending", false, started, exit3(), model.EventRestarting("", 0), model.EventHookMessage("", "loads data", nil)), "loads data"},
		"a hook before the exit":       {newTaskState("dead", true, model.EventHookFailed("script", "prestart: exit code 1"), model.EventNotRestarting("x")), "hook script: prestart: exit code 1, not restarted: x"},
		"no further restart":           {newTaskState("dead", true, exit3(), model.EventNotRestarting("Exceeded allowed attempts 2")), "exit code 3, not restarted: Exceeded allowed attempts 2"},
		"an unrecoverable error":       {newTaskState("dead", true, model.EventDriverFailure(rpc+"no room"), model.EventNotRestarting("Error was unrecoverable")), "cannot start: no room, not restarted"},
		"unhealthy":                    {newTaskState("dead", true, exit3(), model.EventNotRestarting("x"), model.EventAllocUnhealthy("Unhealthy because of failed task")), "exit code 3, not restarted: x"},
		"a signal":                     {newTaskState("dead", true, model.EventTerminated(0, 11, false, "")), "killed by signal 11 (SIGSEGV)"},
		"an exit message":              {newTaskState("dead", true, model.EventTerminated(1, 0, false, "two\nlines")), "exit code 1: two lines"},
		"out of memory":                {newTaskState("dead", true, model.EventTerminated(137, 9, true, "OOM Killed")), `out of memory: killed when it exceeded its limit. Raise "memory" in "resources"`},
		"a command that is not there":  {newTaskState("dead", true, model.EventDriverFailure(rpc+"command /bin/no: stat /bin/no: no such file or directory")), `cannot start: command /bin/no: stat /bin/no: no such file or directory. Install /bin/no, or correct "command"`},
		"a bare command":               {newTaskState("dead", true, model.EventDriverFailure(`command "no": neither in the task's PATH (/bin:/usr/bin) nor in /data/alloc/x/t`)), `cannot start: command "no": neither in the task's PATH nor in its directory. Install the command, or write its whole path in "command"`},
		"a file without x":             {newTaskState("dead", true, model.EventDriverFailure("command /etc/passwd: permission denied")), "cannot start: command /etc/passwd: permission denied. Make it executable: chmod +x /etc/passwd"},
		"a user that is not there":     {newTaskState("dead", true, model.EventHookFailed("task_dir", "user: unknown user bob")), `hook task_dir: user: unknown user bob. Create account bob, or change "user" of the task`},
		"a template without variables": {newTaskState("pending", false, model.EventHookMessage("Template", "Missing: nomad.var.block(nomad/jobs/a@default.global), nomad.service(db)", nil)), "template waits for variable nomad/jobs/a, service db. Write it: nomad-lite var put nomad/jobs/a KEY=VALUE"},
		"a template without a service": {newTaskState("pending", false, model.EventHookMessage("Template", "Missing: nomad.service(db)", nil)), "template waits for service db. Run a job that registers service db, healthy"},
		"a refused download": {
			newTaskState("pending", false, &api.TaskEvent{Type: api.TaskArtifactDownloadFailed, DisplayMessage: `failed to download artifact "http://x/y": dial tcp: connection refused`}, model.EventRestarting("", 14*time.Second)),
			`failed to download artifact "http://x/y": dial tcp: connection refused, restarts in 12s. Check the address of its source, and the network`,
		},
		"a download": {newTaskState("pending", false, received, &api.TaskEvent{Type: api.TaskDownloadingArtifacts, DisplayMessage: "Client is downloading artifacts"}), "downloads artifacts"},
		"two slow downloads": {
			newTaskState("pending", false, progress(api.TaskDownloadingArtifacts, "b", "b.zip: 1 MB, 2 MB/s"), progress(api.TaskDownloadingArtifacts, "a", "a.zip: 12 MB of 40 MB, 0 B/s")),
			"downloads artifacts: a.zip: 12 MB of 40 MB, 0 B/s; b.zip: 1 MB, 2 MB/s",
		},
		"an ended download":       {newTaskState("pending", false, model.EventHookMessage(api.TaskDownloadingArtifacts, "a.zip: 40 MB downloaded in 9s", nil)), "downloads artifacts"},
		"a slow hook":             {newTaskState("pending", false, progress("", "a", "3 of 7 steps")), "is being prepared by a hook: 3 of 7 steps"},
		"a plugin that starts":    {newTaskState("pending", false, model.EventWaitingForPlugin("plugin podman")), "waiting for plugin podman to start. nomad-lite plugin list shows its state"},
		"a failed setup":          {newTaskState("dead", true, model.EventSetupFailure("no space left")), "cannot be set up: no space left"},
		"a failed validation":     {newTaskState("dead", true, model.EventFailedValidation("2 errors:\n* one\n* two")), "cannot be set up: 2 errors: * one * two"},
		"a failed sibling":        {newTaskState("dead", true, model.EventSiblingFailed("db"), model.EventKilled("")), `task "db" of its group failed`},
		"a kill that fails it":    {newTaskState("dead", true, model.EventKillingReason("template failed", true), model.EventKilled("")), "template failed"},
		"a message of the driver": {newTaskState("pending", false, model.EventDriverMessage("downloading image", nil, time.Time{})), "downloading image"},
		"an earlier message":      {newTaskState("dead", true, model.EventDriverMessage("downloading image", nil, time.Time{}), exit3()), "exit code 3"},
		"failed without event":    {newTaskState("dead", true, received), "failed"},
	} {
		if got := FromTaskState(test.state, testTime).String(); got != test.want {
			t.Errorf("%s: got  %s\nwant %s", name, got, test.want)
		}
	}
	if got := FromTaskState(newTaskState("pending", false, exit3(), model.EventRestarting("", 14*time.Second)), time.Time{}).String(); got != "exit code 3, restarts at 12:00:12" {
		t.Error("without the present time: ", got)
	}
	if got := (Reason{Cause: "exit code 3", LastStderrLine: "oops", NextStep: "restarts now"}).String(); got != "exit code 3 (stderr: oops), restarts now" {
		t.Error("with the last line: ", got)
	}
}

// The standard error line is the last one with a letter: other lines point to a place, or frame a message.
func TestLineOfStderr(t *testing.T) {
	t.Parallel()
	for tail, want := range map[string]string{
		"":                   "",
		"first\nlast\n\n \n": "last",
		"psycopg2.errors.SyntaxError: syntax error at or near \"FORM\"\nLINE 1: SELECT 1 FORM t\n                 ^\n": "LINE 1: SELECT 1 FORM t",
		"oops\r\n========\r\n":                "oops",
		"größe\n42\n":                         "größe",
		"41\n42\n":                            "42",
		"x" + strings.Repeat("é", 300):        strings.Repeat("é", 200),
		"y" + strings.Repeat("é", 199) + "yy": strings.Repeat("é", 199) + "yy",
	} {
		if got := (Reason{}).WithStderrTail(tail).LastStderrLine; got != want {
			t.Errorf("%q: got %q, want %q", tail, got, want)
		}
	}
}
