package store

import (
	"reflect"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// allocWithEvents returns an allocation with all forms of events.
func allocWithEvents(id string, time int64) *api.Allocation {
	return &api.Allocation{ID: id, Namespace: "default", JobID: "j", Job: testJob("j", 0), TaskGroup: "g", ClientStatus: "failed", TaskStates: map[string]*api.TaskState{
		"a":      {State: "dead", Failed: true, Events: []*api.TaskEvent{{Type: "Started", Time: time}, {Type: "Terminated", Time: -time, ExitCode: 7, Details: map[string]string{"exit_code": "7"}}}},
		"b":      {State: "dead", Events: []*api.TaskEvent{nil, {Type: "Started", Time: time + 2}}},
		"empty":  {State: "dead", Events: []*api.TaskEvent{}},
		"absent": {State: "dead"},
		"nil":    nil,
	}}
}

// TestAllocationDecoder checks that an allocationDecoder decodes each record like decodeMsgpack and shares equal fields, also
// when it has decoded more values than it keeps.
func TestAllocationDecoder(t *testing.T) {
	t.Parallel()
	filled := new(allocationRecord)
	fillNonZero(reflect.ValueOf(filled).Elem())
	filled.Alloc.Job = nil
	records := []*allocationRecord{{}, {Alloc: &api.Allocation{ID: "empty"}}, {Alloc: &api.Allocation{
		AllocatedResources: &api.AllocatedResources{}, TaskResources: map[string]*api.Resources{}, Metrics: &api.AllocationMetric{},
	}}, filled}
	for i := range 2 * maxSharedFieldValues {
		records = append(records, &allocationRecord{JobHash: "h", Alloc: finishedAlloc("a", &api.Job{ID: new("j")}, int64(i/2))})
		records[len(records)-1].Alloc.Job = nil
	}
	for time := range 2 {
		records = append(records, &allocationRecord{Alloc: allocWithEvents("e", int64(time))})
		records[len(records)-1].Alloc.Job = nil
	}
	var d allocationDecoder
	var eventsOfRecords []taskEvents
	for i, r := range records {
		payload, err := encodeMsgpack(newWrittenAllocationRecord(r))
		if err != nil {
			t.Fatal(err)
		}
		var want, first, second allocationRecord
		if err := decodeMsgpack(payload, &want); err != nil {
			t.Fatal(err)
		}
		for _, got := range []*allocationRecord{&first, &second} {
			events, err := d.decodeKnownFields(payload, got)
			eventsOfRecords = append(eventsOfRecords, events)
			if err == nil && got.Alloc != nil {
				events.addTo(got.Alloc.TaskStates)
			}
			if err != nil || !reflect.DeepEqual(*got, want) {
				t.Errorf("record %d: got %+v, %v, want %+v", i, got.Alloc, err, want.Alloc)
			}
		}
		if a, b := first.Alloc, second.Alloc; a != nil && (a == b || a.Resources != b.Resources || a.AllocatedResources != b.AllocatedResources ||
			a.Metrics != b.Metrics || a.TaskResources["t"] != b.TaskResources["t"]) {
			t.Errorf("record %d: not the same fields are shared", i)
		}
	}
	last, other := eventsOfRecords[len(eventsOfRecords)-1], eventsOfRecords[len(eventsOfRecords)-3]
	if &last.tasks[0] != &other.tasks[0] || slices.Equal(last.times, other.times) {
		t.Errorf("the records' events must share all but their times: %+v, %+v", last, other)
	}
}

// TestAllocationDecoderRejectsUnknownFields checks that an unknown field in a shared field is an error each time, so it is
// listed and kept.
func TestAllocationDecoderRejectsUnknownFields(t *testing.T) {
	t.Parallel()
	newer := map[string]any{"NewField": 1}
	var d allocationDecoder
	for _, alloc := range []map[string]any{
		{"AllocatedResources": newer}, {"Resources": newer}, {"Metrics": newer}, {"TaskResources": map[string]any{"t": newer}}, newer,
	} {
		payload, err := encodeMsgpack(map[string]any{"alloc": alloc})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			var r allocationRecord
			if _, err := d.decodeKnownFields(payload, &r); err == nil || r.Alloc != nil {
				t.Errorf("%v: got %+v, %v, want an error", alloc, r.Alloc, err)
			}
		}
		if unknown, err := decodeAndListUnknownFields(payload, new(allocationRecord)); err != nil || len(unknown) != 1 {
			t.Errorf("%v: unknown fields %q, %v", alloc, unknown, err)
		}
	}
}

// FuzzAllocationDecoder checks that an allocationDecoder that has decoded a valid record decodes any other like decodeMsgpack,
// or rejects it.
func FuzzAllocationDecoder(f *testing.F) {
	encode := func(a *api.Allocation) []byte {
		payload, err := encodeMsgpack(newWrittenAllocationRecord(&allocationRecord{Alloc: a, JobHash: "h"}))
		if err != nil {
			f.Fatal(err)
		}
		return payload
	}
	job := &api.Job{ID: new("j")}
	first := finishedAlloc("a", job, 1)
	first.Job = nil
	f.Add(encode(first))
	withEvents := allocWithEvents("b", 7)
	withEvents.Job = nil
	f.Add(encode(withEvents))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var d allocationDecoder
		for _, valid := range []*api.Allocation{first, withEvents} {
			if _, err := d.decodeKnownFields(encode(valid), new(allocationRecord)); err != nil {
				t.Fatal(err)
			}
		}
		var got, want allocationRecord
		events, err := d.decodeKnownFields(payload, &got)
		if err != nil {
			return
		}
		if got.Alloc != nil {
			events.addTo(got.Alloc.TaskStates)
		}
		if err := decodeMsgpackWith(&strictDecoders, payload, &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%x: got %+v, want %+v, %v", payload, got.Alloc, want.Alloc, err)
		}
	})
}
