package audit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func openLog(t *testing.T, s Settings) *Log {
	t.Helper()
	l, err := Open(s, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// Each record is one line, whatever names a client has chosen.
func TestRecordIsOneLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit", "audit.log")
	l := openLog(t, Settings{Sinks: []Sink{{Path: path}}})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			r := New(Auth{Name: "a\n{\"b\"\u2028"}, Request{Operation: "PUT", Endpoint: "/v1/job/a\nb"})
			if err := l.Record(r); err != nil {
				t.Error(err)
			}
			r.Stage, r.Response = OperationComplete, &Response{StatusCode: 200}
			if err := l.Record(r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	stages := map[string][]Stage{}
	for _, line := range readLines(t, path) {
		var event struct {
			EventType string `json:"event_type"`
			Payload   Record
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil || event.EventType != "audit" || event.Payload.Auth.Name != "a\n{\"b\"\u2028" {
			t.Fatalf("%q: %+v, %v", line, event, err)
		}
		stages[event.Payload.ID] = append(stages[event.Payload.ID], event.Payload.Stage)
	}
	if len(stages) != 100 {
		t.Errorf("%d requests, want 100", len(stages))
	}
	for id, got := range stages {
		if !slices.Equal(got, []Stage{OperationReceived, OperationComplete}) {
			t.Errorf("%s has the stages %q", id, got)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != DefaultFileMode {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// The size that earlier agents have written counts, and old files are removed.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 900)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, Settings{Sinks: []Sink{{Path: path, RotateBytes: 1000, RotateMaxFiles: 2}}})
	for range 20 {
		if err := l.Record(New(Auth{}, Request{Endpoint: "/v1/jobs"})); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 3 {
		t.Errorf("files %q, %v", files, err)
	}
	for _, file := range files {
		if lines := readLines(t, file); strings.HasPrefix(lines[0], "x") || len(lines) > 4 {
			t.Errorf("%s has %d lines, the first is %.20s", file, len(lines), lines[0])
		}
	}
}

func TestFilter(t *testing.T) {
	r := New(Auth{}, Request{Operation: "GET", Endpoint: "/v1/metrics"})
	for _, test := range []struct {
		filter Filter
		want   bool
	}{
		{Filter{}, true},
		{Filter{Endpoints: []string{"/v1/metrics"}}, true},
		{Filter{Endpoints: []string{"/v1/*"}, Stages: []Stage{"*"}, Operations: []string{"*"}}, true},
		{Filter{Endpoints: []string{"/v1/jobs"}}, false},
		{Filter{Stages: []Stage{OperationComplete}}, false},
		{Filter{Operations: []string{"PUT", "GET"}}, true},
		{Filter{Operations: []string{"PUT"}}, false},
	} {
		if got := test.filter.matches(r); got != test.want {
			t.Errorf("%+v: %v", test.filter, got)
		}
	}
}

// A request does not go on without its record, unless the sink permits it.
func TestRecordThatCannotBeWritten(t *testing.T) {
	for _, bestEffort := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "audit.log")
		l := openLog(t, Settings{Sinks: []Sink{{Path: path, BestEffort: bestEffort, RotateBytes: 1}}})
		if err := l.Record(New(Auth{}, Request{})); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil { // the rotation fails
			t.Fatal(err)
		}
		if err := l.Record(New(Auth{}, Request{})); (err != nil) == bestEffort {
			t.Errorf("best effort %v: %v", bestEffort, err)
		}
		if err := l.Record(New(Auth{}, Request{})); err != nil {
			t.Errorf("after the failure: %v", err)
		}
	}
	if _, err := Open(Settings{Sinks: []Sink{{Path: "/proc/version/audit.log"}}}, hclog.NewNullLogger()); err == nil {
		t.Error("a file that cannot be opened is no error")
	}
}
