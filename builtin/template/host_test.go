package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// fakeHost is a hook host with variables, services and tasks. It records the
// calls that act on tasks.
type fakeHost struct {
	hook.Host // methods that the hook does not call

	mu             sync.Mutex
	index          uint64
	changed        chan struct{} // closed when index changes
	variables      map[string]map[string]string
	services       []hook.Service
	calls          []string         // "<task>: <call>"
	callErrors     map[string]error // errors of calls, by the name of the call: restart, signal, exec; see errCallHangs
	scriptExitCode int              // exit code of scripts
	onKill         func()           // called when a task is killed; may be nil
}

func newFakeHost() *fakeHost {
	return &fakeHost{index: 1, changed: make(chan struct{}), variables: map[string]map[string]string{}, callErrors: map[string]error{}}
}

// changeData calls f, which changes variables or services, and increments the
// index.
func (h *fakeHost) changeData(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.index++
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *fakeHost) setVariable(path string, kv ...string) {
	h.changeData(func() {
		items := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			items[kv[i]] = kv[i+1]
		}
		h.variables[path] = items
	})
}

func (h *fakeHost) recordCall(s hook.Scope, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, s.Token+": "+fmt.Sprintf(format, args...))
}

// takeCalls returns and removes the recorded calls, sorted by task.
func (h *fakeHost) takeCalls() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	slices.Sort(calls)
	return calls
}

// errCallHangs is an error of a call that lasts until its context ends.
var errCallHangs = errors.New("hangs")

func (h *fakeHost) callError(ctx context.Context, call string) error {
	h.mu.Lock()
	err := h.callErrors[call]
	h.mu.Unlock()
	if err == errCallHangs {
		<-ctx.Done()
		err = ctx.Err()
	}
	return err
}

// waitForIndex blocks until the index of the data is higher than after, calls
// read, and returns the index.
func (h *fakeHost) waitForIndex(ctx context.Context, after uint64, read func()) (uint64, error) {
	for {
		h.mu.Lock()
		index, moved := h.index, h.changed
		if after == 0 || index > after {
			read()
			h.mu.Unlock()
			return index, nil
		}
		h.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (h *fakeHost) Variable(ctx context.Context, _ hook.Scope, req hook.VariableRequest) (r hook.VariableResponse, err error) {
	r.Index, err = h.waitForIndex(ctx, req.AfterIndex, func() {
		r.Items, r.Metadata = maps.Clone(h.variables[req.Path]), hook.VariableMetadata{Namespace: "default", Path: req.Path}
	})
	return r, err
}

func (h *fakeHost) Variables(ctx context.Context, _ hook.Scope, req hook.VariablesRequest) (r hook.VariablesResponse, err error) {
	r.Index, err = h.waitForIndex(ctx, req.AfterIndex, func() {
		for path := range h.variables {
			if strings.HasPrefix(path, req.Prefix) {
				r.Paths = append(r.Paths, path)
				r.Variables = append(r.Variables, hook.VariableMetadata{Namespace: "default", Path: path})
			}
		}
	})
	return r, err
}

func (h *fakeHost) Services(ctx context.Context, _ hook.Scope, req hook.ServicesRequest) (r hook.ServicesResponse, err error) {
	r.Index, err = h.waitForIndex(ctx, req.AfterIndex, func() {
		for _, s := range h.services {
			if req.Name == "" || s.Name == req.Name {
				r.Services = append(r.Services, s)
			}
		}
	})
	return r, err
}

func (h *fakeHost) Interpolate(_ context.Context, _ hook.Scope, text string) (string, error) {
	return strings.NewReplacer("${attr.kernel.name}", "linux", "${meta.rack}", "r1").Replace(text), nil
}

func (h *fakeHost) EmitEvent(_ context.Context, s hook.Scope, e hook.Event) error {
	h.recordCall(s, "event %s / %s", e.Type, e.Message)
	return nil
}

func (h *fakeHost) Restart(ctx context.Context, s hook.Scope, req hook.RestartRequest) error {
	h.recordCall(s, "restart %s %v", req.Reason, req.CountAsFailure)
	return h.callError(ctx, "restart")
}

func (h *fakeHost) Signal(ctx context.Context, s hook.Scope, req hook.SignalRequest) error {
	h.recordCall(s, "signal %s %s", req.Signal, req.Reason)
	return h.callError(ctx, "signal")
}

func (h *fakeHost) Kill(ctx context.Context, s hook.Scope, req hook.KillRequest) error {
	h.recordCall(s, "kill %s", req.Reason)
	if h.onKill != nil {
		h.onKill()
	}
	return h.callError(ctx, "kill")
}

func (h *fakeHost) Exec(ctx context.Context, s hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error) {
	h.recordCall(s, "exec %v %v", req.Command, req.Timeout)
	err := h.callError(ctx, "exec")
	h.mu.Lock()
	defer h.mu.Unlock()
	result := &driver.ExecResult{}
	result.Exit.ExitCode = h.scriptExitCode
	return result, err
}

// directEvaluators evaluates templates in this process.
type directEvaluators struct{}

func (directEvaluators) Evaluate(_ context.Context, r *evaluate.Request) (*evaluate.Result, error) {
	return evaluate.Evaluate(r), nil
}

func (e directEvaluators) EvaluateAlone(ctx context.Context, r *evaluate.Request) (*evaluate.Result, error) {
	return e.Evaluate(ctx, r)
}

func (directEvaluators) AloneLimits() string { return "" }

// fixture has a hook with a host and the directory of an allocation.
type fixture struct {
	*testing.T
	*fakeHost
	hook *Hook
	dir  string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, fakeHost: newFakeHost(), dir: t.TempDir()}
	f.newHook()
	return f
}

// newHook replaces the hook by a new one, as after a restart of its process.
func (f *fixture) newHook() {
	f.hook = &Hook{Evaluators: directEvaluators{}}
	f.hook.SetHost(f.fakeHost, hook.Node{Region: "global"})
}

// stopTasks stops the renderers of all tasks.
func (f *fixture) stopTasks() {
	for k := range f.hook.renderersByTask {
		f.hook.stopRenderer(k)
	}
}

func (f *fixture) newRequest(task string, blocks []templateBlock, more ...map[string]any) hook.TaskPrestartRequest {
	f.Helper()
	config := map[string]any{"templates": blocks}
	for _, m := range more {
		maps.Copy(config, m)
	}
	attachment, err := json.Marshal(config)
	if err != nil {
		f.Fatal(err)
	}
	dir := filepath.Join(f.dir, task)
	d := hook.TaskDir{
		AllocDir: f.dir, Dir: dir, SharedAllocDir: filepath.Join(f.dir, "alloc"), LocalDir: filepath.Join(dir, "local"),
		SecretsDir: filepath.Join(dir, "secrets"), PrivateDir: filepath.Join(dir, "private"),
	}
	for _, path := range []string{d.SharedAllocDir, d.LocalDir, d.SecretsDir, d.PrivateDir} {
		if err := os.MkdirAll(path, 0o777); err != nil {
			f.Fatal(err)
		}
	}
	return hook.TaskPrestartRequest{
		RequestMeta: hook.RequestMeta{Token: task, AttachmentJSON: attachment},
		Alloc:       hook.Alloc{ID: "alloc", Namespace: "default"},
		Task:        hook.Task{Name: task},
		Dir:         d,
		Env:         map[string]string{"NOMAD_TASK_DIR": d.LocalDir, "GREETING": "hello"},
	}
}

// startTask calls Prestart and Poststart for a task, as the task runner does,
// and returns the environment variables from Prestart.
func (f *fixture) startTask(req hook.TaskPrestartRequest) map[string]string {
	f.Helper()
	answer, err := f.hook.Prestart(f.Context(), req)
	if err != nil {
		f.Fatalf("%s: prestart: %v", req.Task.Name, err)
	}
	f.callPoststart(req)
	return answer.Env
}

func (f *fixture) callPoststart(req hook.TaskPrestartRequest) {
	f.Helper()
	_, err := f.hook.Poststart(f.Context(), hook.TaskPoststartRequest{RequestMeta: req.RequestMeta, Alloc: req.Alloc, Task: req.Task, Dir: req.Dir, Env: req.Env})
	if err != nil {
		f.Fatalf("%s: poststart: %v", req.Task.Name, err)
	}
}

func (f *fixture) readFile(path string) string {
	f.Helper()
	content, err := os.ReadFile(filepath.Join(f.dir, path))
	if err != nil {
		f.Fatal(err)
	}
	return string(content)
}

func (f *fixture) expectCalls(want ...string) {
	f.Helper()
	slices.Sort(want)
	if got := f.takeCalls(); !slices.Equal(got, want) {
		f.Errorf("calls\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
