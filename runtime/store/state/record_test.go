package state

import (
	cryptorand "crypto/rand"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
)

// fillValue sets all exported fields of a value. Lists and maps get one element.
func fillValue(v reflect.Value, depth int) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(rand.Int64N(1e9), 0).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1 + rand.Int64N(100))
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(1 + rand.Uint64N(100))
	case reflect.Float64:
		v.SetFloat(1 + rand.Float64())
	case reflect.String:
		v.SetString(cryptorand.Text())
	case reflect.Pointer:
		if depth < 10 {
			v.Set(reflect.New(v.Type().Elem()))
			fillValue(v.Elem(), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillValue(v.Index(0), depth+1)
	case reflect.Map:
		key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(key, depth+1)
		fillValue(element, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, element)
	case reflect.Struct:
		for i := range v.NumField() {
			fillValue(v.Field(i), depth+1)
		}
	default:
		panic("a value of type " + v.Type().String() + " cannot be filled")
	}
}

// checkConversion checks that the conversion to a record and back keeps every field of a value, and the zero value.
func checkConversion[T any](t *testing.T, convert func(T) T) {
	t.Helper()
	var zero, full T
	fillValue(reflect.ValueOf(&full).Elem(), 0)
	for _, want := range []T{zero, full} {
		if got := convert(want); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestConversionToRecordsKeepsEachField(t *testing.T) {
	checkConversion(t, func(s record.Fields) record.Fields { return NewTaskRecord(s).Fields() })
	checkConversion(t, func(n AllocNetwork) AllocNetwork { return NewNetworkRecord(n).AllocNetwork() })
	checkConversion(t, func(s hook.TaskStopRequest) hook.TaskStopRequest {
		r := NewCleanupRecord(PendingCleanup{Stop: &s}).PendingCleanup()
		r.Stop.RequestMeta = s.RequestMeta // set by each call
		return *r.Stop
	})
	checkConversion(t, func(a hook.Alloc) hook.Alloc {
		postrun := NewCleanupRecord(PendingCleanup{Postrun: &hook.AllocPostrunRequest{Alloc: a}}).PendingCleanup().Postrun
		destroy := NewCleanupRecord(PendingCleanup{Destroy: &hook.AllocDestroyRequest{Alloc: postrun.Alloc}}).PendingCleanup().Destroy
		return destroy.Alloc
	})
	checkConversion(t, func(d PendingCleanup) PendingCleanup {
		r := NewCleanupRecord(d).PendingCleanup()
		r.Point, r.Postrun, r.Stop, r.Destroy = d.Point, d.Postrun, d.Stop, d.Destroy // compared above; only one request is set
		return r
	})
}

func TestSplitSecretsChangesNoFields(t *testing.T) {
	var s record.Fields
	fillValue(reflect.ValueOf(&s).Elem(), 0)
	s.Handle.DriverState = []byte("A=b NOMAD_ALLOC_ID=x")
	stored := NewTaskRecord(s)
	secrets := stored.SplitSecrets()
	if stored.Handle.Config.Env != nil || stored.Handle.DriverState != nil || secrets == nil || secrets.Handle.Env == nil || secrets.FirstPendingDestroy.Env == nil {
		t.Errorf("record %+v, secrets %+v", stored.Handle, secrets)
	}
	if s.Handle.Config.Env == nil || s.Handle.DriverState == nil {
		t.Error("the handle of the runner has lost its secrets")
	}
	stored.JoinSecrets(*secrets)
	if !reflect.DeepEqual(stored.Fields(), s) {
		t.Errorf("got %+v, want %+v", stored.Fields(), s)
	}
}
