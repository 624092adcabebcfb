package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// wantClientError checks an error of the client: its status and a part of the text.
func wantClientError(t *testing.T, err error, code int, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("Unexpected response code: %d (", code)) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %d with %s", err, code, want)
	}
}

// Requests with mistakes for jobs, evaluations and deployments return errors.
func TestRejectedJobRequests(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("web", "service", "app", withCount(2)))
	_, _, done := b.registerAndWait(t, newJob("web", "service", "app", withCount(2), withEnv("2")))
	b.registerAndWait(t, newJob("param", "batch", "app", func(j *api.Job) { j.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "required"} }))
	b.registerAndWait(t, newJob("cron", "batch", "app", func(j *api.Job) { j.Periodic = &api.PeriodicConfig{Specs: []string{"0 0 1 1 *"}} }))
	b.registerAndWait(t, newJob("sys", "system", "app"))
	unknown := "00000000-0000-4000-8000-000000000000"
	deployment := func(id string) string { return `{"DeploymentID":"` + id + `"}` }
	for _, c := range []struct {
		name, method, target, body string
		code                       int
		want                       string
	}{
		{"actions of an unknown job", "GET", "/v1/job/nope/actions", "", 500, `Unknown job "nope"`},
		{"scale of an unknown job", "GET", "/v1/job/nope/scale", "", 404, "job not found"},
		{"services of an unknown job", "GET", "/v1/job/nope/services", "", 404, "job not found"},
		{"summary of an unknown job", "GET", "/v1/job/nope/summary", "", 404, "job not found"},
		{"allocations of an unknown job", "GET", "/v1/job/nope/allocations", "", 200, "[]"},
		{"evaluations of an unknown job", "GET", "/v1/job/nope/evaluations", "", 200, "[]"},
		{"deployments of an unknown job", "GET", "/v1/job/nope/deployments", "", 200, "[]"},
		{"the deployment of an unknown job", "GET", "/v1/job/nope/deployment", "", 200, "null"},
		{"a submission without version", "GET", "/v1/job/web/submission", "", 400, "Unable to parse job submission version parameter"},
		{"no such submission", "GET", "/v1/job/web/submission?version=9", "", 404, "job source not found"},
		{"evaluate an unknown job", "PUT", "/v1/job/nope/evaluate", "", 500, "job not found"},
		{"evaluate a periodic job", "PUT", "/v1/job/cron/evaluate", "", 500, "can't evaluate periodic job"},
		{"evaluate a parameterized job", "PUT", "/v1/job/param/evaluate", "", 500, "can't evaluate parameterized job"},
		{"force a job that is not periodic", "PUT", "/v1/job/web/periodic/force", "", 500, "can't force launch non-periodic job"},
		{"dispatch an unknown job", "PUT", "/v1/job/nope/dispatch", "{}", 500, "parameterized job not found"},
		{"dispatch another job", "PUT", "/v1/job/web/dispatch", "{}", 500, `Specified job "web" is not a parameterized job`},
		{"dispatch without payload", "PUT", "/v1/job/param/dispatch", "{}", 500, "Payload is not provided but required by parameterized job"},
		{"dispatch of another id", "PUT", "/v1/job/param/dispatch", `{"JobID":"x"}`, 400, "Job ID does not match"},
		{"dispatch too much", "PUT", "/v1/job/param/dispatch/payload", strings.Repeat("x", 16<<10+1), 500, "Payload exceeds maximum size; 16385 > 16384"},
		{"revert an unknown job", "PUT", "/v1/job/nope/revert", "{}", 500, `job "nope" not found`},
		{"revert to the current version", "PUT", "/v1/job/web/revert", `{"JobVersion":1}`, 500, "can't revert to current version"},
		{"revert to an unknown version", "PUT", "/v1/job/web/revert", `{"JobVersion":9}`, 500, `job "web" in namespace "default" at version 9 not found`},
		{"revert another version", "PUT", "/v1/job/web/revert", `{"JobVersion":0,"EnforcePriorVersion":3}`, 500, "Current job has version 1; enforcing version 3"},
		{"scale an unknown job", "PUT", "/v1/job/nope/scale", `{"Target":{"Group":"app"}}`, 404, `job "nope" not found`},
		{"scale an unknown group", "PUT", "/v1/job/web/scale", `{"Count":1,"Target":{"Group":"g"}}`, 400, `task group "g" specified for scaling does not exist in job`},
		{"scale no group", "PUT", "/v1/job/web/scale", `{"Count":1}`, 400, "missing task group name for scaling action"},
		{"scale a system job", "PUT", "/v1/job/sys/scale", `{"Count":2,"Target":{"Group":"app"}}`, 400, `jobs of type "system" can only be scaled between 0 and 1`},
		{"stop an unknown job", "DELETE", "/v1/job/nope", "", 200, ""},
		{"a space in the id", "PUT", "/v1/jobs", `{"Job":{"ID":"a b"}}`, 500, ""},
		{"an unknown namespace", "PUT", "/v1/jobs?namespace=nope", jobBodyText(newJob("web", "batch", "app")), 500,
			"1 error occurred:\n\t* job \"web\" is in nonexistent namespace \"nope\"\n\n"},
		{"another type", "PUT", "/v1/jobs", jobBodyText(newJob("web", "batch", "app")), 500, `cannot update job from type "service" to "batch"`},
		{"a priority that is none", "PUT", "/v1/jobs", strings.Replace(jobBodyText(newJob("x", "batch", "app")), "{", `{"EvalPriority":101,`, 1), 400,
			"eval priority must be between 1 and 100 inclusively"},
		{"a system job that scales", "PUT", "/v1/jobs", jobBodyText(newJob("sys", "system", "app", func(j *api.Job) { j.TaskGroups[0].Scaling = &api.ScalingPolicy{} })), 400,
			"Task groups with job type system do not support scaling blocks"},
		{"a plan of another job", "PUT", "/v1/job/x/plan", jobBodyText(newJob("web", "service", "app")), 400, "Job ID does not match name"},
		{"a plan of what is not valid", "PUT", "/v1/job/y/plan", `{"Job":{"ID":"y","Type":"batch"}}`, 500, "1 error occurred:\n\t* Missing job task groups\n\n"},
		{"a text that is empty", "PUT", "/v1/jobs/parse", `{"JobHCL":""}`, 400, "Job spec is empty"},
		{"an unknown evaluation", "GET", "/v1/evaluation/" + unknown, "", 404, "eval not found"},
		{"an evaluation that is none", "GET", "/v1/evaluation/x", "", 500, "eval lookup failed: index error: UUID must be 36 characters"},
		{"two filters", "GET", "/v1/evaluations?job=web&filter=x", "", 400, "Filter expression cannot be used with other filter parameters"},
		{"an unknown deployment", "GET", "/v1/deployment/" + unknown, "", 404, "deployment not found"},
		{"fail an unknown deployment", "PUT", "/v1/deployment/fail/" + unknown, "", 500, "deployment not found"},
		{"pause without id", "PUT", "/v1/deployment/pause/" + done.ID, "{}", 400, "DeploymentID must be specified"},
		{"pause another one", "PUT", "/v1/deployment/pause/" + done.ID, deployment(unknown), 400, "Deployment ID does not match"},
		{"pause", "PUT", "/v1/deployment/pause/" + done.ID, `{"Pause":true,"DeploymentID":"` + done.ID + `"}`, 500, "can't pause terminal deployment"},
		{"resume", "PUT", "/v1/deployment/pause/" + done.ID, deployment(done.ID), 500, "can't resume terminal deployment"},
		{"fail", "PUT", "/v1/deployment/fail/" + done.ID, "", 500, "can't fail terminal deployment"},
		{"unblock", "PUT", "/v1/deployment/unblock/" + done.ID, deployment(done.ID), 500, "can't unblock terminal deployment"},
		{"promote", "PUT", "/v1/deployment/promote/" + done.ID, `{"All":true,"DeploymentID":"` + done.ID + `"}`, 500, "can't promote terminal deployment"},
		{"an unknown policy", "GET", "/v1/scaling/policy/" + unknown, "", 404, "policy not found"},
		{"a tag without versions", "PUT", "/v1/job/web/tag", "{}", 404, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := b.send(c.method, c.target, strings.NewReader(c.body))
			if got := bodyText(r); r.StatusCode != c.code || c.want != "" && got != c.want {
				t.Errorf("%d %q, want %d %q", r.StatusCode, got, c.code, c.want)
			}
		})
	}
}

// jobBodyText returns a request body that contains only the given job.
func jobBodyText(job *api.Job) string {
	text, err := json.Marshal(map[string]any{"Job": job})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestScaleJob(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("web", "service", "app", withCount(2), func(j *api.Job) {
		j.TaskGroups[0].Scaling = &api.ScalingPolicy{Min: new(int64(2)), Max: new(int64(4)), Enabled: new(true)}
	}))
	_, _, err := b.Jobs().Scale("web", "app", new(1), "", false, nil, nil)
	wantClientError(t, err, 400, "group count was less than scaling policy minimum: 1 < 2")
	_, _, err = b.Jobs().Scale("web", "app", new(9), "", false, nil, nil)
	wantClientError(t, err, 400, "group count was greater than scaling policy maximum: 9 > 4")
	written, _, err := b.Jobs().Scale("web", "app", new(3), "more", false, map[string]any{"why": "load"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if eval, _ := b.waitEvaluation(t, written.EvalID); eval.TriggeredBy != "job-scaling" {
		t.Errorf("evaluation %+v", eval)
	}
	if _, _, err := b.Jobs().Scale("web", "app", nil, "only a note", false, nil, nil); err != nil {
		t.Fatal(err)
	}
	status, _, err := b.Jobs().ScaleStatus("web", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := status.TaskGroups["app"]
	if g.Desired != 3 || g.Placed != 3 || g.Running != 3 || g.Healthy != 3 || g.Unhealthy != 0 || len(g.Events) != 2 {
		t.Fatalf("%+v", g)
	}
	if e := g.Events[1]; *e.Count != 3 || e.PreviousCount != 2 || e.Message != "more" || e.Meta["why"] != "load" || *e.EvalID != written.EvalID || e.Time == 0 {
		t.Errorf("%+v", e)
	}
	if g.Events[0].Count != nil {
		t.Errorf("%+v", g.Events[0])
	}
	// A registration keeps the current count if the request has PreserveCounts.
	if _, _, err := b.Jobs().RegisterOpts(newJob("web", "service", "app", withCount(2), withEnv("x")), &api.RegisterOptions{PreserveCounts: true}, nil); err != nil {
		t.Fatal(err)
	}
	if job, _, _ := b.Jobs().Info("web", nil); *job.TaskGroups[0].Count != 3 {
		t.Errorf("count %d", *job.TaskGroups[0].Count)
	}

	b.registerAndWait(t, newJob("auto", "service", "app", func(j *api.Job) {
		j.TaskGroups[0].Scaling = &api.ScalingPolicy{Max: new(int64(4)), Enabled: new(true), Policy: map[string]any{"cooldown": "1m"}}
	}))
	stubs, _, err := b.Scaling().ListPolicies(&api.QueryOptions{Params: map[string]string{"job": "auto"}})
	if err != nil || len(stubs) != 1 || stubs[0].Target["Group"] != "app" {
		t.Fatal(stubs, err)
	}
	if job, _, err := b.Jobs().Info("auto", nil); err != nil || job.TaskGroups[0].Scaling.ID != stubs[0].ID {
		t.Error("the policy of the job has another id")
	}
	if policy, _, err := b.Scaling().GetPolicy(stubs[0].ID, nil); err != nil || policy.Policy["cooldown"] != "1m" || *policy.Max != 4 {
		t.Error(policy, err)
	}
}

// A blocking query for scaling policies returns when a policy was added, changed or removed, and
// not when another part of a job has changed.
func TestScalingPolicyQueriesWakeOnlyForPolicies(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	scaled := func(value string, most int64) *api.Job {
		return newJob("auto", "service", "app", withEnv(value), func(j *api.Job) {
			j.TaskGroups[0].Scaling = &api.ScalingPolicy{Max: &most, Enabled: new(true), Policy: map[string]any{"n": 1}}
		})
	}
	index := uint64(0)
	changed := func(what string, want bool) {
		t.Helper()
		_, meta, err := b.Scaling().ListPolicies(&api.QueryOptions{WaitIndex: index, WaitTime: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if got := meta.LastIndex > index; got != want {
			t.Errorf("%s: index %d after %d, changed %v, want %v", what, meta.LastIndex, index, got, want)
		}
		index = meta.LastIndex
	}
	b.registerAndWait(t, scaled("1", 4))
	changed("a policy was added", true)
	b.registerAndWait(t, newJob("other", "service", "app"))
	changed("another job was registered", false)
	b.registerAndWait(t, scaled("2", 4))
	changed("the job was changed, and not its policy", false)
	if _, _, err := b.Jobs().Scale("auto", "app", new(3), "", false, nil, nil); err != nil {
		t.Fatal(err)
	}
	changed("the job was scaled", false)
	b.registerAndWait(t, scaled("2", 5))
	changed("the policy was changed", true)
	if policies, _, err := b.Scaling().ListPolicies(nil); err != nil || len(policies) != 1 || policies[0].ModifyIndex != index || policies[0].CreateIndex >= index {
		t.Errorf("%+v, %v; want the index %d", policies, err, index)
	}
	if _, _, err := b.Jobs().Deregister("auto", true, nil); err != nil {
		t.Fatal(err)
	}
	changed("the job was purged", true)
}

func TestRevertJob(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("web", "service", "app", withEnv("1")))
	b.registerAndWait(t, newJob("web", "service", "app", withEnv("2")))
	written, _, err := b.Jobs().Revert("web", 0, new(uint64(1)), nil, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, d := b.waitEvaluation(t, written.EvalID); d.Status != "successful" || d.JobVersion != 2 {
		t.Errorf("%+v", d)
	}
	job, _, err := b.Jobs().Info("web", nil)
	if err != nil || *job.Version != 2 || job.TaskGroups[0].Tasks[0].Env["V"] != "1" {
		t.Errorf("%+v, %v", job, err)
	}
	if _, _, err := b.Jobs().Stable("web", 2, false, nil); err != nil {
		t.Fatal(err)
	}
	if versions, _, _, _ := b.Jobs().Versions("web", false, nil); *versions[0].Stable || !*versions[1].Stable {
		t.Error("the flag is on the wrong version")
	}
}

// A purged job does not exist, and a new job of its name does not inherit its data.
func TestPurgeJob(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, map[string]schedtest.SimulatedAllocBehaviour{"slow": {StopDuration: time.Hour}})
	b.registerAndWait(t, newJob("web", "service", "slow"))
	if _, _, err := b.Jobs().DeregisterOpts("web", &api.DeregisterOptions{Purge: true, EvalPriority: 60, NoShutdownDelay: true}, nil); err != nil {
		t.Fatal(err)
	}
	_, _, err := b.Jobs().Info("web", nil)
	wantClientError(t, err, 404, "job not found")
	b.registerAndWait(t, newJob("web", "service", "app"))
	for all, want := range map[bool]int{false: 1, true: 2} {
		if allocs, _, err := b.Jobs().Allocations("web", all, nil); err != nil || len(allocs) != want {
			t.Errorf("all=%v: %d allocations, %v", all, len(allocs), err)
		}
		if deployments, _, err := b.Jobs().Deployments("web", all, nil); err != nil || len(deployments) != want {
			t.Errorf("all=%v: %d deployments, %v", all, len(deployments), err)
		}
	}
	if evals, _, err := b.Jobs().Evaluations("web", nil); err != nil || len(evals) < 3 {
		t.Error(evals, err)
	}
}

// A job with a service of provider consul is placed, with a warning, and keeps the provider and its constraint. A constraint that
// the author writes is not met.
func TestConsulServiceIsPlaced(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	resp, eval, _ := b.registerAndWait(t, newJob("web", "service", "app", func(j *api.Job) {
		j.TaskGroups[0].Services = []*api.Service{{Name: "web"}}
	}))
	if !strings.Contains(resp.Warnings, `service "web" of provider consul`) {
		t.Errorf("warnings %q", resp.Warnings)
	}
	if len(eval.FailedTGAllocs) > 0 {
		t.Errorf("metrics %+v", eval.FailedTGAllocs)
	}
	job, _, err := b.Jobs().Info("web", nil)
	if err != nil {
		t.Fatal(err)
	}
	group := job.TaskGroups[0]
	if c := group.Constraints; group.Services[0].Provider != "consul" || len(c) != 1 || c[0].LTarget != "${attr.consul.version}" {
		t.Errorf("provider %q, constraints %+v", group.Services[0].Provider, c)
	}
	_, eval, _ = b.registerAndWait(t, newJob("own", "service", "app", func(j *api.Job) {
		j.TaskGroups[0].Constraints = []*api.Constraint{api.NewConstraint("${attr.consul.version}", "semver", ">= 1.9.0")}
	}))
	if m := eval.FailedTGAllocs["app"]; m == nil || m.ConstraintFiltered["${attr.consul.version} semver >= 1.9.0"] != 1 {
		t.Errorf("metric %+v", m)
	}
}

// A node whose operator refuses services of provider consul places no job with one, and its evaluation has the reason.
func TestConsulServiceIsRefused(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil, func(n *api.Node) { n.Attributes[admission.AttributeConsulServices] = admission.ConsulServicesRefused })
	_, eval, _ := b.registerAndWait(t, newJob("web", "service", "app", func(j *api.Job) {
		j.TaskGroups[0].Services = []*api.Service{{Name: "web"}}
	}))
	m := eval.FailedTGAllocs["app"]
	if m == nil || m.ConstraintFiltered["${attr.consul.version} semver >= 1.8.0"] != 1 {
		t.Errorf("metric %+v", m)
	}
	if !strings.Contains(eval.StatusDescription, `provider = "nomad"`) {
		t.Errorf("description %q", eval.StatusDescription)
	}
	if blocked, _, err := b.Evaluations().Info(eval.BlockedEval, nil); err != nil || blocked.Status != "blocked" {
		t.Error(blocked, err)
	}
}

func TestParseJob(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	file := `variable "n" { default = 1 }
job "web" {
  group "app" {
    count = var.n
    task "t" { driver = "mock" }
  }
}`
	job, err := b.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: file, Variables: "n = 3\nother = 1"})
	if err != nil || *job.TaskGroups[0].Count != 3 || job.Priority != nil {
		t.Errorf("%+v, %v", job, err)
	}
	job, err = b.Jobs().ParseHCL(file, true)
	if err != nil || *job.Priority != 50 || job.Datacenters != nil || *job.NodePool != "" || *job.Status != "" {
		t.Errorf("%+v, %v", job, err)
	}
	// The reply has the JSON format of Nomad's Go client.
	r := bodyText(b.send("PUT", "/v1/jobs/parse", strings.NewReader(`{"JobHCL":"job \"a\" {\n meta { x = \"<\" } \n}"}`)))
	if !strings.Contains(r, `"Migrate":null`) || !strings.Contains(r, `"Meta":{"x":"<"}`) {
		t.Error(r)
	}
	job, err = b.Jobs().ParseHCL("job \"a\" {\n constraint {\n attribute = \"${attr.x}\"\n set_contains_all = \"y\"\n}\n}", false)
	if err != nil || *job.Constraints[0] != (api.Constraint{LTarget: "${attr.x}", RTarget: "y", Operand: "set_contains_all"}) {
		t.Errorf("a shorthand: got %+v, %v", job, err)
	}
	if _, err = b.Jobs().ParseHCL("job \"a\" {\n affinity {\n weight = 300\n}\n}", false); err == nil || !strings.Contains(err.Error(), "must be between -100 and 100, not 300") {
		t.Errorf("a weight out of range: got %v", err)
	}
	_, err = b.Jobs().ParseHCL("bad {}", false)
	wantClientError(t, err, 400, "Failed to parse job: input.hcl:1,1-4: Unsupported block type; ")
}

// The editor of the page sends check_config. Without it, the reply is Nomad's.
func TestParseChecksConfigBlocksOnRequest(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	text, err := json.Marshal("job \"a\" {\n group \"g\" {\n  task \"t\" {\n   driver = \"mock\"\n   config {\n    run_fro = \"1s\"\n   }\n  }\n }\n}")
	if err != nil {
		t.Fatal(err)
	}
	body := `{"JobHCL":` + string(text) + `}`
	const want = `Failed to parse job: input.hcl:6,5-19: Task "t": Unsupported argument: No argument or block type is named "run_fro".`
	if got := bodyText(b.send("PUT", "/v1/jobs/parse?check_config=true", strings.NewReader(body))); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, c := range []struct{ path, body string }{
		{"/v1/jobs/parse", body},
		{"/v1/jobs/parse?check_config=true", strings.ReplaceAll(body, "run_fro", "run_for")},
	} {
		if got := bodyText(b.send("PUT", c.path, strings.NewReader(c.body))); !strings.HasPrefix(got, `{"`) {
			t.Errorf("%s: got %q, want a job", c.path, got)
		}
	}
}

func TestValidateJob(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	good, _, err := b.Jobs().Validate(newJob("web", "service", "app"), nil)
	if err != nil || good.Error != "" || good.ValidationErrors != nil || !good.DriverConfigValidated {
		t.Errorf("%+v, %v", good, err)
	}
	typo := func(j *api.Job) { j.TaskGroups[0].Tasks[0].Config["run_fro"] = "1s" }
	const wantLabelError = `Task group app, task t: driver mock: config: Invalid label: No argument or block type is named "run_fro".`
	misspelled, _, err := b.Jobs().Validate(newJob("web", "service", "app", typo), nil)
	if err != nil || len(misspelled.ValidationErrors) != 1 || !strings.HasPrefix(misspelled.ValidationErrors[0], wantLabelError) || misspelled.Error != model.FormatErrorList(misspelled.ValidationErrors) || !misspelled.DriverConfigValidated {
		t.Errorf("%+v, %v", misspelled, err)
	}
	unknown, _, err := b.Jobs().Validate(newJob("web", "service", "app", func(j *api.Job) { j.TaskGroups[0].Tasks[0].Driver = "nope" }), nil)
	if err != nil || unknown.Error != "" || unknown.DriverConfigValidated {
		t.Errorf("%+v, %v", unknown, err)
	}
	schemaless, _, err := b.Jobs().Validate(newJob("web", "service", "app", func(j *api.Job) { j.TaskGroups[0].Tasks[0].Driver = "schemaless" }), nil)
	if err != nil || schemaless.Error != "" || !schemaless.DriverConfigValidated {
		t.Errorf("a driver without a schema: %+v, %v", schemaless, err)
	}
	if got := bodyText(b.send("PUT", "/v1/validate/job", strings.NewReader(`{"Job":{"ID":"x","TaskGroups":[null,{"Tasks":[null]}]}}`))); !strings.Contains(got, `"ValidationErrors":["`) {
		t.Error(got)
	}
	// Nomad's server accepts both mistakes, which its command line rejects.
	accepted, _, err := b.Jobs().Validate(newJob("web", "service", "app", func(j *api.Job) {
		j.TaskGroups[0].Services = []*api.Service{{Name: "web", PortLabel: "nope"}}
	}), nil)
	if err != nil || accepted.Error != "" || accepted.ValidationErrors != nil {
		t.Errorf("a port label that does not exist, and no provider: %+v, %v", accepted, err)
	}
	// A task with an invalid config block fails when it starts, so a plan only warns.
	plan, _, err := b.Jobs().Plan(newJob("web", "service", "app", typo), false, nil)
	if err != nil || !strings.Contains(plan.Warnings, wantLabelError) {
		t.Errorf("%+v, %v", plan, err)
	}
	written, _, err := b.Jobs().Register(newJob("web", "service", "app", typo), nil)
	if err != nil || !strings.Contains(written.Warnings, wantLabelError) {
		t.Errorf("%+v, %v", written, err)
	}
	bad, _, err := b.Jobs().Validate(newJob("a b", "nope", "app"), nil)
	if err != nil || len(bad.ValidationErrors) < 2 || bad.ValidationErrors[0] != "Job ID contains a space" || !strings.Contains(bad.Error, "errors occurred:\n\t* Job ID contains a space") {
		t.Errorf("%+v, %v", bad, err)
	}
	limit, _, err := b.Jobs().Validate(newJob("web", "service", "app", func(j *api.Job) {
		j.TaskGroups[0].Networks = []*api.NetworkResource{{Mode: "driver"}}
	}), nil)
	if err != nil || !strings.Contains(limit.Error, `network mode "driver" is not supported by this build`) {
		t.Errorf("%+v, %v", limit, err)
	}
}

// A deployment with a canary is paused, resumed, marked and promoted on request.
func TestManualDeployment(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, map[string]schedtest.SimulatedAllocBehaviour{"slow": {TimeToHealthReport: time.Hour}})
	canary := func(j *api.Job) { j.Update.Canary = new(1) }
	written, _, err := b.Jobs().Register(newJob("web", "service", "slow", withCount(2), canary), nil)
	if err != nil {
		t.Fatal(err)
	}
	eval, _, err := b.Evaluations().Info(written.EvalID, nil)
	if err != nil {
		t.Fatal(err)
	}
	healthy := func(deployment string) {
		t.Helper()
		stubs, _, err := b.Deployments().Allocations(deployment, nil)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, stub := range stubs {
			ids = append(ids, stub.ID)
		}
		if _, _, err := b.Deployments().SetAllocHealth(deployment, ids, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	state := func(id, status, text string) *api.Deployment {
		t.Helper()
		d, _, err := b.Deployments().Info(id, nil)
		if err != nil || d.Status != status || d.StatusDescription != text {
			t.Errorf("%s %q, want %s %q, %v", d.Status, d.StatusDescription, status, text, err)
		}
		return d
	}
	healthy(eval.DeploymentID)
	state(eval.DeploymentID, "successful", model.DeploymentSuccessful)

	if _, _, err := b.Jobs().Register(newJob("web", "service", "slow", withCount(2), canary, withEnv("2")), nil); err != nil {
		t.Fatal(err)
	}
	latest, _, err := b.Jobs().LatestDeployment("web", nil)
	if err != nil {
		t.Fatal(err)
	}
	id := latest.ID
	if d := state(id, "running", model.DeploymentNeedsPromotion); len(d.TaskGroups["slow"].PlacedCanaries) != 1 {
		t.Errorf("%+v", d.TaskGroups["slow"])
	}
	_, _, err = b.Deployments().PromoteAll(id, nil)
	wantClientError(t, err, 500, `Task group "slow" has 0/1 healthy allocations`)
	if _, _, err := b.Deployments().Pause(id, true, nil); err != nil {
		t.Fatal(err)
	}
	state(id, "paused", model.DeploymentPaused)
	if answer, _, err := b.Deployments().Pause(id, false, nil); err != nil || answer.EvalID == "" {
		t.Error(answer, err)
	}
	state(id, "running", model.DeploymentRunning)
	if _, _, err := b.Deployments().Unblock(id, nil); err != nil {
		t.Error(err)
	}
	healthy(id)
	if answer, meta, err := b.Deployments().PromoteGroups(id, []string{"slow"}, nil); err != nil || answer.EvalID == "" || meta.LastIndex != answer.DeploymentModifyIndex {
		t.Error(answer, err)
	}
	if d := state(id, "running", model.DeploymentRunning); !d.TaskGroups["slow"].Promoted {
		t.Errorf("%+v", d.TaskGroups["slow"])
	}
	if _, _, err := b.Deployments().Fail(id, nil); err != nil {
		t.Fatal(err)
	}
	state(id, "failed", model.DeploymentMarkedAsFailed)
}

func TestJobStatuses(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("param", "batch", "app", func(j *api.Job) { j.ParameterizedJob = &api.ParameterizedJobConfig{} }))
	if _, _, err := b.Jobs().Dispatch("param", nil, nil, "", nil); err != nil {
		t.Fatal(err)
	}
	b.registerAndWait(t, newJob("web", "service", "app", withCount(2)))
	ask := func(method, target, body string) (names []string, all map[string]jobStatus) {
		t.Helper()
		var statuses []jobStatus
		r := b.send(method, target, strings.NewReader(body))
		if err := json.NewDecoder(r.Body).Decode(&statuses); err != nil {
			t.Fatal(r.StatusCode, err)
		}
		all = make(map[string]jobStatus)
		for _, s := range statuses {
			name, _, _ := strings.Cut(s.ID, "/")
			if name != s.ID {
				name += "/…"
			}
			names = append(names, name)
			all[s.ID] = s
		}
		return names, all
	}
	names, all := ask("GET", "/v1/jobs/statuses?reverse=true", "")
	if fmt.Sprint(names) != "[web param]" {
		t.Errorf("jobs %v", names)
	}
	web := all["web"]
	if web.GroupCountSum != 2 || len(web.Allocs) != 2 || web.Allocs[0].ClientStatus != "running" || !*web.Allocs[0].DeploymentStatus.Healthy ||
		web.LatestDeployment.Status != "successful" || web.LatestDeployment.IsActive || web.ChildStatuses != nil {
		t.Errorf("%+v", web)
	}
	if param := all["param"]; len(param.ChildStatuses) != 1 || param.LatestDeployment != nil {
		t.Errorf("%+v", param)
	}
	if names, _ = ask("POST", "/v1/jobs/statuses", `{"IncludeChildren":true}`); len(names) != 3 {
		t.Errorf("with children %v", names)
	}
	if names, _ = ask("POST", "/v1/jobs/statuses", `{"Jobs":[{"ID":"web","Namespace":"default"},{"ID":"nope","Namespace":"default"}]}`); fmt.Sprint(names) != "[web]" {
		t.Errorf("asked for one, got %v", names)
	}
	if names, _ = ask("GET", "/v1/jobs/statuses?per_page=1", ""); len(names) != 1 {
		t.Errorf("a page of %v", names)
	}
}

func TestActionsAndServicesOfAJob(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("web", "service", "app", func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].Actions = []*api.Action{{Name: "flush", Command: "/bin/flush", Args: []string{"-a"}}}
	}))
	if got := bodyText(b.send("GET", "/v1/job/web/actions", nil)); got != `[{"Args":["-a"],"Command":"/bin/flush","Name":"flush","TaskGroupName":"app","TaskName":"t"}]` {
		t.Error(got)
	}
	if services, _, err := b.Jobs().Services("web", nil); err != nil || len(services) != 0 {
		t.Error(services, err)
	}
	if _, err := b.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutService(&api.ServiceRegistration{ID: "one", ServiceName: "web", Namespace: "default", JobID: "web", Port: 80})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if services, _, err := b.Jobs().Services("web", nil); err != nil || len(services) != 1 || services[0].Port != 80 {
		t.Error(services, err)
	}
}

// The API rejects or accepts any input. The scheduler still processes accepted jobs during the next
// input, so that the fuzzer cannot minimize an input: run these targets with -fuzzminimizetime=1x.
func fuzzJobs(f *testing.F, method, target string) {
	b := newClientFixture(f, nil)
	f.Add(jobBodyText(newJob("web", "service", "app", withCount(2), withEnv("1"))))
	f.Add(jobBodyText(newJob("web", "batch", "app", makeParameterized)))
	f.Add(`{"Job":{"ID":"web","TaskGroups":[null,{"Tasks":[null,{"Config":{"a":[{"b":null}]},"Services":[null],"Resources":{"Networks":[null]}}]}]}}`)
	f.Add(`{"Job":{"ID":"web","Constraints":[null],"Periodic":{"Specs":["* * * * *"],"TimeZone":"x"},"Update":{}},"Diff":true}`)
	f.Add(`{"JobHCL":"job \"a\" {}","Variables":"x = 1","Canonicalize":true}`)
	f.Add(`{"Job":null}`)
	f.Fuzz(func(t *testing.T, body string) {
		r := b.send(method, target, strings.NewReader(body))
		answer := bodyText(r)
		switch r.StatusCode {
		case 200:
			if !json.Valid([]byte(answer)) {
				t.Errorf("the answer is not JSON: %q", answer)
			}
		case 400, 413, 500:
			if answer == "" {
				t.Errorf("%d without a word", r.StatusCode)
			}
		default:
			t.Errorf("%d %s", r.StatusCode, answer)
		}
	})
}

func FuzzRegister(f *testing.F) { fuzzJobs(f, "PUT", "/v1/jobs") }
func FuzzPlanJob(f *testing.F)  { fuzzJobs(f, "PUT", "/v1/job/web/plan") }
func FuzzParseJob(f *testing.F) { fuzzJobs(f, "PUT", "/v1/jobs/parse") }

// With RejectJobRegistration nothing registers, dispatches, scales or reverts a job. What only reads or stops a job works.
func TestRegistrationIsRejected(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("web", "service", "app"))
	config, _, err := b.Operator().SchedulerGetConfiguration(nil)
	if err != nil {
		t.Fatal(err)
	}
	config.SchedulerConfig.RejectJobRegistration = true
	if _, _, err := b.Operator().SchedulerSetConfiguration(config.SchedulerConfig, nil); err != nil {
		t.Fatal(err)
	}
	_, _, registerErr := b.Jobs().Register(newJob("other", "service", "app"), nil)
	_, _, dispatchErr := b.Jobs().Dispatch("web", nil, nil, "", nil)
	_, _, scaleErr := b.Jobs().Scale("web", "app", new(2), "", false, nil, nil)
	_, _, revertErr := b.Jobs().Revert("web", 0, nil, nil, "", "")
	for name, err := range map[string]error{"register": registerErr, "dispatch": dispatchErr, "scale": scaleErr, "revert": revertErr} {
		if err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), "job registration, dispatch, and scale are disabled by the scheduler configuration") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := b.Jobs().Plan(newJob("other", "service", "app"), false, nil); err != nil {
		t.Errorf("plan: %v", err)
	}
	if _, _, err := b.Jobs().Deregister("web", false, nil); err != nil {
		t.Errorf("deregister: %v", err)
	}
}

// While evaluations are paused, they are deleted by id and by filter.
func TestEvaluationsAreDeletedWhilePaused(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	if r := b.send("PUT", "/v1/operator/scheduler/configuration", strings.NewReader(`{"PauseEvalBroker": true}`)); r.StatusCode != 200 {
		t.Fatal(bodyText(r))
	}
	first, _, err := b.Jobs().Register(newJob("web", "service", "app"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Jobs().Register(newJob("api", "service", "app"), nil); err != nil {
		t.Fatal(err)
	}
	b.runRequests(t, []requestCase{
		{"neither ids nor a filter", "DELETE", "/v1/evaluations", `{}`, 400, "evals must be deleted by either ID or filter"},
		{"both", "DELETE", "/v1/evaluations", `{"EvalIDs": ["x"], "Filter": "ID == x"}`, 400, "evals must be deleted by either ID or filter"},
		{"an unknown id", "DELETE", "/v1/evaluations", `{"EvalIDs": ["x"]}`, 404, "eval not found"},
		{"a filter of another namespace", "DELETE", "/v1/evaluations?namespace=other", `{"Filter": "JobID == web"}`, 200, `{"Count":0,"Index":4,"KnownLeader":false,"LastContact":0,"NextToken":""}`},
	})
	if _, err := b.Evaluations().Delete([]string{first.EvalID}, nil); err != nil {
		t.Error(err)
	}
	if out, _, err := b.Evaluations().DeleteOpts(&api.EvalDeleteRequest{Filter: `JobID == "api"`}, nil); err != nil || out.Count != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	if left, _, err := b.Evaluations().List(nil); len(left) > 0 || err != nil {
		t.Errorf("%d evaluations are left, %v", len(left), err)
	}
}

// What a namespace does not permit is refused, in Nomad's words, also by a revert to a version from before.
func TestNamespaceIsAFence(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	set := func(c *api.NamespaceCapabilities) {
		t.Helper()
		if _, err := b.Namespaces().Register(&api.Namespace{Name: "fence", Capabilities: c}, nil); err != nil {
			t.Fatal(err)
		}
	}
	inFence := func(version string) *api.Job {
		return newJob("web", "service", "app", withEnv(version), func(j *api.Job) { j.Namespace = new("fence") })
	}
	w := &api.WriteOptions{Namespace: "fence"}
	set(nil)
	for _, version := range []string{"1", "2"} {
		if _, _, err := b.Jobs().Register(inFence(version), w); err != nil {
			t.Fatal(err)
		}
	}
	set(&api.NamespaceCapabilities{EnabledTaskDrivers: []string{"exec"}})
	const want = "1 error occurred:\n\t* used task driver \"mock\" is not allowed in namespace \"fence\"\n\n"
	_, _, registerErr := b.Jobs().Register(inFence("3"), w)
	_, _, planErr := b.Jobs().Plan(inFence("3"), false, w)
	_, _, revertErr := b.Jobs().Revert("web", 0, nil, w, "", "")
	for name, err := range map[string]error{"register": registerErr, "plan": planErr, "revert": revertErr} {
		if err == nil || !strings.Contains(err.Error(), "500") || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, _, err := b.Jobs().Validate(inFence("3"), w); err != nil || r.Error != want {
		t.Errorf("validate: %+v, %v", r, err)
	}
	set(&api.NamespaceCapabilities{EnabledTaskDrivers: []string{"mock"}})
	if _, _, err := b.Jobs().Revert("web", 0, nil, w, "", ""); err != nil {
		t.Errorf("revert: %v", err)
	}
}
