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
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
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

// session is a live table. Messages of its goroutines and commands are sent to Update one by one, as the library does.
type session struct {
	t      *testing.T
	ui     *ui
	msgs   chan tea.Msg
	hasEnd chan struct{} // closed when the user has quit

	mu   sync.Mutex
	view string // what View returned last
}

// startSession shows the table on a terminal of this size.
func startSession(t *testing.T, f *fakeAgent, columns, rows int) *session {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := f.client()
	listed, err := readJobAndAllocLists(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, msgs: make(chan tea.Msg), hasEnd: make(chan struct{})}
	s.ui = newUI(c, &cli.Streams{Out: io.Discard, ForceColour: true}, options{usageInterval: time.Hour, followTask: f.followTask})
	s.ui.ctx, s.ui.send, s.ui.killProgram = ctx, s.send, func() {}
	wait := s.ui.follow(ctx, listed, nil)
	var commands sync.WaitGroup
	go func() {
		defer close(s.hasEnd)
		for msg := range s.msgs {
			if _, quits := msg.(tea.QuitMsg); quits {
				return
			}
			_, cmd := s.ui.Update(msg)
			s.mu.Lock()
			s.view = s.ui.View().Content
			s.mu.Unlock()
			if cmd != nil {
				commands.Go(func() {
					if msg := cmd(); msg != nil {
						s.send(msg)
					}
				})
			}
		}
	}()
	t.Cleanup(func() {
		s.press("\x03")
		cancel()
		<-s.hasEnd
		wait()
		commands.Wait()
	})
	s.resize(columns, rows)
	s.waitFor("MEMORY")
	return s
}

// send sends a message to the model, unless the user has quit.
func (s *session) send(msg tea.Msg) {
	select {
	case s.msgs <- msg:
	case <-s.hasEnd:
	}
}

func (s *session) resize(columns, rows int) { s.send(tea.WindowSizeMsg{Width: columns, Height: rows}) }

// keysOfInput are the keys whose input is not their text.
var keysOfInput = map[string]tea.Key{
	"\x1b[A": {Code: tea.KeyUp}, "\x1b[B": {Code: tea.KeyDown}, "\x1b[C": {Code: tea.KeyRight}, "\x1b[D": {Code: tea.KeyLeft},
	"\x1b[H": {Code: tea.KeyHome}, "\x1b[F": {Code: tea.KeyEnd}, "\x1b[5~": {Code: tea.KeyPgUp}, "\x1b[6~": {Code: tea.KeyPgDown},
	"\r": {Code: tea.KeyEnter}, "\x1b": {Code: tea.KeyEscape}, "\x7f": {Code: tea.KeyBackspace},
	"\x03": {Code: 'c', Mod: tea.ModCtrl}, "\x15": {Code: 'u', Mod: tea.ModCtrl},
}

var keyInput = regexp.MustCompile("\x1b\\[[0-9]*[A-Z~]|(?s:.)")

// press sends the keys of an input.
func (s *session) press(input string) {
	for _, text := range keyInput.FindAllString(input, -1) {
		key, ok := keysOfInput[text]
		if !ok {
			key = tea.Key{Text: text, Code: []rune(text)[0]}
		}
		s.send(tea.KeyPressMsg(key))
	}
}

// screen returns the text of the screen, and fails the test if the screen has other control characters than colours.
func (s *session) screen() string {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	text := colourSequence.ReplaceAllString(s.view, "")
	if at := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && unicode.In(r, unicode.Cc, unicode.Cf) }); at >= 0 {
		s.t.Errorf("the screen has control characters: %q", text[at:min(at+40, len(text))])
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ") + "\n"
	}
	return strings.Join(lines, "")
}

var colourSequence = regexp.MustCompile("\x1b\\[[0-9]+m")

// wait waits until the screen satisfies a condition.
func (s *session) wait(what string, ok func(screen string) bool) {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		screen := s.screen()
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
	s.wait("the selection on "+name, func(string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		lines := strings.Split(s.view, "\n")
		return slices.ContainsFunc(lines[min(2, len(lines)):], func(line string) bool { return strings.HasPrefix(line, reverseVideo) && strings.Contains(line, name) })
	})
}

// compareGolden waits until the screen is equal to a file.
func (s *session) compareGolden(name string) {
	s.t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if golden.Updating() {
		time.Sleep(300 * time.Millisecond) // the whole screen is drawn
		if err := os.WriteFile(path, []byte(s.screen()), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.wait("the text of "+path, func(screen string) bool { return screen == string(want) })
}
