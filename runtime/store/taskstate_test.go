package store

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// fillNonZero sets every field in a struct to a non-zero value.
func fillNonZero(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillNonZero(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1700000000, 5).UTC()))
			return
		}
		for i := range v.NumField() {
			fillNonZero(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fillNonZero(v.Index(i))
		}
	case reflect.Map:
		element := reflect.New(v.Type().Elem()).Elem()
		fillNonZero(element)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), element)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(7).Convert(v.Type()))
	}
}

func TestTaskStateKeepsEachField(t *testing.T) {
	full := new(api.TaskState)
	fillNonZero(reflect.ValueOf(full).Elem())
	for name, state := range map[string]*api.TaskState{"empty": {}, "without events": {State: "running", Events: []*api.TaskEvent{}}, "without details": {Events: []*api.TaskEvent{{Details: map[string]string{}}}}, "full": full} {
		t.Run(name, func(t *testing.T) {
			payload, err := encodeMsgpack(newTaskStateRecord(state))
			if err != nil {
				t.Fatal(err)
			}
			got := new(api.TaskState)
			if err := decodeMsgpack(payload, got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, state) {
				t.Errorf("got %+v, want %+v", got, state)
			}
		})
	}
}

func TestTaskStateOmitsEmptyFields(t *testing.T) {
	payload, err := encodeMsgpack(newTaskStateRecord(&api.TaskState{State: "running", Events: []*api.TaskEvent{{Type: "Started", Time: 1}}}))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(payload, []byte("VaultError")) {
		t.Errorf("the %d bytes of a state with one event have names of empty fields", len(payload))
	}
}

func TestAllocationKeepsEachField(t *testing.T) {
	full := new(api.Allocation)
	for field, value := range reflect.ValueOf(full).Elem().Fields() {
		if field.Name != "Job" { // the job has its own record
			fillNonZero(value)
		}
	}
	for name, alloc := range map[string]*api.Allocation{
		"empty": {}, "without task states": {TaskStates: map[string]*api.TaskState{}}, "without a task state": {TaskStates: map[string]*api.TaskState{"t": nil}}, "full": full,
	} {
		t.Run(name, func(t *testing.T) {
			want := allocationRecord{Alloc: alloc, JobHash: "hash", JobVersion: 3, JobCreateIndex: 4}
			payload, err := encodeMsgpack(newWrittenAllocationRecord(&want))
			if err != nil {
				t.Fatal(err)
			}
			var got allocationRecord
			if err := decodeMsgpack(payload, &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got.Alloc, alloc)
			}
			if bytes.Contains(payload, []byte("VaultError")) != (alloc == full) {
				t.Errorf("%q: only a field with a value must be in the record", payload)
			}
		})
	}
}
