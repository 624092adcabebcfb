package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// fakeHost is a host without an agent. Methods that the hook does not use are those of the nil Host.
type fakeHost struct {
	hook.Host
	exec func(n int) (*driver.ExecResult, error)

	mu      sync.Mutex
	execs   int
	events  []hook.Event
	healthy []bool
	killed  []string
}

func (f *fakeHost) Exec(context.Context, hook.Scope, hook.ExecRequest) (*driver.ExecResult, error) {
	f.mu.Lock()
	f.execs++
	n := f.execs
	f.mu.Unlock()
	return f.exec(n)
}

func (*fakeHost) State(context.Context, hook.Scope) (*hook.AllocState, error) {
	return &hook.AllocState{}, nil
}

func (f *fakeHost) EmitEvent(_ context.Context, _ hook.Scope, e hook.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
	return e.Validate()
}

func (f *fakeHost) SetHealth(_ context.Context, _ hook.Scope, req hook.SetHealthRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.healthy = append(f.healthy, req.Healthy)
	return nil
}

func (f *fakeHost) Kill(_ context.Context, _ hook.Scope, req hook.KillRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killed = append(f.killed, req.Reason)
	return nil
}

func (f *fakeHost) Variable(_ context.Context, _ hook.Scope, req hook.VariableRequest) (hook.VariableResponse, error) {
	if req.Path != "nomad/jobs/warm" {
		return hook.VariableResponse{Index: 1}, nil
	}
	return hook.VariableResponse{Items: map[string]string{"password": "s3cret"}, Index: 1}, nil
}

func exits(code int) *driver.ExecResult {
	return &driver.ExecResult{Exit: driver.ExitResult{ExitCode: code}}
}

// life is a task for the hook.
type life struct {
	t     *testing.T
	w     *warmup
	host  *fakeHost
	meta  hook.RequestMeta
	dir   hook.TaskDir
	env   map[string]string
	state map[string]string
}

func newLife(t *testing.T, host *fakeHost, attachment string) *life {
	l := &life{t: t, host: host, meta: hook.RequestMeta{AttachmentJSON: []byte(attachment)}, dir: hook.TaskDir{PrivateDir: t.TempDir()}}
	l.newProcess()
	return l
}

// newProcess replaces the hook, as when the plugin was killed.
func (l *life) newProcess() {
	l.w = newWarmup()
	l.w.SetHost(l.host, hook.Node{})
}

func (l *life) prestart() {
	l.t.Helper()
	resp, err := l.w.Prestart(l.t.Context(), hook.TaskPrestartRequest{RequestMeta: l.meta, Dir: l.dir, PreviousState: l.state})
	if err != nil {
		l.t.Fatal(err)
	}
	l.state = resp.State
}

// poststart returns when the warm-up has ended.
func (l *life) poststart(repeated bool) record {
	l.t.Helper()
	if _, err := l.w.Poststart(l.t.Context(), hook.TaskPoststartRequest{RequestMeta: l.meta, Dir: l.dir, Env: l.env, Repeated: repeated}); err != nil {
		l.t.Fatal(err)
	}
	l.w.mu.Lock()
	j := l.w.running["/"]
	l.w.mu.Unlock()
	if j != nil {
		<-j.done
	}
	r, err := loadRecord(l.dir.PrivateDir)
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

func TestExecUntilSuccessesInARow(t *testing.T) {
	host := &fakeHost{exec: func(n int) (*driver.ExecResult, error) {
		if n == 1 || n == 3 {
			return exits(1), nil
		}
		return exits(0), nil
	}}
	l := newLife(t, host, `{"exec": {"command": ["true"]}, "successes": 2, "interval": "1ms", "timeout": "1m"}`)
	l.prestart()
	if r := l.poststart(false); !r.Warm || r.Warmups != 1 || host.execs != 5 {
		t.Fatalf("record %+v after %d commands", r, host.execs)
	}
	if len(host.healthy) != 1 || !host.healthy[0] {
		t.Fatalf("health: %v", host.healthy)
	}
	for i, e := range host.events {
		if e.Ongoing != (i < len(host.events)-1) || e.OperationID != "warmup-1" {
			t.Errorf("event %d: %+v", i, e)
		}
	}
}

func TestRecordSurvivesProcess(t *testing.T) {
	host := &fakeHost{exec: func(int) (*driver.ExecResult, error) { return exits(0), nil }}
	l := newLife(t, host, `{"exec": {"command": ["true"]}, "successes": 1, "interval": "1ms", "timeout": "1m"}`)
	l.prestart()
	l.poststart(false)
	l.newProcess()
	if r := l.poststart(true); r.Warmups != 1 || host.execs != 1 {
		t.Fatalf("warmed up again: %+v, %d commands", r, host.execs)
	}
	l.prestart()
	if r := l.poststart(false); r.Warmups != 2 || r.Start != 2 || host.execs != 2 {
		t.Fatalf("not warmed up again: %+v, %d commands", r, host.execs)
	}
	l.dir.PrivateDir = t.TempDir() // a reboot
	l.prestart()
	if r := l.poststart(false); r.Start != 3 {
		t.Fatalf("after the loss of the directory: %+v", r)
	}
}

func TestTimeoutKills(t *testing.T) {
	host := &fakeHost{exec: func(int) (*driver.ExecResult, error) { return nil, errors.New("no shell here") }}
	l := newLife(t, host, `{"exec": {"command": ["sh"]}, "successes": 1, "interval": "5ms", "timeout": "20ms"}`)
	l.prestart()
	if r := l.poststart(false); r.Warm {
		t.Fatal("warm")
	}
	if len(host.healthy) != 1 || host.healthy[0] || len(host.killed) != 1 || host.killed[0] != "not warmed up within 20ms: sh: no shell here" {
		t.Fatalf("health %v, killed %q", host.healthy, host.killed)
	}
}

func TestEndCancels(t *testing.T) {
	host := &fakeHost{exec: func(int) (*driver.ExecResult, error) { return exits(1), nil }}
	l := newLife(t, host, `{"exec": {"command": ["sh"]}, "successes": 1, "interval": "1h", "timeout": "2h"}`)
	l.prestart()
	if _, err := l.w.Poststart(t.Context(), hook.TaskPoststartRequest{RequestMeta: l.meta, Dir: l.dir}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.w.Exited(t.Context(), hook.TaskExitedRequest{RequestMeta: l.meta}); err != nil {
		t.Fatal(err)
	}
	if len(host.killed) != 0 || len(l.w.running) != 0 {
		t.Fatalf("killed %q, running %v", host.killed, l.w.running)
	}
}

func TestHTTPWithHeader(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/warm" || r.Header.Get("X-Password") != "s3cret" {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer server.Close()
	const header = `{"http": {"path": "/warm", "port": "http", "header": {"name": "X-Password", "variable": "VAR", "item": "password"}}, "successes": 2, "interval": "1ms", "timeout": "50ms"}`
	for variable, want := range map[string]bool{"nomad/jobs/warm": true, "nomad/jobs/other": false} {
		host := &fakeHost{}
		l := newLife(t, host, strings.Replace(header, "VAR", variable, 1))
		l.env = map[string]string{"NOMAD_ADDR_http": server.Listener.Addr().String()}
		l.prestart()
		if r := l.poststart(false); r.Warm != want {
			t.Errorf("%s: warm is %v; killed %q", variable, r.Warm, host.killed)
		}
	}
}

func TestPlanRejects(t *testing.T) {
	for text, want := range map[string]string{
		`{"successes": 1, "interval": "1s"}`:                                             "either http or exec",
		`{"exec": {"command": []}, "successes": 1, "interval": "1s"}`:                    "empty",
		`{"exec": {"command": ["a"]}, "successes": 0, "interval": "1s"}`:                 "at least 1",
		`{"exec": {"command": ["a"]}, "successes": 1, "interval": "soon"}`:               "interval",
		`{"http": {"path": "warm", "port": "http"}, "successes": 1, "interval": "1s"}`:   "begin with /",
		`{"exec": {"command": ["a"]}, "successes": 1, "interval": "1s", "timeout": "0"}`: "timeout",
	} {
		var a attachment
		if err := (hook.RequestMeta{AttachmentJSON: json.RawMessage(text)}).DecodeConfig(&a); err != nil {
			t.Fatal(err)
		}
		if _, err := a.plan(time.Minute); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
