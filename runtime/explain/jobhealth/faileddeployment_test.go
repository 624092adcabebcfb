package jobhealth

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func TestFailedDeployment(t *testing.T) {
	t.Parallel()
	const failureIndex = 70 // index of the deployment's failure transaction
	runs := earlier(taskState("running", false, model.EventStarted()), time.Hour)
	for name, c := range map[string]struct {
		jobVersion, jobIndex uint64
		status               string // the allocation's client status
		failure              *restart.DeploymentFailure
		want                 string // description and cause; empty if none is reported
	}{
		"the current version has failed":             {jobVersion: 1, jobIndex: 60, status: api.AllocClientStatusPending, want: `it failed; task "web": exit code 3`},
		"the current version works by now":           {jobVersion: 1, jobIndex: 60, status: api.AllocClientStatusRunning},
		"the job was rolled back and works":          {jobVersion: 2, jobIndex: failureIndex, status: api.AllocClientStatusRunning, want: `it failed; task "web": exit code 3`},
		"the user has deployed another version":      {jobVersion: 2, jobIndex: 80, status: api.AllocClientStatusRunning},
		"the user has deployed one after a rollback": {jobVersion: 3, jobIndex: 80, status: api.AllocClientStatusRunning},
		"a check has failed": {jobVersion: 2, jobIndex: failureIndex, status: api.AllocClientStatusRunning,
			failure: &restart.DeploymentFailure{DeploymentID: "d", Task: "web", Reason: `check "alive" is failing`}, want: `it failed; task "web": check "alive" is failing`},
		"the failure is of another deployment": {jobVersion: 2, jobIndex: failureIndex, status: api.AllocClientStatusRunning,
			failure: &restart.DeploymentFailure{DeploymentID: "e", Task: "web", Reason: "other"}, want: "it failed"},
	} {
		if c.failure == nil {
			c.failure = &restart.DeploymentFailure{DeploymentID: "d", Task: "web", Reason: "Unhealthy because of failed task", End: &restart.RunEnd{ExitCode: 3, NextStart: testTime}}
		}
		a := alloc("a", c.status, runs)
		a.DeploymentID = "d"
		a.Job = &api.Job{Version: new(c.jobVersion), TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "web"}}}}}
		if c.status == api.AllocClientStatusPending {
			a.TaskStates = nil
		}
		d := &api.Deployment{ID: "d", JobVersion: 1, Status: api.DeploymentStatusFailed, StatusDescription: "it failed", ModifyIndex: failureIndex}
		h := Evaluate(Snapshot{
			Now: testTime, Allocations: []*api.Allocation{a}, Deployment: d, FailedDeployment: d,
			Job:               &api.Job{ID: new("j"), Version: new(c.jobVersion), JobModifyIndex: new(c.jobIndex), TaskGroups: []*api.TaskGroup{{Name: new("g"), Count: new(1)}}},
			LastEnd:           func(string, string) *restart.RunEnd { return nil },
			DeploymentFailure: func(*api.Allocation) *restart.DeploymentFailure { return c.failure },
		})
		got := ""
		if f := h.FailedDeployment; f != nil {
			if got = f.Description; f.Cause != "" {
				got += "; " + f.Cause
			}
			if _, _, _, wanted := f.WantedStderr(); wanted != (c.failure.End != nil) {
				t.Errorf("%s: wants the standard error: %v", name, wanted)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q (health %s)", name, got, c.want, h.Word)
		}
	}
}
