package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// recordingHook is a hook for all allocation and task hook points. It records the calls.
type recordingHook struct {
	hooks.BuiltinHookDefaults
	name string

	mu               sync.Mutex
	startedCalls     []string
	errsByPoint      map[string]error         // errors by hook point
	hangingPoints    map[string]bool          // at these hook points calls block until their context is done
	lastPrestart     hook.TaskPrestartRequest // last Prestart request
	lastStop         hook.TaskStopRequest
	prestartResponse func(n int) (hook.TaskPrestartResponse, error) // returns the response to the n-th Prestart call
	n                int

	callDurations map[string]time.Duration // how long calls take, by hook point, even if their context is done
	returnedCalls []string                 // hook points with calls that have returned
}

func (r *recordingHook) Name() string { return r.name }

func (r *recordingHook) record(ctx context.Context, name string) error {
	r.mu.Lock()
	r.startedCalls = append(r.startedCalls, name)
	err, hang, busy := r.errsByPoint[name], r.hangingPoints[name], r.callDurations[name]
	r.mu.Unlock()
	time.Sleep(busy)
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.returnedCalls = append(r.returnedCalls, name)
	}()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (r *recordingHook) calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.startedCalls)
}

// recordingAllocHook is a recordingHook for an allocation's hook points.
type recordingAllocHook struct{ *recordingHook }

func (h recordingAllocHook) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, h.record(ctx, "prerun")
}
func (h recordingAllocHook) UpdateAlloc(ctx context.Context, r hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, h.record(ctx, "update "+r.Env["NOMAD_META_version"])
}
func (h recordingAllocHook) PreTaskRestart(ctx context.Context, _ hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, h.record(ctx, "pretaskrestart")
}
func (h recordingAllocHook) PreKill(ctx context.Context, _ hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, h.record(ctx, "prekill")
}
func (h recordingAllocHook) Postrun(ctx context.Context, _ hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, h.record(ctx, "postrun")
}
func (h recordingAllocHook) Destroy(ctx context.Context, _ hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, h.record(ctx, "destroy")
}
func (h recordingAllocHook) ShutdownAlloc(ctx context.Context, _ hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	return hook.AllocShutdownResponse{}, h.record(ctx, "shutdown")
}

// recordingTaskHook is a recordingHook for a task's hook points.
type recordingTaskHook struct{ *recordingHook }

func (h recordingTaskHook) Prestart(ctx context.Context, r hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	h.mu.Lock()
	h.lastPrestart = r
	n, give := h.n, h.prestartResponse
	h.n++
	h.mu.Unlock()
	if err := h.record(ctx, "prestart"); err != nil || give == nil {
		return hook.TaskPrestartResponse{}, err
	}
	return give(n)
}
func (h recordingTaskHook) Poststart(ctx context.Context, _ hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, h.record(ctx, "poststart")
}
func (h recordingTaskHook) Update(ctx context.Context, _ hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, h.record(ctx, "update")
}
func (h recordingTaskHook) PreKilling(ctx context.Context, _ hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, h.record(ctx, "prekilling")
}
func (h recordingTaskHook) Exited(ctx context.Context, _ hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, h.record(ctx, "exited")
}
func (h recordingTaskHook) Stop(ctx context.Context, r hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	h.mu.Lock()
	h.lastStop = r
	h.mu.Unlock()
	if ctx.Err() != nil {
		return hook.TaskStopResponse{}, h.record(ctx, "stop too late")
	}
	return hook.TaskStopResponse{}, h.record(ctx, "stop")
}
func (h recordingTaskHook) Shutdown(ctx context.Context, _ hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	return hook.TaskShutdownResponse{}, h.record(ctx, "shutdown")
}

func withHooks(alloc, task []hooks.Hook) func(*testConfig) {
	return func(c *testConfig) { c.HookFactory = fixedHookFactory{alloc: alloc, task: task} }
}

// job returns a job text with one group for the given tasks, which are HCL.
func job(typ, group string) string {
	return fmt.Sprintf("job \"j\" {\n type = %q\n group \"g\" {\n%s\n}\n}\n", typ, group)
}

const (
	endlessTaskText   = `task "web" { driver = "fake" }`
	oneSecondTaskText = "task \"web\" {\n driver = \"fake\"\n config { run_for = \"1s\" }\n}"
	noRestartText     = "restart { attempts = 0 }\n"
	oneRestartText    = "restart {\n attempts = 1\n delay = \"0s\"\n mode = \"fail\" \n}\n"
)

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// RS-052, RS-053.
func TestFailedPrerunFailsAlloc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := recordingAllocHook{&recordingHook{name: "first"}}
		bad := recordingAllocHook{&recordingHook{name: "bad", errsByPoint: map[string]error{"prerun": errors.New("no network")}}}
		last := recordingAllocHook{&recordingHook{name: "last", errsByPoint: map[string]error{"postrun": errors.New("bad day")}}}
		task := recordingTaskHook{&recordingHook{name: "task"}}
		h := startHarness(t, parseJob(t, job("service", noRestartText+endlessTaskText+`
			task "cleanup" {
				driver = "fake"
				lifecycle { hook = "poststop" }
			}`)),
			withHooks([]hooks.Hook{first, bad, last}, []hooks.Hook{task}))
		h.wait()

		u := h.lastUpdate()
		wantEqual(t, "status", u.ClientStatus+", "+u.ClientDescription, "failed, Failed tasks")
		for _, name := range []string{"web", "cleanup"} {
			s := u.TaskStates[name]
			e := s.Events[len(s.Events)-1]
			wantEqual(t, name, []any{s.State, s.Failed, s.StartedAt.IsZero(), len(s.Events), e.Type, e.DisplayMessage, e.FailsTask},
				[]any{"dead", true, true, 2, "Setup Failure", `failed to setup alloc: pre-run hook "bad" failed: no network`, true})
		}
		wantEqual(t, "hook before", first.calls(), "[prerun prekill postrun]")
		wantEqual(t, "hook that failed", bad.calls(), "[prerun prekill postrun]")
		wantEqual(t, "hook after", last.calls(), "[prekill postrun]")
		wantEqual(t, "task hook", task.calls(), "[stop stop]")
		wantEqual(t, "starts", h.drivers.recordedCalls("StartTask"), "[]")
	})
}

// remoteIssuer records the allocations for which it has issued tokens.
type remoteIssuer struct {
	builtinhooks.TokenIssuer // not called, because no task has an identity with a file or a variable
	err                      error
	allocs                   []string
}

func (r *remoteIssuer) IssueAllocTokens(_ context.Context, a *api.Allocation) error {
	r.allocs = append(r.allocs, a.ID)
	return r.err
}

func TestRejectedIdentityFailsAlloc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issuer := &remoteIssuer{err: fmt.Errorf("%w: identity not found", builtinhooks.ErrIdentityRejected)}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) { c.Identities = issuer })
		h.wait()
		u := h.lastUpdate()
		events := u.TaskStates["web"].Events
		wantEqual(t, "status", []any{u.ClientStatus, events[len(events)-1].DisplayMessage},
			[]any{"failed", `failed to setup alloc: pre-run hook "workload_identity" failed: identity rejected: identity not found`})
		wantEqual(t, "starts", h.drivers.recordedCalls("StartTask"), "[]")
	})
}

// A restored allocation has its tokens, and must not wait for the servers.
func TestAllocTokensAreIssuedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issuer := &remoteIssuer{}
		a := startAgent(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) { c.Identities = issuer })
		time.Sleep(time.Second)
		a.die()
		a.startNextAgent(nil)
		time.Sleep(time.Second)
		wantEqual(t, "allocations", issuer.allocs, []string{a.config.Alloc.ID})
	})
}

func TestPrerunIsCutShort(t *testing.T) {
	for _, c := range []struct {
		name  string
		end   func(*harness)
		point string
		state string
	}{
		{"by a stop", func(h *harness) { h.Stop() }, "postrun", "dead [Received Killing]"},
		{"by a kill", func(h *harness) { h.ForceKill() }, "postrun", "dead [Received Killing]"},
		{"by a cancelled context", func(h *harness) { h.cancel(nil) }, "postrun", "dead [Received Killing]"},
		{"by the shutdown of the agent", func(h *harness) { h.cancel(ErrShutdown) }, "shutdown", "pending [Received]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := recordingAllocHook{&recordingHook{name: "slow", hangingPoints: map[string]bool{"prerun": true}}}
				h := startHarness(t, parseJob(t, job("service", endlessTaskText+`
					task "cleanup" {
						driver = "fake"
						lifecycle { hook = "poststop" }
					}`)), withHooks([]hooks.Hook{slow}, nil))
				h.advance(5 * time.Second)
				c.end(h)
				h.wait()
				wantEqual(t, "took", time.Since(h.startTime), "5s")
				calls := slow.calls()
				wantEqual(t, "last call", calls[len(calls)-1], c.point)
				for _, name := range []string{"web", "cleanup"} {
					s := h.taskState(name)
					wantEqual(t, name, fmt.Sprint(s.State, " ", h.taskEventTypes(name)), c.state)
					wantEqual(t, name+" failed", s.Failed, false)
				}
				wantEqual(t, "starts", h.drivers.recordedCalls("StartTask"), "[]")
			})
		})
	}
}

func TestPrerunHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := recordingAllocHook{&recordingHook{name: "slow", hangingPoints: map[string]bool{"prerun": true, "postrun": true}}}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), withHooks([]hooks.Hook{slow}, nil))
		h.wait()
		wantEqual(t, "took", time.Since(h.startTime), "1m10s")
		wantEqual(t, "status", h.lastUpdate().ClientStatus, "failed")
	})
}

// RS-054.
func TestDoneHookIsNotCalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := recordingTaskHook{&recordingHook{name: "done", prestartResponse: func(int) (hook.TaskPrestartResponse, error) {
			return hook.TaskPrestartResponse{Env: map[string]string{"X": "1"}, Done: true}, nil
		}}}
		again := recordingTaskHook{&recordingHook{name: "again"}}
		h := startHarness(t, parseJob(t, job("service", oneRestartText+endlessTaskText)), withHooks(nil, []hooks.Hook{done, again}))
		h.advance(time.Second)
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		h.Stop()
		h.wait()
		wantEqual(t, "done hook", done.calls(), "[prestart poststart prekilling exited poststart prekilling exited stop]")
		wantEqual(t, "other hook", again.calls(), "[prestart poststart prekilling exited prestart poststart prekilling exited stop]")
		wantEqual(t, "X", h.drivers.lastConfig("web").Env["X"], "1")
	})
}

// RS-055.
func TestHookStateIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := recordingTaskHook{&recordingHook{name: "counter", prestartResponse: func(n int) (hook.TaskPrestartResponse, error) {
			r := hook.TaskPrestartResponse{State: map[string]string{"n": fmt.Sprint(n)}}
			if n == 1 {
				return r, driver.Recoverable(errors.New("half done")) // the state in this response is stored although the hook has failed
			}
			return r, nil
		}}}
		store := &memoryStore{}
		h := startHarness(t, parseJob(t, job("service", "restart {\n attempts = 3\n delay = \"0s\"\n}\n"+endlessTaskText)), func(c *testConfig) {
			c.HookFactory = fixedHookFactory{task: []hooks.Hook{s}}
			c.Store = store
		})
		h.advance(time.Second)
		wantEqual(t, "stored before the start", store.hookData("web", "counter"), "map[n:0]")
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Minute)
		wantEqual(t, "previous state after an error", s.lastPrestart.PreviousState, "map[n:1]")
		h.Stop()
		h.wait()
		wantEqual(t, "existing state", s.lastStop.PreviousState, "map[n:2]")
	})
}

// stateHook records each task call's StartID and PreviousState.
type stateHook struct {
	hooks.BuiltinHookDefaults

	mu       sync.Mutex
	records  []string
	startIDs []string
	prestart func(n int) hook.TaskPrestartResponse // returns the response to the n-th Prestart call
	n        int
}

func (*stateHook) Name() string { return "state" }

// record records a call with its start's number, and the state.
func (s *stateHook) record(point, startID string, state map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.startIDs, startID) {
		s.startIDs = append(s.startIDs, startID)
	}
	s.records = append(s.records, fmt.Sprint(point, " ", slices.Index(s.startIDs, startID), " ", state["n"]))
}

func (s *stateHook) takeRecords() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.records, ", ")
	s.records = nil
	return text
}

func (s *stateHook) Prestart(_ context.Context, r hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	s.record("prestart", "", r.PreviousState)
	s.n++
	return s.prestart(s.n), nil
}
func (s *stateHook) Poststart(_ context.Context, r hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	s.record("poststart", r.StartID, r.PreviousState)
	return hook.TaskPoststartResponse{}, nil
}
func (s *stateHook) PreKilling(_ context.Context, r hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	s.record("prekilling", r.StartID, r.PreviousState)
	return hook.TaskPreKillingResponse{}, nil
}
func (s *stateHook) Exited(_ context.Context, r hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	s.record("exited", r.StartID, r.PreviousState)
	return hook.TaskExitedResponse{}, nil
}
func (s *stateHook) Stop(_ context.Context, r hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	s.record("stop", "", r.PreviousState)
	return hook.TaskStopResponse{}, nil
}

func TestStoredHookStateIsPassedToLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		s := &stateHook{}
		var h *harness
		storeState := func(value string) {
			t.Helper()
			if err := h.StoreHookState(t.Context(), "state", "web", map[string]string{"n": value}); err != nil {
				t.Error(err)
			}
			wantEqual(t, "on disk when the call returns", store.hookData("web", "state")["n"], value)
		}
		s.prestart = func(n int) hook.TaskPrestartResponse {
			if n == 2 {
				storeState("c") // the response has the request's state, and does not replace it
				return hook.TaskPrestartResponse{State: map[string]string{"n": "b"}}
			}
			return hook.TaskPrestartResponse{State: map[string]string{"n": "a"}}
		}
		h = startHarness(t, parseJob(t, job("service", "restart {\n attempts = 3\n delay = \"0s\"\n}\n"+endlessTaskText)), func(c *testConfig) {
			c.HookFactory = fixedHookFactory{task: []hooks.Hook{s}}
			c.Store = store
		})
		h.advance(time.Second)
		wantEqual(t, "first start", s.takeRecords(), "prestart 0 , poststart 1 a")
		storeState("b")
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Minute)
		wantEqual(t, "restart", s.takeRecords(), "prekilling 1 b, exited 1 b, prestart 0 b, poststart 2 c")
		storeState("d")

		if err := h.StoreHookState(t.Context(), "other", "web", nil); err == nil || err.Error() != `hook "other" is not attached to task "web"` {
			t.Errorf("hook that is not attached: %v", err)
		}
		if err := h.StoreHookState(t.Context(), "state", "nobody", nil); !errors.Is(err, ErrTaskNotFound) {
			t.Errorf("unknown task: %v", err)
		}
		store.mu.Lock()
		store.putErr = errors.New("disk full")
		store.mu.Unlock()
		if err := h.StoreHookState(t.Context(), "state", "web", map[string]string{"n": "e"}); err == nil {
			t.Error("no error although the state is not on disk")
		}
		store.mu.Lock()
		store.putErr = nil
		store.mu.Unlock()
		h.advance(time.Minute)
		wantEqual(t, "stored later", store.hookData("web", "state")["n"], "e")

		h.Stop()
		h.wait()
		wantEqual(t, "stop", s.takeRecords(), "prekilling 2 e, exited 2 e, stop 0 e")
	})
}

// memoryStore is a Store that keeps each record's latest version, and a task's fields when it was first reported as
// running.
type memoryStore struct {
	mu                   sync.Mutex
	fieldsByTask         map[string]record.Fields
	taskStates           map[string]*api.TaskState
	fieldsAtFirstRunning map[string]record.Fields
	handles              storedHandles
	putErr               error
}

// storedHandles are the handles in a store, by their starts' ids.
type storedHandles map[string]*driver.Handle

// add adds the fields' handles. A start's handle is stored once.
func (s *storedHandles) add(fields record.Fields) {
	for startID, h := range fields.Handles() {
		if *s == nil {
			*s = make(storedHandles)
		}
		if (*s)[startID] == nil {
			(*s)[startID] = h
		}
	}
}

func (m *memoryStore) TaskHandle(_, _, startID string) (*driver.Handle, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.handles[startID], nil
}

func nopWaitFunc() error { return nil }

func (m *memoryStore) putLocal(task string, s record.Fields) state.WaitDurableFunc {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fieldsByTask == nil {
		m.fieldsByTask = make(map[string]record.Fields)
	}
	err := m.putErr
	if err == nil {
		m.fieldsByTask[task] = s
		m.handles.add(s)
	}
	return func() error { return err }
}

func (m *memoryStore) PutTaskState(_, task string, s *api.TaskState, _ state.Durability) state.WaitDurableFunc {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taskStates == nil {
		m.taskStates = make(map[string]*api.TaskState)
		m.fieldsAtFirstRunning = make(map[string]record.Fields)
	}
	if m.taskStates[task] != nil && m.taskStates[task].State != "running" && s.State == "running" {
		m.fieldsAtFirstRunning[task] = m.fieldsByTask[task]
	}
	m.taskStates[task] = s
	return nopWaitFunc
}

func (m *memoryStore) PutTask(alloc, task string, local record.Fields, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	if written := m.putLocal(task, local); written() != nil {
		return written
	}
	return m.PutTaskState(alloc, task, s, h)
}

func (m *memoryStore) hookData(task, hook string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fieldsByTask[task].HookStateByName[hook].Data
}

func TestHandleIsStoredBeforeTaskIsReportedRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) { c.Store = store })
		h.advance(time.Second)
		store.mu.Lock()
		at := store.fieldsAtFirstRunning["web"]
		store.mu.Unlock()
		if at.Handle == nil || at.Handle.Config.ID != at.StartID || !strings.HasPrefix(at.StartID, testAllocID+"/web/") {
			t.Errorf("record at the moment of running: %+v", at)
		}
		h.Stop()
		h.wait()
		last := store.fieldsByTask["web"]
		wantEqual(t, "afterwards", []any{last.Handle == nil, last.RunComplete, store.taskStates["web"].State}, "[true true dead]")
	})
}

func TestNothingStartsWithoutARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{putErr: errors.New("disk full")}
		h := startHarness(t, parseJob(t, job("service", oneRestartText+endlessTaskText)), func(c *testConfig) { c.Store = store })
		h.wait()
		wantEqual(t, "starts", h.drivers.recordedCalls("StartTask"), "[]")
		wantEqual(t, "status", h.lastUpdate().ClientStatus, "failed")
	})
}

// runningTaskRejectingStore is a Store that rejects a running task's record while it is full.
type runningTaskRejectingStore struct {
	*fakeStore
	full bool
}

func (r *runningTaskRejectingStore) PutTask(alloc, task string, local record.Fields, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	r.mu.Lock()
	full := r.full
	r.mu.Unlock()
	if full && local.Handle != nil {
		return func() error { return errors.New("disk full") }
	}
	return r.fakeStore.PutTask(alloc, task, local, s, h)
}

// A rejected task record is stored when the store has space again. Until then no part is stored.
func TestRecordIsStoredAfterFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &runningTaskRejectingStore{fakeStore: newFakeStore(), full: true}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) { c.Store = store })
		h.advance(time.Second)
		if err := h.EmitEvent("web", &api.TaskEvent{Type: "said"}); err != nil {
			t.Fatal(err)
		}
		h.advance(10 * time.Second)
		store.mu.Lock()
		wantEqual(t, "on a full disk", []any{store.fieldsByTask["web"].Handle == nil, store.taskStates["web"].State}, "[true pending]")
		store.full = false
		store.mu.Unlock()
		h.advance(2 * time.Second)
		store.mu.Lock()
		wantEqual(t, "with room", []any{store.fieldsByTask["web"].Handle == nil, store.taskStates["web"].State}, "[false running]")
		store.mu.Unlock()
		h.Stop()
		h.wait()
	})
}

// A rejected kill record is stored when the store has space again: otherwise the next agent would let the task continue.
func TestKillIsStoredAfterFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &runningTaskRejectingStore{fakeStore: newFakeStore()}
		h := startHarness(t, parseJob(t, job("service", `task "web" {
			driver       = "fake"
			kill_timeout = "20s"
			config { ignore_signals = true }
		}`)), func(c *testConfig) { c.Store = store })
		h.advance(time.Second)
		setFull := func(full bool) {
			store.mu.Lock()
			defer store.mu.Unlock()
			store.full = full
		}
		stored := func() record.Fields {
			store.mu.Lock()
			defer store.mu.Unlock()
			return store.fieldsByTask["web"]
		}
		setFull(true)
		h.Stop()
		h.advance(10 * time.Second)
		wantEqual(t, "on a full disk", stored().KillRequested, "false")
		setFull(false)
		h.advance(2 * time.Second)
		wantEqual(t, "with room, before the task has ended", []any{stored().KillRequested, stored().Handle != nil, h.taskState("web").State}, "[true true running]")
		h.wait()
	})
}

// fullDiskStore is a Store that rejects puts while it is full.
type fullDiskStore struct {
	*fakeStore
	full           bool
	fullUntilStart bool // the store has space again from the first record with a start's id
}

// rejectsPut reports whether a put is rejected. local is nil for a put without the fields.
func (f *fullDiskStore) rejectsPut(local *record.Fields) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fullUntilStart && local != nil && local.StartID != "" {
		f.full = false
	}
	return f.full
}

func (f *fullDiskStore) setFull(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

func (f *fullDiskStore) PutTaskState(alloc, task string, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	if f.rejectsPut(nil) {
		return func() error { return errors.New("disk full") }
	}
	return f.fakeStore.PutTaskState(alloc, task, s, h)
}

func (f *fullDiskStore) PutTask(alloc, task string, local record.Fields, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	if f.rejectsPut(&local) {
		return func() error { return errors.New("disk full") }
	}
	return f.fakeStore.PutTask(alloc, task, local, s, h)
}

// As long as the exit status is not stored, only the driver can report it to the next agent.
func TestExitStatusIsStoredBeforeDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fullDiskStore{fakeStore: newFakeStore()}
		h := startHarness(t, parseJob(t, job("batch", `task "web" {
			driver = "fake"
			config { run_for = "5s" }
		}`)), func(c *testConfig) { c.Store = store })
		h.advance(time.Second)
		store.setFull(true)
		h.advance(20 * time.Second)
		wantEqual(t, "on a full disk", h.drivers.recordedCalls("DestroyTask"), "[]")
		store.setFull(false)
		h.wait()
		wantEqual(t, "with space", len(h.drivers.recordedCalls("DestroyTask")), "1")
		wantEqual(t, "stored events", store.storedEvents("web"), "[Received Task Setup Started Terminated]")
	})
}

// storedEvents returns the types of a task's stored events.
func (fa *fakeStore) storedEvents(task string) (types []string) {
	fa.mu.Lock()
	defer fa.mu.Unlock()
	if state := fa.taskStates[task]; state != nil {
		for _, e := range state.Events {
			types = append(types, e.Type)
		}
	}
	return types
}

// No goroutine waits until an event is written. A rejected event is stored when the store has space again, even if no
// other event follows for the task.
func TestEventIsStoredAfterFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fullDiskStore{fakeStore: newFakeStore()}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) { c.Store = store })
		h.advance(time.Second)
		store.setFull(true)
		if err := h.EmitEvent("web", &api.TaskEvent{Type: "said"}); err != nil {
			t.Fatal(err)
		}
		h.advance(10 * time.Second)
		if slices.Contains(store.storedEvents("web"), "said") {
			t.Error("the event is stored on a full disk")
		}
		store.setFull(false)
		h.advance(2 * time.Second)
		if events := store.storedEvents("web"); !slices.Contains(events, "said") {
			t.Errorf("with room: events %v", events)
		}
		h.Stop()
		h.wait()
	})
}

// The local record contains which hooks were called. It is stored together with the events of these calls: the next
// agent does not call these hooks again, so unstored events would be missing forever.
func TestRefusedEventIsStoredWithTheLocalRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fullDiskStore{fakeStore: newFakeStore(), full: true, fullUntilStart: true}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) {
			c.Store = store
			c.Drivers.(*fakeDrivers).checkStart = func(string, []string) string {
				if events := store.storedEvents("web"); !slices.Contains(events, api.TaskSetup) {
					t.Errorf("when the task is started, the stored events are %v", events)
				}
				return ""
			}
		})
		h.advance(time.Second)
		wantEqual(t, "starts", len(h.drivers.recordedCalls("StartTask")), "1")
		h.Stop()
		h.wait()
	})
}

// RS-056.
func TestHookEnvMerges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := recordingTaskHook{&recordingHook{name: "a", prestartResponse: func(int) (hook.TaskPrestartResponse, error) {
			return hook.TaskPrestartResponse{Env: map[string]string{"X": "1", "A": "a"}}, nil
		}}}
		b := recordingTaskHook{&recordingHook{name: "b", prestartResponse: func(n int) (hook.TaskPrestartResponse, error) {
			if n > 0 {
				return hook.TaskPrestartResponse{}, nil
			}
			return hook.TaskPrestartResponse{Env: map[string]string{"X": "2", "B": "b"}}, nil
		}}}
		h := startHarness(t, parseJob(t, job("service", oneRestartText+`task "web" {
			driver = "fake"
			env { X = "0" }
		}`)), withHooks(nil, []hooks.Hook{a, b}))
		h.advance(time.Second)
		env := h.drivers.lastConfig("web").Env
		wantEqual(t, "first start", []string{env["X"], env["A"], env["B"]}, "[2 a b]")
		wantEqual(t, "b saw", b.lastPrestart.Env["X"], "1")
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		env = h.drivers.lastConfig("web").Env
		_, has := env["B"]
		wantEqual(t, "second start", []any{env["X"], env["A"], has}, "[1 a false]")
	})
}

// If several hooks set the same environment variable, the hook order decides which value is used, not the response
// order.
func TestHookEnvIsInTheOrderOfTheHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		say := func(name string, from int) recordingTaskHook {
			return recordingTaskHook{&recordingHook{name: name, prestartResponse: func(n int) (hook.TaskPrestartResponse, error) {
				if n < from {
					return hook.TaskPrestartResponse{}, nil
				}
				return hook.TaskPrestartResponse{Env: map[string]string{"X": name}}, nil
			}}}
		}
		a := startAgent(t, parseJob(t, job("service", oneRestartText+endlessTaskText)), withHooks(nil, []hooks.Hook{say("late", 1), say("early", 0)}))
		restart := func() {
			t.Helper()
			if err := a.RestartTask(t.Context(), "web"); err != nil {
				t.Fatal(err)
			}
			a.advance(time.Second)
		}
		a.advance(time.Second)
		restart()
		wantEqual(t, "X", a.drivers.lastConfig("web").Env["X"], "early")
		a.die()
		a = a.startNextAgent(nil)
		a.advance(time.Second)
		restart()
		wantEqual(t, "X under the next agent", a.drivers.lastConfig("web").Env["X"], "early")
		a.Stop()
		a.wait()
	})
}

// RS-060.
func TestHookMountsMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		give := func(r hook.TaskPrestartResponse) func(int) (hook.TaskPrestartResponse, error) {
			return func(int) (hook.TaskPrestartResponse, error) { return r, nil }
		}
		volumes := recordingTaskHook{&recordingHook{name: "volumes", prestartResponse: give(hook.TaskPrestartResponse{Mounts: []driver.Mount{
			{TaskPath: "/data", HostPath: "/srv/data", PropagationMode: "bidirectional"}, {TaskPath: "/both", HostPath: "/srv/volume"}}})}}
		devices := recordingTaskHook{&recordingHook{name: "devices", prestartResponse: give(hook.TaskPrestartResponse{Done: true,
			Env:     map[string]string{"VISIBLE": "x0 of ${NOMAD_TASK_NAME}"},
			Mounts:  []driver.Mount{{TaskPath: "/both", HostPath: "/srv/device"}, {TaskPath: "/lib", HostPath: "/srv/lib"}},
			Devices: []driver.Device{{TaskPath: "/dev/x", HostPath: "/dev/x0", Permissions: "rw"}}})}}
		a := startAgent(t, parseJob(t, job("service", endlessTaskText)), withHooks(nil, []hooks.Hook{volumes, devices}))
		a.advance(time.Second)
		seen := func(when string) {
			t.Helper()
			c := a.drivers.lastConfig("web")
			var mounts []string
			for _, m := range c.Mounts {
				mounts = append(mounts, m.TaskPath+"="+m.HostPath+":"+m.PropagationMode)
			}
			wantEqual(t, when, mounts, "[/data=/srv/data:bidirectional /both=/srv/device: /lib=/srv/lib:]")
			wantEqual(t, when, len(c.Devices), 1)
			wantEqual(t, when, c.DeviceEnv, "map[VISIBLE:x0 of web]")
			wantEqual(t, when, c.Env["VISIBLE"], "x0 of web")
		}
		restart := func() {
			t.Helper()
			if err := a.RestartTask(t.Context(), "web"); err != nil {
				t.Fatal(err)
			}
			a.advance(time.Second)
		}
		seen("first start")
		restart()
		seen("after a restart")
		a.die()
		a = a.startNextAgent(nil)
		a.advance(time.Second)
		wantEqual(t, "starts that the next agent has found", a.startCount("web"), 2)
		restart()
		wantEqual(t, "starts after its restart", a.startCount("web"), 3)
		seen("after a restart by the next agent")
		wantEqual(t, "reservations", strings.Count(fmt.Sprint(devices.calls()), "prestart"), 1)
	})
}

// RS-057.
func TestHookErrorsAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := recordingTaskHook{&recordingHook{name: "bad", errsByPoint: map[string]error{
			"poststart": errors.New("p"), "prekilling": errors.New("k"), "exited": errors.New("e"), "stop": errors.New("s"), "update": errors.New("u"),
		}}}
		good := recordingTaskHook{&recordingHook{name: "good"}}
		badAlloc := recordingAllocHook{&recordingHook{name: "bad", errsByPoint: map[string]error{"postrun": errors.New("x"), "prekill": errors.New("x")}}}
		goodAlloc := recordingAllocHook{&recordingHook{name: "good"}}
		j := parseJob(t, job("service", endlessTaskText))
		h := startHarness(t, j, withHooks([]hooks.Hook{badAlloc, goodAlloc}, []hooks.Hook{bad, good}))
		h.advance(time.Second)
		wantEqual(t, "state", h.taskState("web").State, "running")
		h.Update(newAllocation(j))
		h.advance(time.Second)
		h.Stop()
		h.wait()
		wantEqual(t, "events", h.taskEventTypes("web"), "[Task Setup Started Task hook failed Task hook failed Killing Task hook failed Terminated Task hook failed Killed Task hook failed]")
		var eventTexts []string
		for _, e := range h.taskState("web").Events {
			if e.Type == "Task hook failed" {
				eventTexts = append(eventTexts, e.DisplayMessage)
			}
		}
		wantEqual(t, "texts", eventTexts, "[bad: p bad: u bad: k bad: e bad: s]")
		wantEqual(t, "good hook", good.calls(), "[prestart poststart update prekilling exited stop]")
		wantEqual(t, "good alloc hook", goodAlloc.calls(), "[prerun update  prekill postrun]")
		wantEqual(t, "failed", h.taskState("web").Failed, false)
	})
}

// RS-058.
func TestStopBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		task := recordingTaskHook{&recordingHook{name: "task"}}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) {
			c.HookFactory = fixedHookFactory{alloc: []hooks.Hook{alloc}, task: []hooks.Hook{task}}
			c.Alloc.DesiredStatus = api.AllocDesiredStatusStop
		})
		h.wait()
		wantEqual(t, "alloc hook", alloc.calls(), "[prekill postrun]")
		wantEqual(t, "task hook", task.calls(), "[stop]")
		wantEqual(t, "status", h.lastUpdate().ClientStatus, "complete")
		wantEqual(t, "starts", h.drivers.recordedCalls("StartTask"), "[]")
	})
}

// RS-059.
func TestStatusUpdatesAreOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), withHooks([]hooks.Hook{alloc}, nil))
		h.advance(time.Second)
		version := func(n int) *api.Allocation {
			a := newAllocation(parseJob(t, job("service", fmt.Sprintf("meta { version = \"%d\" }\n", n)+endlessTaskText)))
			a.AllocModifyIndex = uint64(n)
			return a
		}
		versions := []*api.Allocation{version(1), version(2), version(3)}
		for _, v := range versions {
			h.Update(v)
		}
		h.Update(versions[1]) // an older version, received after a newer one
		h.advance(time.Second)
		calls := alloc.calls()
		if !slices.IsSorted(calls[1:]) || calls[len(calls)-1] != "update 3" || len(calls) > 4 {
			t.Errorf("updates: %v", calls)
		}
		h.Update(version(1)) // an older version is ignored
		h.advance(time.Second)
		wantEqual(t, "after an old version", alloc.calls(), calls)
	})
}

// RS-061.
func TestKillDuringPrestart(t *testing.T) {
	for name, kill := range map[string]func(*harness){
		"stop": func(h *harness) { h.Stop() },
		"kill": func(h *harness) { h.ForceKill() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := recordingTaskHook{&recordingHook{name: "slow", hangingPoints: map[string]bool{"prestart": true}}}
				h := startHarness(t, parseJob(t, job("service", endlessTaskText)), withHooks(nil, []hooks.Hook{slow}))
				h.advance(5 * time.Second)
				kill(h)
				h.wait()
				wantEqual(t, "took", time.Since(h.startTime), "5s")
				s := h.taskState("web")
				wantEqual(t, "web", []any{s.State, s.Failed, h.taskEventTypes("web")}, "[dead false [Received Task Setup Killing]]")
				wantEqual(t, "status", h.lastUpdate().ClientStatus, "complete")
				wantEqual(t, "hook", slow.calls(), "[prestart stop]")
			})
		})
	}
}

func TestPrestartErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"a plain error is final", errors.New("bad"), "[Received Task Setup Task hook failed Not Restarting]"},
		{"a recoverable error is for the restart policy", driver.Recoverable(errors.New("bad")),
			"[Received Task Setup Task hook failed Restarting Task hook failed Not Restarting]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := recordingTaskHook{&recordingHook{name: "bad", errsByPoint: map[string]error{"prestart": c.err}}}
				after := recordingTaskHook{&recordingHook{name: "after"}}
				h := startHarness(t, parseJob(t, job("service", oneRestartText+endlessTaskText)), withHooks(nil, []hooks.Hook{bad, after}))
				h.wait()
				wantEqual(t, "events", h.taskEventTypes("web"), c.want)
				wantEqual(t, "message", h.taskState("web").Events[2].DisplayMessage, "bad: bad")
				wantEqual(t, "the hook after", after.calls(), "[stop]")
				wantEqual(t, "failed", h.taskState("web").Failed, true)
			})
		})
	}
}

// A task with mounts does not start without them, also if its driver has lost the capability.
func TestMountsForADriverThatTakesNone(t *testing.T) {
	for name, want := range map[string]string{
		"files":           `task driver "fake" for "web" does not support mounts: hook "files" mounts /data, so detach the hook, or use another driver`,
		hooks.VolumesName: `task driver "fake" for "web" does not support host volumes: remove its volume_mount blocks, or use another driver`,
	} {
		t.Run(name, func(t *testing.T) { testMountsForADriverThatTakesNone(t, name, want) })
	}
}

func testMountsForADriverThatTakesNone(t *testing.T, name, want string) {
	synctest.Test(t, func(t *testing.T) {
		volumes := recordingTaskHook{&recordingHook{name: name, prestartResponse: func(int) (hook.TaskPrestartResponse, error) {
			return hook.TaskPrestartResponse{Done: true, Mounts: []driver.Mount{{TaskPath: "/data", HostPath: "/srv/data"}}}, nil
		}}}
		a := startAgent(t, parseJob(t, job("service", endlessTaskText)), withHooks(nil, []hooks.Hook{volumes}))
		a.advance(time.Second)
		wantEqual(t, "mounts", len(a.drivers.lastConfig("web").Mounts), 1)
		a.die()
		a.drivers.capabilities.MountConfigs = driver.MountConfigsNone
		a = a.startNextAgent(nil)
		a.advance(time.Second)
		if err := a.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		a.wait()
		wantEqual(t, "starts", a.startCount("web"), 1)
		if events := a.transcript(); !strings.Contains(events, want) {
			t.Error(events)
		}
	})
}

// A task that sees the host's files needs no mounts to use a device.
func TestMountsOfDevicesForADriverThatTakesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices := recordingTaskHook{&recordingHook{name: hooks.DevicesName, prestartResponse: func(int) (hook.TaskPrestartResponse, error) {
			return hook.TaskPrestartResponse{Done: true, Mounts: []driver.Mount{{TaskPath: "/opt/gpu", HostPath: "/opt/gpu"}}}, nil
		}}}
		a := startAgent(t, parseJob(t, job("service", endlessTaskText)), func(c *testConfig) {
			withHooks(nil, []hooks.Hook{devices})(c)
			c.Drivers.(*fakeDrivers).capabilities.MountConfigs = driver.MountConfigsNone
		})
		a.advance(time.Second)
		if config := a.drivers.lastConfig("web"); config == nil || len(config.Mounts) > 0 {
			t.Errorf("config of the task: %+v, events %s", config, a.taskEventTypes("web"))
		}
	})
}

func TestHookRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := recordingTaskHook{&recordingHook{name: "s"}}
		h := startHarness(t, parseJob(t, `job "j" {
			type = "service"
			meta { a = "job" }
			group "g" {
				meta { b = "group" }
				task "web" {
					driver = "fake"
					user   = "nobody"
					leader = true
					meta { c = "task" }
				}
			}
		}`), withHooks(nil, []hooks.Hook{s}))
		h.advance(time.Second)
		r := s.lastPrestart
		wantEqual(t, "alloc", r.Alloc, hook.Alloc{ID: testAllocID, Name: "j.g[0]", Namespace: "default", JobID: "j", JobName: "j",
			JobType: "service", TaskGroup: "g", NodeID: "node-id", NodeName: "node-name", Meta: map[string]string{"a": "job", "b": "group"}})
		wantEqual(t, "meta", slices.Sorted(maps.Keys(r.Task.Meta)), "[a b c]")
		r.Task.Meta = nil
		wantEqual(t, "task", r.Task, hook.Task{Name: "web", Driver: "fake", User: "nobody", Leader: true})
		wantEqual(t, "dir", r.Dir, h.Dir().TaskPaths("web"))
		wantEqual(t, "memory", r.Resources.MemoryMB, 300)
	})
}

func TestShutdownLeavesTheTaskAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		task := recordingTaskHook{&recordingHook{name: "task"}}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), withHooks([]hooks.Hook{alloc}, []hooks.Hook{task}))
		h.advance(time.Second)
		h.cancel(ErrShutdown)
		h.wait()
		wantEqual(t, "took", time.Since(h.startTime), "1s")
		wantEqual(t, "processes", len(h.drivers.aliveTasks()), 1)
		wantEqual(t, "state", h.taskState("web").State, "running")
		wantEqual(t, "alloc hook", alloc.calls(), "[prerun shutdown]")
		wantEqual(t, "task hook", task.calls(), "[prestart poststart shutdown]")
		wantEqual(t, "stops", h.drivers.recordedCalls("StopTask"), "[]")
	})
}

// A hook that hangs at a task's end does not delay agent shutdown. The next agent calls the hook again, and then applies
// the restart policy.
func TestShutdownWhileExitIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := recordingTaskHook{&recordingHook{name: "slow", hangingPoints: map[string]bool{"exited": true}}}
		after := recordingTaskHook{&recordingHook{name: "after"}}
		a := startAgent(t, parseJob(t, job("batch", noRestartText+oneSecondTaskText)), withHooks(nil, []hooks.Hook{slow, after}))
		a.advance(2 * time.Second)
		a.cancel(ErrShutdown)
		a.wait()
		wantEqual(t, "took", time.Since(a.startTime), "2s")
		wantEqual(t, "state", a.taskState("web").State, "running")
		wantEqual(t, "the hook after", after.calls(), "[prestart poststart shutdown]")
		a.die()

		slow.mu.Lock()
		slow.hangingPoints = nil
		slow.mu.Unlock()
		a = a.startNextAgent(nil)
		a.wait()
		wantEqual(t, "took", time.Since(a.startTime), "2s")
		wantEqual(t, "status", a.lastUpdate().ClientStatus, "complete")
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Terminated]")
		wantEqual(t, "the hook", slow.calls(), "[prestart poststart exited shutdown exited stop]")
		wantEqual(t, "the hook after", after.calls(), "[prestart poststart shutdown exited stop]")
	})
}

// Update hook calls do not overlap each other. They run concurrently with all other hooks.
func TestUpdatesOfATask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := recordingTaskHook{&recordingHook{name: "slow", hangingPoints: map[string]bool{"update": true}}}
		j := parseJob(t, job("service", oneRestartText+endlessTaskText))
		h := startHarness(t, j, withHooks(nil, []hooks.Hook{slow}))
		h.advance(time.Second)
		for range 3 {
			h.Update(newAllocation(j))
			h.advance(time.Second)
		}
		wantEqual(t, "while the first one hangs", slow.calls(), "[prestart poststart update]")
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		wantEqual(t, "after a restart meanwhile", slow.calls(), "[prestart poststart update prekilling exited prestart poststart]")
		h.advance(10 * time.Second)
		wantEqual(t, "after its deadline, of all that came since", slow.calls(), "[prestart poststart update prekilling exited prestart poststart update]")
		h.Stop()
		h.wait()
	})
}

// A stop does not wait for a hanging hook, except for the stop's own hooks with a deadline. Agent shutdown waits for the
// Stop and Postrun hooks.
func TestStopWhileAHookHangs(t *testing.T) {
	update := func(h *harness, j *api.Job) { h.Update(newAllocation(j)) }
	restart := func(h *harness, _ *api.Job) { go func() { _ = h.RestartAll(context.Background()) }() } // the error does not matter
	for _, c := range []struct {
		point  string
		ofTask bool
		begin  func(*harness, *api.Job) // makes the runner reach the hook point; nil if the runner reaches it by itself
		// How long a stop takes, and how long an agent shutdown one second after the stop takes.
		stop, shutdown string
	}{
		{"prerun", false, nil, "0s", "0s"},
		{"update ", false, update, "0s", "0s"},
		{"pretaskrestart", false, restart, "0s", "0s"},
		{"prestart", true, nil, "0s", "0s"},
		{"poststart", true, nil, "0s", "0s"},
		{"update", true, update, "0s", "0s"},
		{"prekill", false, nil, "10s", "1s"},
		{"prekilling", true, nil, "10s", "1s"},
		{"exited", true, nil, "10s", "1s"},
		{"stop", true, nil, "10s", "10s"}, // a shutdown does not shorten a cleanup hook's deadline
		{"postrun", false, nil, "10s", "10s"},
	} {
		for _, shutdown := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shutdown %v", c.point, shutdown), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					slow := &recordingHook{name: "slow", hangingPoints: map[string]bool{c.point: true}}
					configure := withHooks([]hooks.Hook{recordingAllocHook{slow}}, nil)
					if c.ofTask {
						configure = withHooks(nil, []hooks.Hook{recordingTaskHook{slow}})
					}
					j := parseJob(t, job("service", endlessTaskText))
					h := startHarness(t, j, configure)
					h.advance(time.Second)
					if c.begin != nil {
						c.begin(h, j)
					}
					h.advance(time.Second)
					begin, takes := time.Now(), c.stop
					if !shutdown || takes != "0s" {
						stop := newAllocation(j)
						stop.DesiredStatus = api.AllocDesiredStatusStop
						h.Update(stop)
					}
					if shutdown {
						takes = c.shutdown
						if c.stop != "0s" {
							h.advance(time.Second)
						}
						h.cancel(ErrShutdown)
					}
					h.wait()
					wantEqual(t, "it takes", time.Since(begin), takes)
					if !slices.Contains(slow.calls(), c.point) {
						t.Errorf("the hook point was not reached: %v", slow.calls())
					}
					if !shutdown {
						wantEqual(t, "processes left", h.drivers.aliveTasks(), "[]")
					}
				})
			})
		}
	}
}

func TestShutdownDuringAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("service", `task "web" {
			driver       = "fake"
			kill_timeout = "30s"
			config { ignore_signals = true }
		}`)), nil)
		h.advance(time.Second)
		h.Stop()
		h.advance(time.Second)
		h.cancel(ErrShutdown)
		h.wait()
		wantEqual(t, "took", time.Since(h.startTime), "2s")
		wantEqual(t, "events", h.taskEventTypes("web"), "[Received Task Setup Started Killing]")
		wantEqual(t, "processes", len(h.drivers.aliveTasks()), 1)
	})
}

func TestPreTaskRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		h := startHarness(t, parseJob(t, job("service", "shutdown_delay = \"4s\"\n"+endlessTaskText)), withHooks([]hooks.Hook{alloc}, nil))
		h.advance(time.Second)
		ctx := context.Background()
		if err := errors.Join(h.RestartTask(ctx, "web"), h.RestartRunning(ctx), h.RestartAll(ctx)); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "took", time.Since(h.startTime), "9s") // restarting all tasks waits for shutdown_delay, restarting one task does not
		wantEqual(t, "alloc hook", alloc.calls(), "[prerun pretaskrestart pretaskrestart]")
	})
}

// lateHookFactory is a HookFactory that knows its hooks only when hooksKnown is closed.
type lateHookFactory struct {
	hooks      fixedHookFactory
	hooksKnown chan struct{}
}

func (l lateHookFactory) PluginLaunchWaiterOrNil(*api.Allocation) func(context.Context, func(*api.TaskEvent)) {
	if wait.IsClosed(l.hooksKnown) {
		return nil
	}
	return func(ctx context.Context, emit func(*api.TaskEvent)) {
		emit(model.EventWaitingForPlugin("late"))
		select {
		case <-l.hooksKnown:
		case <-ctx.Done():
		}
	}
}

func (l lateHookFactory) NewAllocHooks(a *api.Allocation, c hooks.AttachTarget) []hooks.OrderedHook {
	if !wait.IsClosed(l.hooksKnown) {
		return nil
	}
	return l.hooks.NewAllocHooks(a, c)
}

func (l lateHookFactory) NewTaskHooks(a *api.Allocation, t *api.Task, c hooks.AttachTarget) []hooks.OrderedHook {
	if !wait.IsClosed(l.hooksKnown) {
		return nil
	}
	return l.hooks.NewTaskHooks(a, t, c)
}

// An allocation that was not started does not start before its hooks are known, neither under the first nor under the
// next agent. A running allocation continues to run.
func TestHooksAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ofAlloc, ofTask := &recordingHook{name: "late"}, &recordingHook{name: "late"}
		late := lateHookFactory{fixedHookFactory{[]hooks.Hook{recordingAllocHook{ofAlloc}}, []hooks.Hook{recordingTaskHook{ofTask}}}, make(chan struct{})}
		a := startAgent(t, parseJob(t, job("service", noRestartText+endlessTaskText)), func(c *testConfig) { c.HookFactory = late })
		waits := func(when string) {
			t.Helper()
			a.advance(30 * time.Second)
			wantEqual(t, when, a.taskState("web").State, "pending")
			wantEqual(t, "hooks", append(ofAlloc.calls(), ofTask.calls()...), "[]")
			wantEqual(t, "what it waits for", a.taskState("web").Events[len(a.taskState("web").Events)-1].Message, "waiting for late to start")
			a.Stats(t.Context(), "")
		}
		waits("before the plugin is up")
		a.die()
		a = a.startNextAgent(nil)
		waits("under the next agent")
		close(late.hooksKnown)
		a.advance(time.Second)
		wantEqual(t, "then", a.taskState("web").State, "running")
		wantEqual(t, "hooks of the allocation", ofAlloc.calls(), "[prerun]")
		wantEqual(t, "it is needed", a.UsesPlugin(core.Plugin{Type: base.TypeHook, Name: "late"}), "true")

		a.die()
		a = a.startNextAgent(func(c *testConfig) { c.HookFactory = lateHookFactory{late.hooks, make(chan struct{})} })
		a.advance(time.Second)
		wantEqual(t, "what runs", a.taskState("web").State, "running")
		a.Stop()
		a.wait()
	})
}

// incompleteHookFactory is a HookFactory with an incomplete hook list until hooksKnown is closed.
type incompleteHookFactory struct {
	fixedHookFactory
	hooksKnown chan struct{}
}

func (i incompleteHookFactory) PluginLaunchWaiterOrNil(a *api.Allocation) func(context.Context, func(*api.TaskEvent)) {
	return lateHookFactory{i.fixedHookFactory, i.hooksKnown}.PluginLaunchWaiterOrNil(a)
}

// Under the next agent, the tasks are recovered before the hooks are known, and the wait for the hooks
// has a timeout. A stop during this wait calls the hooks.
func TestRestoredTasksDoNotWaitForHooks(t *testing.T) {
	for _, c := range []struct {
		name    string
		then    func(*testAgent, incompleteHookFactory)
		prerun  time.Duration // when the Prerun hook is called under the next agent; 0 if it is not called
		prekill int           // PreKill hook calls
	}{
		{"known after a second", func(a *testAgent, l incompleteHookFactory) {
			a.advance(time.Second)
			close(l.hooksKnown)
		}, time.Second, 0},
		{"never known", func(*testAgent, incompleteHookFactory) {}, 2 * time.Second, 0},
		{"stopped meanwhile", func(a *testAgent, _ incompleteHookFactory) {
			a.advance(time.Second)
			a.Stop()
			a.wait()
		}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				late := &recordingHook{name: "late"}
				list := fixedHookFactory{alloc: []hooks.Hook{recordingAllocHook{late}}}
				a := startAgent(t, parseJob(t, job("service", endlessTaskText)), withHooks(list.alloc, nil))
				a.advance(time.Second)
				a.die()
				factory := incompleteHookFactory{list, make(chan struct{})}
				b := a.startNextAgent(func(c *testConfig) { c.HookFactory = factory })
				synctest.Wait()
				wantEqual(t, "recovered at once", recoveredTasks(b), "[web]")
				var requestsWG sync.WaitGroup
				requestsWG.Go(func() { _ = b.RestartTask(t.Context(), "web") }) // an error is ignored: the task may be stopped before
				begin := time.Now()
				c.then(b, factory)
				for countCalls(late.calls(), "prerun") < 2 && time.Since(begin) < time.Minute {
					b.advance(100 * time.Millisecond)
				}
				prerun := time.Since(begin).Truncate(time.Second)
				if countCalls(late.calls(), "prerun") < 2 {
					prerun = 0
				}
				wantEqual(t, "prerun", prerun, c.prerun)
				wantEqual(t, "prekill", countCalls(late.calls(), "prekill"), c.prekill)
				requestsWG.Wait()
				wantEqual(t, "events", slices.Contains(b.taskEventTypes("web"), "Driver"), false)
			})
		})
	}
}

// An allocation stopped before its start does not wait until its hooks are known.
func TestStopWhileHooksAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ofAlloc := &recordingHook{name: "late"}
		late := lateHookFactory{fixedHookFactory{[]hooks.Hook{recordingAllocHook{ofAlloc}}, nil}, make(chan struct{})}
		h := startHarness(t, parseJob(t, job("service", noRestartText+endlessTaskText)), func(c *testConfig) { c.HookFactory = late })
		h.advance(time.Second)
		begin := time.Now()
		h.Stop()
		h.wait()
		wantEqual(t, "the stop takes", time.Since(begin), "0s")
		wantEqual(t, "task", h.taskState("web").State, "dead")
		wantEqual(t, "hooks", ofAlloc.calls(), "[]")
	})
}

// A runner created only to destroy an allocation does not wait for plugins. It calls all hooks.
func TestDestroyWhileHooksAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ofAlloc := &recordingHook{name: "late"}
		late := lateHookFactory{fixedHookFactory{[]hooks.Hook{recordingAllocHook{ofAlloc}}, nil}, make(chan struct{})}
		h := startHarness(t, parseJob(t, job("service", noRestartText+endlessTaskText)), func(c *testConfig) { c.HookFactory = late })
		h.Stop()
		h.wait()
		again, err := New(h.config)
		if err != nil {
			t.Fatal(err)
		}
		close(late.hooksKnown) // too late for New
		if err := again.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "hooks", ofAlloc.calls(), "[destroy]")
	})
}

// Run waits for restarts requested by hooks.
func TestRunWaitsForRequestedRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &recordingHook{name: "slow", callDurations: map[string]time.Duration{"prekilling": time.Minute}}
		h := startHarness(t, parseJob(t, job("service", endlessTaskText)), withHooks(nil, []hooks.Hook{recordingTaskHook{slow}}))
		h.advance(time.Second)
		if err := h.RestartAsyncWithReason(t.Context(), "web", "a reason", false); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		wantEqual(t, "calls", slow.calls(), "[prestart poststart prekilling]")
		h.cancel(ErrShutdown)
		h.wait()
		slow.mu.Lock()
		defer slow.mu.Unlock()
		if !slices.Contains(slow.returnedCalls, "prekilling") {
			t.Errorf("Run has returned while a hook is being called: %v of %v have returned", slow.returnedCalls, slow.startedCalls)
		}
		if err := h.RestartAsyncWithReason(t.Context(), "web", "a reason", false); !errors.Is(err, ErrNotRunning) {
			t.Errorf("restart after Run: %v", err)
		}
	})
}

// Destroying an allocation ends its output collection, because the Stop call may have failed. A runner created only for
// Destroy does that too.
func TestDestroyEndsLogCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("batch", noRestartText+endlessTaskText)), nil)
		h.logs.failingStops = true
		h.advance(time.Second)
		h.Stop()
		h.wait()
		again, err := New(h.config)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "stopped", h.logs.stoppedAtDestroy, "[web]")
	})
}
