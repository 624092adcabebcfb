package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func setVariable(tx *Txn, path string, n int) {
	tx.PutVariable(&api.Variable{Namespace: "default", Path: path, Items: api.VariableItems{"n": strconv.Itoa(n)}})
}

// isWoken reports whether a channel in a watch set was closed. The change was made before the call, so a long wait for the
// channel means that the test fails.
func isWoken(ws WatchSet, want bool) bool {
	wait := 20 * time.Millisecond
	if want {
		wait = time.Minute
	}
	return !ws.Watch(time.After(wait))
}

func TestWatch(t *testing.T) {
	t.Parallel()
	const id = "0a000000-1111-2222-3333-444444444444"
	reads := map[string]func(Reader, WatchSet){
		"object":           func(r Reader, ws WatchSet) { r.Allocation(ws, id) },
		"missing object":   func(r Reader, ws WatchSet) { r.Allocation(ws, "ff") },
		"list of a job":    func(r Reader, ws WatchSet) { r.AllocationsByJob(ws, "default", "web") },
		"list of another":  func(r Reader, ws WatchSet) { r.AllocationsByJob(ws, "default", "db") },
		"whole list":       func(r Reader, ws WatchSet) { r.Allocations(ws, "") },
		"index of a table": func(r Reader, ws WatchSet) { r.LatestTableIndex(ws, Allocations) },
		"index of another": func(r Reader, ws WatchSet) { r.LatestTableIndex(ws, Jobs) },
		"other table":      func(r Reader, ws WatchSet) { r.Variable(ws, "default", "a") },
	}
	alloc := func(id, job string) *api.Allocation {
		return &api.Allocation{ID: id, Namespace: "default", JobID: job}
	}
	for name, tc := range map[string]struct {
		change func(*Txn)
		woken  []string
	}{
		"change of the object": {
			func(tx *Txn) { tx.PutScheduledAllocation(alloc(id, "web")) },
			[]string{"object", "list of a job", "whole list", "index of a table"},
		},
		"end of the object": {
			func(tx *Txn) { tx.DeleteAllocationAndQueueRemoval(id) },
			[]string{"object", "list of a job", "whole list", "index of a table"},
		},
		"the missing one comes": {
			func(tx *Txn) { tx.PutScheduledAllocation(alloc("ff", "db")) },
			[]string{"missing object", "list of another", "whole list", "index of a table"},
		},
		"a record of a runner": {
			func(tx *Txn) { tx.PutCheckResult(id, &api.AllocCheckStatus{ID: "c"}) },
			nil,
		},
		"nothing": {func(tx *Txn) { tx.DeleteAllocationAndQueueRemoval("not there") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t, tempStatePath(t))
			mustUpdate(t, s, func(tx *Txn) {
				tx.PutScheduledAllocation(alloc(id, "web"))
				tx.PutScheduledAllocation(alloc("0b", "db"))
				tx.PutJobAndVersion(testJob("web", 0))
				setVariable(tx, "a", 1)
			})
			watches := make(map[string]WatchSet)
			snap := s.Snapshot()
			for name, read := range reads {
				watches[name] = NewWatchSet()
				read(snap.Reader, watches[name])
			}
			mustUpdate(t, s, tc.change)
			want := make(map[string]bool)
			for _, name := range tc.woken {
				want[name] = true
			}
			var wg sync.WaitGroup
			for name, ws := range watches {
				wg.Go(func() {
					// The watch sets for changed results must fire. A few others, for lists nearby in the radix tree, may fire
					// too.
					if got := isWoken(ws, want[name]); got != want[name] && !(got && (name == "missing object" || name == "list of another" || name == "list of a job")) {
						t.Errorf("%s: woken %v, want %v", name, got, want[name])
					}
				})
			}
			wg.Wait()
		})
	}
}

// Each waiter sees the last change, and no waiter is woken without a change.
func TestNoWakeUpIsLostOrEmpty(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	const lastIndex = 150
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	mustUpdate(t, s, func(tx *Txn) { setVariable(tx, "a", 0) })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			seen := uint64(0)
			for {
				ws := NewWatchSet()
				v := s.Snapshot().Variable(ws, "default", "a")
				if v.ModifyIndex <= seen {
					t.Errorf("woken at index %d, which was seen before", seen)
				}
				seen = v.ModifyIndex
				if v.Items["n"] == strconv.Itoa(lastIndex) {
					return
				}
				if err := ws.WatchCtx(ctx); err != nil {
					t.Errorf("asleep at %v: %v", v.Items, err)
					return
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() { // changes that wake no waiter
			for i := range lastIndex {
				if _, err := s.Update(ctx, func(tx *Txn) error { setVariable(tx, "b", i); return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range lastIndex {
		mustUpdate(t, s, func(tx *Txn) { setVariable(tx, "a", i+1) })
	}
	wg.Wait()
}

func TestWaitForIndex(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	var wg sync.WaitGroup
	for want := range uint64(6) {
		wg.Go(func() {
			if err := s.WaitForIndex(t.Context(), want); err != nil || s.Index() < want {
				t.Errorf("waited for %d, got %v at %d", want, err, s.Index())
			}
		})
	}
	for i := range 5 {
		mustUpdate(t, s, func(tx *Txn) { setVariable(tx, "a", i) })
	}
	wg.Wait()
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	if err := s.WaitForIndex(ctx, 6); err != reason {
		t.Errorf("error %v", err)
	}
}

func TestEventSubscription(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	live := s.Subscribe(0)
	mustUpdate(t, s, func(tx *Txn) {
		tx.SetEventOperation("JobRegistered")
		job := testJob("web", 0)
		tx.PutJobAndVersion(job)
		tx.PutEvaluation(&api.Evaluation{ID: "e", Namespace: "default", JobID: "web"})
		again := *tx.Evaluation(nil, "e")
		again.Status = "complete"
		tx.PutEvaluation(&again)
		tx.SetEventOperation("PlanResult")
		running := *job
		running.Status = new("running")
		tx.PutJobAndVersion(&running)
	})
	mustUpdate(t, s, func(tx *Txn) { tx.PutAgentRecord(state.BootIDName, "x") }) // metadata causes no event
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutScheduledAllocation(&api.Allocation{ID: "a", Namespace: "default", JobID: "web", DeploymentID: "d"})
		tx.PutDeployment(&api.Deployment{ID: "d", Namespace: "default", JobID: "web"})
		tx.PutNodeWithStorageEvents(&api.Node{ID: "n"})
		tx.PutService(&api.ServiceRegistration{ID: "s", Namespace: "default", JobID: "web", ServiceName: "http"})
		setVariable(tx, "v", 1)
	})
	mustUpdate(t, s, func(tx *Txn) {
		tx.DeleteJob("default", "web")
		tx.DeleteService("default", "s")
		tx.DeleteVariable("default", "v")
		tx.DeleteAllocationAndQueueRemoval("a")
	})
	want := []string{
		"1 Job JobRegistered web default [] false",
		"1 Evaluation JobRegistered e default [web ] false",
		"1 Job PlanResult web default [] false",
		"2 Allocation AllocationUpdated a default [web d] false",
		"2 Deployment DeploymentStatusUpdate d default [web] false",
		"2 Node NodeRegistration n  [] false",
		"2 Service ServiceRegistration s default [web http] false",
		"2 Variable VariableUpdated v default [] false",
		"3 Job JobDeregistered web default [] true",
		"3 Service ServiceDeregistration s default [web http] true",
		"3 Variable VariableUpdated v default [] true",
	}
	read := func(sub *Subscription, want []string) {
		t.Helper()
		for len(want) > 0 {
			events, err := sub.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				got := fmt.Sprint(e.Index, " ", e.Topic, " ", e.Type, " ", e.Key, " ", e.Namespace, " ", e.FilterKeys, " ", e.Deleted)
				if e.Index != events[0].Index || e.Object == nil || len(want) == 0 || got != want[0] {
					t.Fatalf("event %q, want %q", got, want)
				}
				want = want[1:]
			}
		}
	}
	read(live, want)
	read(s.Subscribe(0), want)
	read(s.Subscribe(2), want[3:])
	if e, err := s.Subscribe(1).Next(t.Context()); err != nil || e[1].Object.(*api.Evaluation).Status != "complete" {
		t.Errorf("the event has not the last state: %v, %v", e, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if e, err := s.Subscribe(4).Next(ctx); err == nil {
		t.Errorf("an event from nowhere: %v", e)
	}
}

func TestSlowSubscriber(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	slow := s.Subscribe(0)
	for i := range 120 {
		mustUpdate(t, s, func(tx *Txn) { setVariable(tx, "v", i) })
	}
	if _, err := slow.Next(t.Context()); err != ErrLagged {
		t.Errorf("error %v", err)
	}
	for i := range uint64(100) {
		if e, err := slow.Next(t.Context()); err != nil || e[0].Index != 21+i {
			t.Fatalf("event %v, %v, want index %d", e, err, 21+i)
		}
	}
	if e, err := s.Subscribe(5).Next(t.Context()); err != nil || e[0].Index != 21 {
		t.Errorf("event %v, %v: not the oldest that is kept", e, err)
	}
}
