package scheduler_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
)

// slowStopAllocTimes returns an allocation's durations: it takes a second to stop. Batch jobs complete after a minute.
func slowStopAllocTimes(a *api.Allocation) schedtest.SimulatedAllocBehaviour {
	l := schedtest.SimulatedAllocBehaviour{StopDuration: time.Second}
	if *a.Job.Type == api.JobTypeBatch {
		l.RunDuration = time.Minute
	}
	return l
}

// registerMixedJobs registers a service with count 3 and max_parallel 2, a one-minute batch job, and a system job.
func (h *harness) registerMixedJobs() {
	h.register(serviceJob(func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
		g.Migrate = &api.MigrateStrategy{MaxParallel: new(2)}
	}))
	h.register(batchJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.ID = new("batch") }))
	h.register(serviceJob(func(j *api.Job, g *api.TaskGroup, _ *api.Task) {
		j.ID, j.Type, g.Count = new("system"), new(api.JobTypeSystem), nil
	}))
	h.advance(2 * time.Second)
}

// runningCounts returns the pending and running allocation counts by job.
func (h *harness) runningCounts() string {
	var all []string
	for _, id := range []string{"web", "batch", "system"} {
		n := 0
		for _, a := range h.allocs(id) {
			if a.ClientStatus == api.AllocClientStatusRunning || a.ClientStatus == api.AllocClientStatusPending {
				n++
			}
		}
		all = append(all, fmt.Sprintf("%s %d", id, n))
	}
	return strings.Join(all, ", ")
}

func (h *harness) expectRunning(when, want string) {
	h.t.Helper()
	if got := h.runningCounts(); got != want {
		h.t.Errorf("%s: %s, want %s", when, got, want)
	}
}

func (h *harness) drainNode(r scheduler.DrainRequest) scheduler.NodeRequestOutcome {
	h.t.Helper()
	out, err := h.StartOrEndDrain(h.t.Context(), r)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func drainRequest(deadline time.Duration, ignoreSystem bool) scheduler.DrainRequest {
	return scheduler.DrainRequest{Spec: &api.DrainSpec{Deadline: deadline, IgnoreSystemJobs: ignoreSystem}, Meta: map[string]string{"why": "test"}}
}

// Service allocations stop as their migrate blocks specify, batch allocations when they complete or at the deadline, system
// allocations last. Then the drain is complete and the jobs are blocked.
func TestDrain(t *testing.T) {
	type drainStep struct {
		after time.Duration
		want  string
	}
	for _, c := range []struct {
		name    string
		request scheduler.DrainRequest
		steps   []drainStep
		back    string // allocations running after the node has become eligible again
	}{
		{"with a deadline", drainRequest(10*time.Second, false), []drainStep{
			{500 * time.Millisecond, "web 3, batch 1, system 1"},
			{time.Second, "web 1, batch 1, system 1"},
			{time.Second, "web 0, batch 1, system 1"},
			{6 * time.Second, "web 0, batch 1, system 1"},
			{3 * time.Second, "web 0, batch 0, system 0"},
		}, "web 3, batch 1, system 1"},
		{"without a deadline", drainRequest(0, false), []drainStep{
			{10 * time.Second, "web 0, batch 1, system 1"},
			{55 * time.Second, "web 0, batch 0, system 0"},
		}, "web 3, batch 0, system 1"},
		{"at once", drainRequest(-1, false), []drainStep{
			{500 * time.Millisecond, "web 3, batch 1, system 1"},
			{time.Second, "web 0, batch 0, system 0"},
		}, "web 3, batch 1, system 1"},
		{"without system jobs", drainRequest(-1, true), []drainStep{
			{2 * time.Second, "web 0, batch 0, system 1"},
		}, "web 3, batch 1, system 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(t, slowStopAllocTimes)
				b.registerMixedJobs()
				out := b.drainNode(c.request)
				n := b.store.Snapshot().Node(nil, "node")
				if n.DrainStrategy == nil || !n.Drain || n.SchedulingEligibility != api.NodeSchedulingIneligible || n.LastDrain.Status != api.DrainStatusDraining ||
					n.LastDrain.Meta["why"] != "test" || out.NodeModifyIndex != out.Index {
					t.Fatalf("node %+v, outcome %+v", n, out)
				}
				for _, a := range b.allocs("web") {
					if a.DesiredTransition.ShouldMigrate() {
						t.Errorf("%s stops before a client can watch the drain", a.Name)
					}
				}
				for _, drainStep := range c.steps {
					b.advance(drainStep.after)
					b.expectRunning(drainStep.after.String()+" later", drainStep.want)
				}
				n = b.store.Snapshot().Node(nil, "node")
				if n.DrainStrategy != nil || n.Drain || n.SchedulingEligibility != api.NodeSchedulingIneligible || n.LastDrain.Status != api.DrainStatusComplete ||
					n.Events[len(n.Events)-1].Message != "Node drain complete" {
					t.Errorf("after the drain: %+v, last drain %+v", n, n.LastDrain)
				}
				for _, a := range b.allocs("web") {
					if a.DesiredStatus != api.AllocDesiredStatusStop || a.DesiredDescription != "alloc is being migrated" {
						t.Errorf("alloc %s: %s, %s", a.Name, a.DesiredStatus, a.DesiredDescription)
					}
				}
				if status := *b.job("web").Status; status != "pending" {
					t.Errorf("the job is %s", status)
				}
				if got, err := b.SetNodeEligibility(t.Context(), "eligible"); err != nil || got.Index == 0 {
					t.Fatal(err)
				}
				b.advance(time.Second)
				b.expectRunning("eligible again", c.back)
			})
		})
	}
}

// Allocations still running when a drain is cancelled continue to run. A new agent continues a drain started by an earlier
// agent.
func TestDrainCancelledAndRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, slowStopAllocTimes)
		b.registerMixedJobs()
		b.drainNode(drainRequest(time.Hour, false))
		_, err := b.SetNodeEligibility(t.Context(), "eligible")
		b.expectRejection(err, "can not set node's scheduling eligibility to eligible while it is draining")
		_, err = b.SetNodeEligibility(t.Context(), "maybe")
		b.expectRejection(err, `invalid scheduling eligibility "maybe"`)
		b.drainNode(scheduler.DrainRequest{MarkEligible: true})
		n := b.store.Snapshot().Node(nil, "node")
		if n.DrainStrategy != nil || n.SchedulingEligibility != api.NodeSchedulingEligible || n.LastDrain.Status != api.DrainStatusCanceled {
			t.Errorf("cancelled: %+v", n)
		}
		b.advance(5 * time.Second)
		b.expectRunning("cancelled", "web 3, batch 1, system 1")

		b.drainNode(drainRequest(3*time.Second, false))
		started := b.store.Snapshot().Node(nil, "node").DrainStrategy.StartedAt
		b.advance(time.Second)
		b.drainNode(drainRequest(4*time.Second, false))
		if again := b.store.Snapshot().Node(nil, "node").DrainStrategy; !again.StartedAt.Equal(started) || !again.ForceDeadline.Equal(started.Add(4*time.Second)) {
			t.Errorf("changed on the way: %+v", again)
		}
		b.advance(2 * time.Second)
		b.drainNode(scheduler.DrainRequest{})
		if n := b.store.Snapshot().Node(nil, "node"); n.SchedulingEligibility != api.NodeSchedulingIneligible {
			t.Errorf("eligible, though nobody has said so")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, slowStopAllocTimes)
		b.registerMixedJobs()
		taken := *b.store.Snapshot().Node(nil, "node")
		taken.DrainStrategy = &api.DrainStrategy{StartedAt: time.Now()}
		taken.SchedulingEligibility = api.NodeSchedulingIneligible
		b.store.PutNodeCopy(t, &taken)
		b.RetryBlockedEvals()
		b.advance(5 * time.Second)
		b.expectRunning("taken up", "web 0, batch 1, system 1")
	})
}
