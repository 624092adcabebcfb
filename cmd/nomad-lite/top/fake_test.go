package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/term"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal/terminaltest"
	"github.com/nomad-lite/nomad-lite/internal/golden"
)

// fakeAgent serves the part of the API that the command uses.
type fakeAgent struct {
	t      *testing.T
	server *httptest.Server
	stop   context.CancelFunc // ends open streams
	ended  context.Context

	mu       sync.Mutex
	jobs     []*api.JobListStub
	allocs   []*api.AllocationListStub
	requests []string // method, path and query of all requests, with their bodies
	refuse   bool     // each request is answered with an error
	logs     map[string]string
	timeline string
	health   []*apiclient.JobHealth // nil for an agent that does not report the health
	found    []apiclient.Condition

	events chan string // lines of the event stream
	cut    chan struct{}
}

func newFakeAgent(t *testing.T) *fakeAgent {
	f := &fakeAgent{t: t, events: make(chan string), cut: make(chan struct{}), logs: map[string]string{}, timeline: `{"AllocID":"x","Spans":[]}`}
	f.ended, f.stop = context.WithCancel(context.Background())
	f.server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.stop()
		f.server.Close()
	})
	return f
}

func (f *fakeAgent) client() *api.Client {
	c, err := api.NewClient(&api.Config{Address: f.server.URL})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fakeAgent) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.requests = append(f.requests, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	refuse := f.refuse
	jobs, allocs, timeline, health, found := f.jobs, f.allocs, f.timeline, f.health, f.found
	f.mu.Unlock()
	w.Header().Set("X-Nomad-Index", "100")
	w.Header().Set("X-Nomad-LastContact", "0")
	w.Header().Set("X-Nomad-KnownLeader", "true")
	switch path := r.URL.Path; {
	case refuse:
		http.Error(w, "shutting\x1b[2J down", http.StatusInternalServerError)
	case path == "/v1/jobs":
		f.reply(w, jobs)
	case path == "/v1/jobs/health" && health != nil:
		if r.URL.Query().Get("index") == "" {
			f.reply(w, health)
			return
		}
		select { // the health does not change
		case <-f.ended.Done():
		case <-r.Context().Done():
		}
	case path == "/v1/agent/conditions" && found != nil:
		f.reply(w, map[string]any{"Conditions": found})
	case path == "/v1/allocations":
		f.reply(w, allocs)
	case path == "/v1/event/stream":
		f.streamEvents(w, r)
	case strings.HasSuffix(path, "/stats"):
		f.serveStats(w, path, allocs)
	case strings.HasSuffix(path, "/timeline"):
		io.WriteString(w, timeline) //nolint:errcheck // the client reports it
	case r.Method == http.MethodPut, r.Method == http.MethodDelete:
		io.WriteString(w, `{"EvalID":"e"}`) //nolint:errcheck // the client reports it
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeAgent) reply(w io.Writer, value any) {
	if err := json.NewEncoder(w).Encode(value); err != nil {
		f.t.Error(err)
	}
}

func (f *fakeAgent) streamEvents(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "{}")
	w.(http.Flusher).Flush()
	for {
		select {
		case line := <-f.events:
			fmt.Fprintln(w, line)
			w.(http.Flusher).Flush()
		case <-f.cut:
			return
		case <-r.Context().Done():
			return
		case <-f.ended.Done():
			return
		}
	}
}

// sendEvent sends one event to the client that follows the stream.
func (f *fakeAgent) sendEvent(topic api.Topic, payload map[string]any) {
	line, err := json.Marshal(map[string]any{"Index": 200, "Events": []any{map[string]any{"Topic": topic, "Payload": payload}}})
	if err != nil {
		f.t.Fatal(err)
	}
	select {
	case f.events <- string(line):
	case <-time.After(10 * time.Second):
		f.t.Fatal("no client follows the event stream")
	}
}

func (f *fakeAgent) serveStats(w io.Writer, path string, allocs []*api.AllocationListStub) {
	for _, a := range allocs {
		if path != "/v1/client/allocation/"+a.ID+"/stats" {
			continue
		}
		used := api.AllocResourceUsage{Tasks: map[string]*api.TaskResourceUsage{}}
		for name := range a.TaskStates {
			used.Tasks[name] = &api.TaskResourceUsage{ResourceUsage: &api.ResourceUsage{
				CpuStats: &api.CpuStats{TotalTicks: float64(100 * len(name)), Percent: 5}, MemoryStats: &api.MemoryStats{RSS: uint64(len(name)) << 20},
			}}
		}
		f.reply(w, used)
	}
}

// followTask shows the output of a task, that of standard error last.
func (f *fakeAgent) followTask(ctx context.Context, _ *api.Client, _ *api.Allocation, task string, _ int, show func(isStderr bool, lines []byte), showMessage func(string)) error {
	f.mu.Lock()
	stdout, stderr := f.logs[task+".stdout"], f.logs[task+".stderr"]
	f.mu.Unlock()
	if stdout != "" {
		show(false, []byte(stdout))
	}
	if stderr != "" {
		show(true, []byte(stderr))
	}
	<-ctx.Done()
	return ctx.Err()
}

// requested returns the requests that contain a text.
func (f *fakeAgent) requested(text string) (found []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if strings.Contains(r, text) {
			found = append(found, r)
		}
	}
	return found
}

func (f *fakeAgent) setRefuse(refuse bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = refuse
}

// started is the start of all running tasks of tests: the uptime is 3h5m for the minute of a test.
var started = time.Now().Add(-3*time.Hour - 5*time.Minute - 2*time.Second)

func runningState(event, message string) *api.TaskState {
	return &api.TaskState{State: "running", StartedAt: started, Events: []*api.TaskEvent{{Type: event, DisplayMessage: message, Time: started.UnixNano()}}}
}

// newStub returns an allocation with a running task for each name.
func newStub(id int, job, group string, index int, tasks ...string) *api.AllocationListStub {
	a := &api.AllocationListStub{
		ID: fmt.Sprintf("%08x-0000-0000-0000-000000000000", id), Namespace: "default", JobID: job, TaskGroup: group, NodeID: "n", JobType: "service",
		Name: fmt.Sprintf("%s.%s[%d]", job, group, index), ClientStatus: "running", DesiredStatus: "run", CreateIndex: uint64(id), ModifyIndex: 50,
		TaskStates: map[string]*api.TaskState{},
	}
	for _, name := range tasks {
		a.TaskStates[name] = runningState("Started", "Task started by client")
	}
	return a
}

func newJobStub(id, status string) *api.JobListStub {
	return &api.JobListStub{ID: id, Name: id, Namespace: "default", Type: "service", Status: status, ModifyIndex: 50}
}

// newFilledAgent returns an agent with three jobs. Their rows are: api, its allocation, its tasks server and side; batch, its failed
// allocation, its task; web, two allocations with one task each.
func newFilledAgent(t *testing.T) *fakeAgent {
	f := newFakeAgent(t)
	first := newStub(1, "api", "api", 0, "server", "side")
	first.AllocatedResources = &api.AllocatedResources{Shared: api.AllocatedSharedResources{Ports: []api.PortMapping{{Label: "http", Value: 8080, HostIP: "127.0.0.1"}}}}
	first.TaskStates["side"].Restarts = 4
	failed := newStub(2, "batch", "g", 0, "main")
	failed.ClientStatus, failed.ClientDescription, failed.JobType = "failed", "Failed tasks", "batch"
	failed.TaskStates["main"] = &api.TaskState{State: "dead", Failed: true, Restarts: 2, Events: []*api.TaskEvent{
		{Type: "Terminated", ExitCode: 3, DisplayMessage: "Exit Code: 3"}, {Type: "Not Restarting", RestartReason: "Policy allows no restarts"},
	}}
	replaced := newStub(9, "web", "web", 1, "nginx")
	replaced.ClientStatus, replaced.DesiredStatus = "complete", "stop"
	f.mu.Lock() // another process can send the requests
	defer f.mu.Unlock()
	f.jobs = []*api.JobListStub{newJobStub("web", "running"), newJobStub("api", "running"), newJobStub("batch", "dead")}
	f.jobs[2].Type = "batch"
	f.allocs = []*api.AllocationListStub{newStub(4, "web", "web", 1, "nginx"), newStub(3, "web", "web", 0, "nginx"), first, failed, replaced}
	return f
}

// session is a running command on a pseudo-terminal.
type session struct {
	t      *testing.T
	grid   *terminaltest.FakeFullScreenTerminal
	master *os.File
	tty    *os.File
	saved  *term.State
	cancel context.CancelFunc
	ended  chan error
}

// startSession runs the command in this process.
func startSession(t *testing.T, f *fakeAgent, columns, rows int) *session {
	t.Helper()
	t.Setenv("TERM", "xterm")
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, grid: terminaltest.NewFakeFullScreenTerminal(columns, rows), master: master, tty: tty, ended: make(chan error, 1)}
	if err := pty.Setsize(master, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
	if s.saved, err = term.GetState(int(tty.Fd())); err != nil {
		t.Fatal(err)
	}
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		_, _ = io.Copy(s.grid, master) // the read fails when the terminal is closed
	}()
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	c := f.client()
	listed, err := readJobAndAllocLists(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	u := newUI(c, &cli.Streams{In: tty, Out: tty, Err: tty}, tty, tty, options{usageInterval: time.Hour, followTask: f.followTask})
	go func() { s.ended <- u.runUntilQuit(ctx, listed) }()
	t.Cleanup(func() {
		if _, err := master.WriteString("\x03"); err == nil {
			select {
			case <-s.ended:
			case <-time.After(10 * time.Second):
				t.Error("the command does not end")
			}
		}
		cancel()
		tty.Close()
		master.Close()
		<-shown
		for _, fault := range s.grid.UnsafeOutputs() {
			t.Errorf("the terminal got %s", fault)
		}
	})
	s.waitFor("MEMORY")
	return s
}

func (s *session) press(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// wait waits until the screen satisfies a condition.
func (s *session) wait(what string, ok func(screen string) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		screen := s.grid.String()
		if ok(screen) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the screen does not show %s:\n%s", what, screen)
		}
	}
}

func (s *session) waitFor(text string) {
	s.t.Helper()
	s.wait(fmt.Sprintf("%q", text), func(screen string) bool { return strings.Contains(screen, text) })
}

func (s *session) waitGone(text string) {
	s.t.Helper()
	s.wait(fmt.Sprintf("no %q", text), func(screen string) bool { return !strings.Contains(screen, text) })
}

// waitSelected waits until a row of the table whose text contains a name is selected.
func (s *session) waitSelected(name string) {
	s.t.Helper()
	s.wait("the selection on "+name, func(screen string) bool {
		for y := 2; y < strings.Count(screen, "\n")-1; y++ {
			if strings.Contains(s.grid.StyledTextOfRow(y, reverseVideo), name) {
				return true
			}
		}
		return false
	})
}

// waitExit waits for the end of the command, and checks that the terminal is as it was before.
func (s *session) waitExit() {
	s.t.Helper()
	select {
	case err := <-s.ended:
		if err != nil {
			s.t.Errorf("the command ended with %v", err)
		}
		s.ended <- err
	case <-time.After(10 * time.Second):
		s.t.Fatalf("the command does not end:\n%s", s.grid)
	}
	s.checkRestored()
}

func (s *session) checkRestored() {
	s.t.Helper()
	s.wait("the former screen", func(string) bool { return !s.grid.IsModeOn("1049") && s.grid.IsModeOn("25") && s.grid.IsModeOn("7") })
	state, err := term.GetState(int(s.tty.Fd()))
	if err != nil {
		s.t.Fatal(err)
	}
	if *state != *s.saved {
		s.t.Error("the mode of the terminal has changed")
	}
}

// compareGolden waits until the screen is equal to a file.
func (s *session) compareGolden(name string) {
	s.t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if golden.Updating() {
		time.Sleep(300 * time.Millisecond) // the whole screen is drawn
		if err := os.WriteFile(path, []byte(s.grid.String()), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.wait("the text of "+path, func(screen string) bool { return screen == string(want) })
}
