package client

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// source is a job file.
const source = `job "parsed" {
  group "group" {
    task "main" {
      driver = "raw_exec"
      config { command = "/bin/true" }
    }
  }
}
`

var jobTrials = trials{
	"ParseHCL": func(t *testing.T, e *env) {
		job, err := e.Jobs().ParseHCL(source, true)
		must(t, err)
		equal(t, "id", *job.ID, "parsed")
		equal(t, "count", *job.TaskGroups[0].Count, 1)
		_, err = e.Jobs().ParseHCL("job {", false)
		refuses(t, 400, "input.hcl:1", err)
	},
	"ParseHCLOpts": func(t *testing.T, e *env) {
		job, err := e.Jobs().ParseHCLOpts(&api.JobsParseRequest{
			JobHCL: `variable "n" { default = "x" }` + "\n" + strings.Replace(source, "{", "{\n  name = var.n", 1), Variables: `n = "given"`,
		})
		must(t, err)
		equal(t, "id", *job.ID, "parsed")
		equal(t, "name", *job.Name, "given")
	},
	"Validate": func(t *testing.T, e *env) {
		r, _, err := e.Jobs().Validate(e.newJob(t, api.JobTypeBatch, "true"), nil)
		must(t, err)
		if !r.DriverConfigValidated || len(r.ValidationErrors) > 0 || r.Error != "" {
			t.Errorf("%+v", r)
		}
		r, _, err = e.Jobs().Validate(api.NewBatchJob("x", "x", "global", 50), nil)
		must(t, err)
		if len(r.ValidationErrors) != 1 || !strings.Contains(r.Error, "Missing job task groups") {
			t.Errorf("%+v", r)
		}
	},
	"Register": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeBatch, "true")
		first := e.register(t, job)
		again := e.register(t, job)
		if first.EvalID == "" || again.EvalID == first.EvalID || again.EvalID == "" {
			t.Errorf("evaluations %q, %q", first.EvalID, again.EvalID)
		}
		stored, _, err := e.Jobs().Info(*job.ID, nil)
		must(t, err)
		equal(t, "version", *stored.Version, 0)
	},
	"EnforceRegister": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeBatch, "true")
		_, _, err := e.Jobs().EnforceRegister(job, 0, nil)
		must(t, err)
		_, _, err = e.Jobs().EnforceRegister(job, 0, nil)
		refuses(t, 500, "Enforcing job modify index 0: job already exists", err)
	},
	"RegisterOpts": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeBatch, "true")
		_, _, err := e.Jobs().RegisterOpts(job, &api.RegisterOptions{Submission: &api.JobSubmission{Source: source, Format: "hcl2"}}, nil)
		must(t, err)
		s, _, err := e.Jobs().Submission(*job.ID, 0, nil)
		must(t, err)
		equal(t, "source", s.Source, source)
	},
	"List": func(t *testing.T, e *env) {
		list, m, err := e.Jobs().List(&api.QueryOptions{Namespace: "*", Prefix: *e.job.ID})
		must(t, err)
		if len(list) != 1 || list[0].JobSummary == nil || list[0].JobSummary.Namespace != "default" || list[0].Meta != nil || m.LastIndex == 0 {
			t.Fatalf("%+v", list)
		}
		equal(t, "running", list[0].JobSummary.Summary["group"].Running, 1)
	},
	"ListOptions": func(t *testing.T, e *env) {
		list, _, err := e.Jobs().ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, &api.QueryOptions{Filter: `ID == "` + *e.job.ID + `"`})
		must(t, err)
		if len(list) != 1 || list[0].Meta["for"] != "all" {
			t.Errorf("%+v", list)
		}
	},
	"PrefixList": func(t *testing.T, e *env) {
		list, _, err := e.Jobs().PrefixList(*e.job.ID)
		must(t, err)
		equal(t, "jobs", len(list), 1)
	},
	"Info": func(t *testing.T, e *env) {
		job, m, err := e.Jobs().Info(*e.job.ID, nil)
		must(t, err)
		if *job.Status != "running" || *job.TaskGroups[0].Tasks[0].KillTimeout != time.Second || m.LastIndex != *job.ModifyIndex {
			t.Errorf("%+v", job)
		}
		_, _, err = e.Jobs().Info("nope", nil)
		refuses(t, 404, "job not found", err)
	},
	"Scale": func(t *testing.T, e *env) {
		job := e.stable(t)
		r, _, err := e.Jobs().Scale(*job.ID, "group", new(2), "more", false, map[string]any{"by": "hand"}, nil)
		must(t, err)
		if r.EvalID == "" {
			t.Errorf("%+v", r)
		}
		until(t, func(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
			return e.Jobs().Allocations(*job.ID, false, q)
		},
			func(list []*api.AllocationListStub) bool { return len(list) == 2 })
		_, _, err = e.Jobs().Scale(*job.ID, "nope", new(2), "", false, nil, nil)
		refuses(t, 400, `task group "nope" specified for scaling does not exist in job`, err)
	},
	"ScaleWithRequest": func(t *testing.T, e *env) {
		job := e.stable(t)
		_, _, err := e.Jobs().ScaleWithRequest(*job.ID, &api.ScalingRequest{Count: new(int64(0)), Target: map[string]string{"Group": "group"}}, nil)
		must(t, err)
		e.newest(t, *job.ID, api.AllocClientStatusComplete)
	},
	"ScaleStatus": func(t *testing.T, e *env) {
		s, _, err := e.Jobs().ScaleStatus(*e.job.ID, nil)
		must(t, err)
		if g := s.TaskGroups["group"]; g.Desired != 1 || g.Running != 1 || s.JobStopped {
			t.Errorf("%+v", s)
		}
	},
	"Versions": func(t *testing.T, e *env) {
		job := e.versions(t)
		versions, diffs, _, err := e.Jobs().Versions(*job.ID, true, nil)
		must(t, err)
		if len(versions) != 2 || *versions[0].Version != 1 || len(diffs) != 1 || diffs[0].Type != "Edited" {
			t.Errorf("%d versions, %d diffs", len(versions), len(diffs))
		}
	},
	"VersionsOpts": func(t *testing.T, e *env) {
		job := e.versions(t)
		_, diffs, _, err := e.Jobs().VersionsOpts(*job.ID, &api.VersionsOptions{Diffs: true, DiffVersion: new(uint64(0))}, nil)
		must(t, err)
		if len(diffs) == 0 || diffs[0].Type != "Edited" {
			t.Errorf("%d diffs", len(diffs))
		}
	},
	"VersionByTag": func(t *testing.T, e *env) { e.tagged(t) },
	"TagVersion":   func(t *testing.T, e *env) { e.tagged(t) },
	"TagVersionOpts": func(t *testing.T, e *env) {
		job := e.versions(t)
		_, err := e.Jobs().TagVersionOpts(*job.ID, "latest", &api.TagVersionRequest{Latest: true}, nil)
		must(t, err)
		v, _, err := e.Jobs().VersionByTag(*job.ID, "latest", nil)
		must(t, err)
		equal(t, "version", *v.Version, 1)
	},
	"UntagVersion": func(t *testing.T, e *env) {
		id := e.tagged(t)
		_, err := e.Jobs().UntagVersion(id, "good", nil)
		must(t, err)
		if v, _, err := e.Jobs().VersionByTag(id, "good", nil); err == nil {
			t.Errorf("version %d has the tag", *v.Version)
		}
	},
	"Submission": func(t *testing.T, e *env) {
		_, _, err := e.Jobs().Submission(*e.job.ID, 7, nil)
		refuses(t, 404, "job source not found", err)
	},
	"Allocations": func(t *testing.T, e *env) {
		list, _, err := e.Jobs().Allocations(*e.job.ID, true, nil)
		must(t, err)
		if len(list) != 1 || list[0].ID != e.alloc.ID || list[0].TaskStates["main"] == nil {
			t.Errorf("%+v", list)
		}
	},
	"Deployments": func(t *testing.T, e *env) {
		list, _, err := e.Jobs().Deployments(*e.job.ID, true, nil)
		must(t, err)
		equal(t, "deployments", len(list), 1)
	},
	"LatestDeployment": func(t *testing.T, e *env) {
		d, _, err := e.Jobs().LatestDeployment(*e.job.ID, nil)
		must(t, err)
		equal(t, "id", d.ID, e.alloc.DeploymentID)
		d, _, err = e.Jobs().LatestDeployment("nope", nil)
		must(t, err)
		if d != nil {
			t.Errorf("a deployment of nothing: %+v", d)
		}
	},
	"Evaluations": func(t *testing.T, e *env) {
		list, _, err := e.Jobs().Evaluations(*e.job.ID, nil)
		must(t, err)
		if !slices.ContainsFunc(list, func(v *api.Evaluation) bool { return v.ID == e.alloc.EvalID }) {
			t.Errorf("evaluation %s is not among %d", e.alloc.EvalID, len(list))
		}
	},
	"Deregister": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeService, forever)
		alloc := e.run(t, job)
		eval, m, err := e.Jobs().Deregister(*job.ID, false, nil)
		must(t, err)
		if eval == "" || m.LastIndex == 0 {
			t.Errorf("evaluation %q at %d", eval, m.LastIndex)
		}
		e.untilAlloc(t, alloc.ID, func(a *api.Allocation) bool { return a.ClientStatus == api.AllocClientStatusComplete })
		stopped, _, err := e.Jobs().Info(*job.ID, nil)
		must(t, err)
		equal(t, "stopped", *stopped.Stop, true)
	},
	"DeregisterOpts": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeService, forever)
		e.run(t, job)
		_, _, err := e.Jobs().DeregisterOpts(*job.ID, &api.DeregisterOptions{Purge: true, NoShutdownDelay: true}, nil)
		must(t, err)
		_, _, err = e.Jobs().Info(*job.ID, nil)
		refuses(t, 404, "job not found", err)
	},
	"ForceEvaluate": func(t *testing.T, e *env) {
		eval, _, err := e.Jobs().ForceEvaluate(*e.job.ID, nil)
		must(t, err)
		if eval == "" {
			t.Error("no evaluation")
		}
		_, _, err = e.Jobs().ForceEvaluate("nope", nil)
		refuses(t, 500, "job not found", err)
	},
	"EvaluateWithOpts": func(t *testing.T, e *env) {
		eval, _, err := e.Jobs().EvaluateWithOpts(*e.job.ID, api.EvalOptions{ForceReschedule: true}, nil)
		must(t, err)
		if eval == "" {
			t.Error("no evaluation")
		}
	},
	"PeriodicForce": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeBatch, "true")
		job.Periodic = &api.PeriodicConfig{Enabled: new(true), Spec: new("0 0 1 1 *"), SpecType: new(api.PeriodicSpecCron)}
		r := e.register(t, job)
		equal(t, "evaluation of the template", r.EvalID, "")
		eval, _, err := e.Jobs().PeriodicForce(*job.ID, nil)
		must(t, err)
		e.childCompletes(t, job, eval)
	},
	"Dispatch": func(t *testing.T, e *env) {
		job := e.parameterized(t)
		r, _, err := e.Jobs().Dispatch(*job.ID, map[string]string{"who": "you"}, []byte("load"), "mine", nil)
		must(t, err)
		if !strings.HasPrefix(r.DispatchedJobID, *job.ID+"/dispatch-mine-") {
			t.Errorf("child %q", r.DispatchedJobID)
		}
		e.childCompletes(t, job, r.EvalID)
		_, _, err = e.Jobs().Dispatch(*job.ID, nil, nil, "", nil)
		refuses(t, 500, "Dispatch did not provide required meta keys: [who]", err)
	},
	"DispatchOpts": func(t *testing.T, e *env) {
		job := e.parameterized(t)
		r, _, err := e.Jobs().DispatchOpts(&api.DispatchOptions{JobID: *job.ID, Meta: map[string]string{"who": "you"}}, nil)
		must(t, err)
		e.childCompletes(t, job, r.EvalID)
	},
	"Plan": func(t *testing.T, e *env) {
		job := e.newJob(t, api.JobTypeBatch, "true")
		p, _, err := e.Jobs().Plan(job, true, nil)
		must(t, err)
		if p.Diff == nil || p.Diff.Type != "Added" || p.Annotations == nil || p.Annotations.DesiredTGUpdates["group"].Place != 1 || p.JobModifyIndex != 0 {
			t.Errorf("%+v", p)
		}
		_, _, err = e.Jobs().Info(*job.ID, nil)
		refuses(t, 404, "job not found", err)
	},
	"PlanOpts": func(t *testing.T, e *env) {
		p, _, err := e.Jobs().PlanOpts(e.job, &api.PlanOptions{Diff: true}, nil)
		must(t, err)
		if p.Diff.Type != "None" || p.JobModifyIndex == 0 {
			t.Errorf("%+v", p)
		}
	},
	"Summary": func(t *testing.T, e *env) {
		s, _, err := e.Jobs().Summary(*e.job.ID, nil)
		must(t, err)
		if s.JobID != *e.job.ID || s.Namespace != "default" || s.Summary["group"].Running != 1 {
			t.Errorf("%+v", s)
		}
	},
	"Revert": func(t *testing.T, e *env) {
		job := e.versions(t)
		r, _, err := e.Jobs().Revert(*job.ID, 0, new(uint64(1)), nil, "", "")
		must(t, err)
		if r.EvalID == "" {
			t.Errorf("%+v", r)
		}
		stored, _, err := e.Jobs().Info(*job.ID, nil)
		must(t, err)
		equal(t, "version", *stored.Version, 2)
		_, _, err = e.Jobs().Revert(*job.ID, 2, nil, nil, "", "")
		refuses(t, 500, "can't revert to current version", err)
	},
	"Stable": func(t *testing.T, e *env) {
		job := e.versions(t)
		_, _, err := e.Jobs().Stable(*job.ID, 0, true, nil)
		must(t, err)
		versions, _, _, err := e.Jobs().Versions(*job.ID, false, nil)
		must(t, err)
		equal(t, "stable", *versions[1].Stable, true)
	},
	"Services": func(t *testing.T, e *env) {
		list, _, err := e.Jobs().Services(*e.job.ID, nil)
		must(t, err)
		if len(list) != 1 || list[0].JobID != *e.job.ID {
			t.Errorf("%+v", list)
		}
	},
	"ActionExec": func(t *testing.T, e *env) {
		var out bytes.Buffer
		code, err := e.Jobs().ActionExec(t.Context(), e.alloc, *e.job.ID, "main", false, nil, "greet", openInput(t), &out, io.Discard, nil, nil)
		must(t, err)
		equal(t, "exit code", code, 0)
		equal(t, "output", out.String(), "hello\n")
	},
}

// stable returns a job whose deployment is through.
func (e *env) stable(t *testing.T) *api.Job {
	t.Helper()
	job := e.newJob(t, api.JobTypeService, forever)
	e.run(t, job)
	e.deployed(t, *job.ID, api.DeploymentStatusSuccessful)
	return job
}

// versions returns a job that has two versions.
func (e *env) versions(t *testing.T) *api.Job {
	t.Helper()
	job := e.newJob(t, api.JobTypeBatch, "true")
	e.register(t, job)
	job.TaskGroups[0].Tasks[0].Env = map[string]string{"VERSION": "2"}
	e.register(t, job)
	return job
}

// tagged returns the id of a job whose first version has a tag.
func (e *env) tagged(t *testing.T) string {
	t.Helper()
	id := *e.versions(t).ID
	_, err := e.Jobs().TagVersion(id, 0, "good", "it works", nil)
	must(t, err)
	v, _, err := e.Jobs().VersionByTag(id, "good", nil)
	must(t, err)
	if *v.Version != 0 || v.VersionTag.Description != "it works" || v.VersionTag.TaggedTime == 0 {
		t.Errorf("version %d, %+v", *v.Version, v.VersionTag)
	}
	return id
}

func (e *env) parameterized(t *testing.T) *api.Job {
	t.Helper()
	job := e.newJob(t, api.JobTypeBatch, `test "$NOMAD_META_who" = you`)
	job.ParameterizedJob = &api.ParameterizedJobConfig{MetaRequired: []string{"who"}}
	e.register(t, job)
	return job
}

// childCompletes waits for the allocation of the child that has the evaluation.
func (e *env) childCompletes(t *testing.T, parent *api.Job, evalID string) {
	t.Helper()
	eval, _, err := e.Evaluations().Info(evalID, nil)
	must(t, err)
	if !strings.HasPrefix(eval.JobID, *parent.ID+"/") {
		t.Errorf("child %q", eval.JobID)
	}
	e.newest(t, eval.JobID, api.AllocClientStatusComplete)
	t.Cleanup(func() {
		if _, _, err := e.Jobs().Deregister(eval.JobID, true, nil); err != nil {
			t.Error(err)
		}
	})
}
