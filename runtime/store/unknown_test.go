package store

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// encodeWith returns the encoded value with more fields, as a newer build would store it. A key in fields is a field's path
// made up of field names, map keys and list indexes.
func encodeWith(t *testing.T, v any, fields map[string]any) []byte {
	t.Helper()
	payload, err := encodeMsgpack(v)
	mustSucceed(t, err)
	var generic any
	mustSucceed(t, decodeMsgpack(payload, &generic))
	for path, value := range fields {
		at := generic
		parts := strings.Split(path, ".")
		for _, part := range parts[:len(parts)-1] {
			if list, ok := at.([]any); ok {
				at = list[part[0]-'0']
			} else {
				at = at.(map[string]any)[part]
			}
		}
		at.(map[string]any)[parts[len(parts)-1]] = value
	}
	payload, err = encodeMsgpack(generic)
	mustSucceed(t, err)
	return payload
}

// decodeGeneric returns a payload as maps and lists.
func decodeGeneric(t *testing.T, payload []byte) (v any) {
	t.Helper()
	mustSucceed(t, decodeMsgpack(payload, &v))
	return v
}

// unknownRecord has fields at each place where a newer build can add fields to them.
type unknownRecord struct {
	Text  string                     `store:"text"`
	Inner *unknownInner              `store:"inner"`
	ByKey map[string]*unknownInner   `store:"by_key"`
	List  []unknownInner             `store:"list"`
	Plain map[string]string          `store:"plain"`
	Lists map[string][]*unknownInner `store:"lists"`
}

type unknownInner struct {
	N int `store:"n"`
}

func TestUnknownFieldsAreReported(t *testing.T) {
	want := unknownRecord{
		Text: "x", Inner: &unknownInner{1}, ByKey: map[string]*unknownInner{"a": {2}, "nil": nil}, List: []unknownInner{{3}, {4}},
		Plain: map[string]string{"k": "v"}, Lists: map[string][]*unknownInner{"a": {{5}, nil}, "empty": {}},
	}
	payload := encodeWith(t, want, map[string]any{
		"new": map[string]any{"a": []any{1, "b"}}, "inner.new": 1, "by_key.a.new": nil, "list.1.new": 2.5, "lists.a.0.other": "x",
	})
	var got unknownRecord
	unknown, err := decodeAndListUnknownFields(payload, &got)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if want := []string{"by_key.new", "inner.new", "list.new", "lists.other", "new"}; !slices.Equal(unknown, want) {
		t.Errorf("unknown fields %q, want %q", unknown, want)
	}
}

func TestFormerNamesAreRead(t *testing.T) {
	fieldAliases["store.unknownInner.former"] = "n"
	defer delete(fieldAliases, "store.unknownInner.former")
	for _, test := range []struct {
		stored any
		want   int
	}{
		{map[string]any{"inner": map[string]any{"former": 7}}, 7},
		{map[string]any{"inner": map[string]any{"former": 7, "n": 8}}, 8},
	} {
		payload, err := encodeMsgpack(test.stored)
		mustSucceed(t, err)
		var got unknownRecord
		unknown, err := decodeAndListUnknownFields(payload, &got)
		if err != nil || len(unknown) > 0 || got.Inner == nil || got.Inner.N != test.want {
			t.Errorf("%v: got %+v, unknown %q, %v", test.stored, got.Inner, unknown, err)
		}
	}
}

func TestRewrittenRecordKeepsUnknownFields(t *testing.T) {
	base := func() unknownRecord {
		return unknownRecord{
			Text: "x", Inner: &unknownInner{1}, ByKey: map[string]*unknownInner{"a": {2}, "b": {3}}, List: []unknownInner{{4}, {5}},
			Plain: map[string]string{"k": "v", "l": "w"},
		}
	}
	fields := map[string]any{"new": "top", "inner.new": "inner", "by_key.a.new": "a", "list.1.new": "five"}
	for name, test := range map[string]struct {
		change func(*unknownRecord)
		want   map[string]any // the kept fields in fields
	}{
		"unchanged":       {func(*unknownRecord) {}, fields},
		"other field":     {func(r *unknownRecord) { r.Text = "y" }, fields},
		"field inside":    {func(r *unknownRecord) { r.Inner.N = 7 }, fields},
		"struct removed":  {func(r *unknownRecord) { r.Inner = nil }, map[string]any{"new": "top", "by_key.a.new": "a", "list.1.new": "five"}},
		"key removed":     {func(r *unknownRecord) { delete(r.ByKey, "b"); delete(r.Plain, "k") }, fields},
		"element added":   {func(r *unknownRecord) { r.List = append(r.List, unknownInner{6}) }, fields},
		"element removed": {func(r *unknownRecord) { r.List = r.List[1:] }, map[string]any{"new": "top", "inner.new": "inner", "by_key.a.new": "a", "list.0.new": "five"}},
		"element changed": {func(r *unknownRecord) { r.List[1].N = 9 }, map[string]any{"new": "top", "inner.new": "inner", "by_key.a.new": "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := base()
			stored := encodeWith(t, r, fields)
			test.change(&r)
			next, err := encodeMsgpack(r)
			mustSucceed(t, err)
			got, carried, err := keepUnknownFields(stored, next, new(unknownRecord))
			if err != nil || !carried {
				t.Fatalf("carried %t, %v", carried, err)
			}
			want := encodeWith(t, r, test.want)
			if !reflect.DeepEqual(decodeGeneric(t, got), decodeGeneric(t, want)) {
				t.Errorf("got  %v\nwant %v", decodeGeneric(t, got), decodeGeneric(t, want))
			}
		})
	}
}

// A state file written by a newer build keeps what only that build knows, and this build reports it.
func TestPartsOfNewerBuildAreKeptAndReported(t *testing.T) {
	dir := t.TempDir()
	job := testJob("web", 0)
	local := record.Fields{StartID: "a/web/1", Handle: &driver.Handle{Version: 1, Config: &driver.TaskConfig{ID: "a/web/1", Env: map[string]string{"A": "b"}}}}
	status := &api.TaskState{State: "running", Events: []*api.TaskEvent{{Type: "Received"}}}
	s := openWithKeys(t, dir)
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutNodeWithStorageEvents(&api.Node{ID: "node"})
		tx.PutJobAndVersion(job)
		tx.PutScheduledAllocation(&api.Allocation{ID: "a", Namespace: "default", JobID: "web", Job: job})
		tx.PutVariable(&api.Variable{Namespace: "default", Path: "v", Items: api.VariableItems{"k": "v"}})
		tx.PutAgentRecord(state.PluginProcessPrefix+"x", &state.PluginProcess{PID: 1, Addr: "/x"})
		tx.PutAgentRecord(state.IdentityPrefix+"a/web", secretTokens("jwt"))
	})
	mustSucceed(t, s.PutTask("a", "web", local, status, state.DurabilitySync)())
	spec := s.jobs.hashesByJob[s.Snapshot().Allocation(nil, "a").Job]
	mustSucceed(t, s.Close())

	newer := map[recordKey]string{ // record -> the added field's path
		{Jobs, "default\x00web"}:                  "Affinity",
		{jobBucket, spec}:                         "Affinity",
		{Allocations, "a"}:                        "alloc.Score",
		{Variables, "default\x00v"}:               "Owner",
		{taskLocalsTable, "a\x00web"}:             "restart.cause",
		{taskHandlesTable, "a\x00web\x00a/web/1"}: "config.seccomp",
		{taskStatesTable, "a\x00web"}:             "Events.0.Cause",
		{agentMetaTable, "plugin/x"}:              "cgroup",
		{agentMetaTable, "identity/a/web"}:        "t.audience",
		{agentMetaTable, "lease/x"}:               "",
		{"leases", "x"}:                           "",
		{metaBucket, "shape"}:                     "",
	}
	payloadOf := func(key recordKey) []byte {
		t.Helper()
		payload := getRawPayload(t, dir, string(key.table), key.key)
		box, open, err := decodeEnvelope(payload)
		mustSucceed(t, err)
		if key.key == "identity/a/web" {
			open, err = s.sealer.decryptSecretBox(string(key.table), key.key, box)
			mustSucceed(t, err)
		}
		return open
	}
	var ops []bucketWrite
	for key, path := range newer {
		payload, err := encodeMsgpack("new")
		mustSucceed(t, err)
		if path != "" {
			box, _, err := decodeEnvelope(getRawPayload(t, dir, string(key.table), key.key))
			mustSucceed(t, err)
			payload = encodeWith(t, decodeGeneric(t, payloadOf(key)), map[string]any{path: "new"})
			if key.key == "identity/a/web" {
				payload = s.sealer.sealPayload(string(key.table), key.key, payload, nil)
			} else if box != nil {
				payload = encodeEnvelope(box, payload)
			}
		}
		ops = append(ops, bucketWrite{string(key.table), key.key, encodeRecord(string(key.table), key.key, 1, payload)})
	}
	putRawRecords(t, dir, ops...)

	want := []UnknownPart{
		{"field Affinity of jobs", 1}, {"field Affinity of specs", 1}, {"field Events.Cause of task_state", 1}, {"field Owner of variables", 1},
		{"field alloc.Score of allocations", 1}, {"field cgroup of agent", 1}, {"field config.seccomp of task_handle", 1}, {"field restart.cause of task_local", 1},
		{"record lease/x of agent", 1}, {"record shape of meta", 1}, {"table leases", 1},
	}
	contents, err := InspectFile(filepath.Join(dir, FileName))
	if err != nil || !slices.Equal(contents.UnknownParts, want) || len(contents.Damage) > 0 {
		t.Errorf("inspected %v, damage %v, %v; want %v", contents.UnknownParts, contents.Damage, err, want)
	}

	for round := range 2 {
		s = openWithKeys(t, dir)
		snap := s.Snapshot()
		got, _, err := snap.TaskFields("a", "web")
		if err != nil || got.StartID != "a/web/1" {
			t.Errorf("record %+v, %v", got, err)
		}
		var tokens state.TokenByIdentityName
		if _, err := snap.ReadAgentRecord("identity/a/web", &tokens); err != nil || tokens["t"].JWT != "jwt" {
			t.Errorf("tokens %v, %v", tokens, err)
		}
		if parts := s.listUnknownParts(); len(parts) < 10 {
			t.Errorf("reported %v", parts)
		}
		// Every record is changed, and then the whole file is written anew.
		mustUpdate(t, s, func(tx *Txn) {
			changed := *tx.Job(nil, "default", "web")
			changed.Status = new("running")
			tx.PutJobAndVersion(&changed)
			alloc := *tx.Allocation(nil, "a")
			alloc.ClientStatus = "running"
			tx.PutScheduledAllocation(&alloc)
			tx.PutVariable(&api.Variable{Namespace: "default", Path: "v", Items: api.VariableItems{"k": "w"}})
			tx.PutAgentRecord("plugin/x", &state.PluginProcess{PID: 2, Addr: "/x"})
			tx.PutAgentRecord("identity/a/web", secretTokens("jwt"))
			tx.PutNodeWithStorageEvents(&api.Node{ID: "node"})
		})
		got.KillRequested = true
		status.Restarts++
		mustSucceed(t, s.PutTask("a", "web", got, status, state.DurabilitySync)())
		if round == 1 {
			mustSucceed(t, s.runBetweenTransactions(t.Context(), func() error { return s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))) }))
			mustUpdate(t, s, func(tx *Txn) {
				alloc := *tx.Allocation(nil, "a")
				alloc.ClientDescription = "written after the job was written anew"
				tx.PutScheduledAllocation(&alloc)
			})
		}
		if events := s.Snapshot().Node(nil, "node").Events; !slices.ContainsFunc(events, func(e *api.NodeEvent) bool {
			return strings.Contains(e.Message, "unsupported part, which is kept: field config.seccomp of task_handle")
		}) {
			t.Errorf("events %v", events)
		}
		mustSucceed(t, s.Close())
		for key, path := range newer {
			at := decodeGeneric(t, payloadOf(key))
			for part := range strings.SplitSeq(path, ".") {
				if list, ok := at.([]any); ok {
					at = list[part[0]-'0']
				} else if path != "" {
					at = at.(map[string]any)[part]
				}
			}
			if at != "new" {
				t.Errorf("round %d: %q: field %q has %v", round, key, path, at)
			}
		}
	}
	s = openWithKeys(t, dir)
	if a := s.Snapshot().Allocation(nil, "a"); len(s.Damage()) > 0 || a == nil || a.Job == nil {
		t.Errorf("at the end: allocation %v, damage %v", a, s.Damage())
	}
}
