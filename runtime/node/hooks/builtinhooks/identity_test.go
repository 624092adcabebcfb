package builtinhooks

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// identityTask is a task with identities under several agents, one after another.
type identityTask struct {
	t          *testing.T
	store      *store.Store
	identities []*api.WorkloadIdentity
	now        func() time.Time

	begin time.Time

	mu       sync.Mutex // held by the test, except while the hook can run
	files    map[string]string
	env      map[string]string
	log      []string // events with the time since the test's start
	diskFull bool

	hook     *IdentityHook
	issuer   *identity.Issuer
	issueErr error // fails token issue
}

// remoteIssuer gets its tokens from another machine.
type remoteIssuer struct {
	*identity.Issuer
	task *identityTask
}

func (r remoteIssuer) IssueToken(ctx context.Context, w identity.Workload, id *api.WorkloadIdentity) (*state.IdentityToken, error) {
	r.task.mu.Lock()
	err := r.task.issueErr
	r.task.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return r.Issuer.IssueToken(ctx, w, id)
}

func newIdentityTask(t *testing.T, identities ...*api.WorkloadIdentity) *identityTask {
	s, err := store.Open(t.Context(), store.Config{
		StateFilePath: filepath.Join(t.TempDir(), "state.db"), TemporaryKeys: true, Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &identityTask{t: t, store: s, identities: identities, now: time.Now, begin: time.Now(), files: make(map[string]string)}
	f.mu.Lock()
	return f
}

// letRun lets the hook run during call, and then until it waits for the clock.
func (i *identityTask) letRun(call func()) {
	i.mu.Unlock()
	defer i.mu.Lock()
	call()
	synctest.Wait()
}

// startAgent starts an agent, which starts the task or finds it running.
func (i *identityTask) startAgent(running bool) error {
	i.issuer = identity.NewIssuer(identity.Config{Store: i.store, Region: "global", Now: func() time.Time { return i.now() }})
	change := func(format string, args ...any) error {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.log = append(i.log, fmt.Sprintf("%v: ", time.Since(i.begin).Truncate(time.Minute))+fmt.Sprintf(format, args...))
		return nil
	}
	i.hook = NewIdentityHook(IdentityHookConfig{
		Issuer: remoteIssuer{i.issuer, i}, Workload: identity.Workload{Namespace: "default", JobID: "web", Group: "web", AllocID: "a", Task: "server"}, IdentitiesWithEnvOrFile: i.identities,
		WriteTaskFile: func(path string, data []byte) error {
			i.mu.Lock()
			defer i.mu.Unlock()
			if i.diskFull {
				return errors.New("disk is full")
			}
			i.files[path] = string(data)
			return nil
		},
		SetEnvTokenByIdentity: func(tokens map[string]string) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.env = tokens
		},
		RestartTask: func(_ context.Context, reason string) error { return change("restart: %s", reason) },
		SignalTask:  func(_ context.Context, signal, reason string) error { return change("%s: %s", signal, reason) },
		EmitEvent:   func(e *api.TaskEvent) { _ = change("event: %s", e.Message) },
		Logger:      hclog.NewNullLogger(),
	})
	var err error
	i.letRun(func() { _, err = i.hook.Prestart(i.t.Context(), hook.TaskPrestartRequest{Running: running}) })
	return err
}

func (i *identityTask) mustStartAgent(running bool) {
	i.t.Helper()
	if err := i.startAgent(running); err != nil {
		i.t.Fatal(err)
	}
}

func (i *identityTask) stopAgent() {
	i.t.Helper()
	var err error
	i.letRun(func() { _, err = i.hook.Shutdown(i.t.Context(), hook.TaskShutdownRequest{}) })
	if err != nil {
		i.t.Fatal(err)
	}
}

func (i *identityTask) sleep(d time.Duration) {
	i.letRun(func() { time.Sleep(d) })
}

// close ends the test in its bubble.
func (i *identityTask) close() {
	i.t.Helper()
	var err error
	i.letRun(func() {
		err = errors.Join(discardResult(i.hook.Stop(i.t.Context(), hook.TaskStopRequest{})), i.store.Close())
	})
	if err != nil {
		i.t.Error(err)
	}
}

func (i *identityTask) wantLog(want ...string) {
	i.t.Helper()
	if !reflect.DeepEqual(i.log, want) {
		i.t.Errorf("log %q, want %q", i.log, want)
	}
}

func subject(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Errorf("%q is no token", token)
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Error(err)
	}
	_, rest, _ := strings.Cut(string(text), `"sub":"`)
	sub, _, _ := strings.Cut(rest, `"`)
	return sub
}

func TestIdentityDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIdentityTask(t, IdentitiesWithEnvOrFile(&api.Task{
			Identity: &api.WorkloadIdentity{Name: "default", Env: true, File: true},
			Identities: []*api.WorkloadIdentity{
				{Name: "a", Env: true}, {Name: "b", File: true}, {Name: "c", File: true, Filepath: "local/c.jwt"}, {Name: "d"},
			},
		})...)
		f.mustStartAgent(false)
		defer f.close()
		const prefix = "global:default:web:web:server:"
		files, env := make(map[string]string), make(map[string]string)
		for name, token := range f.files {
			files[name] = subject(t, token)
		}
		for name, token := range f.env {
			env[name] = subject(t, token)
		}
		if want := map[string]string{"secrets/nomad_token": prefix + "default", "secrets/nomad_b.jwt": prefix + "b", "local/c.jwt": prefix + "c"}; !reflect.DeepEqual(files, want) {
			t.Errorf("files %v, want %v", files, want)
		}
		if want := map[string]string{"default": prefix + "default", "a": prefix + "a"}; !reflect.DeepEqual(env, want) {
			t.Errorf("variables %v, want %v", env, want)
		}
		before := f.env["default"]
		f.sleep(100 * 24 * time.Hour)
		f.mustStartAgent(false) // a restart of the task
		if f.env["default"] != before {
			t.Error("a token without a TTL was replaced")
		}
		f.wantLog()
	})
}

func TestIdentityRenewal(t *testing.T) {
	hour := func(name, mode, signal string) *api.WorkloadIdentity {
		return &api.WorkloadIdentity{Name: name, File: true, Env: true, TTL: time.Hour, ChangeMode: mode, ChangeSignal: signal}
	}
	for _, tc := range []struct {
		name       string
		identities []*api.WorkloadIdentity
		want       []string // changes within 40 minutes; a renewal is due at random after 30 to 33 minutes
	}{
		{"noop", []*api.WorkloadIdentity{hour("x", "", ""), hour("y", "noop", "")}, nil},
		{"restart", []*api.WorkloadIdentity{hour("x", "restart", "")}, []string{"restart: Identity x with change_mode restart renewed"}},
		{"signal", []*api.WorkloadIdentity{hour("x", "signal", "SIGHUP")}, []string{"SIGHUP: Identity x with change_mode signal renewed"}},
		{"a longer TTL is not renewed with a shorter one", []*api.WorkloadIdentity{
			{Name: "long", File: true, TTL: 24 * time.Hour, ChangeMode: "restart"}, hour("x", "signal", "SIGHUP"),
		}, []string{"SIGHUP: Identity x with change_mode signal renewed"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newIdentityTask(t, tc.identities...)
				f.mustStartAgent(false)
				defer f.close()
				id := tc.identities[len(tc.identities)-1].Name
				file := "secrets/nomad_" + id + ".jwt"
				first := f.files[file]
				f.sleep(30*time.Minute - time.Second)
				if f.files[file] != first {
					t.Error("renewed before half of the TTL")
				}
				f.sleep(10 * time.Minute)
				if second := f.files[file]; second == first || f.env[id] != second {
					t.Errorf("not renewed, or the variable differs from the file")
				}
				var got []string
				for _, line := range f.log {
					_, text, _ := strings.Cut(line, ": ")
					got = append(got, text)
				}
				if !reflect.DeepEqual(got, tc.want) {
					t.Errorf("changes %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// Frequent agent restarts neither postpone a renewal nor cause an early one.
func TestIdentityAcrossAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIdentityTask(t, &api.WorkloadIdentity{Name: "x", File: true, Env: true, TTL: time.Hour, ChangeMode: "restart"})
		f.mustStartAgent(false)
		defer func() { f.close() }()
		const file = "secrets/nomad_x.jwt"
		first := f.files[file]
		for range 5 {
			f.sleep(5 * time.Minute)
			f.stopAgent()
			delete(f.files, file) // a running task's file is not written again
			f.mustStartAgent(true)
			if f.env["x"] != first || f.files[file] != "" || len(f.log) > 0 {
				t.Fatalf("the next agent has renewed the token: %v", f.log)
			}
		}
		f.sleep(9 * time.Minute)
		if len(f.log) != 1 || f.files[file] == "" {
			t.Errorf("after 34 minutes: %v", f.log)
		}
		// The token expires while no agent runs.
		f.stopAgent()
		f.sleep(2 * time.Hour)
		second := f.files[file]
		f.mustStartAgent(true)
		if len(f.log) != 2 || f.files[file] == second {
			t.Errorf("the expired token was not renewed at once: %v", f.log)
		}
	})
}

// A crash between record and file is simulated by a failed write and an agent that does not continue.
func TestIdentityCrashBetweenRecordAndFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIdentityTask(t, &api.WorkloadIdentity{Name: "x", File: true, TTL: time.Hour, ChangeMode: "signal", ChangeSignal: "SIGHUP"})
		f.mustStartAgent(false)
		defer func() { f.close() }()
		const file = "secrets/nomad_x.jwt"
		first := f.files[file]
		f.diskFull = true
		f.sleep(33 * time.Minute)
		f.stopAgent()
		f.log = nil
		stored := f.issuer.StoredTokensByIdentity("a", "server")["x"]
		if stored.JWT == first || !stored.ChangeModePending {
			t.Fatalf("the renewed token is not stored: %v", stored.ChangeModePending)
		}
		f.diskFull = false
		f.mustStartAgent(true)
		if f.files[file] != stored.JWT {
			t.Error("the next agent has not written the stored token")
		}
		f.wantLog("33m0s: SIGHUP: Identity x with change_mode signal renewed")
		f.stopAgent()
		f.mustStartAgent(true)
		f.wantLog("33m0s: SIGHUP: Identity x with change_mode signal renewed")
	})
}

func TestIdentityRenewalIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIdentityTask(t, &api.WorkloadIdentity{Name: "x", File: true, TTL: time.Hour, ChangeMode: "restart"})
		f.diskFull = true
		if err := f.startAgent(false); err == nil {
			t.Error("a task starts without its token")
		}
		f.diskFull = false
		f.mustStartAgent(false)
		defer f.close()
		f.diskFull = true
		f.sleep(40 * time.Minute)
		if len(f.log) != 1 || !strings.Contains(f.log[0], "disk is full") {
			t.Errorf("events %q, want one", f.log)
		}
		f.diskFull = false
		f.sleep(time.Hour)
		if len(f.log) < 2 || !strings.Contains(f.log[1], "restart") {
			t.Errorf("no restart after the disk has space: %q", f.log)
		}
	})
}

func TestIdentityAfterClockSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIdentityTask(t, &api.WorkloadIdentity{Name: "x", File: true, TTL: time.Hour, ChangeMode: "restart"})
		var step atomic.Int64
		f.now = func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
		f.mustStartAgent(false)
		defer func() { f.close() }()
		for _, d := range []time.Duration{50 * time.Minute, -50 * time.Minute, -24 * time.Hour} {
			before := len(f.log)
			step.Add(int64(d))
			f.letRun(f.issuer.NotifyClockStep)
			if len(f.log) != before+1 {
				t.Errorf("%d renewals after a step of %v, want 1", len(f.log)-before, d)
			}
		}
		before := len(f.log)
		step.Add(int64(10 * time.Second))
		f.letRun(f.issuer.NotifyClockStep)
		if len(f.log) != before {
			t.Error("a renewal after a step of ten seconds")
		}
	})
}

func TestIdentityLosesItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIdentityTask(t, &api.WorkloadIdentity{Name: "default", File: true})
		f.mustStartAgent(false)
		defer func() { f.close() }()
		first := f.files["secrets/nomad_token"]
		key := f.issuer.StoredTokensByIdentity("a", "server")["default"].KeyID
		if _, err := f.store.RotateKeys(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if err := f.store.RemoveKey(t.Context(), key, true); err != nil {
			t.Fatal(err)
		}
		f.stopAgent()
		f.mustStartAgent(true)
		if f.files["secrets/nomad_token"] == first {
			t.Error("the token of a removed key was not replaced")
		}
		if n, err := f.issuer.CountTasksWithTokenSignedBy(key); n != 0 || err != nil {
			t.Errorf("%d tokens of the removed key: %v", n, err)
		}
	})
}

// While the issuer is unreachable, a task starts with its old token. The token is replaced as soon as the issuer is reachable.
func TestTaskStartsWithOldTokenWhileIssuerIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIdentityTask(t, &api.WorkloadIdentity{Name: "x", File: true, Env: true, TTL: time.Hour, ChangeMode: "signal", ChangeSignal: "SIGHUP"})
		f.issueErr = fmt.Errorf("%w: no servers", ErrIssuerUnreachable)
		if err := f.startAgent(false); !driver.IsRecoverable(err) {
			t.Errorf("a task without any token: error %v, want one that the restart policy decides about", err)
		}
		f.issueErr = nil
		f.mustStartAgent(false)
		defer func() { f.close() }()
		f.stopAgent()
		f.sleep(2 * time.Hour) // the token expires
		f.issueErr = ErrIssuerUnreachable
		const file = "secrets/nomad_x.jwt"
		first := f.files[file]
		delete(f.files, file)
		f.mustStartAgent(false)
		if f.files[file] != first || f.env["x"] != first {
			t.Errorf("the file has %q and the variable %q, want the old token", f.files[file], f.env["x"])
		}
		f.issueErr, f.log = nil, nil
		f.sleep(time.Minute)
		if f.files[file] == first || len(f.log) != 1 || !strings.Contains(f.log[0], "SIGHUP") {
			t.Errorf("after the issuer is reachable: log %q, want a new token and its signal", f.log)
		}
	})
}

func TestRejectedIdentityFailsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newIdentityTask(t, &api.WorkloadIdentity{Name: "x", File: true})
		f.issueErr = fmt.Errorf("%w: identity not found", ErrIdentityRejected)
		defer func() { f.close() }()
		if err := f.startAgent(false); err == nil || driver.IsRecoverable(err) {
			t.Errorf("error %v, want one after which the task is not started again", err)
		}
	})
}
