package taskreason

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// newAgentClient returns a client of an agent that answers each path with a value in JSON.
func newAgentClient(t *testing.T, answers map[string]any) *api.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	c, err := api.NewClient(&api.Config{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The last line of the standard error explains an exit only if the process that has ended has written it.
func TestLastLineIsOfTheEndedProcess(t *testing.T) {
	t.Parallel()
	exit := func() *api.TaskEvent { return model.EventTerminated(3, 0, false, "") }
	first := []*api.TaskEvent{model.EventStarted(), exit(), model.EventRestarting("", 2*time.Second)}
	second := append(append([]*api.TaskEvent{}, first...), model.EventReceived(), model.EventStarted(), exit(), model.EventRestarting("", 20*time.Second))
	for name, test := range map[string]struct {
		events  []*api.TaskEvent
		written time.Duration // time of the last write before testTime
		want    string
	}{
		"one process":                         {first, 30 * time.Second, "exit code 3 (stderr: oops), restarts now"},
		"a later process without output":      {second, 7 * time.Second, "exit code 3, restarts in 18s"},
		"output before the end of the delay":  {second, 4500 * time.Millisecond, "exit code 3, restarts in 18s"},
		"output of the later process":         {second, 3500 * time.Millisecond, "exit code 3 (stderr: oops), restarts in 18s"},
		"a process without output and a file": {second, 500 * time.Hour, "exit code 3, restarts in 18s"},
	} {
		c := newAgentClient(t, map[string]any{
			"/v1/client/fs/logs/a1": api.StreamFrame{File: "alloc/logs/web.stderr.1", Data: []byte("oops\n"), Offset: 5},
			"/v1/client/fs/ls/a1": []*api.AllocFileInfo{
				{Name: "web.stderr.1", ModTime: testTime.Add(-test.written)}, {Name: "web.stderr.0", ModTime: testTime}, {Name: "web.stdout.0", ModTime: testTime},
			},
		})
		tasks := []TaskWithReason{{&api.AllocationListStub{ID: "a1"}, "web", reason.FromTaskState(newTaskState("pending", false, test.events...), testTime)}}
		AddLastStderrLines(t.Context(), c, tasks)
		if got := tasks[0].Reason.String(); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// The body of a failing HTTP check can look like the body of a success.
func TestFailingCheckShowsTheStatusOfTheResponse(t *testing.T) {
	t.Parallel()
	c := newAgentClient(t, map[string]any{"/v1/client/allocation/a1/checks": api.AllocCheckStatuses{
		"1": {Check: "alive", Status: model.CheckFailure, StatusCode: 500, Output: "all is well\n"},
		"2": {Check: "empty", Status: model.CheckFailure, StatusCode: 503},
		"3": {Check: "tcp", Status: model.CheckFailure, Output: "nomad: connection refused"},
	}})
	job := &api.Job{TaskGroups: []*api.TaskGroup{{Services: []*api.Service{{Provider: model.ProviderNomad, Checks: make([]api.ServiceCheck, 3)}}}}}
	var out strings.Builder
	streams := &cli.Streams{Out: &out}
	p := output.NewPage(streams)
	printFailingChecks(t.Context(), p, c, job, []*api.AllocationListStub{{ID: "a1", ClientStatus: api.AllocClientStatusRunning}}, false)
	if err := output.PrintPage(streams, p); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"HTTP status 500 Internal Server Error: all is well", "HTTP status 503 Service Unavailable\n", "nomad: connection refused"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}
