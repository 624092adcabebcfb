package scheduler_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// loseAllocs deletes allocation records, as a damaged state file does.
func (h *harness) loseAllocs(allocs ...*api.Allocation) {
	h.t.Helper()
	_, err := h.store.Update(h.t.Context(), func(tx *store.Txn) error {
		for _, a := range allocs {
			tx.DeleteAllocationAndQueueRemoval(a.ID)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// startNextScheduler runs the next agent's scheduler until the test ends, beside the first one.
func (h *harness) startNextScheduler() { h.startNextSchedulerIn(newTestEnv()) }

func (h *harness) startNextSchedulerIn(env scheduler.Env) *scheduler.Scheduler {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	newID := env.NewID
	env.NewID = func() string { return "f" + newID()[1:] } // the first scheduler has used the ids
	next := scheduler.New(scheduler.Config{NodeID: "node", Store: h.store, HostEnv: env, Logger: hclog.NewNullLogger()})
	go func() {
		defer close(ended)
		next.Run(ctx)
	}()
	h.t.Cleanup(func() {
		cancel()
		<-ended
	})
	synctest.Wait()
	return next
}

func liveAllocIDs(allocs []*api.Allocation) (ids []string) {
	for _, a := range allocs {
		if a.DesiredStatus == api.AllocDesiredStatusRun && !a.ClientTerminalStatus() {
			ids = append(ids, a.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func TestStartReplacesAllocsThatTheStateHasLost(t *testing.T) {
	for _, tt := range []struct {
		name      string
		job       func() *api.Job
		wantAlive int
	}{
		{"service", func() *api.Job { return serviceJob(nil) }, 3},
		{"running batch", func() *api.Job { return batchJob(func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Count = new(2) }) }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(t, endlessAllocTimes)
				b.register(tt.job())
				b.advance(time.Minute)
				b.loseAllocs(b.allocs("web")[0])
				b.advance(time.Minute)
				if alive := liveAllocIDs(b.allocs("web")); len(alive) != tt.wantAlive-1 {
					t.Fatalf("%d allocations before the start of the next agent", len(alive))
				}
				b.startNextScheduler()
				if alive := liveAllocIDs(b.allocs("web")); len(alive) != tt.wantAlive {
					t.Errorf("%d allocations after the start, want %d", len(alive), tt.wantAlive)
				}
			})
		})
	}
}

func TestStartDoesNotRepeatEndedBatchJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second}
		})
		b.register(batchJob(nil))
		b.advance(time.Minute)
		b.loseAllocs(b.allocs("web")...)
		b.startNextScheduler()
		if allocs := b.allocs("web"); len(allocs) > 0 {
			t.Errorf("%d allocations of a job that had ended", len(allocs))
		}
	})
}

// If a lost allocation's tasks run and no driver can adopt it, it keeps its name until they end, and the evaluation has the
// reason.
func TestUnknownInstanceIsReplacedAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		b.register(serviceJob(nil))
		b.advance(time.Minute)
		unknown := b.allocs("web")[0]
		b.loseAllocs(unknown)
		env := newTestEnv()
		var ended atomic.Bool
		env.FindUnknownInstance = func(job *api.Job, allocName string) string {
			if ended.Load() || *job.ID != "web" || allocName != unknown.Name {
				return ""
			}
			return unknown.ID
		}
		next := b.startNextSchedulerIn(env)
		if alive := liveAllocIDs(b.allocs("web")); len(alive) != 2 {
			t.Fatalf("%d known allocations beside the unknown instance, want 2", len(alive))
		}
		blocked := slices.IndexFunc(b.store.Snapshot().EvaluationsByJob(nil, "default", "web"), func(e *api.Evaluation) bool { return e.Status == api.EvalStatusBlocked })
		if blocked < 0 {
			t.Fatal("no evaluation is blocked")
		}
		reasons := slices.Sorted(maps.Keys(b.store.Snapshot().EvaluationsByJob(nil, "default", "web")[blocked].FailedTGAllocs["g"].ConstraintFiltered))
		if len(reasons) != 1 || !strings.Contains(reasons[0], unknown.ID) || !strings.Contains(reasons[0], "-end-unknown") {
			t.Errorf("reasons %q", reasons)
		}
		ended.Store(true)
		next.RetryBlockedEvals()
		b.advance(time.Minute)
		if alive := liveAllocIDs(b.allocs("web")); len(alive) != 3 {
			t.Errorf("%d allocations after the end of the unknown instance, want 3", len(alive))
		}
	})
}

// An adopted allocation of a known job counts as its instance, and one of a lost job brings the job with it.
func TestAdoptedAllocs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		b.register(serviceJob(nil))
		b.register(serviceJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Priority = new(60) }))
		b.advance(time.Minute)
		before := b.allocs("web")
		b.loseAllocs(before[:2]...)
		if err := b.StoreAdoptedAllocs(t.Context(), before[:2], func(*store.Txn) {}); err != nil {
			t.Fatal(err)
		}
		b.startNextScheduler()
		if got, want := liveAllocIDs(b.allocs("web")), liveAllocIDs(before); !slices.Equal(got, want) {
			t.Errorf("allocations %q, want %q", got, want)
		}

		lost := &harness{t: t, store: schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))} // no node ends the allocations
		lost.Scheduler = scheduler.New(scheduler.Config{NodeID: "node", Store: lost.store, HostEnv: newTestEnv(), Logger: hclog.NewNullLogger()})
		copies := slices.Clone(before)
		for i, a := range copies {
			alloc, job := *a, *a.Job
			job.Namespace, job.CreateIndex = new("team"), new(uint64(7000))
			alloc.Job, alloc.Namespace = &job, "team"
			copies[i] = &alloc
		}
		if err := lost.StoreAdoptedAllocs(t.Context(), copies, func(*store.Txn) {}); err != nil {
			t.Fatal(err)
		}
		lost.startNextScheduler()
		snapshot := lost.store.Snapshot()
		job := snapshot.Job(nil, "team", "web")
		if job == nil || *job.Version != 1 || *job.Priority != 60 || snapshot.Namespace(nil, "team") == nil {
			t.Fatalf("job %+v, namespace %v", job, snapshot.Namespace(nil, "team"))
		}
		if got, want := liveAllocIDs(snapshot.AllocationsByJob(nil, "team", "web")), liveAllocIDs(before); !slices.Equal(got, want) {
			t.Errorf("allocations of the adopted job %q, want %q", got, want)
		}
		other := *copies[0]
		otherJob := *other.Job
		otherJob.CreateIndex = new(uint64(8000))
		other.Job = &otherJob
		lost.expectRejection(lost.StoreAdoptedAllocs(t.Context(), []*api.Allocation{&other}, func(*store.Txn) {}),
			`job "web" is registered in namespace "team", and is not the job of these allocations: stop it, or end the unknown tasks`)
	})
}

// An allocation that was adopted with an older version of its job keeps the version, as one of the job that the state has now: after
// another loss of the state it is adopted again.
func TestAdoptedAllocOfAnOlderVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		b.register(serviceJob(nil))
		b.advance(time.Minute)
		lost := &harness{t: t, store: schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))} // no node ends the allocations
		lost.Scheduler = scheduler.New(scheduler.Config{NodeID: "node", Store: lost.store, HostEnv: newTestEnv(), Logger: hclog.NewNullLogger()})
		copies := slices.Clone(b.allocs("web")[:2])
		for i, a := range copies {
			alloc, job := *a, *a.Job
			job.Version, job.CreateIndex = new(uint64(i)), new(uint64(7000))
			alloc.Job = &job
			copies[i] = &alloc
		}
		if err := lost.StoreAdoptedAllocs(t.Context(), copies, func(*store.Txn) {}); err != nil {
			t.Fatal(err)
		}
		snapshot := lost.store.Snapshot()
		job := snapshot.Job(nil, "default", "web")
		if *job.Version != 1 {
			t.Errorf("version %d of the job is stored, want 1", *job.Version)
		}
		for i, a := range copies {
			if got := snapshot.Allocation(nil, a.ID).Job; *got.Version != uint64(i) || *got.CreateIndex != *job.CreateIndex {
				t.Errorf("job of the allocation with version %d: version %d, create index %d, want that of the job, %d", i, *got.Version, *got.CreateIndex, *job.CreateIndex)
			}
		}
	})
}

// An adoption precedes the registration of the node, so it does not wait for the plugins that a replacement in the same job needs.
func TestAdoptionDoesNotWaitForPlugins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		b.register(serviceJob(nil))
		b.advance(time.Minute)
		allocs := b.allocs("web")
		lost := schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))
		env := newTestEnv()
		env.FirstPluginReports = make(chan struct{})
		next := scheduler.New(scheduler.Config{NodeID: "node", Store: lost, HostEnv: env, Logger: hclog.NewNullLogger()})
		if err := next.StoreAdoptedAllocs(t.Context(), allocs[:1], func(*store.Txn) {}); err != nil {
			t.Fatal(err)
		}
		putDrivers(t, lost)
		_, err := lost.Update(t.Context(), func(tx *store.Txn) error {
			failed := *allocs[1]
			failed.Job, failed.ClientStatus = tx.Job(nil, "default", "web"), api.AllocClientStatusFailed
			failed.TaskStates = map[string]*api.TaskState{"t": {State: "dead", Failed: true, FinishedAt: time.Now().Add(-time.Hour)}}
			tx.PutScheduledAllocation(&failed)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		other := *allocs[2]
		other.Job = lost.Snapshot().Job(nil, "default", "web")
		if err := next.StoreAdoptedAllocs(ctx, []*api.Allocation{&other}, func(*store.Txn) {}); err != nil {
			t.Errorf("the allocation is not adopted: %v", err)
		}
		if !slices.ContainsFunc(lost.Snapshot().EvaluationsByJob(nil, "default", "web"), func(e *api.Evaluation) bool { return e.Status == api.EvalStatusBlocked }) {
			t.Error("the replacement of the failed allocation is not planned")
		}
	})
}
