package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func openStore(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func reopenStore(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return openStore(t, s.file.path)
}

func tempStatePath(t testing.TB) string { return filepath.Join(t.TempDir(), "state.db") }

// mustUpdate makes a change that must succeed.
func mustUpdate(t testing.TB, s *Store, fn func(*Txn)) uint64 {
	t.Helper()
	index, err := s.Update(t.Context(), func(tx *Txn) error { fn(tx); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func testJob(id string, version uint64) *api.Job {
	count := 1
	return &api.Job{
		ID: &id, Name: &id, Namespace: new("default"), Version: &version,
		TaskGroups: []*api.TaskGroup{{Name: new("app"), Count: &count, Tasks: []*api.Task{{
			Name: "web", Driver: "raw_exec", Config: map[string]any{"command": "sleep", "args": []any{"1"}, "n": 5, "f": 1.0},
			Env: map[string]string{"PASSWORD": "hunter2"},
		}}}},
	}
}

func TestChangeSetsIndexesAndPersists(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	job := testJob("a", 0)
	first := mustUpdate(t, s, func(tx *Txn) {
		tx.PutJobAndVersion(job)
		tx.PutEvaluation(&api.Evaluation{ID: "e", JobID: "a", Namespace: "default"})
		if tx.Job(nil, "default", "a") != job || tx.Index() != 1 {
			t.Errorf("the change does not see itself: %v at %d", tx.Job(nil, "default", "a"), tx.Index())
		}
	})
	second := mustUpdate(t, s, func(tx *Txn) {
		newer := *tx.Job(nil, "default", "a")
		newer.Version = new(uint64(1))
		tx.PutJobAndVersion(&newer)
		tx.PutScheduledAllocation(&api.Allocation{ID: "x", Namespace: "default", JobID: "a", Job: &newer})
	})
	third := mustUpdate(t, s, func(tx *Txn) {
		alloc := *tx.Allocation(nil, "x")
		alloc.ClientStatus = "running"
		tx.PutReportedAllocation(&alloc)
	})
	if first != 1 || second != 2 || third != 3 {
		t.Errorf("indexes %d, %d, %d", first, second, third)
	}
	for range 2 {
		snap := s.Snapshot()
		j, e, a := snap.Job(nil, "default", "a"), snap.Evaluation(nil, "e"), snap.Allocation(nil, "x")
		if *j.CreateIndex != 1 || *j.ModifyIndex != 2 || *j.Version != 1 {
			t.Errorf("job created at %d, modified at %d, version %d", *j.CreateIndex, *j.ModifyIndex, *j.Version)
		}
		if e.CreateIndex != 1 || e.ModifyIndex != 1 {
			t.Errorf("evaluation created at %d, modified at %d", e.CreateIndex, e.ModifyIndex)
		}
		if a.CreateIndex != 2 || a.ModifyIndex != 3 || a.AllocModifyIndex != 2 || a.ClientStatus != "running" {
			t.Errorf("allocation %+v", a)
		}
		if versions := snap.JobVersions(nil, "default", "a"); len(versions) != 2 || *versions[0].Version != 1 || *versions[1].ModifyIndex != 1 {
			t.Errorf("versions %v", versions)
		}
		for table, want := range map[Table]uint64{Jobs: 2, Evaluations: 1, Allocations: 3, Nodes: 0} {
			if got := snap.LatestTableIndex(nil, table); got != want {
				t.Errorf("index of %s is %d, want %d", table, got, want)
			}
		}
		if got := snap.LatestTableIndex(nil, Jobs, Evaluations, Nodes); got != 2 || snap.Index() != 3 {
			t.Errorf("index of several tables %d, of all %d", got, snap.Index())
		}
		s = reopenStore(t, s)
	}
}

func TestFailedChangeIsUndone(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutJobAndVersion(testJob("a", 0))
		tx.PutEvaluation(&api.Evaluation{ID: "old"})
	})
	before, commits := storeContent(s), s.CommitCount()
	refused := errors.New("refused")
	_, err := s.Update(t.Context(), func(tx *Txn) error {
		tx.PutJobAndVersion(testJob("b", 0))
		tx.DeleteJob("default", "a")
		tx.PutJobAndVersion(testJob("a", 7))
		tx.DeleteEvaluation("old")
		tx.PutScheduledAllocation(&api.Allocation{ID: "x", Job: testJob("b", 0)})
		return refused
	})
	if err != refused {
		t.Errorf("error %v", err)
	}
	if got := storeContent(s); !reflect.DeepEqual(got, before) || s.Index() != 1 || s.CommitCount() != commits {
		t.Errorf("at index %d: %v", s.Index(), got)
	}
	if got := mustUpdate(t, s, func(tx *Txn) { tx.DeleteEvaluation("old") }); got != 2 {
		t.Errorf("next index %d", got)
	}
}

func TestInvalidUpdates(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	mustUpdate(t, s, func(tx *Txn) { tx.PutEvaluation(&api.Evaluation{ID: "e"}) })
	for want, fn := range map[string]func(*Txn){
		`put evaluations: object without a key`: func(tx *Txn) { tx.PutEvaluation(&api.Evaluation{}) },
		`put job a: it has no version`:          func(tx *Txn) { tx.PutJobAndVersion(&api.Job{ID: new("a")}) },
		`put evaluations "e": it was changed in place`: func(tx *Txn) {
			e := tx.Evaluation(nil, "e")
			tx.PutEvaluation(e)
		},
		`the key has 40000 bytes, at most 32768 are possible`: func(tx *Txn) { tx.PutEvaluation(&api.Evaluation{ID: strings.Repeat("x", 40_000)}) },
		`store task_local "x/web": allocation has been forgotten`: func(tx *Txn) {
			tx.putTaskFields("x", "web", record.Fields{})
		},
		`store record "f": state.AgentRecordKinds has no such record`: func(tx *Txn) { tx.PutAgentRecord("f", "x") },
	} {
		_, err := s.Update(t.Context(), func(tx *Txn) error {
			tx.PutNamespace(&api.Namespace{Name: "first"})
			fn(tx)
			tx.PutNamespace(&api.Namespace{Name: "last"})
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if s.Index() != 1 || len(s.Snapshot().Namespaces(nil, "")) > 0 {
		t.Errorf("index %d, namespaces %v", s.Index(), s.Snapshot().Namespaces(nil, ""))
	}
}

func TestPanicReachesTheCaller(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	func() {
		defer func() {
			if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "a bug") || !strings.Contains(fmt.Sprint(p), "store_test.go") {
				t.Errorf("panicked with %v", p)
			}
		}()
		s.Update(t.Context(), func(tx *Txn) error {
			tx.PutNamespace(&api.Namespace{Name: "a"})
			panic("a bug")
		})
	}()
	if got := mustUpdate(t, s, func(tx *Txn) { tx.PutNamespace(&api.Namespace{Name: "b"}) }); got != 1 || len(s.Snapshot().Namespaces(nil, "")) != 1 {
		t.Errorf("index %d, namespaces %v", got, s.Snapshot().Namespaces(nil, ""))
	}
}

// stallWriter blocks the writer in mid-update until the returned function is called.
func stallWriter(t *testing.T, s *Store) (resume func()) {
	started, end := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Update(t.Context(), func(*Txn) error { close(started); <-end; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-started
	return func() { close(end); wg.Wait() }
}

// waitForQueuedRequests waits until n updates are in the writer's queue.
func waitForQueuedRequests(s *Store, n int) {
	for {
		s.queue.mu.Lock()
		have := len(s.queue.requests)
		s.queue.mu.Unlock()
		if have == n {
			return
		}
		runtime.Gosched()
	}
}

func TestConcurrentUpdatesShareACommit(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	const n = 500
	resume := stallWriter(t, s)
	var wg sync.WaitGroup
	indexes := make([]uint64, n)
	var failedUpdates atomic.Int64
	var committed []uint64 // indexes, in call order of OnCommit functions
	for i := range n {
		wg.Go(func() {
			index, err := s.Update(t.Context(), func(tx *Txn) error {
				tx.OnCommit(func() {
					committed = append(committed, tx.Index())
					if s.Snapshot().Evaluation(nil, fmt.Sprintf("e-%d", i)) == nil {
						t.Error("OnCommit functions are called before the change is visible")
					}
				})
				tx.PutEvaluation(&api.Evaluation{ID: fmt.Sprintf("e-%d", i)})
				if i%10 == 0 {
					return errors.New("no")
				}
				return nil
			})
			if err != nil {
				failedUpdates.Add(1)
			}
			indexes[i] = index
		})
	}
	waitForQueuedRequests(s, n)
	resume()
	wg.Wait()
	if got := s.CommitCount(); got != 1 {
		t.Errorf("%d commits for %d updates", got, n)
	}
	if failedUpdates.Load() != n/10 || s.Index() != n*9/10 {
		t.Errorf("%d failed, index %d", failedUpdates.Load(), s.Index())
	}
	slices.Sort(indexes)
	if !slices.Equal(committed, indexes[n/10:]) {
		t.Errorf("order of OnCommit functions: %v", committed)
	}
	for i, index := range indexes[n/10:] {
		if index != uint64(i+1) {
			t.Fatalf("indexes %v", indexes)
		}
	}
	s = reopenStore(t, s)
	for _, e := range s.Snapshot().Evaluations(nil, "") {
		if !slices.Contains(indexes, e.CreateIndex) {
			t.Errorf("evaluation %s has the index %d", e.ID, e.CreateIndex)
		}
	}
	if got := len(s.Snapshot().Evaluations(nil, "")); got != n*9/10 {
		t.Errorf("%d evaluations", got)
	}
}

// A change is visible only when it is on disk.
func TestChangeIsSeenWhenItIsDurable(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	resume := stallWriter(t, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Update(t.Context(), func(tx *Txn) error {
			tx.PutNamespace(&api.Namespace{Name: "a"})
			if s.Snapshot().Namespace(nil, "a") != nil || s.Index() != 0 {
				t.Error("a reader sees what is not on the disk")
			}
			return nil
		})
	}()
	waitForQueuedRequests(s, 1)
	resume()
	<-done
	if s.Snapshot().Namespace(nil, "a") == nil {
		t.Error("nobody sees it")
	}
}

func TestUpdateIsWithdrawnInTheQueue(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	resume := stallWriter(t, s)
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	errs := make(chan error)
	go func() {
		_, err := s.Update(ctx, func(*Txn) error { t.Error("called"); return nil })
		errs <- err
	}()
	waitForQueuedRequests(s, 1)
	cancel(reason)
	if err := <-errs; err != reason {
		t.Errorf("error %v", err)
	}
	resume()
	if _, err := s.Update(ctx, func(*Txn) error { t.Error("called"); return nil }); err != reason {
		t.Errorf("error %v", err)
	}
}

func TestClosedStore(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	resume := stallWriter(t, s)
	errs := make(chan error)
	go func() {
		_, err := s.Update(t.Context(), func(tx *Txn) error { tx.PutNamespace(&api.Namespace{Name: "a"}); return nil })
		errs <- err
	}()
	waitForQueuedRequests(s, 1)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	resume()
	if err := <-errs; err != nil && err != ErrClosed {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := s.Update(t.Context(), func(*Txn) error { return nil }); err != ErrClosed {
		t.Errorf("update: %v", err)
	}
	if err := s.Close(); err != ErrClosed {
		t.Errorf("close: %v", err)
	}
}

func TestAllocationsShareTheirJob(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	count := func() int {
		s.Close()
		contents, err := InspectFile(s.file.path)
		if err != nil || len(contents.Damage) > 0 {
			t.Fatal(err, contents.Damage)
		}
		f, err := os.Open(s.file.path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n := 0
		if _, err := visitReadableRecords(f, "", func(bucket string, _, _ []byte) {
			if bucket == jobBucket {
				n++
			}
		}); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, s.file.path)
		return n
	}
	alloc := func(i int, job *api.Job) *api.Allocation {
		return &api.Allocation{ID: fmt.Sprintf("alloc-%d", i), Namespace: "default", JobID: "a", Job: job}
	}
	mustUpdate(t, s, func(tx *Txn) {
		for i := range 10 {
			tx.PutScheduledAllocation(alloc(i, testJob("a", 0))) // each allocation has its own job object, all equal
		}
	})
	snap := s.Snapshot()
	if snap.Allocation(nil, "alloc-0").Job != snap.Allocation(nil, "alloc-9").Job {
		t.Error("ten objects for one job")
	}
	if got := count(); got != 1 {
		t.Errorf("%d jobs in the file, want 1", got)
	}
	snap = s.Snapshot()
	if job := snap.Allocation(nil, "alloc-0").Job; job != snap.Allocation(nil, "alloc-9").Job || !reflect.DeepEqual(job, testJob("a", 0)) {
		t.Error("ten objects for one job, or another job, after a restart")
	}
	mustUpdate(t, s, func(tx *Txn) {
		for i := range 5 {
			tx.PutScheduledAllocation(alloc(i, testJob("a", 1)))
		}
		tx.PutScheduledAllocation(alloc(99, testJob("b", 1)))
		tx.DeleteAllocationAndQueueRemoval("alloc-99")
	})
	if got := count(); got != 2 {
		t.Errorf("%d jobs in the file, want 2", got)
	}
	mustUpdate(t, s, func(tx *Txn) {
		for i := range 5 {
			tx.PutScheduledAllocation(alloc(i, nil))
		}
	})
	mustUpdate(t, s, func(tx *Txn) {
		for i := range 9 {
			tx.DeleteAllocationAndQueueRemoval(fmt.Sprintf("alloc-%d", i))
		}
	})
	if got := count(); got != 1 || s.Snapshot().Allocation(nil, "alloc-9").Job == nil {
		t.Errorf("%d jobs in the file, want 1", got)
	}
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteAllocationAndQueueRemoval("alloc-9") })
	if got := count(); got != 0 || len(s.jobs.entriesByHash) != 0 || len(s.jobs.hashesByJob) != 0 {
		t.Errorf("%d jobs in the file, want none; in memory %v", got, s.jobs)
	}
}

func TestLocalRecords(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	local := record.Fields{
		StartID: "x/web/1", Handle: &driver.Handle{Version: 1, DriverState: []byte{1, 2}, Config: &driver.TaskConfig{ID: "x/web/1"}},
		HookStateByName:       map[string]record.HookState{"a": {AttachmentJSON: "{}", PrestartDone: true, Env: map[string]string{"A": "1"}}, "b": {Data: map[string]string{"k": "v"}}},
		AllocHookConfigByName: map[string]string{"c": `{"d": 1}`},
	}
	status := &api.TaskState{State: "running", Events: []*api.TaskEvent{{Type: "Started", Time: 5}}}
	if err := s.PutTask("x", "web", local, status, state.DurabilitySync)(); !errors.Is(err, ErrRunnerRecordsDeleted) {
		t.Errorf("record of an allocation that is not there: %v", err)
	}
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutScheduledAllocation(&api.Allocation{ID: "x"})
		tx.putTaskFields("x", "web", record.Fields{StartID: "x/web/1"}) // this update's changes have one commit
	})
	commits := s.CommitCount()
	for range 3 {
		if err := s.PutTask("x", "web", local, status, state.DurabilitySync)(); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.CommitCount() - commits; n != 1 {
		t.Errorf("%d commits, want 1: the same is not written again", n)
	}
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutCheckResult("x", &api.AllocCheckStatus{ID: "c", Status: "success"})
		tx.PutAgentRecord(state.BootIDName, "id")
		tx.PutAgentRecord(state.PluginProcessPrefix+"raw_exec", &state.PluginProcess{PID: 7, Addr: "/x"})
	})
	if s.Index() != 1 {
		t.Errorf("records of runners took an index: %d", s.Index())
	}
	for range 2 {
		snap := s.Snapshot()
		if got, ok, err := snap.TaskFields("x", "web"); !ok || err != nil || !reflect.DeepEqual(got, local) {
			t.Errorf("record %+v, %v, %v", got, ok, err)
		}
		if got, err := snap.TaskState("x", "web"); err != nil || !reflect.DeepEqual(got, status) {
			t.Errorf("task state %+v, %v", got, err)
		}
		if checks, err := snap.CheckResults("x"); err != nil || checks["c"].Status != "success" {
			t.Errorf("checks %v, %v", checks, err)
		}
		var bootID string
		var process state.PluginProcess
		ok1, err1 := snap.ReadAgentRecord(state.BootIDName, &bootID)
		ok2, err2 := snap.ReadAgentRecord(state.PluginProcessPrefix+"raw_exec", &process)
		if err := errors.Join(err1, err2); err != nil || !ok1 || !ok2 || bootID != "id" || process.PID != 7 {
			t.Errorf("records %q, %v, %v", bootID, process, err)
		}
		if got := snap.AgentRecordNames("plugin/"); !slices.Equal(got, []string{"plugin/raw_exec"}) {
			t.Errorf("facts %v", got)
		}
		s = reopenStore(t, s)
	}
	// An allocation's tasks may still run after it was deleted.
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteAllocationAndQueueRemoval("x") })
	if err := s.PutTaskState("x", "web", &api.TaskState{State: "dead"}, state.DurabilitySync)(); err != nil {
		t.Error(err)
	}
	if got := s.Snapshot().AllocIDsWithLocalRecords(); !slices.Equal(got, []string{"x"}) {
		t.Errorf("allocations with records: %v", got)
	}
	if got := s.Snapshot().TaskNamesWithLocalRecords("x"); !slices.Equal(got, []string{"web"}) {
		t.Errorf("tasks with records: %v", got)
	}
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteRunnerRecordsAndServices("x"); tx.DeleteAgentRecord(state.BootIDName) })
	if err := s.PutTaskState("x", "web", status, state.DurabilitySync)(); !errors.Is(err, ErrRunnerRecordsDeleted) {
		t.Errorf("a forgotten record came back: %v", err)
	}
	if got := s.Snapshot().AllocIDsWithLocalRecords(); len(got) > 0 {
		t.Errorf("allocations with records: %v", got)
	}
}

// A new agent shows a running task's state from the record with which it restores the task, and an ended task's state from its
// allocation.
func TestTaskStatesOfAllocations(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	stored := &api.TaskState{State: "pending", Events: []*api.TaskEvent{{Type: "Received", Time: 1}}}
	shown := &api.TaskState{State: "running", Events: append(slices.Clone(stored.Events), &api.TaskEvent{Type: "Started", Time: 2})}
	for _, status := range []string{"pending", "running", "complete"} {
		mustUpdate(t, s, func(tx *Txn) {
			tx.PutScheduledAllocation(&api.Allocation{ID: status, Namespace: "default", JobID: "a", Job: testJob("a", 0)})
		})
		if err := s.PutTaskState(status, "web", stored, state.DurabilitySync)(); err != nil {
			t.Fatal(err)
		}
		mustUpdate(t, s, func(tx *Txn) {
			a := *tx.Allocation(nil, status)
			a.ClientStatus, a.TaskStates = status, map[string]*api.TaskState{"web": shown, "new": stored}
			if status == "pending" {
				a.TaskStates = nil
			}
			tx.PutReportedAllocation(&a)
		})
	}
	s = reopenStore(t, s)
	for status, want := range map[string]map[string]*api.TaskState{
		"pending":  {"web": stored},
		"running":  {"web": stored, "new": stored},
		"complete": {"web": shown, "new": stored},
	} {
		if got := s.Snapshot().Allocation(nil, status).TaskStates; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", status, got, want)
		}
	}
}

// TestDurabilityOfTaskStates checks that a record is written when its delay has passed at the latest, and writes keep their
// order.
func TestDurabilityOfTaskStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, tempStatePath(t))
		mustUpdate(t, s, func(tx *Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "x"}) })
		begin, commits := time.Now(), s.CommitCount()
		check := func(what string, more int64, at time.Duration, state string) {
			t.Helper()
			synctest.Wait()
			got, err := s.Snapshot().TaskState("x", "web")
			if err != nil || got == nil || got.State != state {
				t.Errorf("%s: stored is %+v, %v, want %q", what, got, err, state)
			}
			if n := s.CommitCount() - commits; n != more || time.Since(begin) != at {
				t.Errorf("%s: %d commits after %v, want %d after %v", what, n, time.Since(begin), more, at)
			}
		}
		put := func(status string, h state.Durability) state.WaitDurableFunc {
			return s.PutTaskState("x", "web", &api.TaskState{State: status}, h)
		}
		if err := put("a", state.DurabilitySync)(); err != nil {
			t.Error(err)
		}
		check("at once", 1, 0, "a")
		put("b", state.DurabilityAsync)
		check("behind", 1, 0, "a")
		put("c", state.DurabilityAsync)
		mustUpdate(t, s, func(tx *Txn) { tx.PutAgentRecord(state.BootIDName, "b") })
		check("with another", 2, 0, "c")
		put("d", state.DurabilityAsync)
		time.Sleep(50 * time.Millisecond)
		check("alone", 3, 50*time.Millisecond, "d")
		put("e", state.DurabilityAsync)
		written := put("f", state.DurabilityGrouped)
		check("shared, before", 3, 50*time.Millisecond, "d")
		if err := written(); err != nil {
			t.Error(err)
		}
		check("shared", 4, 51*time.Millisecond, "f")
		put("g", state.DurabilityAsync)
		s = reopenStore(t, s)
		commits = s.CommitCount()
		check("the last one", 0, 51*time.Millisecond, "g")
	})
}

func TestListsAndPrefixes(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	ids := []string{"0a000000-1111-2222-3333-444444444444", "0a0b0000-1111-2222-3333-444444444444", "ff000000-1111-2222-3333-444444444444"}
	mustUpdate(t, s, func(tx *Txn) {
		for _, ns := range []string{"default", "default2", "other"} {
			for _, id := range []string{"web", "web2", "db"} {
				job := testJob(id, 0)
				job.Namespace = new(ns)
				job.ParentID = new("parent")
				tx.PutJobAndVersion(job)
			}
		}
		for i, id := range ids {
			tx.PutScheduledAllocation(&api.Allocation{ID: id, Namespace: "default", JobID: "web", EvalID: "e", DeploymentID: "d", NodeID: "n", PreviousAllocation: strings.Repeat("p", i)})
		}
		tx.PutScheduledAllocation(&api.Allocation{ID: "ee000000-1111-2222-3333-444444444444", Namespace: "default2", JobID: "web"})
		for i := range 3 {
			tx.PutDeployment(&api.Deployment{ID: fmt.Sprint("d", 9-i), Namespace: "default", JobID: "web"})
		}
		tx.PutService(&api.ServiceRegistration{ID: "s1", ServiceName: "http", Namespace: "default", AllocID: ids[0], JobID: "web"})
		tx.PutService(&api.ServiceRegistration{ID: "s2", ServiceName: "http2", Namespace: "default", AllocID: ids[0], JobID: "web2"})
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "a/b"})
		tx.PutVariable(&api.Variable{Namespace: "other", Path: "a/c"})
		tx.PutPeriodicLaunch(&PeriodicLaunch{Namespace: "default", JobID: "web", LaunchTime: time.Unix(7, 0)})
		for i := range 25 {
			tx.AddScalingEvent("default", "web", "app", api.ScalingEvent{Time: uint64(i)})
		}
		tx.PutJobVersion(func() *api.Job { j := testJob("web", 5); j.Stable = new(true); return j }())
	})
	snap := s.Snapshot()
	for name, tc := range map[string]struct{ got, want int }{
		"jobs of a namespace":                 {len(snap.Jobs(nil, "default", "")), 3},
		"jobs with a prefix":                  {len(snap.Jobs(nil, "default", "web")), 2},
		"jobs of all":                         {len(snap.Jobs(nil, AnyNamespace, "")), 9},
		"jobs of all with a prefix":           {len(snap.Jobs(nil, AnyNamespace, "web")), 6},
		"children":                            {len(snap.JobChildren(nil, "default", "parent")), 3},
		"versions":                            {len(snap.JobVersions(nil, "default", "web")), 2},
		"versions of another":                 {len(snap.JobVersions(nil, "default", "web2")), 1},
		"allocations":                         {len(snap.Allocations(nil, "")), 4},
		"allocations with a prefix":           {len(snap.Allocations(nil, "0a")), 2},
		"allocations with an odd prefix":      {len(snap.Allocations(nil, "0a0")), 2},
		"allocations, hyphens anywhere":       {len(snap.Allocations(nil, "0a0-b00001111-22")), 1},
		"allocations of a job":                {len(snap.AllocationsByJob(nil, "default", "web")), 3},
		"allocations of a namespace":          {len(snap.AllocationsByNamespace(nil, "default")), 3},
		"allocations of an evaluation":        {len(snap.AllocationsByEvaluation(nil, "e")), 3},
		"allocations of a deployment":         {len(snap.AllocationsByDeployment(nil, "d")), 3},
		"allocations of a node":               {len(snap.AllocationsByNode(nil, "n")), 3},
		"services of a namespace":             {len(snap.Services(nil, "default")), 2},
		"services of all":                     {len(snap.Services(nil, AnyNamespace)), 2},
		"services of a name":                  {len(snap.ServicesByName(nil, "default", "http")), 1},
		"services of a job":                   {len(snap.ServicesByJob(nil, "default", "web")), 1},
		"services of an allocation":           {len(snap.ServicesByAllocation(nil, ids[0])), 2},
		"variables of all":                    {len(snap.Variables(nil, AnyNamespace, "a/")), 2},
		"variables of a namespace":            {len(snap.Variables(nil, "other", "a/b")), 0},
		"scaling events, the last of them":    {len(snap.ScalingEvents(nil, "default", "web")["app"]), 20},
		"scaling events of a job without any": {len(snap.ScalingEvents(nil, "default", "db")), 0},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %d, want %d", name, tc.got, tc.want)
		}
	}
	if e := snap.ScalingEvents(nil, "default", "web")["app"][0]; e.Time != 24 || e.CreateIndex != 1 {
		t.Errorf("newest scaling event %+v", e)
	}
	if d := snap.LatestDeployment(nil, "default", "web"); d == nil || snap.LatestDeployment(nil, "default", "db") != nil {
		t.Errorf("latest deployment %v", d)
	}
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteJob("default", "web") })
	snap = s.Snapshot()
	if snap.Job(nil, "default", "web") != nil || len(snap.JobVersions(nil, "default", "web")) > 0 || snap.PeriodicLaunch(nil, "default", "web") != nil ||
		snap.ScalingEvents(nil, "default", "web") != nil || len(snap.AllocationsByJob(nil, "default", "web")) != 3 || snap.Job(nil, "default", "web2") == nil {
		t.Error("a purge leaves too much, or too little")
	}
}

func TestStressUnderReaders(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("is a load test")
	}
	s := openStore(t, tempStatePath(t))
	ctx, cancel := context.WithCancel(t.Context())
	var readersWG, updatesWG sync.WaitGroup
	for range 3 {
		readersWG.Go(func() {
			var lastIndex uint64
			for ctx.Err() == nil {
				snap := s.Snapshot()
				if snap.Index() < lastIndex {
					t.Errorf("index %d after %d", snap.Index(), lastIndex)
				}
				lastIndex = snap.Index()
				var sum int
				for _, v := range snap.Variables(nil, "default", "") {
					n, _ := strconv.Atoi(v.Items["n"])
					if sum += n; v.ModifyIndex > snap.Index() {
						t.Errorf("variable of index %d in a snapshot of %d", v.ModifyIndex, snap.Index())
					}
				}
				if sum != 0 {
					t.Errorf("half a change: the sum is %d", sum)
				}
			}
		})
	}
	for w := range 8 {
		updatesWG.Go(func() {
			for i := range 40 {
				if _, err := s.Update(ctx, func(tx *Txn) error {
					for path, n := range map[string]int{"a": i, "b": -i} { // the sum is always 0
						tx.PutVariable(&api.Variable{Namespace: "default", Path: fmt.Sprint(path, w), Items: api.VariableItems{"n": strconv.Itoa(n)}})
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	updatesWG.Wait()
	cancel()
	readersWG.Wait()
	if s.Index() != 8*40 {
		t.Errorf("index %d", s.Index())
	}
}

// If a batch fails before its write to the file, its transaction in memory is ended, so that the next update does not block.
func TestFailedBatchEndsItsTransaction(t *testing.T) {
	s := openStore(t, tempStatePath(t))
	indexes := s.memDB.DBSchema().Tables[tableIndexTable]
	resume := stallWriter(t, s)
	first := make(chan error, 1)
	go func() {
		_, err := s.Update(t.Context(), func(tx *Txn) error {
			tx.PutNamespace(&api.Namespace{Name: "a"})
			return nil
		})
		first <- err
	}()
	waitForQueuedRequests(s, 1)
	second := make(chan struct{})
	go func() {
		defer close(second)
		_, _ = s.Update(t.Context(), func(*Txn) error {
			delete(s.memDB.DBSchema().Tables, tableIndexTable) // makes the batch's write fail
			return nil
		})
	}()
	waitForQueuedRequests(s, 2)
	resume()
	if err := <-first; err == nil || !strings.Contains(err.Error(), "invalid table") {
		t.Fatalf("first update: %v", err)
	}
	<-second
	s.memDB.DBSchema().Tables[tableIndexTable] = indexes
	mustUpdate(t, s, func(tx *Txn) { tx.PutNamespace(&api.Namespace{Name: "b"}) })
	if snap := s.Snapshot(); snap.Namespace(nil, "a") != nil || snap.Namespace(nil, "b") == nil {
		t.Error("not exactly the second change is there")
	}
}

// bbolt reuses the pages of deleted records, and never makes its file smaller.
func TestIdleStoreCompactsItsFile(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits until the store is idle")
	}
	s := openStore(t, tempStatePath(t))
	const evals = 4000
	id := func(i int) string { return fmt.Sprintf("eval-%04d", i) }
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutJobAndVersion(testJob("a", 0))
		for i := range evals {
			tx.PutEvaluation(&api.Evaluation{ID: id(i), JobID: "a", Namespace: "default", StatusDescription: strings.Repeat("x", 1000)})
		}
	})
	full := s.FileSizeBytes()
	mustUpdate(t, s, func(tx *Txn) {
		for i := range evals - 10 {
			tx.DeleteEvaluation(id(i))
		}
	})
	if size := s.FileSizeBytes(); size < full || full < 4<<20 {
		t.Fatalf("the file has %d bytes before and %d after the deletion", full, size)
	}
	for deadline := time.Now().Add(time.Minute); s.FileSizeBytes() > minCompactableSize; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the file still has %d bytes", s.FileSizeBytes())
		}
	}
	last := mustUpdate(t, s, func(tx *Txn) { tx.PutEvaluation(&api.Evaluation{ID: "later", JobID: "a", Namespace: "default"}) })
	s = reopenStore(t, s)
	if got := len(s.Snapshot().Evaluations(nil, "")); got != 11 || s.Snapshot().Job(nil, "default", "a") == nil || s.Index() != last || len(s.Damage()) > 0 {
		t.Errorf("%d evaluations at index %d, want 11 at %d; damage %v", got, s.Index(), last, s.Damage())
	}
}

func TestFileInUseIsNotCompacted(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	mustUpdate(t, s, func(tx *Txn) {
		for i := range 2000 {
			tx.PutEvaluation(&api.Evaluation{ID: fmt.Sprint(i), JobID: "a", Namespace: "default", StatusDescription: strings.Repeat("x", 1000)})
		}
	})
	mustSucceed(t, s.runBetweenTransactions(t.Context(), func() error {
		if s.file.isWorthCompacting() {
			t.Error("a file with as many records as ever counts as mostly free")
		}
		if err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))); err != nil {
			return err
		}
		if s.file.isWorthCompacting() {
			t.Error("a file that was just rebuilt counts as mostly free")
		}
		return nil
	}))
}
