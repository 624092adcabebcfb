package store

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// endedAllocation is an ended allocation's row in the table Allocations. It stands for the allocation and for its record
// state.EndedAllocPrefix, which has no row of its own: a row takes half a kilobyte. The events of its tasks, which would be half
// of its size, have their times apart from the rest, which is the same in most of a group's allocations.
type endedAllocation struct {
	withoutEvents *api.Allocation // the field Events is nil in all its task states
	events        taskEvents
}

// newEndedRecord returns the record that says that an allocation has ended.
func newEndedRecord(allocID string) *localRecord {
	r := &localRecord{key: state.EndedAllocPrefix + allocID, unencryptedPart: encodedTrue}
	r.hasOnlyKnownFields.Store(true)
	return r
}

// isEndedRecord reports whether an agent record equals a newEndedRecord.
func (l *localRecord) isEndedRecord() bool {
	return strings.HasPrefix(l.key, state.EndedAllocPrefix) && bytes.Equal(l.unencryptedPart, encodedTrue) && l.secretPart == nil && l.undecryptedSecret == nil
}

// encodedTrue is the encoded value true.
var encodedTrue = []byte{0xc3}

// splitEndedAllocation replaces an endedAllocation by the two rows that it stands for, so that a transaction can change one of
// them. It does nothing if there is none. mergeRowsOfEndedAllocs merges the rows again.
func (tx *Txn) splitEndedAllocation(allocID string) {
	ended, ok := tx.getObject(tableDefsByTable[Allocations], allocID).(*endedAllocation)
	if !ok {
		return
	}
	if err := cmp.Or(tx.memTxn.Insert(string(Allocations), ended.withEvents()), tx.memTxn.Insert(string(agentMetaTable), newEndedRecord(allocID))); err != nil {
		tx.setFirstError(fmt.Errorf("split the row of allocation %s: %w", allocID, err))
	}
}

func (tx *Txn) splitEndedAllocationOfRecord(name string) {
	if id, ok := strings.CutPrefix(name, state.EndedAllocPrefix); ok {
		tx.splitEndedAllocation(id)
	}
}

// mergeRowsOfEndedAllocs makes one row of an ended allocation's two rows, if the batch has changed one of them.
func (b *writeBatch) mergeRowsOfEndedAllocs() {
	inBatch := Reader{beginRead: func() *memdb.Txn { return b.memTxn }}
	for key := range b.mergedChangeByRecord {
		id, isEndedRecord := strings.CutPrefix(key.key, state.EndedAllocPrefix)
		if key.table != Allocations && !(key.table == agentMetaTable && isEndedRecord) {
			continue
		}
		a, _ := inBatch.objectByKey(nil, Allocations, id).(*api.Allocation)
		record := rowByKey[localRecord](inBatch, nil, agentMetaTable, state.EndedAllocPrefix+id)
		if a == nil || record == nil || !record.isEndedRecord() {
			continue
		}
		if err := cmp.Or(b.memTxn.Insert(string(Allocations), b.store.jobs.newEndedAllocation(a)), b.memTxn.Delete(string(agentMetaTable), record)); err != nil {
			panic(fmt.Sprintf("store: merge the rows of allocation %s: %v", id, err)) // a bug: both rows exist
		}
	}
}

// objectWithoutEvents returns the object of a row; for an endedAllocation it lacks the events.
func objectWithoutEvents(row any) any {
	if ended, ok := row.(*endedAllocation); ok {
		return ended.withoutEvents
	}
	return row
}

// withEvents returns a copy of the allocation with its events.
func (e *endedAllocation) withEvents() *api.Allocation {
	a := *e.withoutEvents
	a.TaskStates = copyTaskStates(a.TaskStates)
	e.events.addTo(a.TaskStates)
	return &a
}

// addMissingEvents adds the stored events to an allocation that is put, for the states in which they are nil.
func addMissingEvents(a, stored *api.Allocation) {
	states := copyTaskStates(a.TaskStates) // readers may have the states
	for task, state := range states {
		if old := stored.TaskStates[task]; state != nil && state.Events == nil && old != nil {
			state.Events = old.Events
		}
	}
	a.TaskStates = states
}

// copyTaskStates returns a copy of the map and of its states.
func copyTaskStates(states map[string]*api.TaskState) map[string]*api.TaskState {
	copied := maps.Clone(states)
	for task, state := range copied {
		if state != nil {
			c := *state
			copied[task] = &c
		}
	}
	return copied
}

// newEndedAllocation returns the row of an ended allocation with the events in its task states.
func (t *jobTable) newEndedAllocation(a *api.Allocation) *endedAllocation {
	last := new(lastAllocValues)
	if known := t.entriesByHash[t.hashesByJob[a.Job]]; known != nil {
		last = known.lastValuesOf(a.TaskGroup)
	}
	withoutEvents := *a
	withoutEvents.TaskStates = copyTaskStates(a.TaskStates)
	ended := &endedAllocation{withoutEvents: &withoutEvents}
	for _, task := range slices.Sorted(maps.Keys(a.TaskStates)) {
		state := withoutEvents.TaskStates[task]
		if state == nil || state.Events == nil {
			continue
		}
		ofTask := eventsOfTask{task: task, withoutTime: make([]*api.TaskEvent, len(state.Events))}
		for i, event := range state.Events {
			if event != nil {
				ofTask.withoutTime[i] = last.shareEventWithoutTime(task, event)
				ended.events.times = append(ended.events.times, event.Time)
			}
		}
		ended.events.tasks = append(ended.events.tasks, ofTask)
		state.Events = nil
	}
	ended.events.times = slices.Clip(ended.events.times)
	if slices.EqualFunc(ended.events.tasks, last.events, eventsOfTask.isSame) {
		ended.events.tasks = last.events
	}
	last.events = ended.events.tasks
	return ended
}

// shareEventWithoutTime returns a task's event with Time 0; an event of the group's last ended allocation if it is the same.
func (l *lastAllocValues) shareEventWithoutTime(task string, event *api.TaskEvent) *api.TaskEvent {
	withoutTime := *event
	withoutTime.Time = 0
	for _, ofTask := range l.events {
		for _, known := range ofTask.withoutTime {
			if ofTask.task == task && known != nil && known.Type == event.Type && reflect.DeepEqual(*known, withoutTime) {
				return known
			}
		}
	}
	return &withoutTime
}
