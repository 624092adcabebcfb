package orphans

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// If an allocation's tasks run and no driver can adopt it, it is an instance of its job until the tasks end, whether
// the state has lost the allocation or only its task's record.
func TestUnknownInstanceLastsUntilItsTasksEnd(t *testing.T) {
	dir := t.TempDir()
	allocDirs := filepath.Join(dir, "alloc")
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	foreign := map[string]string{"main": "foreign"}
	lost, withoutRecord, ended := newCopiedAlloc("known", 0, foreign), newCopiedAlloc("known", 1, foreign), newCopiedAlloc("known", 2, foreign)
	put := updater(t, s)
	put(func(tx *store.Txn) {
		job := *lost.Job
		tx.PutJobAndVersion(&job)
	})
	job := s.Snapshot().Job(nil, "default", "known")
	processes := make(map[string]osprocess.ID)
	for _, alloc := range []*api.Allocation{lost, withoutRecord, ended} {
		alloc.Job = job
		processes[alloc.ID] = startUnknownTask(t, allocDirs, alloc.ID, "main", "foreign")
		putAllocCopy(t, allocDirs, alloc)
	}
	if err := processes[ended.ID].KillAndWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(func(tx *store.Txn) {
		for _, alloc := range []*api.Allocation{withoutRecord, ended} {
			stored := *alloc
			stored.ClientStatus, stored.TaskStates = api.AllocClientStatusRunning, map[string]*api.TaskState{"main": {State: model.TaskRunning}}
			tx.PutScheduledAllocation(&stored)
		}
	})
	nextAgent := func() *Cleaner {
		var log bytes.Buffer
		c := &Cleaner{Logger: hclog.New(&hclog.LoggerOptions{Output: &log}), AllocDirRoot: allocDirs, Store: s}
		adoption := &Adoption{Store: func(context.Context, []*api.Allocation, func(*store.Txn)) error {
			t.Error("an allocation is adopted whose driver does not find its task")
			return nil
		}}
		c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"foreign": foreignDriver{}}, adoption)
		for _, alloc := range []*api.Allocation{lost, withoutRecord} {
			if id := c.FindUnknownInstance(job, alloc.Name); id != alloc.ID || !processes[alloc.ID].Alive() {
				t.Errorf("%s is the allocation %q, want %q; its process lives: %t\n%s", alloc.Name, id, alloc.ID, processes[alloc.ID].Alive(), log.String())
			}
			if !s.Snapshot().HasAgentRecord(state.UnknownAllocPrefix+alloc.ID) || s.Snapshot().Allocation(nil, alloc.ID) != nil {
				t.Errorf("%s is not recorded as unknown", alloc.Name)
			}
		}
		if id := c.FindUnknownInstance(job, ended.Name); id != "" || s.Snapshot().Allocation(nil, ended.ID) == nil {
			t.Errorf("the allocation without a process is the unknown instance %q", id)
		}
		return c
	}
	nextAgent()
	c := nextAgent()
	if ended, err := c.forgetEndedUnknownAllocs(); ended || err != nil {
		t.Errorf("tasks that run have ended: %t, %v", ended, err)
	}
	if err := processes[lost.ID].KillAndWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ended, err := c.forgetEndedUnknownAllocs(); !ended || err != nil || c.FindUnknownInstance(job, lost.Name) != "" || c.FindUnknownInstance(job, withoutRecord.Name) == "" {
		t.Errorf("after the end of one of two: %t, %v, running %v", ended, err, c.RunningUnknownAllocs())
	}
	if _, err := os.Stat(filepath.Join(allocDirs, lost.ID, "main")); err != nil {
		t.Errorf("directory of the ended instance: %v", err)
	}
}
