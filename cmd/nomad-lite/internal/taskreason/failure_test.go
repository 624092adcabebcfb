package taskreason

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func TestFailuresOfJob(t *testing.T) {
	t.Parallel()
	event := func(kind, message string, exit int) *api.TaskEvent {
		return &api.TaskEvent{Type: kind, DisplayMessage: message, ExitCode: exit}
	}
	ok, bad := event(api.TaskTerminated, "Exit Code: 0", 0), event(api.TaskTerminated, "Exit Code: 1", 1)
	killing := event(api.TaskKilling, "Sent interrupt", 0)
	done := func(failed bool, events ...*api.TaskEvent) *api.TaskState {
		return &api.TaskState{State: model.TaskDead, Failed: failed, Events: events}
	}
	for _, c := range []struct {
		name    string
		kind    string
		stopped bool
		status  string
		states  map[string]*api.TaskState
		want    string // "" for success
	}{
		{"batch completes", api.JobTypeBatch, false, api.AllocClientStatusComplete, map[string]*api.TaskState{"main": done(false, ok)}, ""},
		{"batch stopped while it runs", api.JobTypeBatch, true, api.AllocClientStatusComplete, map[string]*api.TaskState{"main": done(false, killing, bad)}, "stopped before it was complete"},
		{"batch stopped before it began", api.JobTypeBatch, true, api.AllocClientStatusComplete, map[string]*api.TaskState{"main": done(false)}, "stopped before it was complete"},
		{"batch stopped before its states were known", api.JobTypeBatch, true, api.AllocClientStatusComplete, nil, "stopped before it was complete"},
		{"batch stopped after its end", api.JobTypeBatch, true, api.AllocClientStatusComplete, map[string]*api.TaskState{"main": done(false, ok), "side": done(false, killing, bad)}, ""},
		{"batch whose node was lost", api.JobTypeBatch, false, api.AllocClientStatusLost, nil, "alloc j.g[0]: lost"},
		{"batch that failed before its tasks", api.JobTypeBatch, false, api.AllocClientStatusFailed, nil, "alloc j.g[0]: failed"},
		{"batch whose leader ended", api.JobTypeBatch, false, api.AllocClientStatusComplete, map[string]*api.TaskState{"main": done(false, killing, bad)}, ""},
		{"service stopped", api.JobTypeService, true, api.AllocClientStatusComplete, map[string]*api.TaskState{"main": done(false, killing, bad)}, ""},
		{"service fails while it is stopped", api.JobTypeService, true, api.AllocClientStatusFailed, map[string]*api.TaskState{"main": done(true, bad)}, `task "main" of alloc j.g[0]: exit code 1`},
		{
			"what was before the last restart is not why", api.JobTypeBatch, false, api.AllocClientStatusFailed,
			map[string]*api.TaskState{"main": done(true, event(api.TaskDriverFailure, "early", 0), event(api.TaskRestarting, "", 0), bad, model.EventNotRestarting("Exceeded"))},
			`task "main" of alloc j.g[0]: exit code 1, not restarted: Exceeded`,
		},
		{
			"what failed first is why", api.JobTypeBatch, false, api.AllocClientStatusFailed,
			map[string]*api.TaskState{"main": done(true, event(model.TaskHookFailed, "no directory", 0), model.EventNotRestarting("Policy"), event(model.TaskHookFailed, "no clean-up", 0))},
			`task "main" of alloc j.g[0]: hook no directory, not restarted: Policy`,
		},
		{
			"what was killed for a reason", api.JobTypeBatch, false, api.AllocClientStatusFailed,
			map[string]*api.TaskState{"main": done(true, &api.TaskEvent{Type: api.TaskKilling, DisplayMessage: "Template failed: missing value for if", FailsTask: true})},
			`task "main" of alloc j.g[0]: Template failed: missing value for if`,
		},
		{
			"one line, without the wire", api.JobTypeBatch, false, api.AllocClientStatusFailed,
			map[string]*api.TaskState{"main": done(true, event(api.TaskDriverFailure, "rpc error: code = Unknown desc = two\n\t* lines\n", 0))},
			`task "main" of alloc j.g[0]: cannot start: two * lines`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{{Name: "main"}, {Name: "side", Lifecycle: &api.TaskLifecycle{Hook: "prestart", Sidecar: true}}}}
			job := &api.Job{ID: new("j"), Type: &c.kind, TaskGroups: []*api.TaskGroup{group}}
			alloc := &api.AllocationListStub{ID: "a", Name: "j.g[0]", TaskGroup: "g", ClientStatus: c.status, TaskStates: c.states}
			got := ""
			if err := JobError(job, FindFailures(job, []*api.AllocationListStub{alloc}, c.stopped)); err != nil {
				got = err.Error()
			}
			if (got == "") != (c.want == "") || !strings.HasSuffix(got, c.want) {
				t.Errorf("got %q, want %q at the end", got, c.want)
			}
		})
	}

	t.Run("a failure that was replaced does not count", func(t *testing.T) {
		job := &api.Job{ID: new("j"), Type: new(api.JobTypeBatch)}
		replaced := &api.AllocationListStub{Name: "j.g[0]", ClientStatus: api.AllocClientStatusFailed, NextAllocation: "b"}
		if failures := FindFailures(job, []*api.AllocationListStub{replaced}, false); len(failures) > 0 {
			t.Error(failures)
		}
	})
}
