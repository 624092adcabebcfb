package healthtracker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/explain/jobhealth"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// fixture is a tracker for a store, with separate checks and output.
type fixture struct {
	*Tracker
	t     *testing.T
	store *store.Store

	mu       sync.Mutex
	statuses []api.AllocCheckStatus
	changed  chan struct{}
	line     string
	written  time.Time
	reads    int // StderrTail calls
}

func newFixture(t *testing.T) *fixture {
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	f := &fixture{t: t, store: s, changed: make(chan struct{})}
	f.Tracker = New(Config{
		NodeID: "n",
		CheckStatuses: func(string) ([]api.AllocCheckStatus, <-chan struct{}) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.statuses, f.changed
		},
		StderrTail: func(allocID, task string) (string, time.Time, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reads++
			if task != "web" {
				return "", time.Time{}, errors.New("no such task")
			}
			return f.line, f.written, nil
		},
	})
	return f
}

func (f *fixture) update(change func(*store.Txn)) {
	f.t.Helper()
	if _, err := f.store.Update(f.t.Context(), func(tx *store.Txn) error { change(tx); return nil }); err != nil {
		f.t.Fatal(err)
	}
}

func newJob(id string, edit ...func(*api.Job)) *api.Job {
	j := &api.Job{
		ID: &id, Name: &id, Namespace: new("default"), Version: new(uint64(0)), Type: new("service"), Status: new("running"), CreateIndex: new(uint64(0)),
		TaskGroups: []*api.TaskGroup{{Name: new("g"), Count: new(1), Tasks: []*api.Task{{
			Name: "web", Driver: "raw_exec", Services: []*api.Service{{Name: "web", Provider: model.ProviderNomad, Checks: []api.ServiceCheck{{Name: "alive"}}}},
		}}}},
	}
	for _, e := range edit {
		e(j)
	}
	return j
}

// putAlloc stores a job and its allocation with a task in this state.
func (f *fixture) putAlloc(j *api.Job, allocID, status string, state *api.TaskState) {
	f.t.Helper()
	f.update(func(tx *store.Txn) {
		if tx.Job(nil, "default", *j.ID) == nil {
			tx.PutJobAndVersion(j)
		}
		tx.PutScheduledAllocation(&api.Allocation{
			ID: allocID, Namespace: "default", JobID: *j.ID, Job: tx.Job(nil, "default", *j.ID), TaskGroup: "g", Name: *j.ID + ".g[0]", NodeID: "n",
			ClientStatus: status, DesiredStatus: api.AllocDesiredStatusRun, TaskStates: map[string]*api.TaskState{"web": state},
		})
		tx.PutTask(allocID, "web", record.Fields{LastEnd: lastEndOf(state)}, state)
	})
}

// lastEndOf returns the last end recorded by a task runner with these events; nil if the task has not ended.
func lastEndOf(s *api.TaskState) (end *restart.RunEnd) {
	for _, e := range s.Events {
		switch e.Type {
		case api.TaskTerminated:
			end = &restart.RunEnd{Time: time.Unix(0, e.Time), ExitCode: e.ExitCode, OutputStart: time.Unix(0, e.Time)}
		case api.TaskRestarting:
			end.NextStart = time.Unix(0, e.Time+e.StartDelay)
		}
	}
	return end
}

func running(since time.Time) *api.TaskState {
	s := &api.TaskState{State: model.TaskRunning, StartedAt: since}
	model.AppendTaskEvent(s, model.EventStarted(), since)
	return s
}

func crashed(at time.Time) *api.TaskState {
	s := &api.TaskState{State: model.TaskPending}
	model.AppendTaskEvent(s, model.EventStarted(), at.Add(-time.Second))
	model.AppendTaskEvent(s, model.EventTerminated(3, 0, false, ""), at)
	model.AppendTaskEvent(s, model.EventRestarting("", time.Hour), at)
	return s
}

// health returns a job's health.
func (f *fixture) health(id string) JobHealth {
	f.t.Helper()
	h, ok := f.Job(f.store.Snapshot(), nil, "default", id)
	if !ok {
		f.t.Fatalf("no job %q", id)
	}
	return h
}

// wait blocks like a blocking query until the list's index is higher than after, and returns the list and its index.
func (f *fixture) wait(ctx context.Context, after uint64) ([]JobHealth, uint64) {
	for {
		var ws store.WatchSet
		if after > 0 {
			ws = store.NewWatchSet()
		}
		list, index := f.Jobs(f.store.Snapshot(), ws, store.AnyNamespace)
		if index > after || ws.WatchCtx(ctx) != nil {
			return list, index
		}
	}
}

func TestReaderWakesWhenAHealthChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.putAlloc(newJob("a"), "a1", "running", running(time.Now().Add(-time.Hour)))
	f.putAlloc(newJob("b"), "b1", "running", running(time.Now().Add(-time.Hour)))
	list, index := f.wait(t.Context(), 0)
	if len(list) != 2 || list[0].Health.Word != jobhealth.Running || list[1].Health.Word != jobhealth.Running {
		t.Fatalf("%+v", list)
	}
	before := f.health("b").Index
	next := make(chan []JobHealth)
	go func() {
		list, _ := f.wait(t.Context(), index)
		next <- list
	}()
	f.mu.Lock()
	f.statuses = []api.AllocCheckStatus{{Service: "web", Check: "alive", Status: model.CheckFailure, Output: "connection refused"}}
	old := f.changed
	f.changed = make(chan struct{})
	f.mu.Unlock()
	close(old)
	if list := <-next; list[0].Health.Word != jobhealth.Degraded || list[0].Health.Sentence() != `check "alive" of service "web" fails: connection refused` {
		t.Errorf("after the result of a check: %s", list[0].Health.Sentence())
	}

	_, index = f.wait(t.Context(), 0)
	go func() {
		list, _ := f.wait(t.Context(), index)
		next <- list
	}()
	f.putAlloc(newJob("a"), "a1", "pending", crashed(time.Now()))
	if list := <-next; list[0].Health.Word != jobhealth.Failing {
		t.Errorf("after a crash: %s", list[0].Health.Word)
	}
	if after := f.health("b"); after.Index == before && after.Health.Word == jobhealth.Running {
		t.Error("the failing check of b did not change its index")
	}
	unchanged := f.health("b").Index
	f.update(func(tx *store.Txn) { tx.DeleteJob("default", "a") })
	if list, _ := f.wait(t.Context(), 0); len(list) != 1 || list[0].Index != unchanged {
		t.Errorf("after the removal of a: %+v", list)
	}
}

// Without a state change, a reader wakes when a health changes.
func TestReaderWakesWhenATaskHasRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		state := crashed(time.Now())
		model.SetTaskState(state, model.TaskRunning, time.Now())
		model.AppendTaskEvent(state, model.EventStarted(), time.Now())
		f.putAlloc(newJob("a"), "a1", "running", state)
		list, index := f.wait(t.Context(), 0)
		if list[0].Health.Word != jobhealth.Failing {
			t.Fatal(list[0].Health.Word)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 { // readers share a timer, and do not wake each other
			wg.Go(func() {
				if list, _ := f.wait(t.Context(), index); list[0].Health.Word != jobhealth.Running {
					t.Error(list[0].Health.Word)
				}
			})
		}
		wg.Wait()
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("woke after %v", waited)
		}
	})
}

// Drivers and hooks emit any number of events at any time, only for display. A task fails from its first exit until it has run
// for a minute.
func TestEventsDoNotHideACrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		rng := rand.New(rand.NewPCG(1, 2))
		state := &api.TaskState{State: model.TaskPending}
		end := record.Fields{}
		emit := func() {
			for range rng.IntN(13) {
				messages := []*api.TaskEvent{
					model.EventDriverMessage("hello", nil, time.Time{}), model.EventHookMessage("", "hello", nil), model.EventHookFailed("script", "a message of a plugin"),
					model.EventHookMessage("Template", "renders", nil), model.EventHookMessage(api.TaskDownloadingArtifacts, "downloads", nil),
				}
				model.AppendTaskEvent(state, messages[rng.IntN(len(messages))], time.Now())
			}
		}
		ends := 0
		put := func(when, status string) {
			state = model.CopyTaskState(state)
			emit()
			f.update(func(tx *store.Txn) {
				job := newJob("a")
				if tx.Job(nil, "default", "a") == nil {
					tx.PutJobAndVersion(job)
				}
				tx.PutScheduledAllocation(&api.Allocation{
					ID: "a1", Namespace: "default", JobID: "a", Job: tx.Job(nil, "default", "a"), TaskGroup: "g", Name: "a.g[0]", NodeID: "n",
					ClientStatus: status, DesiredStatus: api.AllocDesiredStatusRun, TaskStates: map[string]*api.TaskState{"web": state},
				})
				tx.PutTask("a1", "web", end, state)
			})
			time.Sleep(time.Second)
			h := f.health("a").Health
			if want := ends > 0; (h.Word == jobhealth.Failing) != want || want && !strings.Contains(h.Cause, "exit code 3") {
				t.Errorf("run %d, %s: %s: %s", ends+1, when, h.Word, h.Sentence())
			}
		}
		for range 50 {
			model.AppendTaskEvent(state, model.EventStarted(), time.Now())
			model.SetTaskState(state, model.TaskRunning, time.Now())
			put("after the start", "running")
			model.AppendTaskEvent(state, model.EventTerminated(3, 0, false, ""), time.Now())
			ends++
			end.LastEnd = &restart.RunEnd{Time: time.Now(), ExitCode: 3}
			put("after the exit", "running")
			model.AppendTaskEvent(state, model.EventRestarting("", 5*time.Second), time.Now())
			model.SetTaskState(state, model.TaskPending, time.Now())
			end.LastEnd = &restart.RunEnd{Time: time.Now(), ExitCode: 3, NextStart: time.Now().Add(5 * time.Second)}
			put("during the restart delay", "pending")
			time.Sleep(5 * time.Second)
			put("before the next start", "pending")
		}
	})
}

func TestLastLineOfAnExitIsReadUntilItIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.line, f.written = "starts", time.Now()
		state := crashed(time.Now())
		f.putAlloc(newJob("a"), "a1", "pending", state)
		list, index := f.wait(t.Context(), 0)
		if got := list[0].Health.Sentence(); got != `task "web": exit code 3 (stderr: starts), restarts at `+time.Now().Add(time.Hour).Format(time.TimeOnly) {
			t.Error(got)
		}
		f.line = "oops" // the log collector is late
		if list, _ = f.wait(t.Context(), index); list[0].Health.Sentence() != `task "web": exit code 3 (stderr: oops), restarts at `+time.Now().Add(time.Hour-time.Second).Format(time.TimeOnly) {
			t.Error(list[0].Health.Sentence())
		}
		time.Sleep(time.Minute)
		reads := f.reads
		f.putAlloc(newJob("b"), "b1", "running", running(time.Now()))
		f.putAlloc(newJob("a"), "a1", "pending", state)
		if f.health("a"); f.reads != reads {
			t.Errorf("the line of one exit was read again: %d reads, then %d", reads, f.reads)
		}
	})
}

// The last line is an earlier process's if nothing was written since its end.
func TestLastLineOfAnEarlierProcessIsNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.line, f.written = "oops", time.Now()
		time.Sleep(time.Hour)
		state := crashed(time.Now())
		model.AppendTaskEvent(state, model.EventStarted(), time.Now().Add(time.Hour))
		model.AppendTaskEvent(state, model.EventTerminated(4, 0, false, ""), time.Now().Add(time.Hour))
		model.AppendTaskEvent(state, model.EventRestarting("", time.Hour), time.Now().Add(time.Hour))
		f.putAlloc(newJob("a"), "a1", "pending", state)
		if got := f.health("a").Health.Sentence(); got != `task "web": exit code 4, restarts at `+time.Now().Add(2*time.Hour).Format(time.TimeOnly) {
			t.Error(got)
		}
	})
}

func TestLauncherHasTheFailureOfItsLastChild(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	parent := newJob("p", func(j *api.Job) { j.Type, j.ParameterizedJob = new("batch"), &api.ParameterizedJobConfig{} })
	f.update(func(tx *store.Txn) { tx.PutJobAndVersion(parent) })
	if h := f.health("p").Health; h.Word != jobhealth.Waiting {
		t.Fatal(h.Word)
	}
	child := func(id string, at int64) *api.Job {
		return newJob(id, func(j *api.Job) { j.Type, j.ParentID, j.Dispatched, j.SubmitTime = new("batch"), new("p"), true, &at })
	}
	dead := &api.TaskState{State: model.TaskDead, Failed: true}
	model.AppendTaskEvent(dead, model.EventDriverFailure("no"), time.Now())
	f.putAlloc(child("p/dispatch-1", 1), "c1", "failed", dead)
	if h := f.health("p").Health; h.Word != jobhealth.Degraded || h.Sentence() != `its last launch "p/dispatch-1" is failed: task "web": cannot start: no` {
		t.Error(h.Word, h.Sentence())
	}
	f.putAlloc(child("p/dispatch-2", 2), "c2", "complete", &api.TaskState{State: model.TaskDead})
	if h := f.health("p").Health; h.Word != jobhealth.Waiting {
		t.Error("after a launch that succeeded:", h.Word)
	}
}

// BenchmarkChange is the evaluation after a change to one of 1,000 jobs, as for a waiting client.
func BenchmarkChange(b *testing.B) {
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	put := func(tx *store.Txn, id string) {
		tx.PutScheduledAllocation(&api.Allocation{
			ID: id, Namespace: "default", JobID: id, Job: tx.Job(nil, "default", id), TaskGroup: "g", Name: id + ".g[0]", NodeID: "n",
			ClientStatus: api.AllocClientStatusRunning, DesiredStatus: api.AllocDesiredStatusRun, TaskStates: map[string]*api.TaskState{"web": running(time.Now())},
		})
	}
	if _, err := s.Update(b.Context(), func(tx *store.Txn) error {
		for i := range 1000 {
			id := fmt.Sprintf("job-%d", i)
			tx.PutJobAndVersion(newJob(id))
			tx.PutEvaluation(&api.Evaluation{ID: id, Namespace: "default", JobID: id, Status: api.EvalStatusComplete})
			put(tx, id)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	t := New(Config{NodeID: "n"})
	t.Jobs(s.Snapshot(), nil, store.AnyNamespace)
	for b.Loop() {
		b.StopTimer()
		if _, err := s.Update(b.Context(), func(tx *store.Txn) error { put(tx, "job-7"); return nil }); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if all, _ := t.Jobs(s.Snapshot(), nil, store.AnyNamespace); len(all) != 1000 {
			b.Fatal(len(all))
		}
	}
}

// TestFailureOfEndedAllocationHasItsReason checks that a failed allocation has the reason in its task events when it has ended.
func TestFailureOfEndedAllocationHasItsReason(t *testing.T) {
	f := newFixture(t)
	failed := &api.TaskState{State: model.TaskDead, Failed: true}
	model.AppendTaskEvent(failed, &api.TaskEvent{Type: api.TaskSetupFailure, DisplayMessage: "no such artifact"}, time.Now())
	f.putAlloc(newJob("j"), "a", api.AllocClientStatusFailed, failed)
	before := f.health("j").Health
	if !strings.Contains(before.Cause, "no such artifact") {
		t.Fatalf("health %+v", before)
	}
	f.update(func(tx *store.Txn) {
		ended := *tx.Allocation(nil, "a")
		tx.PutReportedAllocation(&ended)
		tx.MarkAllocationEnded("a")
	})
	if after := f.health("j").Health; !after.HasSameText(before) {
		t.Errorf("health %+v, before the end %+v", after, before)
	}
}
