package store

import (
	"errors"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func TestPutIsReplacedByALaterPutOfItsRecords(t *testing.T) {
	type request struct {
		taskKey     string
		recordCount int
	}
	stateOfA, bothOfA, bothOfB, other := request{"a", 1}, request{"a", 2}, request{"b", 2}, request{"", 0}
	for _, c := range []struct {
		name     string
		requests []request
		want     []int // index of each request's replacement; -1 for none
	}{
		{"a state by both records", []request{stateOfA, bothOfA}, []int{1, -1}},
		{"both records not by a state", []request{bothOfA, stateOfA}, []int{-1, -1}},
		{"by the last one", []request{bothOfA, bothOfA, stateOfA, bothOfA}, []int{3, 3, 3, -1}},
		{"a state by the state behind both records", []request{stateOfA, bothOfA, stateOfA, stateOfA}, []int{1, -1, 3, -1}},
		{"not by another task or request", []request{bothOfA, other, bothOfB, other}, []int{-1, -1, -1, -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			requests := make([]*updateRequest, len(c.requests))
			for i, r := range c.requests {
				requests[i] = &updateRequest{taskKey: r.taskKey, recordCount: r.recordCount}
			}
			markReplacedPuts(requests)
			for i, want := range c.want {
				got := requests[i].replacedBy
				if want < 0 && got != nil || want >= 0 && got != requests[want] {
					t.Errorf("request %d is replaced by %+v, want request %d", i, got, want)
				}
			}
		})
	}
}

// TestPutsOfOneBatch blocks the writer while the puts are enqueued, so that one batch has all of them.
func TestPutsOfOneBatch(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutScheduledAllocation(&api.Allocation{ID: "x"})
		tx.PutScheduledAllocation(&api.Allocation{ID: "ended"})
	})
	inBatch := func(enqueue func()) {
		t.Helper()
		blocked, release := make(chan struct{}), make(chan struct{})
		if _, err := s.enqueue(func(*Txn) error { close(blocked); <-release; return nil }, 0); err != nil {
			t.Fatal(err)
		}
		<-blocked
		enqueue()
		close(release)
	}
	put := func(alloc, startID, status string) state.WaitDurableFunc {
		return s.PutTask(alloc, "web", record.Fields{StartID: startID}, &api.TaskState{State: status}, state.DurabilitySync)
	}

	var waits []state.WaitDurableFunc
	replacedPuts := 0
	inBatch(func() {
		waits = append(waits, s.putTaskRecords("x", "web", state.DurabilityAsync, 1, func(*Txn) { replacedPuts++ }))
		waits = append(waits, put("x", "1", "pending"), put("x", "2", "running"))
		waits = append(waits, s.PutTaskState("x", "web", &api.TaskState{State: "dead"}, state.DurabilityAsync))
	})
	for i, wait := range waits {
		if err := wait(); err != nil {
			t.Errorf("put %d: %v", i, err)
		}
	}
	if replacedPuts > 0 {
		t.Errorf("a put that is replaced was made %d times", replacedPuts)
	}
	for range 2 {
		local, _, err := s.Snapshot().TaskFields("x", "web")
		status, stateErr := s.Snapshot().TaskState("x", "web")
		if err != nil || stateErr != nil || local.StartID != "2" || status.State != "dead" {
			t.Errorf("record %+v, %v, state %+v, %v", local, err, status, stateErr)
		}
		s = reopenStore(t, s)
	}

	waits = nil
	inBatch(func() {
		waits = append(waits, put("ended", "1", "running"))
		if _, err := s.enqueue(func(tx *Txn) error {
			tx.MarkAllocationEnded("ended")
			tx.DeleteAllocationAndQueueRemoval("ended")
			return nil
		}, 0); err != nil {
			t.Fatal(err)
		}
		waits = append(waits, put("ended", "2", "dead"))
	})
	for i, wait := range waits {
		if err := wait(); !errors.Is(err, ErrRunnerRecordsDeleted) {
			t.Errorf("put %d of an allocation that was deleted in between: %v", i, err)
		}
	}
	if got := s.Snapshot().TaskNamesWithLocalRecords("ended"); len(got) > 0 {
		t.Errorf("the deleted allocation has records of the tasks %q", got)
	}
}
