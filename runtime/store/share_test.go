package store

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// finishedAlloc returns an allocation with one ended task and typical events.
func finishedAlloc(id string, job *api.Job, cpu int64) *api.Allocation {
	end := &api.TaskEvent{Type: api.TaskTerminated, DisplayMessage: "Exit Code: 0", Details: map[string]string{"exit_code": "0"}}
	return &api.Allocation{
		ID: id, Namespace: "default", JobID: *job.ID, Job: job, TaskGroup: "g", ClientStatus: "complete",
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {Cpu: api.AllocatedCpuResources{CpuShares: cpu}}}},
		Resources:          &api.Resources{CPU: new(int(cpu))},
		TaskResources:      map[string]*api.Resources{"t": {CPU: new(int(cpu))}},
		Metrics:            &api.AllocationMetric{NodesEvaluated: 1},
		TaskStates:         map[string]*api.TaskState{"t": {State: "dead", Events: []*api.TaskEvent{end}}},
	}
}

func TestAllocationsShareValues(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	for i, cpu := range []int64{1, 1, 2, 2} {
		mustUpdate(t, s, func(tx *Txn) {
			tx.PutScheduledAllocation(finishedAlloc(fmt.Sprint("a", i), &api.Job{ID: new("j"), Version: new(uint64)}, cpu))
		})
	}
	check := func(when string) {
		all := s.Snapshot().Allocations(nil, "")
		for _, pair := range [][2]*api.Allocation{{all[0], all[1]}, {all[2], all[3]}} {
			a, b := pair[0], pair[1]
			// Only pointers are compared: Go cannot compare whether two maps are the same.
			if a.Job != b.Job || a.AllocatedResources != b.AllocatedResources || a.Resources != b.Resources || a.Metrics != b.Metrics ||
				a.TaskResources["t"] != b.TaskResources["t"] {
				t.Errorf("%s: %s and %s do not share what is the same", when, a.ID, b.ID)
			}
		}
		for i, a := range all {
			cpu := int64(i/2 + 1)
			if a.AllocatedResources.Tasks["t"].Cpu.CpuShares != cpu || *a.Resources.CPU != int(cpu) || *a.TaskResources["t"].CPU != int(cpu) {
				t.Errorf("%s: %s has what belongs to another", when, a.ID)
			}
			if e := a.TaskStates["t"].Events[0]; e.Type != api.TaskTerminated || e.DisplayMessage != "Exit Code: 0" || e.Details["exit_code"] != "0" {
				t.Errorf("%s: event %+v", when, e)
			}
		}
	}
	check("as put")
	s = reopenStore(t, s)
	check("as read")
	of := func(id string) *api.TaskEvent { return s.Snapshot().Allocation(nil, id).TaskStates["t"].Events[0] }
	of("a0").Details["note"] = "x"
	if of("a3").Details["note"] != "x" {
		t.Error("events that were read do not share their details")
	}
}

func TestLargeChangesAreDroppedFromEventFeed(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	const maxEvents = 100 * maxEventsPerChange
	late := s.Subscribe(0)
	for range 4 {
		mustUpdate(t, s, func(tx *Txn) {
			for i := range maxEvents/2 - 1 {
				setVariable(tx, fmt.Sprint("v", i), i)
			}
		})
	}
	// Two events fit.
	if _, err := late.Next(t.Context()); err != ErrLagged {
		t.Errorf("error %v", err)
	}
	if e, err := late.Next(t.Context()); err != nil || e[0].Index != s.Index()-1 {
		t.Errorf("the oldest event that is kept: %v, %v", e, err)
	}
	mustUpdate(t, s, func(tx *Txn) {
		for i := range 2 * maxEvents {
			setVariable(tx, fmt.Sprint("v", i), i)
		}
	})
	if e, err := s.Subscribe(0).Next(t.Context()); err != nil || e[0].Index != s.Index() || len(e) != 2*maxEvents {
		t.Errorf("the large change: %d events, %v", len(e), err)
	}
}

func TestWritesAfterIdle(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits until the writer is idle")
	}
	s := openStore(t, tempStatePath(t))
	mustUpdate(t, s, func(tx *Txn) {
		for i := range 2000 {
			setVariable(tx, fmt.Sprint("v", i), i)
		}
	})
	time.Sleep(idleReleaseDelay + 200*time.Millisecond) // the writer releases the file's mapped pages after idleReleaseDelay
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteVariable("default", "v7") })
	// The next write creates a new file, which is smaller than the removed one.
	if err := os.Remove(s.file.path); err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, func(tx *Txn) {
		for i := range 1990 {
			tx.DeleteVariable("default", fmt.Sprint("v", i))
		}
	})
	time.Sleep(idleReleaseDelay + 200*time.Millisecond)
	mustUpdate(t, s, func(tx *Txn) { setVariable(tx, "last", 1) })
	if n := len(reopenStore(t, s).Snapshot().Variables(nil, "default", "")); n != 11 {
		t.Errorf("%d variables, want 11", n)
	}
}

// A job and its latest version, which have the same bytes in the file, are one object after the file is loaded. An older
// version has its own object.
func TestLoadedJobIsItsLatestVersion(t *testing.T) {
	path := tempStatePath(t)
	s := openStore(t, path)
	put := func(id string, version uint64) {
		mustUpdate(t, s, func(tx *Txn) {
			tx.PutJobAndVersion(&api.Job{ID: &id, Namespace: new("default"), Version: &version, Meta: map[string]string{"version": fmt.Sprint(version)}})
		})
	}
	put("a", 0)
	put("a", 1)
	put("ab", 7)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r := openStore(t, path).Snapshot()
	for id, latest := range map[string]uint64{"a": 1, "ab": 7} {
		job := r.Job(nil, "default", id)
		if job == nil || job != r.JobVersion(nil, "default", id, latest) || job.Meta["version"] != fmt.Sprint(latest) {
			t.Errorf("job %s: %+v, its latest version %+v", id, job, r.JobVersion(nil, "default", id, latest))
		}
	}
	if old := r.JobVersion(nil, "default", "a", 0); old == nil || old == r.Job(nil, "default", "a") || old.Meta["version"] != "0" {
		t.Errorf("old version %+v", old)
	}
}
