package orphans

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
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
	for i, alloc := range []*api.Allocation{lost, withoutRecord, ended} {
		alloc.Job = job
		processes[alloc.ID] = startUnknownTask(t, allocDirs, alloc.ID, "main", "foreign", fmt.Sprint("NOMAD_HOST_PORT_http=", 21000+i))
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
		tx.PutTask(withoutRecord.ID, "side", record.Fields{StartID: "1"}, &api.TaskState{State: model.TaskRunning})
	})
	nextAgent := func() *Cleaner {
		var log bytes.Buffer
		c := &Cleaner{Logger: hclog.New(&hclog.LoggerOptions{Output: &log}), AllocDirRoot: allocDirs, Store: s}
		adoption := &Adoption{Store: func(context.Context, []*api.Allocation, func(*store.Txn)) error {
			t.Error("an allocation is adopted whose driver does not find its task")
			return nil
		}}
		c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"foreign": foreignDriver{}}, adoption)
		for i, alloc := range []*api.Allocation{lost, withoutRecord} {
			if !c.UnknownTaskUsesHostPort(21000 + i) {
				t.Errorf("the port of %s is free", alloc.Name)
			}
			if id := c.FindUnknownInstance(job, alloc.Name); id != alloc.ID || !processes[alloc.ID].Alive() {
				t.Errorf("%s is the allocation %q, want %q; its process lives: %t\n%s", alloc.Name, id, alloc.ID, processes[alloc.ID].Alive(), log.String())
			}
			if !s.Snapshot().HasAgentRecord(state.UnknownAllocPrefix+alloc.ID) || s.Snapshot().Allocation(nil, alloc.ID) != nil {
				t.Errorf("%s is not recorded as unknown", alloc.Name)
			}
			if slices.Contains(s.Snapshot().AllocIDsWithLocalRecords(), alloc.ID) {
				t.Errorf("%s has records, with which its files would be removed after its end", alloc.Name)
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

// After a search for processes that has failed, an unknown allocation counts as running: a replacement would run its tasks twice.
func TestFailedSearchForgetsNoUnknownAlloc(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	alloc := newCopiedAlloc("known", 0, map[string]string{"main": "foreign"})
	startUnknownTask(t, c.AllocDirRoot, alloc.ID, "main", "foreign")
	putAllocCopy(t, c.AllocDirRoot, alloc)
	t.Cleanup(func() { findTaskProcesses = osprocess.FindTaskProcesses })
	findTaskProcesses = func(osprocess.TaskSearch) (map[osprocess.TaskEnvID][]osprocess.ID, error) {
		return nil, errors.New("no descriptors")
	}
	c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"foreign": foreignDriver{}}, nil)
	ended, err := c.forgetEndedUnknownAllocs()
	if _, running := c.RunningUnknownAllocs()[alloc.ID]; !running || ended || err == nil {
		t.Errorf("running %v, ended: %t, %v", c.RunningUnknownAllocs(), ended, err)
	}
}

// An allocation with a running task without a record becomes unknown only if the task would be started a second time, and if it can
// count as an instance. Otherwise it stays in the state.
func TestAllocWithoutTaskRecordStaysInState(t *testing.T) {
	for name, tt := range map[string]struct {
		driver                       driver.Driver
		isClusterNode                bool
		noCopy, noAdoption, hasEnded bool
		isStored                     bool
	}{
		"the driver does not know the task": {driver: foreignDriver{}},
		"the driver searches for the task":  {driver: sdkDriver{}, isStored: true},
		"the servers would assign it again": {driver: foreignDriver{}, isClusterNode: true, isStored: true},
		"its directory has no copy":         {driver: foreignDriver{}, noCopy: true, isStored: true},
		"the agent adopts no allocations":   {driver: foreignDriver{}, noAdoption: true, isStored: true},
		"it has ended":                      {driver: foreignDriver{}, hasEnded: true, isStored: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, filepath.Join(dir, "state.db"))
			defer s.Close()
			c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s, AdoptAllocsOfNode: tt.isClusterNode}
			alloc := newCopiedAlloc("known", 0, map[string]string{"main": "d"})
			startUnknownTask(t, c.AllocDirRoot, alloc.ID, "main", "d")
			if !tt.noCopy {
				putAllocCopy(t, c.AllocDirRoot, alloc)
			}
			alloc.ClientStatus, alloc.TaskStates = api.AllocClientStatusRunning, map[string]*api.TaskState{"main": {State: model.TaskRunning}}
			if tt.hasEnded {
				alloc.ClientStatus = api.AllocClientStatusLost
			}
			updater(t, s)(func(tx *store.Txn) { tx.PutScheduledAllocation(alloc) })
			adoption, _ := newAdoption(s)
			if tt.noAdoption {
				adoption = nil
			}
			if left := c.AllocsWithoutTaskRecord(); left[alloc.ID] == tt.hasEnded {
				t.Errorf("allocations without a task record: %v", left)
			}
			c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"d": tt.driver}, adoption)
			if isStored := s.Snapshot().Allocation(nil, alloc.ID) != nil; isStored != tt.isStored {
				t.Errorf("the allocation is in the state: %t, want %t", isStored, tt.isStored)
			}
		})
	}
}
