package run

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
)

func TestForegroundIsNotRescheduled(t *testing.T) {
	newJob := func(kind string, policy *api.ReschedulePolicy) *api.Job {
		job := &api.Job{ID: new("j"), Type: &kind, TaskGroups: []*api.TaskGroup{{
			Name: new("g"), ReschedulePolicy: policy,
			Tasks: []*api.Task{{Name: "t", Driver: "raw_exec", Config: map[string]any{"command": "true"}}},
		}}}
		model.Canonicalize(job)
		return job
	}
	for _, kind := range []string{api.JobTypeService, api.JobTypeBatch} {
		job := newJob(kind, nil)
		p := newForegroundJob(job).TaskGroups[0].ReschedulePolicy
		if *p.Attempts != 0 || *p.Unlimited {
			t.Errorf("%s: the default is kept: %+v", kind, p)
		}
		if p := job.TaskGroups[0].ReschedulePolicy; *p.Attempts == 0 && !*p.Unlimited {
			t.Errorf("%s: the job of the file was changed", kind)
		}
		p = newForegroundJob(newJob(kind, &api.ReschedulePolicy{Attempts: new(3), Unlimited: new(false)})).TaskGroups[0].ReschedulePolicy
		if *p.Attempts != 3 {
			t.Errorf("%s: what the file says is not kept: %+v", kind, p)
		}
	}
}

func TestJobResult(t *testing.T) {
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
		{"service stopped", api.JobTypeService, true, api.AllocClientStatusComplete, map[string]*api.TaskState{"main": done(false, killing, bad)}, ""},
		{"service fails while it is stopped", api.JobTypeService, true, api.AllocClientStatusFailed, map[string]*api.TaskState{"main": done(true, bad)}, `task "main" of alloc j.g[0]: Exit Code: 1`},
		{
			"what was before the last restart is not why", api.JobTypeBatch, false, api.AllocClientStatusFailed,
			map[string]*api.TaskState{"main": done(true, event(api.TaskDriverFailure, "early", 0), event(api.TaskRestarting, "", 0), bad, event(api.TaskNotRestarting, "Exceeded", 0))},
			`task "main" of alloc j.g[0]: Exit Code: 1: Exceeded`,
		},
		{
			"what failed first is why", api.JobTypeBatch, false, api.AllocClientStatusFailed,
			map[string]*api.TaskState{"main": done(true, event(model.TaskHookFailed, "no directory", 0), event(api.TaskNotRestarting, "Policy", 0), event(model.TaskHookFailed, "no clean-up", 0))},
			`task "main" of alloc j.g[0]: no directory: Policy`,
		},
		{
			"what was killed for a reason", api.JobTypeBatch, false, api.AllocClientStatusFailed,
			map[string]*api.TaskState{"main": done(true, event(api.TaskKilling, "Template failed: missing value for if", 0))},
			`task "main" of alloc j.g[0]: Template failed: missing value for if`,
		},
		{
			"one line, without the wire", api.JobTypeBatch, false, api.AllocClientStatusFailed,
			map[string]*api.TaskState{"main": done(true, event(api.TaskDriverFailure, "rpc error: code = Unknown desc = two\n\t* lines\n", 0))},
			`task "main" of alloc j.g[0]: two * lines`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{{Name: "main"}, {Name: "side", Lifecycle: &api.TaskLifecycle{Hook: "prestart", Sidecar: true}}}}
			job := &api.Job{ID: new("j"), Type: &c.kind, TaskGroups: []*api.TaskGroup{group}}
			alloc := &api.Allocation{ID: "a", Name: "j.g[0]", TaskGroup: "g", Job: job, ClientStatus: c.status, TaskStates: c.states}
			got := ""
			if err := jobResultError(job, []*api.Allocation{alloc}, c.stopped); err != nil {
				got = err.Error()
			}
			if (got == "") != (c.want == "") || !strings.HasSuffix(got, c.want) {
				t.Errorf("got %q, want %q at the end", got, c.want)
			}
		})
	}

	t.Run("a failure that was replaced does not count", func(t *testing.T) {
		job := &api.Job{ID: new("j"), Type: new(api.JobTypeBatch)}
		replaced := &api.Allocation{Name: "j.g[0]", ClientStatus: api.AllocClientStatusFailed, NextAllocation: "b"}
		if err := jobResultError(job, []*api.Allocation{replaced}, false); err != nil {
			t.Error(err)
		}
	})
}
