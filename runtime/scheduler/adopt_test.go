package scheduler_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// The allocations of an adopted job run on, nothing is placed for the job, and the job that is registered again replaces them.
func TestAdoptedJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		adopt := func(ids ...string) error {
			job := batchJob(func(j *api.Job, g *api.TaskGroup, task *api.Task) {
				j.Meta = map[string]string{model.AdoptedJobMeta: "true"}
				g.Count = new(len(ids))
				task.Config = nil
			})
			var allocs []*api.Allocation
			for i, id := range ids {
				allocs = append(allocs, &api.Allocation{
					ID: id, Name: fmt.Sprintf("web.%s[%d]", *job.TaskGroups[0].Name, i), Namespace: "default", JobID: "web", TaskGroup: *job.TaskGroups[0].Name,
					DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusPending, AllocatedResources: &api.AllocatedResources{},
				})
			}
			return b.StoreAdoptedJob(t.Context(), job, allocs, func(*store.Txn) {})
		}
		if err := adopt("one", "two"); err != nil {
			t.Fatal(err)
		}
		b.expectRejection(adopt("three"), `job "web" is registered in namespace "default": stop it, or end the unknown tasks`)
		b.advance(time.Minute)
		if _, err := b.StopAndReplaceAlloc(t.Context(), "two", scheduler.StopOptions{Reschedule: true}); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Minute)
		if _, err := b.EvaluateJob(t.Context(), webJobKey, true); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Minute)
		if allocs := b.allocs("web"); len(allocs) != 2 {
			t.Errorf("%d allocations after one of two was stopped", len(allocs))
		}
		for _, a := range b.allocs("web") {
			if want := map[string]string{"one": "run", "two": "stop"}[a.ID]; a.DesiredStatus != want {
				t.Errorf("allocation %s must %s, want %s", a.ID, a.DesiredStatus, want)
			}
		}
		b.register(serviceJob(nil))
		b.advance(time.Minute)
		running := 0
		for _, a := range b.allocs("web") {
			if a.DesiredStatus == api.AllocDesiredStatusRun {
				running++
			}
			if a.ID == "one" && a.DesiredStatus != api.AllocDesiredStatusStop {
				t.Error("the adopted allocation runs beside its successors")
			}
		}
		if running != 3 {
			t.Errorf("%d allocations of the registered job run, want 3", running)
		}
	})
}

func TestAdoptedJobGetsItsNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, endlessAllocTimes)
		job := batchJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Namespace = new("team") })
		if err := b.StoreAdoptedJob(t.Context(), job, nil, func(*store.Txn) {}); err != nil {
			t.Fatal(err)
		}
		if b.store.Snapshot().Namespace(nil, "team") == nil || b.store.Snapshot().Job(nil, "team", "web") == nil {
			t.Error("the job is not stored in its namespace")
		}
	})
}
