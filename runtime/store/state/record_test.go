package state

import (
	cryptorand "crypto/rand"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
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
	checkConversion(t, func(s record.Fields) record.Fields {
		handles := maps.Collect(s.Handles())
		return NewTaskRecord(s).Fields(func(startID string) *driver.Handle { return NewHandleRecord(handles[startID]).Handle() })
	})
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

// storeAndRestore converts fields to their records, splits off the secrets, and converts them back: without the secrets and with
// them.
func storeAndRestore(s record.Fields) (withoutSecrets, restored record.Fields, hasSecrets bool) {
	stored, handles, handleSecrets := NewTaskRecord(s), map[string]*HandleRecord{}, map[string]*HandleSecrets{}
	secrets := stored.SplitSecrets()
	hasSecrets = secrets != nil
	for startID, h := range s.Handles() {
		handles[startID] = NewHandleRecord(h)
		handleSecrets[startID] = handles[startID].SplitSecrets()
		hasSecrets = hasSecrets || handleSecrets[startID] != nil
	}
	fields := func() record.Fields {
		return stored.Fields(func(startID string) *driver.Handle { return handles[startID].Handle() })
	}
	withoutSecrets = fields()
	if secrets != nil {
		stored.JoinSecrets(*secrets)
	}
	for startID, joined := range handleSecrets {
		if joined != nil {
			handles[startID].JoinSecrets(*joined)
		}
	}
	return withoutSecrets, fields(), hasSecrets
}

func TestSplitSecretsChangesNoFields(t *testing.T) {
	var s record.Fields
	fillValue(reflect.ValueOf(&s).Elem(), 0)
	s.Handle.DriverState = []byte("A=b NOMAD_ALLOC_ID=x")
	without, restored, _ := storeAndRestore(s)
	if h := without.Handle; h.Config.Env != nil || h.DriverState != nil || without.FirstPendingDestroy.Handle.Config.Env != nil {
		t.Errorf("handles %+v, %+v", h, without.FirstPendingDestroy.Handle)
	}
	if s.Handle.Config.Env == nil || s.Handle.DriverState == nil {
		t.Error("the handle of the runner has lost its secrets")
	}
	if !reflect.DeepEqual(restored, s) {
		t.Errorf("got %+v, want %+v", restored, s)
	}
}

// A record with only one secret loses it to SplitSecrets, and gets it back. A record without secrets stays readable without the key.
func TestSplitSecretsFindsEachSecret(t *testing.T) {
	handle := func(env map[string]string, driverState string) *driver.Handle {
		return &driver.Handle{Config: &driver.TaskConfig{ID: "x", Env: env}, DriverState: []byte(driverState)}
	}
	env := map[string]string{"A": "b"}
	for name, tt := range map[string]struct {
		fields  record.Fields
		secrets bool
	}{
		"nothing":                        {record.Fields{StartID: "x"}, false},
		"driver state without secrets":   {record.Fields{Handle: handle(nil, "pid 7")}, false},
		"environment":                    {record.Fields{Handle: handle(env, "pid 7")}, true},
		"driver state":                   {record.Fields{Handle: handle(nil, "NOMAD_ALLOC_ID=x A=b")}, true},
		"environment of a destroy":       {record.Fields{FirstPendingDestroy: &record.PendingDestroy{StartID: "x", Handle: handle(env, "pid 7")}}, true},
		"variables":                      {record.Fields{ReadVariables: []string{"nomad/jobs"}}, true},
		"data of a hook":                 {record.Fields{HookStateByName: map[string]record.HookState{"h": {Data: env}}}, true},
		"environment of a hook":          {record.Fields{HookStateByName: map[string]record.HookState{"h": {Env: env}}}, true},
		"a hook without data, a handle":  {record.Fields{HookStateByName: map[string]record.HookState{"h": {PrestartDone: true}}, Handle: handle(env, "")}, true},
		"a hook without data, and alone": {record.Fields{HookStateByName: map[string]record.HookState{"h": {PrestartDone: true}}}, false},
	} {
		without, restored, secrets := storeAndRestore(tt.fields)
		if secrets != tt.secrets {
			t.Errorf("%s: has secrets: %v", name, secrets)
		}
		if reflect.DeepEqual(without, tt.fields) == tt.secrets {
			t.Errorf("%s: the record without the secrets is %+v", name, without)
		}
		if !reflect.DeepEqual(restored, tt.fields) {
			t.Errorf("%s: got %+v, want %+v", name, restored, tt.fields)
		}
	}
}

// A record of format 1 has its handles and their secrets inside.
func TestTaskRecordOfFormat1(t *testing.T) {
	env := map[string]string{"A": "b"}
	handle := func(id string) *HandleRecord { return &HandleRecord{Version: 1, Config: &TaskConfigRecord{ID: id}} }
	r := &TaskRecord{StartID: "x", HandleOfFormat1: handle("x"), FirstPendingDestroy: &PendingDestroyRecord{StartID: "y", HandleOfFormat1: handle("y")}}
	r.JoinSecrets(TaskSecrets{HandleOfFormat1: &HandleSecrets{Env: env}, PendingDestroyOfFormat1: &HandleSecrets{DriverState: []byte("pid 7")}})
	want := record.Fields{
		StartID: "x", Handle: &driver.Handle{Version: 1, Config: &driver.TaskConfig{ID: "x", Env: env}},
		FirstPendingDestroy: &record.PendingDestroy{StartID: "y", Handle: &driver.Handle{Version: 1, Config: &driver.TaskConfig{ID: "y"}, DriverState: []byte("pid 7")}},
	}
	if got := r.Fields(nil); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Without its handle a start is still known by its id, and the answer that it does not exist proves nothing.
func TestFieldsWithoutTheHandles(t *testing.T) {
	h := &driver.Handle{Config: &driver.TaskConfig{ID: "x"}}
	stored := NewTaskRecord(record.Fields{StartID: "x", Handle: h, FirstPendingDestroy: &record.PendingDestroy{StartID: "x", Handle: h}})
	want := record.Fields{StartID: "x", FirstPendingDestroy: &record.PendingDestroy{StartID: "x", NotFoundIsInconclusive: true}}
	if got := stored.Fields(func(string) *driver.Handle { return nil }); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A stored hook can be null. Neither it nor secrets without their hook change the other hooks.
func TestRecordWithNilHooks(t *testing.T) {
	r := &TaskRecord{HookRecordByName: map[string]*HookRecord{"lost": nil, "h": {PrestartDone: true}}}
	if got := r.SplitSecrets(); got != nil {
		t.Errorf("secrets %+v", got)
	}
	env := map[string]string{"A": "b"}
	r.JoinSecrets(TaskSecrets{HookSecretsByName: map[string]*HookSecrets{"lost": {Env: env}, "gone": {Env: env}, "h": nil}})
	want := map[string]record.HookState{"h": {PrestartDone: true}}
	if got := r.Fields(nil).HookStateByName; !reflect.DeepEqual(got, want) {
		t.Errorf("hooks %+v, want %+v", got, want)
	}
}

// A record with a required field missing is rejected, so that it is quarantined and not applied to something else.
func TestCheckRecordRejectsIncompleteRecords(t *testing.T) {
	request := &AllocRequestRecord{}
	for name, tt := range map[string]struct {
		record   interface{ CheckRecord() error }
		complete bool
	}{
		"postrun":                        {&CleanupRecord{Hook: "h", AllocID: "x", Postrun: request}, true},
		"stop":                           {&CleanupRecord{Hook: "h", AllocID: "x", Stop: &StopRequestRecord{}}, true},
		"destroy":                        {&CleanupRecord{Hook: "h", AllocID: "x", Destroy: request}, true},
		"cleanup without its hook":       {&CleanupRecord{AllocID: "x", Postrun: request}, false},
		"cleanup without its allocation": {&CleanupRecord{Hook: "h", Postrun: request}, false},
		"cleanup without a request":      {&CleanupRecord{Hook: "h", AllocID: "x"}, false},
		"network":                        {&NetworkRecord{AllocID: "x", Mode: "bridge"}, true},
		"network without its allocation": {&NetworkRecord{Mode: "bridge"}, false},
		"network without its mode":       {&NetworkRecord{AllocID: "x"}, false},
	} {
		if err := tt.record.CheckRecord(); (err == nil) != tt.complete {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The pending cleanups of one allocation have different ids, and each record has its hook point.
func TestPendingCleanupKeepsItsPoint(t *testing.T) {
	ids := make(map[string]bool)
	cleanups := []PendingCleanup{
		{Hook: "h", AllocID: "x", Point: hook.Postrun, Postrun: &hook.AllocPostrunRequest{}},
		{Hook: "h", AllocID: "x", Point: hook.Destroy, Destroy: &hook.AllocDestroyRequest{}},
		{Hook: "h", AllocID: "x", Task: "web", Point: hook.Stop, Stop: &hook.TaskStopRequest{}},
		{Hook: "h", AllocID: "x", Task: "db", Point: hook.Stop, Stop: &hook.TaskStopRequest{}},
		{Hook: "other", AllocID: "x", Task: "db", Point: hook.Stop, Stop: &hook.TaskStopRequest{}},
	}
	for _, want := range cleanups {
		got := NewCleanupRecord(want).PendingCleanup()
		if got.Point != want.Point || got.ID() != want.ID() {
			t.Errorf("%s of %s, want %s of %s", got.Point, got.ID(), want.Point, want.ID())
		}
		ids[got.ID()] = true
	}
	if len(ids) != len(cleanups) {
		t.Errorf("ids %v", ids)
	}
}

func TestPrimaryAddressPrefersIPv4(t *testing.T) {
	for _, tt := range []struct {
		status NetworkStatus
		want   string
	}{
		{NetworkStatus{}, ""},
		{NetworkStatus{Address: "10.0.0.1", AddressIPv6: "fd00::1"}, "10.0.0.1"},
		{NetworkStatus{AddressIPv6: "fd00::1"}, "fd00::1"},
	} {
		if got := tt.status.PrimaryAddress(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.status, got, tt.want)
		}
	}
}
