package main

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
		p := inForeground(job).TaskGroups[0].ReschedulePolicy
		if *p.Attempts != 0 || *p.Unlimited {
			t.Errorf("%s: the default is kept: %+v", kind, p)
		}
		if p := job.TaskGroups[0].ReschedulePolicy; *p.Attempts == 0 && !*p.Unlimited {
			t.Errorf("%s: the job of the file was changed", kind)
		}
		p = inForeground(newJob(kind, &api.ReschedulePolicy{Attempts: new(3), Unlimited: new(false)})).TaskGroups[0].ReschedulePolicy
		if *p.Attempts != 3 {
			t.Errorf("%s: what the file says is not kept: %+v", kind, p)
		}
	}
}

func TestVerdict(t *testing.T) {
	alloc := func(status string, killed bool) *api.Allocation {
		state := &api.TaskState{State: model.TaskDead, Failed: status == api.AllocClientStatusFailed}
		if killed {
			state.Events = append(state.Events, &api.TaskEvent{Type: api.TaskKilling})
		}
		if state.Failed {
			state.Events = append(state.Events, &api.TaskEvent{Type: api.TaskTerminated, DisplayMessage: "Exit Code: 3"})
		}
		return &api.Allocation{
			Name: "j.g[0]", TaskGroup: "g", ClientStatus: status, TaskStates: map[string]*api.TaskState{"t": state},
			Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t"}}}}},
		}
	}
	replaced := alloc(api.AllocClientStatusFailed, false)
	replaced.NextAllocation = "b"
	for _, c := range []struct {
		name    string
		kind    string
		alloc   *api.Allocation
		stopped bool
		want    string
	}{
		{"a job that is complete", "batch", alloc(api.AllocClientStatusComplete, false), false, ""},
		{"one that failed", "batch", alloc(api.AllocClientStatusFailed, false), false, `task "t" of alloc j.g[0]: Exit Code: 3`},
		{"a failure that was replaced", "batch", replaced, false, ""},
		{"a service that was stopped", "service", alloc(api.AllocClientStatusComplete, true), true, ""},
		{"a batch job that was stopped", "batch", alloc(api.AllocClientStatusComplete, true), true, "alloc j.g[0]: stopped before it was complete"},
		{"one that was complete by then", "batch", alloc(api.AllocClientStatusComplete, false), true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := verdict(&api.Job{ID: new("j"), Type: &c.kind}, []*api.Allocation{c.alloc}, c.stopped)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("verdict %v, want %q", err, c.want)
			}
		})
	}
}
