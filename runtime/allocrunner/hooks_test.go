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

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// recordingHook is a hook for all hook points of an allocation and of a task. It records the calls.
type recordingHook struct {
	hooks.Builtin
	name string

	mu               sync.Mutex
	seen             []string
	errs             map[string]error         // errors by hook point
	hang             map[string]bool          // hook points whose calls block until their context is done
	last             hook.TaskPrestartRequest // last request of Prestart
	stop             hook.TaskStopRequest
	prestartResponse func(n int) (hook.TaskPrestartResponse, error) // returns the response to the n-th Prestart call
	n                int

	callDurations map[string]time.Duration // how long calls take, by hook point, even if their context is done
	returned      []string                 // hook points whose calls have returned
}

func (s *recordingHook) Name() string { return s.name }

func (s *recordingHook) record(ctx context.Context, name string) error {
	s.mu.Lock()
	s.seen = append(s.seen, name)
	err, hang, busy := s.errs[name], s.hang[name], s.callDurations[name]
	s.mu.Unlock()
	time.Sleep(busy)
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.returned = append(s.returned, name)
	}()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (s *recordingHook) calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// recordingAllocHook is a recordingHook for the hook points of an allocation.
type recordingAllocHook struct{ *recordingHook }

func (s recordingAllocHook) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, s.record(ctx, "prerun")
}
func (s recordingAllocHook) UpdateAlloc(ctx context.Context, r hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, s.record(ctx, "update "+r.Env["NOMAD_META_version"])
}
func (s recordingAllocHook) PreTaskRestart(ctx context.Context, _ hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, s.record(ctx, "pretaskrestart")
}
func (s recordingAllocHook) PreKill(ctx context.Context, _ hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, s.record(ctx, "prekill")
}
func (s recordingAllocHook) Postrun(ctx context.Context, _ hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, s.record(ctx, "postrun")
}
func (s recordingAllocHook) Destroy(ctx context.Context, _ hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, s.record(ctx, "destroy")
}
func (s recordingAllocHook) ShutdownAlloc(ctx context.Context, _ hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	return hook.AllocShutdownResponse{}, s.record(ctx, "shutdown")
}

// recordingTaskHook is a recordingHook for the hook points of a task.
type recordingTaskHook struct{ *recordingHook }

func (s recordingTaskHook) Prestart(ctx context.Context, r hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	s.mu.Lock()
	s.last = r
	n, give := s.n, s.prestartResponse
	s.n++
	s.mu.Unlock()
	if err := s.record(ctx, "prestart"); err != nil || give == nil {
		return hook.TaskPrestartResponse{}, err
	}
	return give(n)
}
func (s recordingTaskHook) Poststart(ctx context.Context, _ hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, s.record(ctx, "poststart")
}
func (s recordingTaskHook) Update(ctx context.Context, _ hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, s.record(ctx, "update")
}
func (s recordingTaskHook) PreKilling(ctx context.Context, _ hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, s.record(ctx, "prekilling")
}
func (s recordingTaskHook) Exited(ctx context.Context, _ hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, s.record(ctx, "exited")
}
func (s recordingTaskHook) Stop(ctx context.Context, r hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	s.mu.Lock()
	s.stop = r
	s.mu.Unlock()
	if ctx.Err() != nil {
		return hook.TaskStopResponse{}, s.record(ctx, "stop too late")
	}
	return hook.TaskStopResponse{}, s.record(ctx, "stop")
}
func (s recordingTaskHook) Shutdown(ctx context.Context, _ hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	return hook.TaskShutdownResponse{}, s.record(ctx, "shutdown")
}

func withHooks(alloc, task []hooks.Hook) func(*Config) {
	return func(c *Config) { c.Hooks = extraHooks{alloc: alloc, task: task} }
}

// job returns the text of a job with one group that contains the given tasks, which are HCL.
func job(typ, group string) string {
	return fmt.Sprintf("job \"j\" {\n type = %q\n group \"g\" {\n%s\n}\n}\n", typ, group)
}

const (
	sleeper  = `task "web" { driver = "fake" }`
	shortRun = "task \"web\" {\n driver = \"fake\"\n config { run_for = \"1s\" }\n}"
	noTry    = "restart { attempts = 0 }\n"
	oneTry   = "restart {\n attempts = 1\n delay = \"0s\"\n mode = \"fail\" \n}\n"
)

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// RS-052, RS-053.
func TestFailedPrerunFailsAlloc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := recordingAllocHook{&recordingHook{name: "first"}}
		bad := recordingAllocHook{&recordingHook{name: "bad", errs: map[string]error{"prerun": errors.New("no network")}}}
		last := recordingAllocHook{&recordingHook{name: "last", errs: map[string]error{"postrun": errors.New("bad day")}}}
		task := recordingTaskHook{&recordingHook{name: "task"}}
		h := start(t, parseJob(t, job("service", noTry+sleeper+`
			task "cleanup" {
				driver = "fake"
				lifecycle { hook = "poststop" }
			}`)),
			withHooks([]hooks.Hook{first, bad, last}, []hooks.Hook{task}))
		h.wait()

		u := h.last()
		want(t, "status", u.ClientStatus+", "+u.ClientDescription, "failed, Failed tasks")
		for _, name := range []string{"web", "cleanup"} {
			s := u.TaskStates[name]
			e := s.Events[len(s.Events)-1]
			want(t, name, []any{s.State, s.Failed, s.StartedAt.IsZero(), len(s.Events), e.Type, e.DisplayMessage, e.FailsTask},
				[]any{"dead", true, true, 2, "Setup Failure", `failed to setup alloc: pre-run hook "bad" failed: no network`, true})
		}
		want(t, "hook before", first.calls(), "[prerun prekill postrun]")
		want(t, "hook that failed", bad.calls(), "[prerun prekill postrun]")
		want(t, "hook after", last.calls(), "[prekill postrun]")
		want(t, "task hook", task.calls(), "[stop stop]")
		want(t, "starts", h.world.recordedCalls("StartTask"), "[]")
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
		{"by a kill", func(h *harness) { h.Kill() }, "postrun", "dead [Received Killing]"},
		{"by a cancelled context", func(h *harness) { h.cancel(nil) }, "postrun", "dead [Received Killing]"},
		{"by the shutdown of the agent", func(h *harness) { h.cancel(ErrShutdown) }, "shutdown", "pending [Received]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := recordingAllocHook{&recordingHook{name: "slow", hang: map[string]bool{"prerun": true}}}
				h := start(t, parseJob(t, job("service", sleeper+`
					task "cleanup" {
						driver = "fake"
						lifecycle { hook = "poststop" }
					}`)), withHooks([]hooks.Hook{slow}, nil))
				h.advance(5 * time.Second)
				c.end(h)
				h.wait()
				want(t, "took", time.Since(h.begin), "5s")
				calls := slow.calls()
				want(t, "last call", calls[len(calls)-1], c.point)
				for _, name := range []string{"web", "cleanup"} {
					s := h.state(name)
					want(t, name, fmt.Sprint(s.State, " ", h.events(name)), c.state)
					want(t, name+" failed", s.Failed, false)
				}
				want(t, "starts", h.world.recordedCalls("StartTask"), "[]")
			})
		})
	}
}

func TestPrerunHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := recordingAllocHook{&recordingHook{name: "slow", hang: map[string]bool{"prerun": true, "postrun": true}}}
		h := start(t, parseJob(t, job("service", sleeper)), withHooks([]hooks.Hook{slow}, nil))
		h.wait()
		want(t, "took", time.Since(h.begin), "1m10s")
		want(t, "status", h.last().ClientStatus, "failed")
	})
}

// RS-054.
func TestDoneHookIsNotCalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := recordingTaskHook{&recordingHook{name: "done", prestartResponse: func(int) (hook.TaskPrestartResponse, error) {
			return hook.TaskPrestartResponse{Env: map[string]string{"X": "1"}, Done: true}, nil
		}}}
		again := recordingTaskHook{&recordingHook{name: "again"}}
		h := start(t, parseJob(t, job("service", oneTry+sleeper)), withHooks(nil, []hooks.Hook{done, again}))
		h.advance(time.Second)
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		h.Stop()
		h.wait()
		want(t, "done hook", done.calls(), "[prestart poststart prekilling exited poststart prekilling exited stop]")
		want(t, "other hook", again.calls(), "[prestart poststart prekilling exited prestart poststart prekilling exited stop]")
		want(t, "X", h.world.config("web").Env["X"], "1")
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
		h := start(t, parseJob(t, job("service", "restart {\n attempts = 3\n delay = \"0s\"\n}\n"+sleeper)), func(c *Config) {
			c.Hooks = extraHooks{task: []hooks.Hook{s}}
			c.Store = store
		})
		h.advance(time.Second)
		want(t, "stored before the start", store.hookData("web", "counter"), "map[n:0]")
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Minute)
		want(t, "previous state after an error", s.last.PreviousState, "map[n:1]")
		h.Stop()
		h.wait()
		want(t, "existing state", s.stop.PreviousState, "map[n:2]")
	})
}

// memoryStore is a Store that keeps the latest version of each record, and the local state that a task
// had when it was first reported as running.
type memoryStore struct {
	mu              sync.Mutex
	local           map[string]state.LocalState
	states          map[string]*api.TaskState
	localAtFirstRun map[string]state.LocalState
	fail            error
}

func (m *memoryStore) putLocal(task string, s state.LocalState) state.WaitFunc {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.local == nil {
		m.local = make(map[string]state.LocalState)
	}
	err := m.fail
	if err == nil {
		m.local[task] = s
	}
	return func() error { return err }
}

func (m *memoryStore) PutTaskState(_, task string, s *api.TaskState, _ state.Durability) state.WaitFunc {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states == nil {
		m.states = make(map[string]*api.TaskState)
		m.localAtFirstRun = make(map[string]state.LocalState)
	}
	if m.states[task] != nil && m.states[task].State != "running" && s.State == "running" {
		m.localAtFirstRun[task] = m.local[task]
	}
	m.states[task] = s
	return noWait
}

func (m *memoryStore) PutTask(alloc, task string, local state.LocalState, s *api.TaskState, h state.Durability) state.WaitFunc {
	if written := m.putLocal(task, local); written() != nil {
		return written
	}
	return m.PutTaskState(alloc, task, s, h)
}

func (m *memoryStore) hookData(task, hook string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.local[task].Hooks[hook].Data
}

func TestHandleIsStoredBeforeTaskIsReportedRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{}
		h := start(t, parseJob(t, job("service", sleeper)), func(c *Config) { c.Store = store })
		h.advance(time.Second)
		store.mu.Lock()
		at := store.localAtFirstRun["web"]
		store.mu.Unlock()
		if at.Handle == nil || at.Handle.Config.ID != at.StartID || !strings.HasPrefix(at.StartID, testAllocID+"/web/") {
			t.Errorf("record at the moment of running: %+v", at)
		}
		h.Stop()
		h.wait()
		last := store.local["web"]
		want(t, "afterwards", []any{last.Handle == nil, last.RunComplete, store.states["web"].State}, "[true true dead]")
	})
}

func TestNothingStartsWithoutARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memoryStore{fail: errors.New("disk full")}
		h := start(t, parseJob(t, job("service", oneTry+sleeper)), func(c *Config) { c.Store = store })
		h.wait()
		want(t, "starts", h.world.recordedCalls("StartTask"), "[]")
		want(t, "status", h.last().ClientStatus, "failed")
	})
}

// runningTaskRefuser is a Store that rejects the record of a running task while it is full.
type runningTaskRefuser struct {
	*fakeStore
	full bool
}

func (f *runningTaskRefuser) PutTask(alloc, task string, local state.LocalState, s *api.TaskState, h state.Durability) state.WaitFunc {
	f.mu.Lock()
	full := f.full
	f.mu.Unlock()
	if full && local.Handle != nil {
		return func() error { return errors.New("disk full") }
	}
	return f.fakeStore.PutTask(alloc, task, local, s, h)
}

// A task's record that the store has rejected is stored when the store has space again. Until then no
// part of the record is stored.
func TestRecordIsStoredAfterFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &runningTaskRefuser{fakeStore: newFakeStore(), full: true}
		h := start(t, parseJob(t, job("service", sleeper)), func(c *Config) { c.Store = store })
		h.advance(time.Second)
		if err := h.EmitEvent("web", &api.TaskEvent{Type: "said"}); err != nil {
			t.Fatal(err)
		}
		h.advance(10 * time.Second)
		store.mu.Lock()
		want(t, "on a full disk", []any{store.locals["web"].Handle == nil, store.states["web"].State}, "[true pending]")
		store.full = false
		store.mu.Unlock()
		h.advance(2 * time.Second)
		store.mu.Lock()
		want(t, "with room", []any{store.locals["web"].Handle == nil, store.states["web"].State}, "[false running]")
		store.mu.Unlock()
		h.Stop()
		h.wait()
	})
}

// The record of a kill that the store has rejected is stored when the store has space again: otherwise
// the next agent would let the task continue.
func TestKillIsStoredAfterFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &runningTaskRefuser{fakeStore: newFakeStore()}
		h := start(t, parseJob(t, job("service", `task "web" {
			driver       = "fake"
			kill_timeout = "20s"
			config { ignore_signals = true }
		}`)), func(c *Config) { c.Store = store })
		h.advance(time.Second)
		setFull := func(full bool) {
			store.mu.Lock()
			defer store.mu.Unlock()
			store.full = full
		}
		stored := func() state.LocalState {
			store.mu.Lock()
			defer store.mu.Unlock()
			return store.locals["web"]
		}
		setFull(true)
		h.Stop()
		h.advance(10 * time.Second)
		want(t, "on a full disk", stored().Killed, "false")
		setFull(false)
		h.advance(2 * time.Second)
		want(t, "with room, before the task has ended", []any{stored().Killed, stored().Handle != nil, h.state("web").State}, "[true true running]")
		h.wait()
	})
}

// fullDisk is a Store that rejects puts while it is full.
type fullDisk struct {
	*fakeStore
	full       bool
	untilStart bool // the store has space again from the first record that contains the id of a start
}

// refuses reports whether a put is rejected. local is nil for a put without a local state.
func (f *fullDisk) refuses(local *state.LocalState) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.untilStart && local != nil && local.StartID != "" {
		f.full = false
	}
	return f.full
}

func (f *fullDisk) setFull(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

func (f *fullDisk) PutTaskState(alloc, task string, s *api.TaskState, h state.Durability) state.WaitFunc {
	if f.refuses(nil) {
		return func() error { return errors.New("disk full") }
	}
	return f.fakeStore.PutTaskState(alloc, task, s, h)
}

func (f *fullDisk) PutTask(alloc, task string, local state.LocalState, s *api.TaskState, h state.Durability) state.WaitFunc {
	if f.refuses(&local) {
		return func() error { return errors.New("disk full") }
	}
	return f.fakeStore.PutTask(alloc, task, local, s, h)
}

// As long as the exit status is not stored, only the driver can report it to the next agent.
func TestExitStatusIsStoredBeforeDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fullDisk{fakeStore: newFakeStore()}
		h := start(t, parseJob(t, job("batch", `task "web" {
			driver = "fake"
			config { run_for = "5s" }
		}`)), func(c *Config) { c.Store = store })
		h.advance(time.Second)
		store.setFull(true)
		h.advance(20 * time.Second)
		want(t, "on a full disk", h.world.recordedCalls("DestroyTask"), "[]")
		store.setFull(false)
		h.wait()
		want(t, "with space", len(h.world.recordedCalls("DestroyTask")), "1")
		want(t, "stored events", store.storedEvents("web"), "[Received Task Setup Started Terminated]")
	})
}

// storedEvents returns the types of a task's stored events.
func (l *fakeStore) storedEvents(task string) (types []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state := l.states[task]; state != nil {
		for _, e := range state.Events {
			types = append(types, e.Type)
		}
	}
	return types
}

// No goroutine waits until an event is written. An event that the store has rejected is stored when the
// store has space again, even if no other event of the task follows.
func TestEventIsStoredAfterFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fullDisk{fakeStore: newFakeStore()}
		h := start(t, parseJob(t, job("service", sleeper)), func(c *Config) { c.Store = store })
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

// The local record contains which hooks were called. It is stored together with the events of these
// calls: the next agent does not call these hooks again, so events that were not stored would be
// missing forever.
func TestRefusedEventIsStoredWithTheLocalRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fullDisk{fakeStore: newFakeStore(), full: true, untilStart: true}
		h := start(t, parseJob(t, job("service", sleeper)), func(c *Config) {
			c.Store = store
			c.Drivers.(*world).checkStart = func(string, []string) string {
				if events := store.storedEvents("web"); !slices.Contains(events, api.TaskSetup) {
					t.Errorf("when the task is started, the stored events are %v", events)
				}
				return ""
			}
		})
		h.advance(time.Second)
		want(t, "starts", len(h.world.recordedCalls("StartTask")), "1")
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
		h := start(t, parseJob(t, job("service", oneTry+`task "web" {
			driver = "fake"
			env { X = "0" }
		}`)), withHooks(nil, []hooks.Hook{a, b}))
		h.advance(time.Second)
		env := h.world.config("web").Env
		want(t, "first start", []string{env["X"], env["A"], env["B"]}, "[2 a b]")
		want(t, "b saw", b.last.Env["X"], "1")
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		env = h.world.config("web").Env
		_, has := env["B"]
		want(t, "second start", []any{env["X"], env["A"], has}, "[1 a false]")
	})
}

// If several hooks set the same environment variable, the order of the hooks decides which value is
// used, not the order of their responses.
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
		a := startAgent(t, parseJob(t, job("service", oneTry+sleeper)), withHooks(nil, []hooks.Hook{say("late", 1), say("early", 0)}))
		restart := func() {
			t.Helper()
			if err := a.RestartTask(t.Context(), "web"); err != nil {
				t.Fatal(err)
			}
			a.advance(time.Second)
		}
		a.advance(time.Second)
		restart()
		want(t, "X", a.world.config("web").Env["X"], "early")
		a.die()
		a = a.again(nil)
		a.advance(time.Second)
		restart()
		want(t, "X under the next agent", a.world.config("web").Env["X"], "early")
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
			{TaskPath: "/data", HostPath: "/srv/data"}, {TaskPath: "/both", HostPath: "/srv/volume"}}})}}
		devices := recordingTaskHook{&recordingHook{name: "devices", prestartResponse: give(hook.TaskPrestartResponse{Done: true,
			Mounts:  []driver.Mount{{TaskPath: "/both", HostPath: "/srv/device"}, {TaskPath: "/lib", HostPath: "/srv/lib"}},
			Devices: []driver.Device{{TaskPath: "/dev/x", HostPath: "/dev/x0", Permissions: "rw"}}})}}
		a := startAgent(t, parseJob(t, job("service", sleeper)), withHooks(nil, []hooks.Hook{volumes, devices}))
		a.advance(time.Second)
		seen := func(when string) {
			t.Helper()
			c := a.world.config("web")
			var mounts []string
			for _, m := range c.Mounts {
				mounts = append(mounts, m.TaskPath+"="+m.HostPath)
			}
			want(t, when, mounts, "[/data=/srv/data /both=/srv/device /lib=/srv/lib]")
			want(t, when, len(c.Devices), 1)
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
		a = a.again(nil)
		a.advance(time.Second)
		want(t, "starts that the next agent has found", a.starts("web"), 2)
		restart()
		want(t, "starts after its restart", a.starts("web"), 3)
		seen("after a restart by the next agent")
	})
}

// RS-057.
func TestHookErrorsAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := recordingTaskHook{&recordingHook{name: "bad", errs: map[string]error{
			"poststart": errors.New("p"), "prekilling": errors.New("k"), "exited": errors.New("e"), "stop": errors.New("s"), "update": errors.New("u"),
		}}}
		good := recordingTaskHook{&recordingHook{name: "good"}}
		badAlloc := recordingAllocHook{&recordingHook{name: "bad", errs: map[string]error{"postrun": errors.New("x"), "prekill": errors.New("x")}}}
		goodAlloc := recordingAllocHook{&recordingHook{name: "good"}}
		j := parseJob(t, job("service", sleeper))
		h := start(t, j, withHooks([]hooks.Hook{badAlloc, goodAlloc}, []hooks.Hook{bad, good}))
		h.advance(time.Second)
		want(t, "state", h.state("web").State, "running")
		h.Update(place(j))
		h.advance(time.Second)
		h.Stop()
		h.wait()
		want(t, "events", h.events("web"), "[Task Setup Started Task hook failed Task hook failed Killing Task hook failed Terminated Task hook failed Killed Task hook failed]")
		var texts []string
		for _, e := range h.state("web").Events {
			if e.Type == "Task hook failed" {
				texts = append(texts, e.DisplayMessage)
			}
		}
		want(t, "texts", texts, "[bad: p bad: u bad: k bad: e bad: s]")
		want(t, "good hook", good.calls(), "[prestart poststart update prekilling exited stop]")
		want(t, "good alloc hook", goodAlloc.calls(), "[prerun update  prekill postrun]")
		want(t, "failed", h.state("web").Failed, false)
	})
}

// RS-058.
func TestStopBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		task := recordingTaskHook{&recordingHook{name: "task"}}
		h := start(t, parseJob(t, job("service", sleeper)), func(c *Config) {
			c.Hooks = extraHooks{alloc: []hooks.Hook{alloc}, task: []hooks.Hook{task}}
			c.Alloc.DesiredStatus = api.AllocDesiredStatusStop
		})
		h.wait()
		want(t, "alloc hook", alloc.calls(), "[prekill postrun]")
		want(t, "task hook", task.calls(), "[stop]")
		want(t, "status", h.last().ClientStatus, "complete")
		want(t, "starts", h.world.recordedCalls("StartTask"), "[]")
	})
}

// RS-059.
func TestUpdatesAreOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		h := start(t, parseJob(t, job("service", sleeper)), withHooks([]hooks.Hook{alloc}, nil))
		h.advance(time.Second)
		version := func(n int) *api.Allocation {
			a := place(parseJob(t, job("service", fmt.Sprintf("meta { version = \"%d\" }\n", n)+sleeper)))
			a.AllocModifyIndex = uint64(n)
			return a
		}
		versions := []*api.Allocation{version(1), version(2), version(3)}
		for _, v := range versions {
			h.Update(v)
		}
		h.Update(versions[1]) // an older version that is received after a newer one
		h.advance(time.Second)
		calls := alloc.calls()
		if !slices.IsSorted(calls[1:]) || calls[len(calls)-1] != "update 3" || len(calls) > 4 {
			t.Errorf("updates: %v", calls)
		}
		h.Update(version(1)) // an older version is ignored
		h.advance(time.Second)
		want(t, "after an old version", alloc.calls(), calls)
	})
}

// RS-061.
func TestKillDuringPrestart(t *testing.T) {
	for name, kill := range map[string]func(*harness){
		"stop": func(h *harness) { h.Stop() },
		"kill": func(h *harness) { h.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := recordingTaskHook{&recordingHook{name: "slow", hang: map[string]bool{"prestart": true}}}
				h := start(t, parseJob(t, job("service", sleeper)), withHooks(nil, []hooks.Hook{slow}))
				h.advance(5 * time.Second)
				kill(h)
				h.wait()
				want(t, "took", time.Since(h.begin), "5s")
				s := h.state("web")
				want(t, "web", []any{s.State, s.Failed, h.events("web")}, "[dead false [Received Task Setup Killing]]")
				want(t, "status", h.last().ClientStatus, "complete")
				want(t, "hook", slow.calls(), "[prestart stop]")
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
				bad := recordingTaskHook{&recordingHook{name: "bad", errs: map[string]error{"prestart": c.err}}}
				after := recordingTaskHook{&recordingHook{name: "after"}}
				h := start(t, parseJob(t, job("service", oneTry+sleeper)), withHooks(nil, []hooks.Hook{bad, after}))
				h.wait()
				want(t, "events", h.events("web"), c.want)
				want(t, "message", h.state("web").Events[2].DisplayMessage, "bad: bad")
				want(t, "the hook after", after.calls(), "[stop]")
				want(t, "failed", h.state("web").Failed, true)
			})
		})
	}
}

func TestMountsForADriverThatTakesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volumes := recordingTaskHook{&recordingHook{name: "volumes", prestartResponse: func(int) (hook.TaskPrestartResponse, error) {
			return hook.TaskPrestartResponse{Done: true, Mounts: []driver.Mount{{TaskPath: "/data", HostPath: "/srv/data"}}}, nil
		}}}
		h := start(t, parseJob(t, job("service", sleeper)), func(c *Config) {
			withHooks(nil, []hooks.Hook{volumes})(c)
			c.Drivers.(*world).capabilities.MountConfigs = driver.MountConfigsNone
		})
		h.advance(time.Second)
		want(t, "events", h.events("web"), "[Received Task Setup Task hook failed Started]")
		want(t, "message", h.state("web").Events[2].DisplayMessage, `volumes: prestart: the driver "fake" takes no mounts: the task will not see /data`)
		h.Stop()
		h.wait()
	})
}

func TestHookRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := recordingTaskHook{&recordingHook{name: "s"}}
		h := start(t, parseJob(t, `job "j" {
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
		r := s.last
		want(t, "alloc", r.Alloc, hook.Alloc{ID: testAllocID, Name: "j.g[0]", Namespace: "default", JobID: "j", JobName: "j",
			JobType: "service", TaskGroup: "g", NodeID: "node-id", NodeName: "node-name", Meta: map[string]string{"a": "job", "b": "group"}})
		want(t, "meta", slices.Sorted(maps.Keys(r.Task.Meta)), "[a b c]")
		r.Task.Meta = nil
		want(t, "task", r.Task, hook.Task{Name: "web", Driver: "fake", User: "nobody", Leader: true})
		want(t, "dir", r.Dir, h.Dir().Task("web"))
		want(t, "memory", r.Resources.MemoryMB, 300)
	})
}

func TestShutdownLeavesTheTaskAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		task := recordingTaskHook{&recordingHook{name: "task"}}
		h := start(t, parseJob(t, job("service", sleeper)), withHooks([]hooks.Hook{alloc}, []hooks.Hook{task}))
		h.advance(time.Second)
		h.cancel(ErrShutdown)
		h.wait()
		want(t, "took", time.Since(h.begin), "1s")
		want(t, "processes", len(h.world.alive()), 1)
		want(t, "state", h.state("web").State, "running")
		want(t, "alloc hook", alloc.calls(), "[prerun shutdown]")
		want(t, "task hook", task.calls(), "[prestart poststart shutdown]")
		want(t, "stops", h.world.recordedCalls("StopTask"), "[]")
	})
}

// A hook that hangs at the end of a task does not delay the shutdown of the agent. The next agent calls
// the hook again, and then applies the restart policy.
func TestShutdownWhileExitIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := recordingTaskHook{&recordingHook{name: "slow", hang: map[string]bool{"exited": true}}}
		after := recordingTaskHook{&recordingHook{name: "after"}}
		a := startAgent(t, parseJob(t, job("batch", noTry+shortRun)), withHooks(nil, []hooks.Hook{slow, after}))
		a.advance(2 * time.Second)
		a.cancel(ErrShutdown)
		a.wait()
		want(t, "took", time.Since(a.begin), "2s")
		want(t, "state", a.state("web").State, "running")
		want(t, "the hook after", after.calls(), "[prestart poststart shutdown]")
		a.die()

		slow.mu.Lock()
		slow.hang = nil
		slow.mu.Unlock()
		a = a.again(nil)
		a.wait()
		want(t, "took", time.Since(a.begin), "2s")
		want(t, "status", a.last().ClientStatus, "complete")
		want(t, "events", a.events("web"), "[Received Task Setup Started Terminated]")
		want(t, "the hook", slow.calls(), "[prestart poststart exited shutdown exited stop]")
		want(t, "the hook after", after.calls(), "[prestart poststart shutdown exited stop]")
	})
}

// Calls of the Update hooks do not overlap each other. They run concurrently with all other hooks.
func TestUpdatesOfATask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := recordingTaskHook{&recordingHook{name: "slow", hang: map[string]bool{"update": true}}}
		j := parseJob(t, job("service", oneTry+sleeper))
		h := start(t, j, withHooks(nil, []hooks.Hook{slow}))
		h.advance(time.Second)
		for range 3 {
			h.Update(place(j))
			h.advance(time.Second)
		}
		want(t, "while the first one hangs", slow.calls(), "[prestart poststart update]")
		if err := h.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		want(t, "after a restart meanwhile", slow.calls(), "[prestart poststart update prekilling exited prestart poststart]")
		h.advance(10 * time.Second)
		want(t, "after its deadline, of all that came since", slow.calls(), "[prestart poststart update prekilling exited prestart poststart update]")
		h.Stop()
		h.wait()
	})
}

// A stop does not wait for a hook that hangs, except for the hooks that belong to the stop and have a
// deadline. A shutdown of the agent waits for the Stop and Postrun hooks.
func TestStopWhileAHookHangs(t *testing.T) {
	update := func(h *harness, j *api.Job) { h.Update(place(j)) }
	restart := func(h *harness, _ *api.Job) { go func() { _ = h.RestartAll(context.Background()) }() } // the error does not matter
	for _, c := range []struct {
		point  string
		ofTask bool
		begin  func(*harness, *api.Job) // makes the runner reach the hook point; nil if the runner reaches it by itself
		// How long a stop takes, and how long a shutdown of the agent one second after the stop takes.
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
		{"stop", true, nil, "10s", "10s"}, // a cleanup hook has its complete deadline
		{"postrun", false, nil, "10s", "10s"},
	} {
		for _, shutdown := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shutdown %v", c.point, shutdown), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					slow := &recordingHook{name: "slow", hang: map[string]bool{c.point: true}}
					configure := withHooks([]hooks.Hook{recordingAllocHook{slow}}, nil)
					if c.ofTask {
						configure = withHooks(nil, []hooks.Hook{recordingTaskHook{slow}})
					}
					j := parseJob(t, job("service", sleeper))
					h := start(t, j, configure)
					h.advance(time.Second)
					if c.begin != nil {
						c.begin(h, j)
					}
					h.advance(time.Second)
					begin, takes := time.Now(), c.stop
					if !shutdown || takes != "0s" {
						stop := place(j)
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
					want(t, "it takes", time.Since(begin), takes)
					if !slices.Contains(slow.calls(), c.point) {
						t.Errorf("the hook point was not reached: %v", slow.calls())
					}
					if !shutdown {
						want(t, "processes left", h.world.alive(), "[]")
					}
				})
			})
		}
	}
}

func TestShutdownDuringAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, parseJob(t, job("service", `task "web" {
			driver       = "fake"
			kill_timeout = "30s"
			config { ignore_signals = true }
		}`)), nil)
		h.advance(time.Second)
		h.Stop()
		h.advance(time.Second)
		h.cancel(ErrShutdown)
		h.wait()
		want(t, "took", time.Since(h.begin), "2s")
		want(t, "events", h.events("web"), "[Received Task Setup Started Killing]")
		want(t, "processes", len(h.world.alive()), 1)
	})
}

func TestPreTaskRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		h := start(t, parseJob(t, job("service", "shutdown_delay = \"4s\"\n"+sleeper)), withHooks([]hooks.Hook{alloc}, nil))
		h.advance(time.Second)
		ctx := context.Background()
		if err := errors.Join(h.RestartTask(ctx, "web"), h.RestartRunning(ctx), h.RestartAll(ctx)); err != nil {
			t.Fatal(err)
		}
		want(t, "took", time.Since(h.begin), "9s") // the restarts of all tasks wait for shutdown_delay, the restart of one task does not
		want(t, "alloc hook", alloc.calls(), "[prerun pretaskrestart pretaskrestart]")
	})
}

// lateHooks is a HookFactory that knows its hooks only when hooksKnown is closed.
type lateHooks struct {
	hooks      extraHooks
	hooksKnown chan struct{}
}

func (l lateHooks) Pending(*api.Allocation) func(context.Context, func(*api.TaskEvent)) {
	if isClosed(l.hooksKnown) {
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

func (l lateHooks) AllocHooks(a *api.Allocation, c hookplugin.Target) []hooks.Entry {
	if !isClosed(l.hooksKnown) {
		return nil
	}
	return l.hooks.AllocHooks(a, c)
}

func (l lateHooks) TaskHooks(a *api.Allocation, t *api.Task, c hookplugin.Target) []hooks.Entry {
	if !isClosed(l.hooksKnown) {
		return nil
	}
	return l.hooks.TaskHooks(a, t, c)
}

// An allocation that was not started does not start before its hooks are known, neither under the first
// nor under the next agent. An allocation that runs continues to run.
func TestHooksAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ofAlloc, ofTask := &recordingHook{name: "late"}, &recordingHook{name: "late"}
		late := lateHooks{extraHooks{[]hooks.Hook{recordingAllocHook{ofAlloc}}, []hooks.Hook{recordingTaskHook{ofTask}}}, make(chan struct{})}
		a := startAgent(t, parseJob(t, job("service", noTry+sleeper)), func(c *Config) { c.Hooks = late })
		waits := func(when string) {
			t.Helper()
			a.advance(30 * time.Second)
			want(t, when, a.state("web").State, "pending")
			want(t, "hooks", append(ofAlloc.calls(), ofTask.calls()...), "[]")
			want(t, "what it waits for", a.state("web").Events[len(a.state("web").Events)-1].Message, "waiting for late to start")
			a.Stats(t.Context(), "")
		}
		waits("before the plugin is up")
		a.die()
		a = a.again(nil)
		waits("under the next agent")
		close(late.hooksKnown)
		a.advance(time.Second)
		want(t, "then", a.state("web").State, "running")
		want(t, "hooks of the allocation", ofAlloc.calls(), "[prerun]")
		want(t, "it is needed", a.Needs(supervisor.PluginKey{Type: base.TypeHook, Name: "late"}), "true")

		a.die()
		a = a.again(func(c *Config) { c.Hooks = lateHooks{late.hooks, make(chan struct{})} })
		a.advance(time.Second)
		want(t, "what runs", a.state("web").State, "running")
		a.Stop()
		a.wait()
	})
}

// lateHookList is a HookFactory whose list of hooks is incomplete until hooksKnown is closed.
type lateHookList struct {
	extraHooks
	hooksKnown chan struct{}
}

func (l lateHookList) Pending(a *api.Allocation) func(context.Context, func(*api.TaskEvent)) {
	return lateHooks{l.extraHooks, l.hooksKnown}.Pending(a)
}

// Under the next agent, the tasks are recovered before the hooks are known, and the wait for the hooks
// has a timeout. A stop during this wait calls the hooks.
func TestRestoredTasksDoNotWaitForHooks(t *testing.T) {
	for _, c := range []struct {
		name    string
		then    func(*agent, lateHookList)
		prerun  time.Duration // when the Prerun hook is called under the next agent; 0 if it is not called
		prekill int           // number of calls of the PreKill hook
	}{
		{"known after a second", func(a *agent, l lateHookList) {
			a.advance(time.Second)
			close(l.hooksKnown)
		}, time.Second, 0},
		{"never known", func(*agent, lateHookList) {}, 2 * time.Second, 0},
		{"stopped meanwhile", func(a *agent, _ lateHookList) {
			a.advance(time.Second)
			a.Stop()
			a.wait()
		}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				late := &recordingHook{name: "late"}
				list := extraHooks{alloc: []hooks.Hook{recordingAllocHook{late}}}
				a := startAgent(t, parseJob(t, job("service", sleeper)), withHooks(list.alloc, nil))
				a.advance(time.Second)
				a.die()
				factory := lateHookList{list, make(chan struct{})}
				b := a.again(func(c *Config) { c.Hooks = factory })
				synctest.Wait()
				want(t, "recovered at once", recovered(b), "[web]")
				var requests sync.WaitGroup
				requests.Go(func() { _ = b.RestartTask(t.Context(), "web") }) // an error is ignored: the task may be stopped before
				begin := time.Now()
				c.then(b, factory)
				for count(late.calls(), "prerun") < 2 && time.Since(begin) < time.Minute {
					b.advance(100 * time.Millisecond)
				}
				prerun := time.Since(begin).Truncate(time.Second)
				if count(late.calls(), "prerun") < 2 {
					prerun = 0
				}
				want(t, "prerun", prerun, c.prerun)
				want(t, "prekill", count(late.calls(), "prekill"), c.prekill)
				requests.Wait()
				want(t, "events", slices.Contains(b.events("web"), "Driver"), false)
			})
		})
	}
}

// An allocation that was stopped before its start does not wait until its hooks are known.
func TestStopWhileHooksAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ofAlloc := &recordingHook{name: "late"}
		late := lateHooks{extraHooks{[]hooks.Hook{recordingAllocHook{ofAlloc}}, nil}, make(chan struct{})}
		h := start(t, parseJob(t, job("service", noTry+sleeper)), func(c *Config) { c.Hooks = late })
		h.advance(time.Second)
		begin := time.Now()
		h.Stop()
		h.wait()
		want(t, "the stop takes", time.Since(begin), "0s")
		want(t, "task", h.state("web").State, "dead")
		want(t, "hooks", ofAlloc.calls(), "[]")
	})
}

// A runner that is created only to destroy an allocation does not wait for plugins. It calls all hooks.
func TestDestroyWhileHooksAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ofAlloc := &recordingHook{name: "late"}
		late := lateHooks{extraHooks{[]hooks.Hook{recordingAllocHook{ofAlloc}}, nil}, make(chan struct{})}
		h := start(t, parseJob(t, job("service", noTry+sleeper)), func(c *Config) { c.Hooks = late })
		h.Stop()
		h.wait()
		again, err := New(h.hookBuilder.config)
		if err != nil {
			t.Fatal(err)
		}
		close(late.hooksKnown) // too late for New
		if err := again.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, "hooks", ofAlloc.calls(), "[destroy]")
	})
}

// Run waits for the restarts that hooks have requested.
func TestRunWaitsForRequestedRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &recordingHook{name: "slow", callDurations: map[string]time.Duration{"prekilling": time.Minute}}
		h := start(t, parseJob(t, job("service", sleeper)), withHooks(nil, []hooks.Hook{recordingTaskHook{slow}}))
		h.advance(time.Second)
		if err := h.RestartWithReason("web", "a reason", false); err != nil {
			t.Fatal(err)
		}
		h.advance(time.Second)
		want(t, "calls", slow.calls(), "[prestart poststart prekilling]")
		h.cancel(ErrShutdown)
		h.wait()
		slow.mu.Lock()
		defer slow.mu.Unlock()
		if !slices.Contains(slow.returned, "prekilling") {
			t.Errorf("Run has returned while a hook is being called: %v of %v have returned", slow.returned, slow.seen)
		}
		if err := h.RestartWithReason("web", "a reason", false); !errors.Is(err, ErrNotRunning) {
			t.Errorf("restart after Run: %v", err)
		}
	})
}
