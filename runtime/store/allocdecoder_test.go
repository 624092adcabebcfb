package store

import (
	"reflect"
	"testing"

	"github.com/hashicorp/nomad/api"
)

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
	var d allocationDecoder
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
			if err := d.decodeKnownFields(payload, got); err != nil || !reflect.DeepEqual(*got, want) {
				t.Errorf("record %d: got %+v, %v, want %+v", i, got.Alloc, err, want.Alloc)
			}
		}
		if a, b := first.Alloc, second.Alloc; a != nil && (a == b || a.Resources != b.Resources || a.AllocatedResources != b.AllocatedResources ||
			a.Metrics != b.Metrics || a.TaskResources["t"] != b.TaskResources["t"]) {
			t.Errorf("record %d: not the same fields are shared", i)
		}
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
			if err := d.decodeKnownFields(payload, &r); err == nil || r.Alloc != nil {
				t.Errorf("%v: got %+v, %v, want an error", alloc, r.Alloc, err)
			}
		}
		if unknown, err := decodeAndListUnknownFields(payload, new(allocationRecord)); err != nil || len(unknown) != 1 {
			t.Errorf("%v: unknown fields %q, %v", alloc, unknown, err)
		}
	}
}
