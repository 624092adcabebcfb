package run

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
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
		p := withoutDefaultReschedule(job, false).TaskGroups[0].ReschedulePolicy
		if *p.Attempts != 0 || *p.Unlimited {
			t.Errorf("%s: the default is kept: %+v", kind, p)
		}
		if p := job.TaskGroups[0].ReschedulePolicy; *p.Attempts == 0 && !*p.Unlimited {
			t.Errorf("%s: the job of the file was changed", kind)
		}
		p = withoutDefaultReschedule(newJob(kind, &api.ReschedulePolicy{Attempts: new(3), Unlimited: new(false)}), false).TaskGroups[0].ReschedulePolicy
		if *p.Attempts != 3 {
			t.Errorf("%s: what the file says is not kept: %+v", kind, p)
		}
	}
}
