package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
)

// A job id may have slashes. (checklist 5)
func TestJobIDWithSlashes(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("a/b", "service", "app"))
	if job, _, err := b.Jobs().Info("a/b", nil); err != nil || *job.ID != "a/b" {
		t.Error(err)
	}
	if _, _, err := b.Jobs().Deregister("a/b", false, nil); err != nil {
		t.Error(err)
	}
	if job, _, err := b.Jobs().Info("a/b", nil); err != nil || !*job.Stop || *job.Status != "dead" {
		t.Error(job, err)
	}
}

// The registration of a batch job is complete at once. The evaluation of a job that cannot be placed has
// the reason. (checklist 6)
func TestRegisterReturnsEvaluation(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, map[string]schedtest.SimulatedAllocBehaviour{"quick": {RunDuration: time.Millisecond}})
	_, eval, _ := b.registerAndWait(t, newJob("quick", "batch", "quick"))
	if eval.DeploymentID != "" || eval.BlockedEval != "" {
		t.Errorf("%+v", eval)
	}
	waitUntil(t, "the end of a batch job", func(q *api.QueryOptions) (*api.Job, *api.QueryMeta, error) { return b.Jobs().Info("quick", q) },
		func(j *api.Job) bool { return *j.Status == "dead" })

	_, eval, _ = b.registerAndWait(t, newJob("large", "batch", "app", func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].Resources = &api.Resources{MemoryMB: new(1 << 20)}
	}))
	if m := eval.FailedTGAllocs["app"]; m == nil || m.DimensionExhausted["memory"] != 1 {
		t.Errorf("metric %+v", m)
	}
	blocked, _, err := b.Evaluations().Info(eval.BlockedEval, nil)
	if err != nil || blocked.Status != "blocked" || len(blocked.RelatedEvals) != 1 || blocked.RelatedEvals[0].ID != eval.ID {
		t.Errorf("%+v, %v", blocked, err)
	}
	stubs, _, err := b.Jobs().List(nil)
	if err != nil || stubs[0].Status != "pending" || stubs[0].JobSummary.Summary["app"].Queued != 1 {
		t.Errorf("%+v, %v", stubs[0], err)
	}
}

// `job run` of a service job returns when its deployment is successful.
// (checklist 7)
func TestDeploymentOfRegisteredJobSucceeds(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, map[string]schedtest.SimulatedAllocBehaviour{"bad": {ReportsUnhealthy: true}})
	if _, _, d := b.registerAndWait(t, newJob("good", "service", "app", withCount(2))); d.Status != "successful" || d.TaskGroups["app"].HealthyAllocs != 2 {
		t.Errorf("%+v", d)
	}
	versions, _, _, err := b.Jobs().Versions("good", false, nil)
	if err != nil || !*versions[0].Stable {
		t.Errorf("not stable, %v", err)
	}
	_, _, d := b.registerAndWait(t, newJob("bad", "service", "bad", func(j *api.Job) {
		j.Update.ProgressDeadline, j.Update.HealthyDeadline = new(time.Duration(0)), new(time.Minute)
		j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	}))
	if d.Status != "failed" || d.StatusDescription != "Failed due to unhealthy allocations" {
		t.Errorf("%s: %s", d.Status, d.StatusDescription)
	}
}

// countPlacements returns the number from which clients derive the exit code of a plan.
func countPlacements(p *api.JobPlanResponse) (n uint64) {
	for _, u := range p.Annotations.DesiredTGUpdates {
		n += u.Stop + u.Place + u.Migrate + u.DestructiveUpdate + u.Canary
	}
	return n
}

// A plan reports whether a registration would change anything.
// (checklist 8)
func TestPlanReportsChanges(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	plan := func(job *api.Job) *api.JobPlanResponse {
		t.Helper()
		p, _, err := b.Jobs().Plan(job, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := plan(newJob("web", "service", "app", withCount(3)))
	if p.Diff.Type != model.DiffAdded || p.JobModifyIndex != 0 || countPlacements(p) != 3 || p.Diff.TaskGroups[0].Updates["create"] != 3 {
		t.Errorf("new: %+v", p.Diff)
	}
	written, _, _ := b.registerAndWait(t, newJob("web", "service", "app", withCount(3)))
	p = plan(newJob("web", "service", "app", withCount(3)))
	if p.Diff.Type != model.DiffNone || p.JobModifyIndex != written.JobModifyIndex || countPlacements(p) != 0 || p.FailedTGAllocs != nil {
		t.Errorf("unchanged: %+v", p)
	}
	p = plan(newJob("web", "service", "app", withCount(3), withEnv("2")))
	group := p.Diff.TaskGroups[0]
	if p.Diff.Type != model.DiffEdited || countPlacements(p) != 1 || group.Updates["create/destroy update"] != 1 || group.Updates["ignore"] != 2 ||
		group.Tasks[0].Annotations[0] != "forces create/destroy update" {
		t.Errorf("changed: %+v", group)
	}
	// A change that needs no restart of the task is not counted as a placement.
	p = plan(newJob("web", "service", "app", withCount(3), func(j *api.Job) { j.TaskGroups[0].Tasks[0].KillTimeout = new(9 * time.Second) }))
	if group := p.Diff.TaskGroups[0]; countPlacements(p) != 0 || group.Updates["in-place update"] != 3 || group.Tasks[0].Annotations[0] != "forces in-place update" {
		t.Errorf("in place: %+v", group)
	}
	// The plan annotates each group with the numbers of changes that the scheduler has counted.
	for _, c := range []struct {
		name string
		job  *api.Job
		want string
	}{
		{"fewer", newJob("web", "service", "app", withCount(1)), "map[destroy:2 in-place update:1]"},
		{"all at once", newJob("web", "service", "app", withCount(3), withEnv("2"), func(j *api.Job) { j.Update.MaxParallel = new(0) }), "map[create/destroy update:3]"},
		{"a canary", newJob("web", "service", "app", withCount(3), withEnv("2"), func(j *api.Job) { j.Update.Canary = new(1) }), "map[canary:1 ignore:3]"},
		{"metadata of the job", newJob("web", "service", "app", withCount(3), func(j *api.Job) { j.Meta = map[string]string{"a": "1"} }), "map[create/destroy update:1 ignore:2]"},
	} {
		group := plan(c.job).Diff.TaskGroups[0]
		if got := fmt.Sprint(group.Updates); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if c.name == "metadata of the job" && group.Tasks[0].Annotations != nil {
			t.Errorf("a task that does not differ is annotated: %v", group.Tasks[0].Annotations)
		}
	}
	// A plan also counts allocations that cannot be placed.
	p = plan(newJob("web", "service", "app", withCount(4), func(j *api.Job) { j.Datacenters = []string{"moon"} }))
	if countPlacements(p) == 0 || p.FailedTGAllocs["app"] == nil {
		t.Errorf("unplaceable: %+v", p)
	}
	// The plan warns about a change for which a registration would be rejected.
	p = plan(newJob("web", "batch", "app", withCount(3)))
	if !strings.Contains(p.Warnings, `cannot update job from type "service" to "batch"`) {
		t.Errorf("warnings %q", p.Warnings)
	}
	p = plan(newJob("cron", "batch", "app", func(j *api.Job) { j.Periodic = &api.PeriodicConfig{Specs: []string{"0 0 1 1 *"}} }))
	if p.NextPeriodicLaunch.Before(time.Now()) || p.NextPeriodicLaunch.UTC().Format("01-02 15:04") != "01-01 00:00" {
		t.Errorf("next launch %v", p.NextPeriodicLaunch)
	}
}

// A plan changes nothing.
// (checklist 9)
func TestPlanChangesNothing(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("web", "service", "app"))
	before := b.store.Snapshot().Index()
	for range 2 {
		p, _, err := b.Jobs().Plan(newJob("web", "service", "app", withEnv("x")), true, nil)
		if err != nil || p.Diff.Type != model.DiffEdited {
			t.Error(p, err)
		}
	}
	if after := b.store.Snapshot().Index(); after != before {
		t.Errorf("the index was %d and is %d", before, after)
	}
}

// A registration can require that the job has a given modify index. (checklist 10)
func TestRegisterChecksModifyIndex(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	job := func() *api.Job { return newJob("web", "service", "app") }
	refused := func(index uint64, want string) {
		t.Helper()
		if _, _, err := b.Jobs().EnforceRegister(job(), index, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	refused(5, "Enforcing job modify index 5: job does not exist")
	written, _, err := b.Jobs().EnforceRegister(job(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	refused(0, "Enforcing job modify index 0: job already exists")
	refused(999, fmt.Sprintf("Enforcing job modify index 999: job exists with conflicting job modify index: %d", written.JobModifyIndex))
	if _, _, err := b.Jobs().EnforceRegister(job(), written.JobModifyIndex, nil); err != nil {
		t.Error(err)
	}
}

// A registration of an unchanged job creates an evaluation and no version.
// (checklist 11)
func TestUnchangedJobGetsNoVersion(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	first, _, _ := b.registerAndWait(t, newJob("web", "service", "app"))
	second, eval, _ := b.registerAndWait(t, newJob("web", "service", "app"))
	job, _, err := b.Jobs().Info("web", nil)
	if err != nil || *job.Version != 0 || first.EvalID == second.EvalID || *job.JobModifyIndex != first.JobModifyIndex {
		t.Errorf("version %d, %+v, %v", *job.Version, second, err)
	}
	if second.JobModifyIndex != *job.ModifyIndex {
		t.Errorf("the answer says %d, the job %d", second.JobModifyIndex, *job.ModifyIndex)
	}
	if eval.DeploymentID == "" {
		t.Error("the evaluation does not name the latest deployment")
	}
}

// The source of a job is returned byte for byte, and a stopped job can be started.
// (checklist 12)
func TestJobSubmissionIsReturnedUnchanged(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	submission := &api.JobSubmission{
		Source: "# ünï <>&\u2028\n\tjob \"web\" {}\r\n", Format: "hcl2", Variables: "x = \"y\"\n", VariableFlags: map[string]string{"a": "1 + %2F"},
	}
	submit := func(s *api.JobSubmission) {
		t.Helper()
		if _, _, err := b.Jobs().RegisterOpts(newJob("web", "service", "app"), &api.RegisterOptions{Submission: s}, nil); err != nil {
			t.Fatal(err)
		}
	}
	same := func(version int, want *api.JobSubmission) {
		t.Helper()
		got, _, err := b.Jobs().Submission("web", version, nil)
		if err != nil || got.Source != want.Source || got.Variables != want.Variables || got.Format != want.Format || got.VariableFlags["a"] != want.VariableFlags["a"] {
			t.Errorf("%+v, %v", got, err)
		}
	}
	submit(submission)
	same(0, submission)
	// The job is registered again, with a different source.
	other := *submission
	other.Source = "# another comment\n" + submission.Source
	submit(&other)
	same(0, &other)
	if _, _, err := b.Jobs().Submission("web", 7, nil); err == nil || !strings.Contains(err.Error(), "404 (job source not found)") {
		t.Error(err)
	}

	if _, _, err := b.Jobs().Deregister("web", false, nil); err != nil {
		t.Fatal(err)
	}
	same(1, &other) // a stop makes a new version of the job, with the same source
	stopped, _, err := b.Jobs().Info("web", nil)
	if err != nil {
		t.Fatal(err)
	}
	stopped.Stop = new(false)
	if _, _, d := b.registerAndWait(t, stopped); d.Status != "successful" {
		t.Errorf("%+v", d)
	}

	// A source that is too large is not stored, and the reply has a warning.
	huge := &api.JobSubmission{Source: strings.Repeat("x", model.JobLimits{}.WithDefaults().MaxSourceBytes+1)}
	written, _, err := b.Jobs().RegisterOpts(newJob("huge", "service", "app"), &api.RegisterOptions{Submission: huge}, nil)
	if err != nil || !strings.Contains(written.Warnings, "job source size of 1.0 MB exceeds maximum of 1.0 MB and will be discarded") {
		t.Errorf("%v, %v", written, err)
	}
}

func TestMaximumSizeOfJobSource(t *testing.T) {
	submission := &api.JobSubmission{Source: "12345", Variables: "x", VariableFlags: map[string]string{"a": "b"}}
	for maxBytes, want := range map[int]string{8: "stored", 7: "job source size of 0.0 MB exceeds maximum of 0.0 MB and will be discarded", -1: ""} {
		stored, warnings := submissionOrSizeWarning(submission, maxBytes)
		if got := strings.Join(warnings, "; "); (stored != nil) != (want == "stored") || stored == nil && got != want {
			t.Errorf("%d bytes: %v, %q, want %s", maxBytes, stored, got, want)
		}
	}
}

// The number of diffs is one less than the number of versions of the job. (checklist 13)
func TestJobVersionDiffs(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	for _, v := range []string{"1", "2", "3"} {
		b.registerAndWait(t, newJob("web", "service", "app", withEnv(v)))
	}
	changes := func(diffs []*api.JobDiff) (all []string) {
		for _, d := range diffs {
			text := d.Type
			for _, f := range d.TaskGroups[0].Tasks[0].Fields {
				text += fmt.Sprintf(" %s %s>%s", f.Name, f.Old, f.New)
			}
			all = append(all, text)
		}
		return all
	}
	versions, diffs, _, err := b.Jobs().Versions("web", true, nil)
	if err != nil || len(versions) != 3 || *versions[0].Version != 2 {
		t.Fatal(versions, err)
	}
	if got := changes(diffs); !slices.Equal(got, []string{"Edited Env[V] 2>3", "Edited Env[V] 1>2"}) {
		t.Errorf("diffs %q", got)
	}
	if _, diffs, _, _ := b.Jobs().Versions("web", false, nil); diffs != nil {
		t.Errorf("diffs %q", changes(diffs))
	}
	if _, err := b.Jobs().TagVersion("web", 0, "first", "the good one", nil); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*api.VersionsOptions{{Diffs: true, DiffTag: "first"}, {Diffs: true, DiffVersion: new(uint64(0))}} {
		_, diffs, _, err := b.Jobs().VersionsOpts("web", o, nil)
		if got := changes(diffs); err != nil || !slices.Equal(got, []string{"Edited Env[V] 1>3", "Edited Env[V] 1>2"}) {
			t.Errorf("diffs %q, %v", got, err)
		}
	}
	if _, _, _, err := b.Jobs().VersionsOpts("web", &api.VersionsOptions{Diffs: true, DiffTag: "nope"}, nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Error(err)
	}
}

func TestVersionTags(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	for v := range 9 {
		b.registerAndWait(t, newJob("web", "service", "app", withEnv(fmt.Sprint(v))))
		if v == 0 {
			if _, err := b.Jobs().TagVersionOpts("web", "first", &api.TagVersionRequest{Latest: true, Description: "x"}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	versions, _, _, err := b.Jobs().Versions("web", false, nil)
	oldest := versions[len(versions)-1]
	if err != nil || len(versions) != 7 || *oldest.Version != 0 || oldest.VersionTag.Name != "first" || oldest.VersionTag.Description != "x" || oldest.VersionTag.TaggedTime == 0 {
		t.Errorf("%d versions, the oldest %d %+v, %v", len(versions), *oldest.Version, oldest.VersionTag, err)
	}
	if _, err := b.Jobs().TagVersion("web", 8, "first", "", nil); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Error(err)
	}
	if _, err := b.Jobs().TagVersion("web", 99, "x", "", nil); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Error(err)
	}
	if _, err := b.Jobs().UntagVersion("web", "first", nil); err != nil {
		t.Fatal(err)
	}
	if versions, _, _, _ = b.Jobs().Versions("web", false, nil); len(versions) != 6 {
		t.Errorf("%d versions without the tag", len(versions))
	}
	if _, err := b.Jobs().UntagVersion("web", "first", nil); err == nil {
		t.Error("a tag that is not there was removed")
	}
}

// The reply for the deployment of a job without deployments is null. (checklist 14)
func TestLatestDeploymentIsNullWithoutDeployments(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("work", "batch", "app"))
	d, meta, err := b.Jobs().LatestDeployment("work", nil)
	if err != nil || d != nil || meta.LastIndex == 0 {
		t.Errorf("%+v, %+v, %v", d, meta, err)
	}
	if all, _, err := b.Jobs().Deployments("work", false, nil); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
}

func makeParameterized(j *api.Job) {
	j.ParameterizedJob = &api.ParameterizedJobConfig{MetaRequired: []string{"who"}, MetaOptional: []string{"why"}}
}

// A dispatch without the required metadata is rejected. A dispatch with the metadata creates a child job.
// (checklist 15)
func TestDispatchRequiresMeta(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	if written, _, _ := b.registerAndWait(t, newJob("param", "batch", "app", makeParameterized)); written.EvalID != "" {
		t.Error("there is an evaluation of the parent")
	}
	if _, _, err := b.Jobs().Dispatch("param", nil, nil, "", nil); err == nil ||
		err.Error() != "Unexpected response code: 500 (Dispatch did not provide required meta keys: [who])" {
		t.Error(err)
	}
	child, _, err := b.Jobs().Dispatch("param", map[string]string{"who": "me"}, []byte("load"), "", &api.WriteOptions{IdempotencyToken: "once"})
	if err != nil || child.EvalID == "" {
		t.Fatal(err)
	}
	again, _, err := b.Jobs().Dispatch("param", map[string]string{"who": "me"}, []byte("load"), "", &api.WriteOptions{IdempotencyToken: "once"})
	if err != nil || again.DispatchedJobID != child.DispatchedJobID {
		t.Errorf("%+v, %v", again, err)
	}
	var inBody api.JobDispatchResponse
	if _, err := b.Raw().Write("/v1/job/param/dispatch", map[string]any{"Meta": map[string]string{"who": "me"}, "IdempotencyToken": "once"}, &inBody, nil); err != nil || inBody.DispatchedJobID != child.DispatchedJobID {
		t.Errorf("token in the body: %+v, %v", inBody, err)
	}
	job, _, err := b.Jobs().Info(child.DispatchedJobID, nil)
	if err != nil || *job.ParentID != "param" || !job.Dispatched || job.Meta["who"] != "me" || string(job.Payload) != "load" || job.ParameterizedJob == nil {
		t.Errorf("%+v, %v", job, err)
	}
	children, _, err := b.Jobs().PrefixList("param/dispatch-")
	if err != nil || len(children) != 1 {
		t.Error(children, err)
	}
	summary, _, err := b.Jobs().Summary("param", nil)
	if err != nil || summary.Children.Sum() != 1 || len(summary.Summary) != 0 {
		t.Errorf("%+v, %v", summary, err)
	}
	// Filters that Nomad's command line sends.
	for filter, want := range map[string]int{`ParentID == "" and ParameterizedJob is not nil`: 1, "Periodic is not nil": 0} {
		if found, _, err := b.Jobs().List(&api.QueryOptions{Prefix: "par", Filter: filter, PerPage: 20}); err != nil || len(found) != want {
			t.Errorf("%s: %d, %v", filter, len(found), err)
		}
	}

	// The body is the payload.
	b.registerAndWait(t, newJob("plain", "batch", "app", func(j *api.Job) { j.ParameterizedJob = &api.ParameterizedJobConfig{} }))
	answer := b.send("PUT", "/v1/job/plain/dispatch/payload", strings.NewReader("\x00raw"))
	var dispatchResponse api.JobDispatchResponse
	if err := json.NewDecoder(answer.Body).Decode(&dispatchResponse); err != nil {
		t.Fatal(err)
	}
	if job, _, err := b.Jobs().Info(dispatchResponse.DispatchedJobID, nil); err != nil || string(job.Payload) != "\x00raw" {
		t.Errorf("%+v, %v", job, err)
	}
}

// A periodic job is launched on request.
// (checklist 16)
func TestForcePeriodicLaunch(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("cron", "batch", "app", func(j *api.Job) { j.Periodic = &api.PeriodicConfig{Specs: []string{"0 0 1 1 *"}} }))
	evalID, _, err := b.Jobs().PeriodicForce("cron", nil)
	if err != nil {
		t.Fatal(err)
	}
	eval, _ := b.waitEvaluation(t, evalID)
	if !strings.HasPrefix(eval.JobID, "cron/periodic-") {
		t.Errorf("job %q", eval.JobID)
	}
	if job, _, err := b.Jobs().Info(eval.JobID, nil); err != nil || *job.ParentID != "cron" || job.Periodic != nil {
		t.Error(job, err)
	}
	if _, _, err := b.Jobs().PeriodicForce("nope", nil); err == nil || !strings.Contains(err.Error(), "500 (job not found)") {
		t.Error(err)
	}
}

// A stopped allocation has the id of the allocation that replaces it. (checklist 17)
func TestStoppedAllocNamesItsReplacement(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	b.registerAndWait(t, newJob("web", "service", "app"))
	b.registerAndWait(t, newJob("sys", "system", "app"))
	for _, id := range []string{"web", "sys"} {
		stubs, _, err := b.Jobs().Allocations(id, true, nil)
		if err != nil || len(stubs) != 1 {
			t.Fatal(stubs, err)
		}
		alloc, _, err := b.Allocations().Info(stubs[0].ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Allocations().Stop(alloc, nil); err != nil {
			t.Fatal(err)
		}
		if id == "sys" {
			if _, _, err := b.Jobs().EvaluateWithOpts(id, api.EvalOptions{ForceReschedule: true}, nil); err != nil {
				t.Fatal(err)
			}
		}
		info := func(id string) func(*api.QueryOptions) (*api.Allocation, *api.QueryMeta, error) {
			return func(q *api.QueryOptions) (*api.Allocation, *api.QueryMeta, error) { return b.Allocations().Info(id, q) }
		}
		old := waitUntil(t, "a replacement", info(alloc.ID), func(a *api.Allocation) bool { return a.NextAllocation != "" })
		waitUntil(t, "a replacement that runs", info(old.NextAllocation), func(a *api.Allocation) bool { return a.ClientStatus == "running" })
	}
}

// Evaluations and deployments are found by the prefix of their ids.
// (checklist 30)
func TestPrefixFindsEvaluationsAndDeployments(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	_, eval, deployment := b.registerAndWait(t, newJob("web", "service", "app"))
	for _, n := range []int{1, 7, 8, 9, 13, 36} {
		evals, _, err := b.Evaluations().PrefixList(eval.ID[:n])
		if err != nil || !slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.ID == eval.ID }) {
			t.Errorf("evaluation by %q: %d, %v", eval.ID[:n], len(evals), err)
		}
		deployments, _, err := b.Deployments().PrefixList(strings.ReplaceAll(deployment.ID[:n], "-", ""))
		if err != nil || len(deployments) != 1 || deployments[0].ID != deployment.ID {
			t.Errorf("deployment by %q: %d, %v", deployment.ID[:n], len(deployments), err)
		}
	}
	allocs, _, err := b.Evaluations().Allocations(eval.ID, nil)
	if err != nil || len(allocs) != 1 {
		t.Error(allocs, err)
	}
	if allocs, _, err = b.Deployments().Allocations(deployment.ID, nil); err != nil || len(allocs) != 1 {
		t.Error(allocs, err)
	}
	if n, _, err := b.Evaluations().Count(&api.QueryOptions{Filter: `JobID == "web" and TriggeredBy == "job-register"`}); err != nil || n.Count != 1 {
		t.Error(n, err)
	}
	if r := b.send("DELETE", "/v1/evaluations", strings.NewReader(`{"EvalIDs":[]}`)); r.StatusCode != 500 || bodyText(r) != "eval broker is enabled; eval broker must be paused to delete evals" {
		t.Error(r.StatusCode)
	}
}

// The Terraform provider sends these requests: create, empty plan, update, deletion by another client,
// destroy. (checklist 40)
func TestTerraformJobRequests(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	source := "job \"web\" {} # as it is in the configuration\n"
	planned := func(job *api.Job) uint64 {
		t.Helper()
		p, _, err := b.Jobs().Plan(job, false, nil)
		if err != nil || p.Diff != nil {
			t.Fatal(p, err)
		}
		return p.JobModifyIndex
	}
	apply := func(job *api.Job, index uint64) {
		t.Helper()
		if got := planned(job); got != index {
			t.Errorf("plan says %d, want %d", got, index)
		}
		written, _, err := b.Jobs().RegisterOpts(job, &api.RegisterOptions{Submission: &api.JobSubmission{Source: source, Format: "hcl2"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, d := b.waitEvaluation(t, written.EvalID); d.Status != "successful" {
			t.Errorf("%+v", d)
		}
	}
	refresh := func() *api.Job {
		t.Helper()
		job, _, err := b.Jobs().Info("web", nil)
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := b.Jobs().Submission("web", int(*job.Version), nil)
		if err != nil || got.Source != source {
			t.Errorf("source %+v, %v", got, err)
		}
		return job
	}
	apply(newJob("web", "service", "app"), 0)
	if job := refresh(); planned(newJob("web", "service", "app")) != *job.JobModifyIndex || job.Datacenters[0] != "*" || *job.Namespace != "default" {
		t.Error("a plan of what is there says that something has changed")
	}
	apply(newJob("web", "service", "app", withEnv("2")), *refresh().JobModifyIndex)
	if *refresh().Version != 1 {
		t.Error("no new version")
	}
	if _, _, err := b.Jobs().Deregister("web", true, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Jobs().Info("web", nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Error(err)
	}
	apply(newJob("web", "service", "app"), 0)
	if _, _, err := b.Jobs().Deregister("web", false, nil); err != nil {
		t.Fatal(err)
	}
	policies, _, err := b.Scaling().ListPolicies(&api.QueryOptions{Params: map[string]string{"job": "", "type": ""}})
	if err != nil || len(policies) != 0 {
		t.Error(policies, err)
	}
}

// The body of a registration and its query parameter can name the namespace of the job. The query parameter
// has precedence.
func TestNamespaceOfARegistration(t *testing.T) {
	t.Parallel()
	b := newClientFixture(t, nil)
	for _, name := range []string{"one", "two", "three"} {
		if _, err := b.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ query, body, want string }{
		{"", `"Namespace":""`, "three"}, {"", `"Namespace":"two"`, "two"}, {"?namespace=one", `"Namespace":"two"`, "one"},
	} {
		job := newJob("web", "batch", "app", func(j *api.Job) { j.Namespace = new("three") })
		text, err := json.Marshal(job)
		if err != nil {
			t.Fatal(err)
		}
		r := b.send("PUT", "/v1/jobs"+c.query, strings.NewReader(fmt.Sprintf(`{%s,"Region":"global","Job":%s}`, c.body, text)))
		if r.StatusCode != http.StatusOK {
			t.Fatal(r.StatusCode)
		}
		if _, _, err := b.Jobs().Info("web", &api.QueryOptions{Namespace: c.want}); err != nil {
			t.Errorf("not in %s: %v", c.want, err)
		}
		if _, _, err := b.Jobs().Deregister("web", true, &api.WriteOptions{Namespace: c.want}); err != nil {
			t.Fatal(err)
		}
	}
	for target, body := range map[string]string{
		"/v1/jobs":                       `{"Job":{"ID":"x","Region":"mars"}}`,
		"/v1/validate/job?region=global": `{"Region":"mars","Job":{"ID":"x"}}`, // the region in the body comes first
	} {
		r := b.send("PUT", target, strings.NewReader(body))
		if got := bodyText(r); r.StatusCode != 500 || got != "No path to region" {
			t.Errorf("%s: %d %q", target, r.StatusCode, got)
		}
	}
}
