package store

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func endAlloc(t *testing.T, s *Store, a *api.Allocation) {
	t.Helper()
	mustUpdate(t, s, func(tx *Txn) { tx.PutScheduledAllocation(a) })
	mustUpdate(t, s, func(tx *Txn) { tx.MarkAllocationEnded(a.ID) })
}

func isMerged(s *Store, id string) bool {
	r := s.Snapshot().Reader
	_, merged := r.objectByKey(nil, Allocations, id).(*endedAllocation)
	return merged && !r.HasAgentRecord(state.EndedAllocPrefix+id)
}

// checkAlloc checks that an allocation equals want, and is one row in memory if it has ended.
func checkAlloc(t *testing.T, when string, s *Store, want *api.Allocation, ended bool) {
	t.Helper()
	r := s.Snapshot().Reader
	got := r.Allocation(nil, want.ID)
	if got == nil || !reflect.DeepEqual(got.TaskStates, want.TaskStates) || got.ClientDescription != want.ClientDescription {
		t.Errorf("%s: allocation %+v, want %+v", when, got, want)
		return
	}
	if r.AllocationEnded(want.ID) != ended || r.EndedAllocations()[want.ID] != ended || isMerged(s, want.ID) != ended {
		t.Errorf("%s: ended %t, in the list %t, merged %t, want %t", when, r.AllocationEnded(want.ID), r.EndedAllocations()[want.ID], isMerged(s, want.ID), ended)
	}
	part := r.WithoutEndedEvents()
	lists := [][]*api.Allocation{part.Allocations(nil, ""), part.AllocationsByJob(nil, "default", "j"), part.AllocationsByNode(nil, ""), {part.Allocation(nil, want.ID)}}
	for i, list := range lists {
		for _, a := range list {
			if a.ID != want.ID {
				continue
			}
			if a != part.Allocation(nil, want.ID) {
				t.Errorf("%s: list %d has a copy", when, i)
			}
			if state := a.TaskStates["a"]; (state.Events == nil) != ended || state.Failed != want.TaskStates["a"].Failed || len(a.TaskStates) != len(want.TaskStates) {
				t.Errorf("%s: list %d has %+v", when, i, state)
			}
		}
	}
	for _, a := range [][]*api.Allocation{r.Allocations(nil, ""), r.AllocationsByJob(nil, "default", "j"), r.AllocationsByNode(nil, "")} {
		if !reflect.DeepEqual(a[0].TaskStates, want.TaskStates) {
			t.Errorf("%s: a list has %+v", when, a[0])
		}
	}
}

// TestEndedAllocationKeepsItsEvents checks an ended allocation's content, in memory, in the file and in a file written anew, and
// after changes.
func TestEndedAllocationKeepsItsEvents(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	want := allocWithEvents("a", 1)
	mustUpdate(t, s, func(tx *Txn) { tx.PutScheduledAllocation(allocWithEvents("a", 1)) })
	checkAlloc(t, "not ended", s, want, false)
	mustUpdate(t, s, func(tx *Txn) { tx.MarkAllocationEnded("a") })
	checkAlloc(t, "ended", s, want, true)
	s = reopenStore(t, s)
	checkAlloc(t, "loaded", s, want, true)

	mustUpdate(t, s, func(tx *Txn) {
		before := tx.WithoutEndedEvents().Allocation(nil, "a")
		changed := *before
		changed.ClientDescription = "changed"
		tx.PutScheduledAllocation(&changed)
		if !tx.AllocationEnded("a") {
			t.Error("the transaction that changes an ended allocation does not see that it has ended")
		}
		again := *before // an object that was read before the change
		again.ClientDescription = "changed"
		tx.PutScheduledAllocation(&again)
		tx.MarkAllocationEnded("a")
	})
	want.ClientDescription = "changed"
	checkAlloc(t, "changed", s, want, true)

	if err := os.Remove(s.file.path); err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, func(tx *Txn) { setVariable(tx, "v", 1) }) // writes the file anew
	s = reopenStore(t, s)
	checkAlloc(t, "loaded from a new file", s, want, true)

	want.TaskStates["a"].Events = append(want.TaskStates["a"].Events, &api.TaskEvent{Type: "Killed", Time: 9})
	mustUpdate(t, s, func(tx *Txn) {
		changed := *tx.Allocation(nil, "a")
		changed.TaskStates["a"].Events = append(changed.TaskStates["a"].Events, &api.TaskEvent{Type: "Killed", Time: 9})
		tx.PutReportedAllocation(&changed)
	})
	checkAlloc(t, "with another event", s, want, true)
	checkAlloc(t, "with another event, loaded", reopenStore(t, s), want, true)
}

// TestFailedChangeOfEndedAllocationIsUndone checks that nothing of an ended allocation is lost when updates of it fail.
func TestFailedChangeOfEndedAllocationIsUndone(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	want := allocWithEvents("a", 1)
	endAlloc(t, s, allocWithEvents("a", 1))
	for _, change := range []func(*Txn){
		func(tx *Txn) { tx.PutReportedAllocation(&api.Allocation{ID: "a", Namespace: "default", JobID: "j"}) },
		func(tx *Txn) { tx.DeleteAllocationAndQueueRemoval("a") },
		func(tx *Txn) { tx.DeleteAgentRecord(state.EndedAllocPrefix + "a") },
	} {
		refused := errors.New("refused")
		if _, err := s.Update(t.Context(), func(tx *Txn) error { change(tx); return refused }); err != refused {
			t.Fatal(err)
		}
		r := s.Snapshot()
		if got := r.Allocation(nil, "a"); !r.AllocationEnded("a") || !r.EndedAllocations()["a"] || !reflect.DeepEqual(got.TaskStates, want.TaskStates) {
			t.Errorf("ended %t, %+v", r.AllocationEnded("a"), got)
		}
	}
	mustUpdate(t, s, func(tx *Txn) {
		a := *tx.Allocation(nil, "a")
		tx.PutReportedAllocation(&a)
	})
	checkAlloc(t, "changed again", s, want, true)
	s = reopenStore(t, s)
	checkAlloc(t, "loaded", s, want, true)
	if _, err := s.Update(t.Context(), func(tx *Txn) error {
		tx.PutReportedAllocation(tx.WithoutEndedEvents().Allocation(nil, "a"))
		return nil
	}); err == nil || !strings.Contains(err.Error(), "in place") {
		t.Errorf("a stored allocation was put: %v", err)
	}
}

// TestAllocationNoLongerEnded checks that deleting the record of the end makes an allocation an ordinary one, and that a deleted
// allocation leaves no record of its end.
func TestAllocationNoLongerEnded(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	want := allocWithEvents("a", 1)
	endAlloc(t, s, allocWithEvents("a", 1))
	s = reopenStore(t, s)
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteAgentRecord(state.EndedAllocPrefix + "a") })
	checkAlloc(t, "no longer ended", s, want, false)
	s = reopenStore(t, s)
	checkAlloc(t, "no longer ended, loaded", s, want, false)
	mustUpdate(t, s, func(tx *Txn) { tx.MarkAllocationEnded("a") })
	s = reopenStore(t, s)
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteAllocationAndQueueRemoval("a") })
	if r := s.Snapshot(); r.AllocationEnded("a") || len(r.EndedAllocations()) > 0 || r.Allocation(nil, "a") != nil {
		t.Errorf("deleted: ended %t, %v", r.AllocationEnded("a"), r.EndedAllocations())
	}
	path := s.file.path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	contents, err := InspectFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range contents.Records {
		if strings.HasPrefix(r.Key, state.EndedAllocPrefix) {
			t.Errorf("the file has %s %s", r.Table, r.Key)
		}
	}
}

// TestInspectionOfEndedAllocation checks that an inspection has both records of an ended allocation.
func TestInspectionOfEndedAllocation(t *testing.T) {
	t.Parallel()
	path := tempStatePath(t)
	s := openStore(t, path)
	endAlloc(t, s, allocWithEvents("a", 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	contents, err := InspectFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, r := range contents.Records {
		keys = append(keys, r.Key)
	}
	if all := strings.Join(keys, " "); !strings.Contains(all, "ended/a") {
		t.Errorf("records %s", all)
	}
	if a := contents.Allocations(); len(a) != 1 || len(a[0].TaskStates["a"].Events) != 2 {
		t.Errorf("allocations %+v", a)
	}
}

// TestEndedAllocationsShareEvents checks that the events of a group's ended allocations share all but their times.
func TestEndedAllocationsShareEvents(t *testing.T) {
	t.Parallel()
	s := openStore(t, tempStatePath(t))
	job := testJob("j", 0)
	for i := range 3 {
		a := allocWithEvents(fmt.Sprint("a", i), int64(i+1))
		if i == 2 {
			a.TaskStates["a"].Events[1].ExitCode = 8
		}
		a.Job = job
		endAlloc(t, s, a)
	}
	events := func(id string) []eventsOfTask {
		return s.Snapshot().objectByKey(nil, Allocations, id).(*endedAllocation).events.tasks
	}
	first, second, third := events("a0"), events("a1"), events("a2")
	if &first[0] != &second[0] {
		t.Error("equal events are not shared")
	}
	if &second[0] == &third[0] || second[0].withoutTime[0] != third[0].withoutTime[0] || third[0].withoutTime[1].ExitCode != 8 {
		t.Error("of the third allocation, only the other event must be its own")
	}
}

// TestEndedAllocationKeepsUnknownFields checks that an event's field that this build does not know is reported when the file is
// opened, and stays in the file when the allocation is changed.
func TestEndedAllocationKeepsUnknownFields(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	endAlloc(t, s, allocWithEvents("a", 1))
	mustSucceed(t, s.Close())
	payload := encodeWith(t, decodeGeneric(t, getRawPayload(t, dir, string(Allocations), "a")), map[string]any{"alloc.TaskStates.a.Events.0.Cause": "new"})
	putRawRecords(t, dir, bucketWrite{string(Allocations), "a", encodeRecord(string(Allocations), "a", 1, payload)})

	s = openWithKeys(t, dir)
	if want := []UnknownPart{{"field alloc.TaskStates.Events.Cause of allocations", 1}}; !slices.Equal(s.listUnknownParts(), want) {
		t.Errorf("unknown parts %v", s.listUnknownParts())
	}
	want := allocWithEvents("a", 1)
	checkAlloc(t, "loaded", s, want, true)
	mustUpdate(t, s, func(tx *Txn) {
		changed := *tx.WithoutEndedEvents().Allocation(nil, "a")
		changed.ClientDescription = "changed"
		tx.PutReportedAllocation(&changed)
	})
	mustSucceed(t, s.Close())
	if kept, err := decodeAndListUnknownFields(getRawPayload(t, dir, string(Allocations), "a"), new(allocationRecord)); err != nil || len(kept) != 1 {
		t.Errorf("unknown fields in the file: %q, %v", kept, err)
	}
}
