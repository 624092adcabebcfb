package scheduler_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func endlessAllocTimes(*api.Allocation) schedtest.SimulatedAllocBehaviour {
	return schedtest.SimulatedAllocBehaviour{}
}

func batchJob(edit func(*api.Job, *api.TaskGroup, *api.Task)) *api.Job {
	return serviceJob(func(j *api.Job, g *api.TaskGroup, t *api.Task) {
		j.Type, g.Count = new(api.JobTypeBatch), new(1)
		if edit != nil {
			edit(j, g, t)
		}
	})
}

func (h *harness) job(id string) *api.Job {
	return h.store.Snapshot().Job(nil, "default", id)
}

// allocs returns a job's allocations in placement order.
func (h *harness) allocs(id string) []*api.Allocation {
	return h.store.Snapshot().AllocationsByJob(nil, "default", id)
}

func (h *harness) expectRejection(err error, want string) {
	h.t.Helper()
	var requestErr *scheduler.RequestError
	if !errors.As(err, &requestErr) || err.Error() != want {
		h.t.Errorf("error %v, want the refusal %s", err, want)
	}
}

// Registering an unchanged job creates an evaluation and keeps the job's version; a changed job gets a new version.
func TestRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		first := b.register(serviceJob(nil))
		again := b.register(serviceJob(nil))
		if again.EvalID == "" || again.EvalID == first.EvalID || *b.job("web").Version != 0 || *b.job("web").JobModifyIndex != first.JobModifyIndex {
			t.Errorf("unchanged job: %+v, version %d", again, *b.job("web").Version)
		}
		changed := b.register(serviceJob(withEnv("1")))
		if *b.job("web").Version != 1 || *b.job("web").JobModifyIndex != changed.Index {
			t.Errorf("changed job: version %d, %+v", *b.job("web").Version, changed)
		}
		eval := b.store.Snapshot().Evaluation(nil, changed.EvalID)
		if eval.Status != "complete" || eval.CreateIndex != changed.Index || eval.DeploymentID == "" || eval.TriggeredBy != "job-register" {
			t.Errorf("evaluation %+v", eval)
		}
		for i := range 10 {
			b.register(serviceJob(withEnv(fmt.Sprint(i + 2))))
		}
		if got := len(b.store.Snapshot().JobVersions(nil, webJobKey.Namespace, webJobKey.ID)); got != 6 {
			t.Errorf("%d versions are kept", got)
		}

		try := func(o scheduler.RegisterOptions, edit func(*api.Job, *api.TaskGroup, *api.Task)) error {
			_, err := b.RegisterAndEvaluateJob(t.Context(), serviceJob(edit), o)
			return err
		}
		index := *b.job("web").JobModifyIndex
		other := func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.ID = new("other") }
		b.expectRejection(try(scheduler.RegisterOptions{EnforceIndex: true}, nil), "Enforcing job modify index 0: job already exists")
		b.expectRejection(try(scheduler.RegisterOptions{EnforceIndex: true, JobModifyIndex: 1}, nil), fmt.Sprintf("Enforcing job modify index 1: job exists with conflicting job modify index: %d", index))
		b.expectRejection(try(scheduler.RegisterOptions{EnforceIndex: true, JobModifyIndex: 5}, other), "Enforcing job modify index 5: job does not exist")
		b.expectRejection(try(scheduler.RegisterOptions{}, func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Type = new("batch") }), `cannot update job from type "service" to "batch"`)
		b.expectRejection(try(scheduler.RegisterOptions{EvalPriority: 101}, nil), "eval priority must be between 1 and 100 inclusively")
		if err := try(scheduler.RegisterOptions{PreserveCounts: true}, func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Count = new(9) }); err != nil || *b.job("web").TaskGroups[0].Count != 3 {
			t.Errorf("counts preserved: %v, count %d", err, *b.job("web").TaskGroups[0].Count)
		}
		// The preserved count is the stored job's, so only the transaction can compare it with the new scaling block.
		tooFew := func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.Count, g.Scaling = new(2), &api.ScalingPolicy{Min: new(int64(1)), Max: new(int64(2))}
		}
		if err := try(scheduler.RegisterOptions{PreserveCounts: true}, tooFew); err == nil || !strings.Contains(err.Error(), "task group count must not be greater than maximum count in scaling policy") {
			t.Errorf("preserved count above the maximum: %v", err)
		}
	})
}

func (h *harness) setPaused(paused bool) {
	h.t.Helper()
	_, err := h.UpdateConfig(h.t.Context(), func(stored *api.SchedulerConfiguration) (*api.SchedulerConfiguration, error) {
		next := *stored
		next.PauseEvalBroker = paused
		return &next, nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// While evaluations are paused, jobs are stored and nothing is placed, stopped or replaced. After the pause all that is done.
func TestEvaluationsArePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(a *api.Allocation) (l schedtest.SimulatedAllocBehaviour) {
			if a.JobID == "fails" {
				l.RunDuration, l.FailsAfterRunDuration = time.Minute, true
			}
			return l
		})
		named := func(id string) *api.Job {
			return serviceJob(func(j *api.Job, g *api.TaskGroup, _ *api.Task) {
				j.ID, j.Name, g.Count = new(id), new(id), new(1)
				g.ReschedulePolicy = &api.ReschedulePolicy{Unlimited: new(true), Delay: new(5 * time.Second), DelayFunction: new("constant")}
			})
		}
		b.register(named("stopped"))
		b.register(named("fails"))
		b.advance(30 * time.Second)
		b.setPaused(true)

		registered := b.register(named("late"))
		if _, err := b.DeregisterJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: "stopped"}, scheduler.DeregisterOptions{}); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Hour)
		if e := b.store.Snapshot().Evaluation(nil, registered.EvalID); e.Status != api.EvalStatusPending || len(b.allocs("late")) > 0 || *b.job("late").Status != "pending" {
			t.Errorf("evaluation %s, %d allocations, job %s", e.Status, len(b.allocs("late")), *b.job("late").Status)
		}
		if a := b.allocs("stopped"); len(a) != 1 || a[0].DesiredStatus != "run" || a[0].ClientStatus != "running" {
			t.Errorf("the stopped job has %d allocations, %s, %s", len(a), a[0].DesiredStatus, a[0].ClientStatus)
		}
		if a := b.allocs("fails"); len(a) != 1 || a[0].ClientStatus != "failed" {
			t.Errorf("the failed job has %d allocations, %s", len(a), a[0].ClientStatus)
		}
		if evals := b.store.Snapshot().EvaluationsByJob(nil, "default", "fails"); len(evals) > 3 {
			t.Errorf("%d evaluations for one failed allocation", len(evals))
		}

		b.setPaused(false)
		b.advance(time.Minute)
		if e := b.store.Snapshot().Evaluation(nil, registered.EvalID); e.Status != api.EvalStatusComplete || len(b.allocs("late")) != 1 || *b.job("late").Status != "running" {
			t.Errorf("after the pause: evaluation %s, %d allocations, job %s", e.Status, len(b.allocs("late")), *b.job("late").Status)
		}
		if a := b.allocs("stopped"); a[0].DesiredStatus != "stop" || *b.job("stopped").Status != "dead" {
			t.Errorf("after the pause: the stopped job's allocation is %s, the job %s", a[0].DesiredStatus, *b.job("stopped").Status)
		}
		if len(b.allocs("fails")) < 2 {
			t.Error("after the pause: the failed allocation is not replaced")
		}
	})
}

// Evaluations are deleted while they are paused, and only then. A pending one that is deleted is never processed.
func TestDeleteEvals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		ofWeb := func(e *api.Evaluation) (bool, error) { return e.JobID == "web", nil }
		_, _, err := b.DeleteEvals(t.Context(), ofWeb)
		b.expectRejection(err, "eval broker is enabled; eval broker must be paused to delete evals")
		b.setPaused(true)
		b.register(serviceJob(nil))
		if count, _, err := b.DeleteEvals(t.Context(), ofWeb); count != 1 || err != nil {
			t.Errorf("deleted %d, %v", count, err)
		}
		b.setPaused(false)
		b.advance(time.Hour)
		if got := b.store.Snapshot().Evaluations(nil, ""); len(got) > 0 || len(b.allocs("web")) > 0 {
			t.Errorf("%d evaluations, %d allocations", len(got), len(b.allocs("web")))
		}
		b.register(serviceJob(nil))
		if len(b.allocs("web")) != 3 {
			t.Errorf("the next evaluation has placed %d allocations", len(b.allocs("web")))
		}
	})
}

// A deployment's evaluations have the priority of the evaluation that created it.
func TestPriorityOfADeployment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, healthyAfterTimes(5*time.Second))
		b.register(serviceJob(withRollingUpdate(nil)))
		b.advance(time.Minute)
		if _, err := b.RegisterAndEvaluateJob(t.Context(), serviceJob(combineEdits(withRollingUpdate(nil), withEnv("1"))), scheduler.RegisterOptions{EvalPriority: 77}); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Minute)
		var deploymentEvals int
		d := b.store.Snapshot().LatestDeployment(nil, webJobKey.Namespace, webJobKey.ID)
		for _, e := range b.store.Snapshot().EvaluationsByJob(nil, webJobKey.Namespace, webJobKey.ID) {
			if e.DeploymentID != d.ID {
				continue
			}
			if e.TriggeredBy == "deployment-watcher" {
				deploymentEvals++
			}
			if e.Priority != 77 {
				t.Errorf("evaluation triggered by %s has priority %d, want 77", e.TriggeredBy, e.Priority)
			}
		}
		if deploymentEvals < 2 {
			t.Errorf("%d evaluations followed from the deployment", deploymentEvals)
		}
	})
}

// A purged job is deleted at once, and its allocations stop in order; their records are deleted when they have ended.
// (rule RS-033)
func TestPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{StopDuration: 5 * time.Second, DelayFromTerminalToEndedReport: 5 * time.Second}
		})
		b.register(serviceJob(nil))
		b.advance(time.Minute)
		if _, err := b.DeregisterJob(t.Context(), webJobKey, scheduler.DeregisterOptions{Purge: true, NoShutdownDelay: true}); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Second)
		if b.job("web") != nil || len(b.store.Snapshot().JobVersions(nil, webJobKey.Namespace, webJobKey.ID)) != 0 {
			t.Error("the job is still there")
		}
		if got := b.allocs("web"); len(got) != 3 || got[0].DesiredStatus != "stop" || got[0].ClientStatus != "running" || !got[0].DesiredTransition.ShouldIgnoreShutdownDelay() {
			t.Errorf("allocations %+v", got)
		}
		b.advance(20 * time.Second)
		if got := b.allocs("web"); len(got) != 0 {
			t.Errorf("%d allocations have ended and are still there", len(got))
		}
		out, err := b.DeregisterJob(t.Context(), webJobKey, scheduler.DeregisterOptions{})
		if err != nil || out.EvalID != "" || out.Index != 0 {
			t.Errorf("stop of a job that is not there: %+v, %v", out, err)
		}
	})
}

// An allocation that has exceeded its max_run_duration is complete and is not replaced. (rule RS-035)
func TestMaxRunDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		b.register(batchJob(func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.MaxRunDuration = new(4 * time.Second) }))
		_, err := b.ApplyAllocReports(t.Context(), model.AllocReport{AllocID: b.allocs("web")[0].ID, ClientStatus: "complete", ClientDescription: "allocation exceeded max_run_duration"})
		if err != nil {
			t.Fatal(err)
		}
		b.advance(time.Hour)
		if got := b.allocs("web"); len(got) != 1 || got[0].ClientDescription != "allocation exceeded max_run_duration" || *b.job("web").Status != "dead" {
			t.Errorf("%d allocations, %q, job %s", len(got), got[0].ClientDescription, *b.job("web").Status)
		}
	})
}

// A job without its driver is blocked, and is placed when the driver is healthy. (rule RS-049)
func TestMissingDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		out := b.register(batchJob(func(_ *api.Job, _ *api.TaskGroup, task *api.Task) { task.Driver = "nope" }))
		eval := b.store.Snapshot().Evaluation(nil, out.EvalID)
		if eval.FailedTGAllocs["g"].ConstraintFiltered["missing drivers"] != 1 || len(b.allocs("web")) != 0 || *b.job("web").Status != "pending" {
			t.Errorf("evaluation %+v, job %s", eval, *b.job("web").Status)
		}
		node := schedtest.NewReadyNodeWithMockDriver(1000)
		node.Drivers["nope"] = &api.DriverInfo{Detected: true, Healthy: true}
		b.store.PutNodeCopy(t, node)
		b.RetryBlockedEvals()
		b.advance(0)
		if blocked := b.store.Snapshot().Evaluation(nil, eval.BlockedEval); len(b.allocs("web")) != 1 || blocked.Status != "complete" {
			t.Errorf("%d allocations, evaluation %s", len(b.allocs("web")), blocked.Status)
		}
	})
}

func withCron(line string, edit func(*api.PeriodicConfig)) func(*api.Job, *api.TaskGroup, *api.Task) {
	return func(j *api.Job, _ *api.TaskGroup, _ *api.Task) {
		j.Periodic = &api.PeriodicConfig{Enabled: new(true), Spec: &line, SpecType: new("cron")}
		if edit != nil {
			edit(j.Periodic)
		}
	}
}

func (h *harness) childIDs(id string) []string {
	var ids []string
	for _, j := range h.store.Snapshot().JobChildren(nil, "default", id) {
		ids = append(ids, *j.ID)
	}
	slices.Sort(ids)
	return ids
}

// Periodic jobs are launched by schedule and on request; the parent stays running. (rule RS-095)
func TestPeriodic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{RunDuration: 150 * time.Second}
		})
		out := b.register(batchJob(withCron("* * * * *", func(p *api.PeriodicConfig) { p.ProhibitOverlap = new(true) })))
		if out.EvalID != "" || *b.job("web").Status != "running" {
			t.Errorf("registration %+v, job %s", out, *b.job("web").Status)
		}
		start := time.Now().Unix()
		b.advance(60*time.Second + time.Millisecond)
		want := []string{fmt.Sprintf("web/periodic-%d", start+60)}
		if got := b.childIDs("web"); !slices.Equal(got, want) {
			t.Errorf("after a minute %v, want %v", got, want)
		}
		child := b.job(want[0])
		if child.Periodic != nil || *child.ParentID != "web" || *child.Name != want[0] || *child.Status != "running" {
			t.Errorf("child %+v", child)
		}
		// The child runs for two and a half minutes, so two launches are skipped.
		b.advance(180 * time.Second)
		if got := b.childIDs("web"); len(got) != 2 {
			t.Errorf("after four minutes %v", got)
		}
		forced, err := b.ForceLaunchPeriodicJob(t.Context(), webJobKey)
		if err != nil || b.store.Snapshot().Evaluation(nil, forced.EvalID).TriggeredBy != "periodic-job" || len(b.childIDs("web")) != 3 {
			t.Errorf("forced: %+v, %v, children %v", forced, err, b.childIDs("web"))
		}
		if _, err := b.ForceLaunchPeriodicJob(t.Context(), webJobKey); err != nil || len(b.childIDs("web")) != 4 {
			t.Errorf("forced twice in a second: %v, children %v", err, b.childIDs("web"))
		}
		b.transcript.AddTestComment("stop")
		if out, err := b.DeregisterJob(t.Context(), webJobKey, scheduler.DeregisterOptions{}); err != nil || out.EvalID != "" {
			t.Errorf("stop of the parent: %+v, %v", out, err)
		}
		b.advance(time.Hour)
		if got := b.childIDs("web"); len(got) != 4 || *b.job("web").Status != "dead" || *b.job(got[3]).Status != "dead" || b.allocs(got[3])[0].DesiredStatus != "run" {
			t.Errorf("an hour after the stop: %v, parent %s", got, *b.job("web").Status)
		}
		_, err = b.EvaluateJob(t.Context(), webJobKey, false)
		b.expectRejection(err, "can't evaluate periodic job")
		_, err = b.ForceLaunchPeriodicJob(t.Context(), webJobKey)
		b.expectRejection(err, `can't force launch job "web": it is stopped`)
		b.register(batchJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) {
			j.ID, j.Periodic = new("off"), &api.PeriodicConfig{Enabled: new(false), Specs: []string{"* * * * *"}}
		}))
		_, err = b.ForceLaunchPeriodicJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: "off"})
		b.expectRejection(err, `can't force launch job "off": set enabled = true in its periodic block`)
		_, err = b.ForceLaunchPeriodicJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: b.childIDs("web")[0]})
		b.expectRejection(err, "can't force launch non-periodic job")
	})
}

// If several launches were missed while no scheduler ran, the job is launched once.
func TestMissedLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))
		config := scheduler.Config{NodeID: "node", Store: memory, HostEnv: newTestEnv(), Logger: hclog.NewNullLogger()}
		if _, err := scheduler.New(config).RegisterAndEvaluateJob(t.Context(), batchJob(withCron("*/10 * * * *", nil)), scheduler.RegisterOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(65 * time.Minute)
		b := &harness{t: t, store: memory, Scheduler: scheduler.New(config)}
		b.node = &schedtest.SimulatedNode{Store: memory, Scheduler: b.Scheduler}
		b.startLoops()
		b.advance(time.Second)
		if got := b.childIDs("web"); len(got) != 1 {
			t.Errorf("six launches were missed, %v were made good", got)
		}
		b.advance(6 * time.Minute)
		if got := b.childIDs("web"); len(got) != 2 {
			t.Errorf("the next one is launched in time: %v", got)
		}
	})
}

// A dispatch creates a parameterized job's child. (rule RS-096)
func TestDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		b.register(batchJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) {
			j.Meta = map[string]string{"a": "parent", "opt": "parent"}
			j.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "required", MetaRequired: []string{"req"}, MetaOptional: []string{"opt"}}
		}))
		dispatch := func(payload string, meta map[string]string, edit func(*scheduler.DispatchRequest)) (scheduler.RequestOutcome, error) {
			r := scheduler.DispatchRequest{Payload: []byte(payload), Meta: meta}
			if edit != nil {
				edit(&r)
			}
			return b.DispatchJob(t.Context(), webJobKey, r)
		}
		meta := map[string]string{"req": "1", "opt": "2"}
		for _, c := range []struct {
			payload string
			meta    map[string]string
			edit    func(*scheduler.DispatchRequest)
			want    string
		}{
			{"", meta, nil, "Payload is not provided but required by parameterized job"},
			{strings.Repeat("x", 16385), meta, nil, "Payload exceeds maximum size; 16385 > 16384"},
			{"x", nil, nil, "Dispatch did not provide required meta keys: [req]"},
			{"x", map[string]string{"req": "", "zzz": ""}, nil, "Dispatch request included unpermitted metadata keys: [zzz]"},
			{"x", meta, func(r *scheduler.DispatchRequest) { r.Priority = 101 }, "dispatch job priority must be between [1, 100]"},
		} {
			_, err := dispatch(c.payload, c.meta, c.edit)
			b.expectRejection(err, c.want)
		}
		prefixed := func(r *scheduler.DispatchRequest) { r.IDPrefix, r.IdempotencyToken, r.Priority = "p", "token", 7 }
		out, err := dispatch("content", meta, prefixed)
		if err != nil {
			t.Fatal(err)
		}
		child := b.job(out.ChildJobID)
		if want := fmt.Sprintf("web/dispatch-p-%d-", time.Now().Unix()); !strings.HasPrefix(out.ChildJobID, want) || len(out.ChildJobID) != len(want)+8 {
			t.Errorf("id %s, want %s and eight digits", out.ChildJobID, want)
		}
		wantMeta := map[string]string{"a": "parent", "opt": "2", "req": "1"}
		if !child.Dispatched || string(child.Payload) != "content" || !maps.Equal(child.Meta, wantMeta) || *child.ParentID != "web" || *child.Priority != 7 || len(b.allocs(out.ChildJobID)) != 1 {
			t.Errorf("child %+v", child)
		}
		if b.job("web").Meta["opt"] != "parent" || len(b.allocs("web")) != 0 || *b.job("web").Status != "running" {
			t.Errorf("the parent has changed: %+v", b.job("web"))
		}
		again, err := dispatch("other", meta, prefixed)
		if err != nil || again.ChildJobID != out.ChildJobID || again.EvalID != "" {
			t.Errorf("the same token: %+v, %v", again, err)
		}
		if _, err := b.ApplyAllocReports(t.Context(), model.AllocReport{AllocID: b.allocs(out.ChildJobID)[0].ID, ClientStatus: "complete"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		again, err = dispatch("other", meta, prefixed)
		if status := *b.job(out.ChildJobID).Status; err != nil || again.ChildJobID != out.ChildJobID || again.EvalID != "" || status != "dead" {
			t.Errorf("the same token after the child has ended (%s): %+v, %v", status, again, err)
		}
		if _, err := b.DeregisterJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: out.ChildJobID}, scheduler.DeregisterOptions{Purge: true}); err != nil {
			t.Fatal(err)
		}
		again, err = dispatch("other", meta, prefixed)
		if err != nil || again.ChildJobID == out.ChildJobID || again.EvalID == "" {
			t.Errorf("the same token after the child was removed: %+v, %v", again, err)
		}
		out = again
		_, err = b.DispatchJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: "nope"}, scheduler.DispatchRequest{})
		b.expectRejection(err, "parameterized job not found")
		_, err = b.DispatchJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: out.ChildJobID}, scheduler.DispatchRequest{})
		b.expectRejection(err, fmt.Sprintf("Specified job %q is not a parameterized job", out.ChildJobID))
		if _, err := b.DeregisterJob(t.Context(), webJobKey, scheduler.DeregisterOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err = dispatch("x", meta, nil)
		b.expectRejection(err, `Specified job "web" is stopped`)
	})
}

// Requests read a stored job while a change derives a new version from it. The change must not write to the stored job, because
// the new version takes most of its parts from there.
func TestScaleOnlyReadsStoredJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		b.register(serviceJob(nil))
		b.advance(time.Minute)
		task := b.job("web").TaskGroups[0].Tasks[0]
		before := task.RestartPolicy
		scaled := make(chan struct{})
		var reader sync.WaitGroup
		reader.Go(func() {
			for {
				select {
				case <-scaled:
					return
				default:
				}
				if *task.RestartPolicy.Attempts != 2 { // the race detector reports a write
					t.Error("the restart policy is wrong")
					return
				}
			}
		})
		if _, err := b.ScaleGroup(t.Context(), webJobKey, scheduler.ScaleRequest{Group: "g", Count: new(int64(1))}); err != nil {
			t.Error(err)
		}
		close(scaled)
		reader.Wait()
		if task.RestartPolicy != before {
			t.Error("the task of the stored job has another restart policy")
		}
	})
}

func TestRevertScaleAndStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		revert := func(id string, version uint64, prior *uint64) error {
			_, err := b.RevertToVersion(t.Context(), scheduler.JobKey{Namespace: "default", ID: id}, version, prior)
			return err
		}
		b.register(serviceJob(nil))
		b.expectRejection(func() error {
			_, err := b.ScaleGroup(t.Context(), webJobKey, scheduler.ScaleRequest{Group: "g", Count: new(int64(1))})
			return err
		}(), "job scaling blocked due to active deployment")
		b.advance(time.Minute)
		b.register(serviceJob(withEnv("1")))
		b.advance(time.Minute)
		b.expectRejection(revert("nope", 0, nil), `job "nope" not found`)
		b.expectRejection(revert("web", 1, nil), "can't revert to current version")
		b.expectRejection(revert("web", 9, nil), `job "web" in namespace "default" at version 9 not found`)
		b.expectRejection(revert("web", 0, new(uint64(4))), "Current job has version 1; enforcing version 4")
		if err := revert("web", 0, new(uint64(1))); err != nil || *b.job("web").Version != 2 || b.job("web").TaskGroups[0].Tasks[0].Env["V"] != "0" || *b.job("web").Stable {
			t.Errorf("reverted: %v, %+v", err, b.job("web"))
		}
		b.advance(time.Minute)

		scale := func(r scheduler.ScaleRequest) error {
			_, err := b.ScaleGroup(t.Context(), webJobKey, r)
			return err
		}
		b.expectRejection(scale(scheduler.ScaleRequest{Group: "nope", Count: new(int64(1))}), `task group "nope" specified for scaling does not exist in job`)
		if err := scale(scheduler.ScaleRequest{Group: "g", Message: "only said"}); err != nil || *b.job("web").Version != 2 {
			t.Errorf("an event without a count: %v, version %d", err, *b.job("web").Version)
		}
		if err := scale(scheduler.ScaleRequest{Group: "g", Count: new(int64(1))}); err != nil || *b.job("web").TaskGroups[0].Count != 1 {
			t.Errorf("scaled: %v", err)
		}
		b.advance(time.Minute)
		live := 0
		for _, a := range b.allocs("web") {
			if a.DesiredStatus == "run" {
				live++
			}
		}
		if events := b.store.Snapshot().ScalingEvents(nil, webJobKey.Namespace, webJobKey.ID)["g"]; live != 1 || len(events) != 2 || events[0].PreviousCount != 3 || events[0].EvalID == nil {
			t.Errorf("%d are wanted, events %+v", live, events)
		}
		if _, err := b.SetVersionStable(t.Context(), webJobKey, 3, false); err != nil || *b.job("web").Stable {
			t.Errorf("marked as not stable: %v", err)
		}
		_, err := b.SetVersionStable(t.Context(), webJobKey, 30, true)
		b.expectRejection(err, `job "web" in namespace "default" at version 30 not found`)
	})
}

func TestDeploymentRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, healthyAfterTimes(time.Hour)) // no allocation becomes healthy unless the test sets its health
		slow := withRollingUpdate(func(u *api.UpdateStrategy) { u.ProgressDeadline, u.HealthyDeadline = new(2*time.Hour), new(time.Hour) })
		b.register(serviceJob(slow))
		b.advance(time.Second)
		latest := func() *api.Deployment {
			return b.store.Snapshot().LatestDeployment(nil, webJobKey.Namespace, webJobKey.ID)
		}
		ids := []string{b.allocs("web")[0].ID, b.allocs("web")[1].ID, b.allocs("web")[2].ID}
		if _, err := b.SetAllocHealth(t.Context(), latest().ID, ids, nil); err != nil || latest().Status != "successful" {
			t.Errorf("health set: %v, %s", err, latest().Status)
		}
		_, err := b.FailDeployment(t.Context(), latest().ID)
		b.expectRejection(err, "can't fail terminal deployment")
		_, err = b.PauseOrResumeDeployment(t.Context(), "nope", true)
		b.expectRejection(err, "deployment not found")
		_, err = b.PromoteDeployment(t.Context(), latest().ID, nil)
		b.expectRejection(err, "can't promote terminal deployment")

		b.register(serviceJob(combineEdits(slow, withEnv("1"))))
		b.advance(time.Second)
		_, err = b.PromoteDeployment(t.Context(), latest().ID, nil)
		b.expectRejection(err, "no canaries to promote")
		if _, err := b.PauseOrResumeDeployment(t.Context(), latest().ID, true); err != nil || latest().StatusDescription != "Deployment is paused" {
			t.Errorf("paused: %v, %s", err, latest().StatusDescription)
		}
		if _, err := b.SetAllocHealth(t.Context(), latest().ID, []string{b.allocs("web")[3].ID}, nil); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Minute)
		if n := len(b.allocs("web")); n != 4 {
			t.Errorf("%d allocations while the deployment is paused", n)
		}
		if _, err := b.PauseOrResumeDeployment(t.Context(), latest().ID, false); err != nil || latest().Status != "running" || len(b.allocs("web")) != 5 {
			t.Errorf("resumed: %v, %s, %d allocations", err, latest().Status, len(b.allocs("web")))
		}
		out, err := b.FailDeployment(t.Context(), latest().ID)
		if err != nil || out.EvalID == "" || latest().StatusDescription != "Deployment marked as failed" || len(b.allocs("web")) != 5 {
			t.Errorf("failed: %+v, %v, %s", out, err, latest().StatusDescription)
		}
	})
}

// A deployment without progress fails at its deadline; each newly healthy
// allocation extends the deadline.
func TestProgressDeadline(t *testing.T) {
	deadline := withRollingUpdate(func(u *api.UpdateStrategy) {
		u.ProgressDeadline, u.HealthyDeadline = new(2*time.Minute), new(time.Minute)
	})
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(a *api.Allocation) schedtest.SimulatedAllocBehaviour {
			switch a.Name {
			case "web.g[0]":
				return schedtest.SimulatedAllocBehaviour{TimeToHealthReport: 110 * time.Second}
			default:
				return schedtest.SimulatedAllocBehaviour{TimeToHealthReport: time.Hour}
			}
		})
		b.register(serviceJob(deadline))
		b.advance(200 * time.Second)
		d := b.store.Snapshot().LatestDeployment(nil, webJobKey.Namespace, webJobKey.ID)
		if d.Status != "running" {
			t.Errorf("deployment %s after 200 s", d.Status)
		}
		b.advance(31 * time.Second)
		d = b.store.Snapshot().LatestDeployment(nil, webJobKey.Namespace, webJobKey.ID)
		if d.Status != "failed" || d.StatusDescription != "Failed due to progress deadline" {
			t.Errorf("deployment %s: %s", d.Status, d.StatusDescription)
		}
	})
}

// Records are kept for running allocations or while still needed. Other records are deleted by age, or at once on request.
// (rule RS-097)
func TestGarbageCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(a *api.Allocation) schedtest.SimulatedAllocBehaviour {
			if a.JobID == "work" {
				return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second, DelayFromTerminalToEndedReport: 10 * time.Hour}
			}
			return schedtest.SimulatedAllocBehaviour{}
		})
		b.register(serviceJob(nil))
		b.advance(time.Minute)
		b.register(serviceJob(withEnv("1")))
		b.register(batchJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.ID = new("work") }))
		b.advance(time.Minute)
		if got := len(b.allocs("web")); got != 6 {
			t.Fatalf("%d allocations of web", got)
		}
		b.advance(50 * time.Minute)
		if got := len(b.allocs("web")); got != 6 {
			t.Errorf("%d allocations of web before an hour has passed", got)
		}
		b.advance(20 * time.Minute)
		if got := b.allocs("web"); len(got) != 3 || got[0].DesiredStatus != "run" {
			t.Errorf("%d allocations of web after an hour", len(got))
		}
		b.advance(8 * time.Hour)
		if _, err := b.DeleteUnneededRecordsOfAnyAge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b.job("work") == nil || len(b.allocs("work")) != 1 {
			t.Error("a job was removed though its runner is at work")
		}
		if d := b.store.Snapshot().DeploymentsByJob(nil, webJobKey.Namespace, webJobKey.ID); len(d) != 1 {
			t.Errorf("%d deployments are kept", len(d))
		}
		b.advance(3 * time.Hour) // the job ended less than four hours ago
		if b.job("work") == nil {
			t.Error("a job was removed before its time")
		}
		if _, err := b.DeleteUnneededRecordsOfAnyAge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if b.job("work") != nil || len(b.allocs("work")) != 0 || b.job("web") == nil || len(b.allocs("web")) != 3 {
			t.Error("a forced collection did not remove what has ended, or more")
		}
	})
}

// A change rejected by the store has no effect. The scheduler retries its own changes until the store accepts them.
func TestRetryAfterStoreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second, FailsAfterRunDuration: true}
		})
		var diskFull atomic.Bool
		synctest.Wait()
		b.store.InjectFault = func() error {
			if diskFull.Load() {
				return schedtest.ErrFault
			}
			return nil
		}
		b.register(batchJob(func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(1), Interval: new(time.Hour), Delay: new(10 * time.Second), DelayFunction: new("constant"), Unlimited: new(false)}
		}))
		b.advance(5 * time.Second)
		diskFull.Store(true)
		before := b.transcript.String()
		if _, err := b.RegisterAndEvaluateJob(t.Context(), serviceJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.ID = new("other") }), scheduler.RegisterOptions{}); !errors.Is(err, schedtest.ErrFault) {
			t.Errorf("error %v", err)
		}
		b.advance(time.Minute)
		if after := b.transcript.String(); after != before {
			t.Errorf("something has changed:\n%s", strings.TrimPrefix(after, before))
		}
		diskFull.Store(false)
		b.advance(5 * time.Second)
		if got := b.allocs("web"); len(got) != 2 || got[0].NextAllocation != got[1].ID {
			t.Errorf("%d allocations when there is room on the disk again", len(got))
		}
	})
}

// A job with an unreadable record is recovered from its versions, and its
// allocations continue.
func TestRecoverJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))
		config := scheduler.Config{NodeID: "node", Store: memory, HostEnv: newTestEnv(), Logger: hclog.NewNullLogger()}
		if _, err := scheduler.New(config).RegisterAndEvaluateJob(t.Context(), serviceJob(nil), scheduler.RegisterOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := memory.Update(t.Context(), func(tx *store.Txn) error {
			version := *tx.Job(nil, webJobKey.Namespace, webJobKey.ID)
			tx.DeleteJob(webJobKey.Namespace, webJobKey.ID)
			tx.PutJobVersion(&version)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b := &harness{t: t, store: memory, Scheduler: scheduler.New(config)}
		b.node = &schedtest.SimulatedNode{Store: memory, Scheduler: b.Scheduler}
		b.startLoops()
		b.advance(time.Minute)
		if job := b.job("web"); job == nil || *job.Version != 0 || *job.Status != "running" {
			t.Errorf("job %+v", job)
		}
		for _, a := range b.allocs("web") {
			if a.DesiredStatus != "run" || a.ClientStatus != "running" {
				t.Errorf("%s is %s, %s", a.Name, a.DesiredStatus, a.ClientStatus)
			}
		}
	})
}

// A dry run returns the changes and makes none.
func TestDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		b.register(serviceJob(nil))
		b.advance(time.Minute)
		before := b.transcript.String()
		out, _, _ := b.DryRunRegister(t.Context(), serviceJob(withEnv("1")))
		if out.ProcessedEval.PlanAnnotations.DesiredTGUpdates["g"].DestructiveUpdate != 1 {
			t.Errorf("dry run %+v", out.ProcessedEval)
		}
		if b.transcript.String() != before {
			t.Error("a dry run has changed something")
		}
	})
}

// A stopped batch allocation is not replaced, unless the request asks for a reschedule. No later evaluation replaces it
// either.
func TestStopOfABatchAllocation(t *testing.T) {
	for _, c := range []struct {
		name       string
		reschedule bool
		allocs     int
		status     string
	}{
		{"given up", false, 1, "dead"},
		{"rescheduled", true, 2, "running"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(t, endlessAllocTimes)
				b.register(batchJob(nil))
				synctest.Wait()
				stopped := b.allocs("web")[0]
				out, err := b.StopAndReplaceAlloc(t.Context(), stopped.ID, scheduler.StopOptions{Reschedule: c.reschedule})
				if err != nil || out.EvalID == "" {
					t.Fatalf("%+v, %v", out, err)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if _, err := b.EvaluateJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: "web"}, false); err != nil {
					t.Fatal(err)
				}
				b.register(batchJob(nil))
				allocs, status := b.allocs("web"), *b.job("web").Status
				if len(allocs) != c.allocs || status != c.status || allocs[0].ID != stopped.ID || allocs[0].ClientStatus != api.AllocClientStatusComplete {
					t.Errorf("%d allocations, the job is %s, want %d and %s", len(allocs), status, c.allocs, c.status)
				}
				// A new job version places new allocations.
				b.register(batchJob(func(_ *api.Job, _ *api.TaskGroup, task *api.Task) { task.Env = map[string]string{"again": "yes"} }))
				if n := len(b.allocs("web")); n != c.allocs+1 {
					t.Errorf("with the next version there are %d allocations, want one more than %d", n, c.allocs)
				}
			})
		})
	}
}

// A job with preemption enabled takes the place of one whose priority is lower by 10. The other one waits, and returns when there is
// room again.
func TestPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, healthyAfterTimes(time.Second))
		job := func(id string, priority int) *api.Job {
			return serviceJob(func(j *api.Job, g *api.TaskGroup, task *api.Task) {
				j.ID, j.Priority, g.Count, task.Resources.MemoryMB = &id, &priority, new(1), new(600)
			})
		}
		status := func(id string) (texts []string) {
			for _, a := range b.allocs(id) {
				texts = append(texts, a.DesiredStatus+" "+a.ClientStatus)
			}
			slices.Sort(texts)
			return texts
		}
		expect := func(when, id string, want ...string) {
			t.Helper()
			if got := status(id); !slices.Equal(got, want) {
				t.Errorf("%s: allocations of %s: %q, want %q", when, id, got, want)
			}
		}
		b.register(job("low", 20))
		b.advance(time.Minute)
		b.register(job("middle", 29))
		b.register(job("disabled", 90))
		b.advance(time.Minute)
		expect("priorities too close, and preemption disabled", "low", "run running")

		if _, err := b.store.Update(t.Context(), func(tx *store.Txn) error {
			tx.PutSchedulerConfig(&api.SchedulerConfiguration{PreemptionConfig: api.PreemptionConfig{ServiceSchedulerEnabled: true}})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"middle", "disabled"} {
			if _, err := b.DeregisterJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: id}, scheduler.DeregisterOptions{Purge: true}); err != nil {
				t.Fatal(err)
			}
		}
		planned, _, err := b.DryRunRegister(t.Context(), job("high", 30))
		if err != nil || len(planned.PreemptedAllocs) != 1 || planned.ProcessedEval.PlanAnnotations.DesiredTGUpdates["g"].Preemptions != 1 ||
			len(planned.ProcessedEval.PlanAnnotations.PreemptedAllocs) != 1 || planned.ProcessedEval.PlanAnnotations.PreemptedAllocs[0].JobID != "low" {
			t.Errorf("plan: %+v, %v", planned.ProcessedEval.PlanAnnotations, err)
		}
		expect("after the plan", "low", "run running")
		out := b.register(job("high", 30))
		preempted := b.allocs("low")[0]
		if placed := b.allocs("high")[0]; preempted.DesiredStatus != "evict" || preempted.PreemptedByAllocation != placed.ID || !slices.Equal(placed.PreemptedAllocations, []string{preempted.ID}) {
			t.Errorf("preempted %+v, placed %+v", preempted, placed)
		}
		if eval := b.store.Snapshot().Evaluation(nil, out.EvalID); eval.Status != "complete" || len(eval.FailedTGAllocs) > 0 {
			t.Errorf("evaluation %+v", eval)
		}
		b.advance(time.Minute)
		expect("preempted", "low", "evict complete")
		expect("preempted", "high", "run running")
		evals := map[string]int{}
		for _, e := range b.store.Snapshot().EvaluationsByJob(nil, "default", "low") {
			evals[e.TriggeredBy+" "+e.Status]++
		}
		if evals["preemption complete"] != 1 || evals["queued-allocs blocked"] != 1 {
			t.Errorf("evaluations of the preempted job: %v", evals)
		}
		if _, err := b.DeregisterJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: "high"}, scheduler.DeregisterOptions{}); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Minute)
		expect("room again", "low", "evict complete", "run running")
	})
}

func (h *harness) enableServicePreemption() {
	h.t.Helper()
	_, err := h.UpdateConfig(h.t.Context(), func(stored *api.SchedulerConfiguration) (*api.SchedulerConfiguration, error) {
		next := *stored
		next.PreemptionConfig.ServiceSchedulerEnabled = true
		return &next, nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// An allocation that gets room of a preempted allocation waits for the end of that one, also if another allocation of the same plan
// has preempted it. One that needs no such room does not wait.
func TestEachAllocInPreemptedRoomWaits(t *testing.T) {
	staticPort := func(g *api.TaskGroup) {
		g.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 8080}}}}
	}
	for name, c := range map[string]struct {
		lowMemory, highMemory int
		hasPort, want         bool // want: the second allocation waits
	}{"memory": {900, 400, false, true}, "a port of the first only": {100, 100, true, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(t, endlessAllocTimes)
				b.enableServicePreemption()
				b.register(serviceJob(func(j *api.Job, g *api.TaskGroup, task *api.Task) {
					j.ID, j.Priority, g.Count, task.Resources.MemoryMB = new("low"), new(20), new(1), new(c.lowMemory)
					if c.hasPort {
						staticPort(g)
					}
				}))
				b.register(serviceJob(func(j *api.Job, g *api.TaskGroup, task *api.Task) {
					j.ID, j.Priority, g.Count, task.Resources.MemoryMB = new("high"), new(90), new(1), new(c.highMemory)
					second := *g
					second.Name = new("second")
					j.TaskGroups = append(j.TaskGroups, &second)
					if c.hasPort {
						staticPort(g)
					}
				}))
				low := b.allocs("low")[0]
				for _, a := range b.allocs("high") {
					waits := slices.Equal(a.PreemptedAllocations, []string{low.ID})
					if want := a.TaskGroup != "second" || c.want; waits != want || !want && len(a.PreemptedAllocations) > 0 {
						t.Errorf("allocation of group %s: preempted %q, waits %v, want %v", a.TaskGroup, a.PreemptedAllocations, waits, want)
					}
				}
				if len(b.allocs("high")) != 2 || low.DesiredStatus != "evict" {
					t.Errorf("%d allocations, the lower one is %s", len(b.allocs("high")), low.DesiredStatus)
				}
			})
		})
	}
}

// A deployment ends with the automatic promotion of its canaries if its older allocations were preempted meanwhile.
func TestDeploymentEndsWithoutOlderAllocs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, healthyAfterTimes(time.Minute))
		b.enableServicePreemption()
		withPort := func(value int) func(*api.Job, *api.TaskGroup, *api.Task) {
			return func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
				g.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: value}}}}
			}
		}
		low := func(port int) *api.Job {
			return serviceJob(func(j *api.Job, g *api.TaskGroup, task *api.Task) {
				j.Priority, g.Count = new(20), new(1)
				j.Update = &api.UpdateStrategy{Canary: new(1), AutoPromote: new(true), MaxParallel: new(1)}
				withPort(port)(j, g, task)
			})
		}
		b.register(low(8080))
		b.advance(2 * time.Minute)
		b.register(low(9090))
		b.advance(10 * time.Second)
		b.register(serviceJob(func(j *api.Job, g *api.TaskGroup, task *api.Task) {
			j.ID, j.Priority, g.Count = new("high"), new(90), new(1)
			withPort(8080)(j, g, task)
		}))
		older := b.allocs("web")[0]
		if older.DesiredStatus != "evict" {
			t.Fatalf("the older allocation is %s", older.DesiredStatus)
		}
		b.advance(5 * time.Minute)
		if d := b.store.Snapshot().LatestDeployment(nil, "default", "web"); d.Status != api.DeploymentStatusSuccessful || *b.job("web").Version != 1 {
			t.Errorf("deployment %s: %s", d.Status, d.StatusDescription)
		}
	})
}

// A replacement with an older version preempts with the priority of that version, and not with the current one.
func TestReplacementPreemptsWithPriorityOfItsVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(a *api.Allocation) schedtest.SimulatedAllocBehaviour {
			if a.JobID == "web" && *a.Job.Version == 0 {
				return schedtest.SimulatedAllocBehaviour{RunDuration: time.Minute, FailsAfterRunDuration: true}
			}
			return schedtest.SimulatedAllocBehaviour{}
		})
		job := func(id string, priority, memoryMB int) *api.Job {
			return serviceJob(func(j *api.Job, g *api.TaskGroup, task *api.Task) {
				j.ID, j.Priority, g.Count, task.Resources.MemoryMB = &id, &priority, new(1), &memoryMB
				withRollingUpdate(func(u *api.UpdateStrategy) { u.Canary = new(1) })(j, g, task)
				g.ReschedulePolicy = &api.ReschedulePolicy{Unlimited: new(true), Delay: new(30 * time.Second), DelayFunction: new("constant")}
			})
		}
		b.enableServicePreemption()
		b.register(job("web", 20, 600))
		b.advance(10 * time.Second)
		b.register(job("web", 90, 300))
		b.advance(time.Minute) // the older allocation has failed
		b.register(job("other", 30, 600))
		b.advance(time.Minute)
		if a := b.allocs("other")[0]; a.DesiredStatus != "run" || a.ClientStatus != "running" {
			t.Errorf("the job with the priority 30 is preempted: %s %s", a.DesiredStatus, a.DesiredDescription)
		}
		evals := b.store.Snapshot().EvaluationsByJob(nil, webJobKey.Namespace, webJobKey.ID)
		if !slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Status == "blocked" }) {
			t.Errorf("no blocked evaluation replaces the older allocation: %+v", evals)
		}
	})
}
