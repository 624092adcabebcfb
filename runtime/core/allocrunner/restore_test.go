package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// fakeStore is a Store, and the next agent's RecordReader. A test simulates the agent's death by calling die or by a
// maximum number of writes. After its death the store writes no more, and goroutines waiting for a write exit. Async
// puts are written immediately if asyncWritesImmediate is set, otherwise with the next write or after a delay.
type fakeStore struct {
	mu                   sync.Mutex
	fieldsByTask         map[string]record.Fields
	handles              storedHandles
	taskStates           map[string]*api.TaskState
	unreadableTasks      map[string]bool // tasks with unreadable local records
	writeCount           int
	maxWrites            int // maximum writes before the agent dies; 0 means no limit
	asyncWritesImmediate bool
	pendingWrites        []func()
	ignoresCalls         bool          // the dead agent's calls are ignored
	agentDied            chan struct{} // closed when limit is reached
	agentCanceled        chan struct{} // closed when the dead agent's context was canceled
}

func newFakeStore() *fakeStore {
	return &fakeStore{
		fieldsByTask:  make(map[string]record.Fields),
		taskStates:    make(map[string]*api.TaskState),
		agentDied:     make(chan struct{}),
		agentCanceled: make(chan struct{}),
	}
}

func (fa *fakeStore) put(h state.Durability, f func()) state.WaitDurableFunc {
	fa.mu.Lock()
	defer fa.mu.Unlock()
	fa.pendingWrites = append(fa.pendingWrites, f)
	if h == state.DurabilityAsync && !fa.asyncWritesImmediate {
		time.AfterFunc(50*time.Millisecond, func() {
			fa.mu.Lock()
			defer fa.mu.Unlock()
			fa.writeLocked()
		})
		return nopWaitFunc // an async put needs no wait, and the store does not reject it
	}
	fa.writeLocked()
	if !wait.IsClosed(fa.agentDied) {
		return nopWaitFunc
	}
	return func() error {
		fa.mu.Lock()
		deathComplete := fa.ignoresCalls
		fa.mu.Unlock()
		if deathComplete {
			return errors.New("the agent is dead")
		}
		<-fa.agentCanceled
		runtime.Goexit()
		return nil
	}
}

func (fa *fakeStore) writeLocked() {
	switch {
	case len(fa.pendingWrites) == 0:
	case wait.IsClosed(fa.agentDied), fa.maxWrites > 0 && fa.writeCount == fa.maxWrites:
		wait.CloseUnlessClosed(fa.agentDied)
	default:
		fa.writeCount++
		for _, f := range fa.pendingWrites {
			f()
		}
		fa.pendingWrites = nil
	}
}

func (fa *fakeStore) PutTaskState(_, task string, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	return fa.put(h, func() { fa.taskStates[task] = s })
}

func (fa *fakeStore) PutTask(_, task string, local record.Fields, s *api.TaskState, h state.Durability) state.WaitDurableFunc {
	return fa.put(h, func() {
		fa.fieldsByTask[task], fa.taskStates[task] = local, s
		fa.handles.add(local)
	})
}

func (fa *fakeStore) TaskHandle(_, _, startID string) (*driver.Handle, error) {
	fa.mu.Lock()
	defer fa.mu.Unlock()
	return fa.handles[startID], nil
}

func (fa *fakeStore) TaskFields(_, task string) (record.Fields, bool, error) {
	fa.mu.Lock()
	defer fa.mu.Unlock()
	if fa.unreadableTasks[task] {
		return record.Fields{}, true, errors.New("checksum is wrong")
	}
	s, ok := fa.fieldsByTask[task]
	return s, ok, nil
}

func (fa *fakeStore) AttachmentConfigByHook(string) map[string]string {
	fa.mu.Lock()
	defer fa.mu.Unlock()
	all := make(map[string]string)
	for _, local := range fa.fieldsByTask {
		maps.Copy(all, local.AllocHookConfigByName)
	}
	return all
}

func (fa *fakeStore) TaskState(_, task string) (*api.TaskState, error) {
	fa.mu.Lock()
	defer fa.mu.Unlock()
	return fa.taskStates[task], nil
}

// cloneForNextAgent returns a copy of the store for the next agent.
func (fa *fakeStore) cloneForNextAgent() *fakeStore {
	fa.mu.Lock()
	defer fa.mu.Unlock()
	n := newFakeStore()
	n.fieldsByTask, n.taskStates, n.handles, n.unreadableTasks = maps.Clone(fa.fieldsByTask), maps.Clone(fa.taskStates), maps.Clone(fa.handles), fa.unreadableTasks
	return n
}

// testAgent is an agent that runs one allocation with a fakeStore.
type testAgent struct {
	*harness
	store  *fakeStore
	config testConfig
}

func startAgent(t *testing.T, job *api.Job, mangle func(*testConfig)) *testAgent {
	t.Helper()
	return startWithWriteLimit(t, job, 0, mangle)
}

// startWithWriteLimit starts an agent that dies instead of making the given write.
func startWithWriteLimit(t *testing.T, job *api.Job, writes int, mangle func(*testConfig)) *testAgent {
	t.Helper()
	a := &testAgent{store: newFakeStore()}
	a.store.maxWrites = writes
	a.harness = startHarness(t, job, func(c *testConfig) {
		c.Store = a.store
		if mangle != nil {
			mangle(c)
		}
		a.config = *c
	})
	a.awaitDeath()
	return a
}

// awaitDeathOrEnd waits for the agent's simulated death. It returns false if the job has ended before, because it made
// fewer writes than in another run: which puts share a write is not deterministic.
func (a *testAgent) awaitDeathOrEnd() bool {
	select {
	case <-a.store.agentDied:
	case <-a.Done():
	}
	if !wait.IsClosed(a.store.agentDied) { // after a death the test must not sleep, because a started process would end
		time.Sleep(time.Second) // Async puts are written
	}
	if !wait.IsClosed(a.store.agentDied) {
		a.store.mu.Lock()
		defer a.store.mu.Unlock()
		a.store.maxWrites = 0 // the end of the test may write, and nothing would end that write
		return false
	}
	if synctest.Wait(); !wait.IsClosed(a.store.agentCanceled) {
		close(a.store.agentCanceled) // awaitDeath noticed that Run returned, but not the death
	}
	return true
}

// awaitDeath cancels the agent's context when the store simulates the agent's death.
func (a *testAgent) awaitDeath() {
	go func() {
		select {
		case <-a.store.agentDied:
			a.cancel(ErrShutdown)
			close(a.store.agentCanceled)
		case <-a.Done():
		}
	}()
}

// die simulates kill -9 for the agent: from then on the store writes no more.
func (a *testAgent) die() {
	a.store.mu.Lock()
	wait.CloseUnlessClosed(a.store.agentDied)
	a.store.mu.Unlock()
	synctest.Wait()
	a.store.mu.Lock()
	a.store.ignoresCalls = true
	a.store.mu.Unlock()
}

// startNextAgent starts the next agent with the same fake processes and the store's content. mangle may change the
// configuration, and the allocation in it.
func (a *testAgent) startNextAgent(mangle func(*testConfig)) *testAgent {
	a.t.Helper()
	if !wait.IsClosed(a.store.agentDied) {
		a.t.Fatal("the agent before lives")
	}
	next := &testAgent{store: a.store.cloneForNextAgent()}
	next.harness = startHarness(a.t, a.config.Alloc.Job, func(c *testConfig) {
		alloc, report := *a.config.Alloc, c.ReportStatus
		*c = a.config
		c.Alloc, c.Store, c.ReportStatus = &alloc, next.store, report
		c.EarlierRecords, c.RanUnderEarlierAgent = next.store, true
		if mangle != nil {
			mangle(c)
		}
		next.config = *c
	})
	next.drivers, next.logs, next.startTime = a.drivers, a.logs, a.startTime
	next.awaitDeath()
	return next
}

// runAndRestartAgent runs a job for a while, kills the agent, calls meanwhile, and starts the next agent.
func runAndRestartAgent(t *testing.T, job *api.Job, after time.Duration, meanwhile func(*testAgent), mangle func(*testConfig)) *testAgent {
	t.Helper()
	a := startAgent(t, job, nil)
	a.advance(after)
	a.die()
	if meanwhile != nil {
		meanwhile(a)
	}
	b := a.startNextAgent(mangle)
	synctest.Wait()
	return b
}

func (a *testAgent) exitTask(task string, r driver.ExitResult) {
	a.drivers.mu.Lock()
	defer a.drivers.mu.Unlock()
	for id, t := range a.drivers.tasks {
		if strings.Split(id, "/")[1] == task {
			t.exit(r)
		}
	}
}

// removeTaskProcess ends a task's process and the plugin that started it, so that drivers reply that they do not know
// the task.
func (a *testAgent) removeTaskProcess(task string) {
	a.exitTask(task, driver.ExitResult{})
	a.drivers.mu.Lock()
	defer a.drivers.mu.Unlock()
	maps.DeleteFunc(a.drivers.tasks, func(id string, _ *fakeTask) bool { return strings.Split(id, "/")[1] == task })
	if a.drivers.plugin != nil {
		close(a.drivers.plugin.exited)
		a.drivers.plugin = nil
	}
}

func (a *testAgent) startCount(task string) int {
	a.drivers.mu.Lock()
	defer a.drivers.mu.Unlock()
	return a.drivers.startCounts[task]
}

const (
	prestartTask = `
		task "init" {
			driver = "fake"
			lifecycle { hook = "prestart" }
			config { run_for = "1s" }
		}`
	sidecarTask = `
		task "side" {
			driver = "fake"
			lifecycle {
				hook    = "prestart"
				sidecar = true
			}
		}`
	poststopTask = `
		task "after" {
			driver = "fake"
			lifecycle { hook = "poststop" }
			config { run_for = "1s" }
		}`
)

func jobTextFromParts(typ string, parts ...string) string { return job(typ, strings.Join(parts, "\n")) }

func stickyEphemeralDiskText() string {
	return `
		ephemeral_disk { sticky = true }`
}

// RS-062.
func TestRestoreRecoversRunningTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", prestartTask, sidecarTask, endlessTaskText)), 5*time.Second, func(a *testAgent) {
			events = slices.Concat(a.taskEventTypes("init"), a.taskEventTypes("side"), a.taskEventTypes("web"))
		}, nil)
		a.advance(time.Minute)
		wantEqual(t, "starts", []int{a.startCount("init"), a.startCount("side"), a.startCount("web")}, "[1 1 1]")
		wantEqual(t, "events", slices.Concat(a.taskEventTypes("init"), a.taskEventTypes("side"), a.taskEventTypes("web")), fmt.Sprint(events))
		wantEqual(t, "status", a.lastUpdate().ClientStatus, "running")
		if !a.taskState("web").StartedAt.Equal(a.startTime.Add(time.Second)) {
			t.Errorf("web started at %v", a.taskState("web").StartedAt)
		}
	})
}

// RS-063.
func TestShutdownLeavesTasksRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), nil)
		a.advance(time.Second)
		a.cancel(ErrShutdown)
		a.wait()
		wantEqual(t, "left running", a.PluginsNeededAfterShutdown(), `[{driver fake}]`)
		wantEqual(t, "finished", a.EndedForGood(), "false")
		a.die()
		b := a.startNextAgent(nil)
		b.advance(time.Second)
		wantEqual(t, "starts", b.startCount("web"), "1")
		wantEqual(t, "state", b.taskState("web").State, "running")
		b.Stop()
		b.wait()
		wantEqual(t, "finished", b.EndedForGood(), "true")
		wantEqual(t, "left running", b.PluginsNeededAfterShutdown(), "[]")
	})
}

// A start that has not returned kill_timeout after a shutdown is left to the next agent, and with it the plugin process.
func TestShutdownLeavesAnUnfinishedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", unfinishedStartText)), nil)
		a.advance(time.Second)
		a.cancel(ErrShutdown)
		a.wait()
		wantEqual(t, "took", time.Since(a.startTime), "4s")
		wantEqual(t, "plugins", a.PluginsNeededAfterShutdown(), `[{driver fake}]`)
		wantEqual(t, "destroyed", a.drivers.recordedCalls("DestroyTask"), "[]")
	})
}

// RS-064.
func TestRestoreReportsTaskThatWasKilledMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), 5*time.Second, func(a *testAgent) {
			a.exitTask("web", driver.ExitResult{ExitCode: 137, Signal: 9})
		}, nil)
		a.advance(time.Minute)
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Terminated Restarting Started]")
		e := a.taskState("web").Events[3]
		wantEqual(t, "end", []any{e.DisplayMessage, a.taskState("web").Restarts}, "[Exit Code: 137, Signal: 9 1]")
	})
}

// RS-065.
func TestRestoreHandlesTasksThatExitedMeanwhile(t *testing.T) {
	t.Run("main of a batch job", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("batch", `
				restart { attempts = 0 }`, endlessTaskText, poststopTask)), 5*time.Second, func(a *testAgent) {
				a.exitTask("web", driver.ExitResult{ExitCode: 4})
			}, nil)
			a.wait()
			wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Terminated Not Restarting]")
			wantEqual(t, "end", a.taskState("web").Events[3].DisplayMessage, "Exit Code: 4")
			wantEqual(t, "poststop", a.taskEventTypes("after"), "[Received Task Setup Started Terminated]")
			wantEqual(t, "status", a.lastUpdate().ClientStatus, "failed")
		})
	})
	t.Run("prestart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", prestartTask, endlessTaskText)), 500*time.Millisecond, func(a *testAgent) {
				time.Sleep(time.Minute) // after this time, the prestart task has ended successfully
				synctest.Wait()
			}, nil)
			a.advance(time.Second)
			wantEqual(t, "prestart", a.taskEventTypes("init"), "[Received Task Setup Started Terminated]")
			wantEqual(t, "main", a.taskEventTypes("web"), "[Received Task Setup Started]")
		})
	})
}

// A task's process ends without an exit status while no agent runs. The restart policy applies, as after a failed run.
// (rule RS-066)
func removeWebProcess(a *testAgent) { a.removeTaskProcess("web") }

func TestUnknownEndAtRestorePassesThroughTheRestartPolicy(t *testing.T) {
	for _, test := range []struct {
		name, job string
		lose      func(*testAgent)
		events    string
		state     string
		alloc     string
	}{
		{"restarts are left", jobTextFromParts("service", endlessTaskText), removeWebProcess,
			"[Received Task Setup Started Failed Restoring Task Restarting Started]", "[running false 1 2]", "running"},
		{"the handle was not stored", jobTextFromParts("service", endlessTaskText), func(a *testAgent) {
			local := a.store.fieldsByTask["web"]
			local.Handle = nil
			a.store.fieldsByTask["web"] = local
			a.removeTaskProcess("web")
		},
			"[Received Task Setup Started Failed Restoring Task Restarting Started]", "[running false 1 2]", "running"},
		{"the handle was not stored, and the plugin has the task", jobTextFromParts("service", endlessTaskText), func(a *testAgent) {
			local := a.store.fieldsByTask["web"]
			local.Handle = nil
			a.store.fieldsByTask["web"] = local
		},
			"[Received Task Setup Started]", "[running false 0 1]", "running"},
		{"batch job without attempts", jobTextFromParts("batch", `
			restart { attempts = 0 }`, endlessTaskText), removeWebProcess,
			"[Received Task Setup Started Failed Restoring Task Not Restarting]", "[dead true 0 1]", "failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := runAndRestartAgent(t, parseJob(t, test.job), 5*time.Second, test.lose, nil)
				a.advance(time.Minute)
				wantEqual(t, "events", a.taskEventTypes("web"), test.events)
				s := a.taskState("web")
				wantEqual(t, "state", []any{s.State, s.Failed, s.Restarts, a.startCount("web")}, test.state)
				wantEqual(t, "alloc", a.lastUpdate().ClientStatus, test.alloc)
			})
		})
	}
}

// A task that cannot be recovered waits until new starts are allowed, and a recovered one does not wait for its restart.
func TestNewStartsWaitUntilAllowed(t *testing.T) {
	text := jobTextFromParts("service", `
		restart {
			attempts = 3
			delay    = "1s"
		}`, endlessTaskText, `
		task "other" {
			driver = "fake"
		}`, poststopTask)
	synctest.Test(t, func(t *testing.T) {
		allowed := make(chan struct{})
		a := runAndRestartAgent(t, parseJob(t, text), 5*time.Second, removeWebProcess, func(c *testConfig) { c.AwaitNewStart = awaitChannel(allowed) })
		a.advance(time.Hour)
		wantEqual(t, "starts of the lost task", a.startCount("web"), "1")
		wantEqual(t, "starts of the recovered task", a.startCount("other"), "1")
		wantEqual(t, "events", slices.Contains(a.taskEventTypes("web"), "Driver"), "true")
		a.exitTask("other", driver.ExitResult{ExitCode: 1})
		a.advance(time.Minute)
		wantEqual(t, "starts of the task that has failed", a.startCount("other"), "2")
		close(allowed)
		a.advance(time.Minute)
		wantEqual(t, "starts of the lost task", a.startCount("web"), "2")
	})
	synctest.Test(t, func(t *testing.T) {
		a := runAndRestartAgent(t, parseJob(t, text), 5*time.Second, removeWebProcess, func(c *testConfig) { c.AwaitNewStart = awaitChannel(nil) })
		a.advance(time.Hour)
		a.Stop()
		a.advance(time.Minute)
		wantEqual(t, "status", a.lastUpdate().ClientStatus, "complete")
		wantEqual(t, "starts", []int{a.startCount("web"), a.startCount("after")}, "[1 1]")
	})
}

// awaitChannel returns a function that waits for a channel.
func awaitChannel(allowed <-chan struct{}) taskrunner.AwaitNewStartFunc {
	return func(ctx context.Context, _ string, onWait func(string, *api.TaskEvent)) error {
		onWait(tracespan.WaitServers, model.EventWaitingForServers())
		select {
		case <-allowed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// RS-067.
func TestRestoreDoesNotRerunCompletedTasks(t *testing.T) {
	t.Run("complete allocation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			text := jobTextFromParts("batch", `task "web" {
				driver = "fake"
				config { run_for = "1s" }
			}`)
			a := startAgent(t, parseJob(t, text), nil)
			a.wait()
			events := fmt.Sprint(a.taskEventTypes("web"))
			a.die()
			for range 2 {
				a = a.startNextAgent(func(c *testConfig) { c.Alloc.ClientStatus = "complete" })
				a.wait()
				wantEqual(t, "events", a.taskEventTypes("web"), events)
				wantEqual(t, "starts", a.startCount("web"), "1")
				wantEqual(t, "status", a.lastUpdate().ClientStatus, "complete")
				a.die()
			}
		})
	})
	t.Run("dead task of a live allocation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("batch", endlessTaskText, `
				task "short" {
					driver = "fake"
					config { run_for = "1s" }
				}`)), 5*time.Second, nil, nil)
			a.advance(time.Minute)
			wantEqual(t, "starts", []int{a.startCount("web"), a.startCount("short")}, "[1 1]")
			wantEqual(t, "short", a.taskState("short").State, "dead")
			if err := a.RestartAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			a.advance(time.Minute)
			wantEqual(t, "starts", []int{a.startCount("web"), a.startCount("short")}, "[2 2]")
		})
	})
}

// A request during task restore waits until the tasks are restored: before, they have no processes.
func TestRequestsDuringRestore(t *testing.T) {
	for _, c := range []struct {
		name    string
		request func(context.Context, *testAgent) error
		starts  string // expected start counts for the tasks web and before, after the request
	}{
		{"restart all", func(ctx context.Context, a *testAgent) error { return a.RestartAll(ctx) }, "[2 2]"},
		{"restart running", func(ctx context.Context, a *testAgent) error { return a.RestartRunning(ctx) }, "[2 1]"},
		{"restart task", func(ctx context.Context, a *testAgent) error { return a.RestartTask(ctx, "web") }, "[2 1]"},
		{"signal", func(ctx context.Context, a *testAgent) error { return a.Signal(ctx, "web", "SIGHUP") }, "[1 1]"},
		{"exec", func(ctx context.Context, a *testAgent) error {
			_, err := a.Exec(ctx, "web", []string{"true"}, time.Second)
			return err
		}, "[1 1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("batch", endlessTaskText, `
					task "before" {
						driver = "fake"
						config { run_for = "1s" }
						lifecycle { hook = "prestart" }
					}`)), 5*time.Second, func(a *testAgent) { a.drivers.recoveryDuration = time.Second }, nil)
				short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := c.request(short, a); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a request that gives up before that: %v", err)
				}
				if err := c.request(t.Context(), a); err != nil {
					t.Error(err)
				}
				a.advance(time.Minute)
				wantEqual(t, "starts", []int{a.startCount("web"), a.startCount("before")}, c.starts)
				wantEqual(t, "web", a.taskState("web").State, "running")
			})
		})
	}
}

// RS-068.
func TestRestoreExecutesPendingStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task, alloc := &recordingHook{name: "task"}, &recordingHook{name: "alloc"}
		a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText, poststopTask)), 5*time.Second, nil, func(c *testConfig) {
			c.Alloc.DesiredStatus = api.AllocDesiredStatusStop
			c.HookFactory = fixedHookFactory{task: []hooks.Hook{recordingTaskHook{task}}, alloc: []hooks.Hook{recordingAllocHook{alloc}}}
		})
		a.wait()
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Terminated]")
		wantEqual(t, "poststop", a.taskState("after").State, "dead")
		wantEqual(t, "poststop starts", a.startCount("after"), "1")
		if strings.Contains(strings.Join(alloc.calls(), " "), "prerun") {
			t.Errorf("alloc hooks: %v", alloc.calls())
		}
		if calls := strings.Join(task.calls(), " "); !strings.Contains(calls, "stop") {
			t.Errorf("task hooks: %v", calls)
		}
		_, stopped := a.logs.snapshot()
		wantEqual(t, "logs", stopped["web"], "1")
		wantEqual(t, "status", a.lastUpdate().ClientStatus, "complete")
	})
}

// RS-069.
func TestRestoreKeepsRestartDelaysAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", `
			restart {
				attempts = 2
				delay    = "50s"
				interval = "1h"
				mode     = "fail"
			}`, `task "web" {
				driver = "fake"
				config {
					run_for    = "1s"
					exit_codes = [3]
				}
			}`, poststopTask)), 11*time.Second, func(*testAgent) { time.Sleep(10 * time.Second) }, nil)
		due := time.Unix(0, a.taskState("web").Events[4].Time).Add(time.Duration(a.taskState("web").Events[4].StartDelay))
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Terminated Restarting]")
		wantEqual(t, "state", a.taskState("web").State, "pending")
		wantEqual(t, "poststop", a.taskEventTypes("after"), "[Received]")
		a.advance(time.Until(due) - time.Millisecond)
		wantEqual(t, "starts before the delay is over", a.startCount("web"), "1")
		a.advance(time.Millisecond)
		wantEqual(t, "starts", a.startCount("web"), "2")
		a.wait()
		last := a.taskState("web").Events[len(a.taskState("web").Events)-1]
		wantEqual(t, "end", []any{last.Type, a.taskState("web").Restarts}, "[Not Restarting 2]")
	})
}

// RS-070.
func TestRestoreWithoutAllocDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText, sidecarTask, poststopTask)), 5*time.Second, func(a *testAgent) {
			if err := a.Dir().Destroy(); err != nil {
				t.Fatal(err)
			}
		}, nil)
		a.wait()
		wantEqual(t, "alive", a.drivers.aliveTasks(), "[]")
		wantEqual(t, "status", a.lastUpdate().ClientStatus, "failed")
		if d := a.lastUpdate().ClientDescription; !strings.HasPrefix(d, "allocation directory is inaccessible: ") {
			t.Errorf("description %q", d)
		}
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Setup Failure Terminated]")
		wantEqual(t, "starts", []int{a.startCount("web"), a.startCount("side"), a.startCount("after")}, "[1 1 0]")
		if _, err := os.Stat(a.Dir().Path()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory was made again: %v", err)
		}
	})
}

// RS-071.
func TestAllocWithoutRecordIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) {
			c.RanUnderEarlierAgent, c.EarlierRecords = true, newFakeStore()
		})
		a.advance(time.Second)
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started]")
	})
}

func TestAppendLaterEvents(t *testing.T) {
	events := func(names string) (list []*api.TaskEvent) {
		for i, name := range strings.Fields(names) {
			list = append(list, &api.TaskEvent{Type: name, Time: int64(i)})
		}
		return list
	}
	for _, test := range []struct{ recorded, reported, want string }{
		{"Received Started", "Received Started Terminated Restarting", "[Received Started Terminated Restarting]"},
		{"Received Started", "Received Started", "[Received Started]"},
		{"Received Started Terminated", "Received Started", "[Received Started Terminated]"},
		{"", "Received", "[Received]"},
		{"Received", "", "[Received]"},
		{"Received Started", "Received Restarting Started", "[Received Started]"}, // Started's time differs
	} {
		var got []string
		for _, e := range appendLaterEvents(events(test.recorded), events(test.reported)) {
			got = append(got, e.Type)
		}
		wantEqual(t, test.recorded+" and then "+test.reported, got, test.want)
	}
}

// slowDrivers is a world with a plugin that starts too slowly for a recovery to wait for it.
type slowDrivers struct{ *fakeDrivers }

func (s slowDrivers) Driver(ctx context.Context, name string) (driver.Driver, error) {
	select {
	case <-time.After(10 * time.Second):
		return s.fakeDrivers.Driver(ctx, name)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// RS-072.
func TestRestoreAfterReboot(t *testing.T) {
	reboot := func(t *testing.T, text string, meanwhile func(*testAgent), mangle ...func(*testConfig)) *testAgent {
		return runAndRestartAgent(t, parseJob(t, text), 5*time.Second, func(a *testAgent) {
			a.drivers.mu.Lock()
			for _, task := range a.drivers.tasks {
				task.exit(driver.ExitResult{})
			}
			clear(a.drivers.tasks)
			close(a.drivers.plugin.exited)
			a.drivers.plugin = nil
			a.drivers.mu.Unlock()
			if meanwhile != nil {
				meanwhile(a)
			}
		}, func(c *testConfig) {
			c.RebootedSinceEarlierAgent = true
			for _, m := range mangle {
				m(c)
			}
		})
	}
	t.Run("tasks start again with a new id, although their plugin starts slowly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var before record.Fields
			a := reboot(t, jobTextFromParts("service", endlessTaskText), func(a *testAgent) {
				var err error
				if before, _, err = a.store.TaskFields(a.config.Alloc.ID, "web"); err != nil {
					t.Fatal(err)
				}
			}, func(c *testConfig) { c.Drivers = slowDrivers{c.Drivers.(*fakeDrivers)} })
			a.advance(5 * time.Second)
			wantEqual(t, "state before the driver answers", a.taskState("web").State, "pending")
			a.advance(time.Minute)
			wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Failed Restoring Task Started]")
			after, _, err := a.store.TaskFields(a.config.Alloc.ID, "web")
			if err != nil || before.StartID == "" || after.StartID == before.StartID {
				t.Errorf("start %q, %v, before the reboot: %q", after.StartID, err, before.StartID)
			}
		})
	})
	t.Run("tasks start again, in memory is built again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := reboot(t, jobTextFromParts("service", prestartTask, endlessTaskText), func(a *testAgent) {
				if err := a.Dir().DropSecretsAndUnmount("web"); err != nil { // removing the secrets simulates losing the memory file system
					t.Fatal(err)
				}
			})
			wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Failed Restoring Task Started]")
			wantEqual(t, "starts", []int{a.startCount("init"), a.startCount("web")}, "[1 2]")
			if os.Geteuid() == 0 {
				if _, err := os.Stat(a.Dir().Path() + "/web/secrets/.nomad-mount"); err != nil {
					t.Errorf("secrets are not in memory again: %v", err)
				}
			}
		})
	})
	t.Run("before a hook writes there", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can mount")
		}
		synctest.Test(t, func(t *testing.T) {
			var mountResults []bool
			templates := recordingTaskHook{&recordingHook{name: "templates"}}
			templates.prestartResponse = func(int) (hook.TaskPrestartResponse, error) {
				_, err := os.Stat(templates.lastPrestart.Dir.SecretsDir + "/.nomad-mount")
				mountResults = append(mountResults, err == nil)
				return hook.TaskPrestartResponse{}, nil
			}
			a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), withHooks(nil, []hooks.Hook{templates}))
			a.advance(time.Second)
			a.die()
			a.removeTaskProcess("web")
			if err := a.Dir().DropSecretsAndUnmount("web"); err != nil {
				t.Fatal(err)
			}
			a = a.startNextAgent(func(c *testConfig) { c.RebootedSinceEarlierAgent = true })
			a.advance(time.Minute)
			wantEqual(t, "secrets in memory when the hook is called", mountResults, "[true true]")
		})
	})
	t.Run("prestart that wants to run again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := reboot(t, jobTextFromParts("service", strings.Replace(prestartTask, "config", `meta { lite_rerun = "restart, reboot" }
				config`, 1), endlessTaskText), nil)
			wantEqual(t, "web waits", a.taskState("web").State, "pending")
			a.advance(time.Second)
			wantEqual(t, "starts", []int{a.startCount("init"), a.startCount("web")}, "[2 2]")
		})
	})
	t.Run("with the directory everything begins anew", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := reboot(t, jobTextFromParts("service", prestartTask, endlessTaskText), func(a *testAgent) {
				if err := a.Dir().Destroy(); err != nil {
					t.Fatal(err)
				}
			})
			a.advance(time.Second)
			wantEqual(t, "starts", []int{a.startCount("init"), a.startCount("web")}, "[2 2]")
			wantEqual(t, "status", a.lastUpdate().ClientStatus, "running")
		})
	})
	t.Run("but hooks have their state", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := recordingTaskHook{&recordingHook{name: "address", prestartResponse: func(n int) (hook.TaskPrestartResponse, error) {
				if n > 0 {
					return hook.TaskPrestartResponse{}, nil
				}
				return hook.TaskPrestartResponse{Done: true, State: map[string]string{"leased": "10.0.0.7"}, Env: map[string]string{"IP": "10.0.0.7"}}, nil
			}}}
			a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), withHooks(nil, []hooks.Hook{h}))
			a.advance(time.Second)
			a.die()
			a.removeTaskProcess("web")
			if err := a.Dir().Destroy(); err != nil {
				t.Fatal(err)
			}
			a = a.startNextAgent(func(c *testConfig) { c.RebootedSinceEarlierAgent = true })
			a.advance(time.Second)
			wantEqual(t, "previous state", h.lastPrestart.PreviousState, "map[leased:10.0.0.7]")
			_, has := a.drivers.lastConfig("web").Env["IP"]
			wantEqual(t, "what it has given up is in the environment", has, false)
			a.Stop()
			a.wait()
		})
	})
}

// hookWithAttachment is a hook attached with a configuration.
type hookWithAttachment struct {
	hooks.Hook
	attachment string
}

func (h hookWithAttachment) AttachmentJSON() string { return h.attachment }

// recordingHookFactory is a hook factory that records the previous agent's hooks.
type recordingHookFactory struct {
	fixedHookFactory
	previousHooks map[string]string
}

func (f *recordingHookFactory) NewAllocHooks(a *api.Allocation, c hooks.AttachTarget) []hooks.OrderedHook {
	f.recordPreviousHooks("", c)
	return f.fixedHookFactory.NewAllocHooks(a, c)
}

func (f *recordingHookFactory) NewTaskHooks(a *api.Allocation, t *api.Task, c hooks.AttachTarget) []hooks.OrderedHook {
	f.recordPreviousHooks("t:"+t.Name, c)
	return f.fixedHookFactory.NewTaskHooks(a, t, c)
}

func (f *recordingHookFactory) recordPreviousHooks(whose string, c hooks.AttachTarget) {
	if f.previousHooks == nil {
		f.previousHooks = make(map[string]string)
	}
	f.previousHooks[whose] = ""
	if len(c.PreviousAttachmentJSONByHook) > 0 {
		f.previousHooks[whose] = fmt.Sprint(c.PreviousAttachmentJSONByHook)
	}
}

// RS-077.
func TestStickyDiskIsMigrated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", stickyEphemeralDiskText(), endlessTaskText)), nil)
		a.advance(time.Second)
		old := a.Dir().Path()
		for _, file := range []string{"alloc/data/a", "web/local/b", "alloc/tmp/c", "alloc/logs/d", "web/secrets/e"} {
			if err := os.WriteFile(old+"/"+file, []byte(file), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		const id = "66666666-2222-3333-4444-555555555555"
		b := startHarness(t, a.config.Alloc.Job, func(c *testConfig) {
			c.AllocDirRoot = a.allocDirRoot
			c.Alloc.ID, c.Alloc.PreviousAllocation = id, testAllocID
			c.AllocDone = func(allocID string) <-chan struct{} {
				wantEqual(t, "previous", allocID, testAllocID)
				return a.Done()
			}
		})
		b.advance(time.Hour) // the wait for the earlier allocation has no timeout
		wantEqual(t, "while the old one runs", b.taskState("web").State, "pending")
		a.Stop()
		a.wait()
		b.advance(time.Second)
		wantEqual(t, "afterwards", b.taskState("web").State, "running")
		for file, there := range map[string]bool{"alloc/data/a": true, "web/local/b": true, "alloc/tmp/c": false, "alloc/logs/d": false, "web/secrets/e": false} {
			text, err := os.ReadFile(b.Dir().Path() + "/" + file)
			if there && string(text) != file || !there && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %q, %v", file, text, err)
			}
		}
		if _, err := os.Stat(old + "/alloc/data"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("data was copied: %v", err)
		}
		b.Stop()
		b.wait()
	})
}

// RS-088.
func TestUpdatedKillTimeoutApplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := jobTextFromParts("service", `
			task "web" {
				driver       = "fake"
				kill_timeout = "20s"
				config { ignore_signals = true }
			}`)
		a := startAgent(t, parseJob(t, text), nil)
		a.advance(time.Second)
		next := newAllocation(parseJob(t, strings.Replace(text, "20s", "3s", 1)))
		next.AllocModifyIndex = 7
		a.Update(next)
		a.advance(0)
		wantEqual(t, "starts", a.startCount("web"), "1")

		// An allocation update also applies to a recovered task.
		a.die()
		b := a.startNextAgent(func(c *testConfig) { c.Alloc = next })
		b.advance(time.Second)
		last := newAllocation(parseJob(t, strings.Replace(text, "20s", "4s", 1)))
		last.AllocModifyIndex = 8
		b.Update(last)
		b.advance(0)
		b.Stop()
		b.wait()
		wantEqual(t, "stop", b.drivers.recordedCalls("StopTask"), `[+2s StopTask web timeout=4s signal=""]`)
	})
}

// Each case restores an allocation in one state.
func TestRestore(t *testing.T) {
	t.Run("batch that has completed waits for its allocation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("batch", endlessTaskText, `
				task "short" {
					driver = "fake"
					config { run_for = "1s" }
				}`)), 5*time.Second, nil, nil)
			short, _ := a.tasks.findByName("short")
			wantEqual(t, "over", wait.IsClosed(short.Done()), "false")
			a.Stop()
			a.wait()
			a.advance(time.Second) // the records about the allocation's end are written meanwhile
			a.die()
			b := a.startNextAgent(nil)
			b.wait()
			short, _ = b.tasks.findByName("short")
			wantEqual(t, "rerun of a task that is over", short.RequestRerunIfSucceeded(model.EventRestartSignal("x")), "false")
			if err := short.Restart(t.Context(), model.EventRestartSignal("x"), false); !errors.Is(err, ErrNotRunning) {
				t.Errorf("restart of a task that is over: %v", err)
			}
		})
	})
	t.Run("gates stand where they stood", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", prestartTask, sidecarTask, endlessTaskText, `
				task "up" {
					driver = "fake"
					lifecycle { hook = "poststart" }
				}`)), 5*time.Second, nil, nil)
			wantEqual(t, "phase", a.tasks.coordinator.Phase(), "poststart")
			for stage, open := range map[lifecycle.Stage]bool{
				lifecycle.PrestartEphemeral: false, lifecycle.PrestartSidecar: true,
				lifecycle.MainTask: true, lifecycle.PoststartEphemeral: true,
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				wantEqual(t, fmt.Sprint("gate ", stage), a.tasks.coordinator.Gate(stage).Wait(ctx) == nil, fmt.Sprint(open))
				cancel()
			}
		})
	})
	t.Run("leader and follower of a restored group are stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText, `
				task "lead" {
					driver = "fake"
					leader = true
				}`)), time.Second, nil, nil)
			a.Stop()
			a.wait()
			wantEqual(t, "alive", a.drivers.aliveTasks(), "[]")
			wantEqual(t, "status", a.lastUpdate().ClientStatus, "complete")
		})
	})
	t.Run("environment of a hook that is done", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env := &recordingHook{name: "env", prestartResponse: func(int) (hook.TaskPrestartResponse, error) {
				return hook.TaskPrestartResponse{Done: true, Env: map[string]string{"FROM_HOOK": "1"}}, nil
			}}
			a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) {
				c.HookFactory = fixedHookFactory{task: []hooks.Hook{recordingTaskHook{env}}}
			})
			a.advance(time.Second)
			a.die()
			a.removeTaskProcess("web")
			before := len(env.calls())
			b := a.startNextAgent(nil)
			b.advance(time.Minute)
			wantEqual(t, "starts", b.startCount("web"), "2")
			wantEqual(t, "env", b.drivers.lastConfig("web").Env["FROM_HOOK"], "1")
			for _, call := range env.calls()[before:] {
				if strings.Contains(call, "prestart") {
					t.Errorf("called again: %v", call)
				}
			}
		})
	})
	t.Run("the next agent knows what was attached", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			factory := &recordingHookFactory{fixedHookFactory: fixedHookFactory{
				alloc: []hooks.Hook{hookWithAttachment{recordingAllocHook{&recordingHook{name: "whole"}}, `{"a": 1}`}},
				task:  []hooks.Hook{hookWithAttachment{recordingTaskHook{&recordingHook{name: "quiet"}}, "{}"}, recordingTaskHook{&recordingHook{name: "builtin"}}},
			}}
			a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) { c.HookFactory = factory })
			wantEqual(t, "at first", factory.previousHooks, "map[: t:web:]")
			a.advance(time.Second)
			a.die()
			b := a.startNextAgent(nil)
			wantEqual(t, "then", factory.previousHooks, `map[:map[whole:{"a": 1}] t:web:map[quiet:{}]]`)
			b.advance(time.Second)
			b.Stop()
			b.wait()
		})
	})
	t.Run("hooks run again beside a running task", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := &recordingHook{name: "h", prestartResponse: func(n int) (hook.TaskPrestartResponse, error) {
				if n > 0 {
					return hook.TaskPrestartResponse{}, errors.New("cannot do it twice")
				}
				return hook.TaskPrestartResponse{State: map[string]string{"n": "1"}}, nil
			}}
			a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) {
				c.HookFactory = fixedHookFactory{task: []hooks.Hook{recordingTaskHook{h}}}
			})
			a.advance(time.Second)
			a.die()
			b := a.startNextAgent(nil)
			b.advance(time.Second)
			wantEqual(t, "request", []any{h.lastPrestart.Running, h.lastPrestart.PreviousState}, "[true map[n:1]]")
			wantEqual(t, "starts", b.startCount("web"), "1")
			wantEqual(t, "events", b.taskEventTypes("web"), "[Received Task Setup Started Task hook failed]")
			wantEqual(t, "state", b.taskState("web").State, "running")
		})
	})
	t.Run("prerun fails on restore", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			failing := &recordingHook{name: "failing", errsByPoint: map[string]error{"prerun": errors.New("no")}}
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), time.Second, nil, func(c *testConfig) {
				c.HookFactory = fixedHookFactory{alloc: []hooks.Hook{recordingAllocHook{failing}}}
			})
			a.wait()
			wantEqual(t, "status", a.lastUpdate().ClientStatus, "failed")
			wantEqual(t, "alive", a.drivers.aliveTasks(), "[]")
			wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Setup Failure Terminated]")
		})
	})
	t.Run("nobody is there to be asked on restore", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			away := &recordingHook{name: "away", errsByPoint: map[string]error{"prerun": fmt.Errorf("prerun: %w", &hooks.PluginUnavailableError{Err: errors.New("nobody is there")})}}
			next := &recordingHook{name: "next"}
			withHooks := func(c *testConfig) {
				c.HookFactory = fixedHookFactory{alloc: []hooks.Hook{recordingAllocHook{away}, recordingAllocHook{next}}}
			}
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), time.Second, nil, withHooks)
			a.advance(time.Minute)
			wantEqual(t, "starts", a.startCount("web"), "1")
			wantEqual(t, "state", a.taskState("web").State, "running")
			wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Task hook failed]")
			wantEqual(t, "next hook", next.calls(), "[prerun]")

			first := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), withHooks)
			first.wait()
			wantEqual(t, "a task that does not run yet", first.taskEventTypes("web"), "[Received Setup Failure]")
		})
	})
	t.Run("deadline counts from the creation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("batch", `
				max_run_duration = "60s"`, endlessTaskText, poststopTask)), 20*time.Second, nil, nil)
			a.wait()
			wantEqual(t, "end", time.Since(a.startTime), "1m0s")
			wantEqual(t, "status", a.lastUpdate().ClientDescription, model.MaxRunDurationExceeded)
			a.die()
			b := a.startNextAgent(func(c *testConfig) {
				c.Alloc.ClientStatus, c.Alloc.ClientDescription = a.lastUpdate().ClientStatus, a.lastUpdate().ClientDescription
			})
			b.wait()
			wantEqual(t, "poststop", b.startCount("after"), "0")
			wantEqual(t, "status", b.lastUpdate().ClientDescription, model.MaxRunDurationExceeded)
		})
	})
	t.Run("the plugin dies with the agent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), time.Second, func(a *testAgent) { a.drivers.killPlugin() }, nil)
			a.advance(time.Second)
			wantEqual(t, "starts", a.startCount("web"), "1")
			a.exitTask("web", driver.ExitResult{ExitCode: 5})
			a.advance(time.Minute)
			wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Terminated Restarting Started]")
		})
	})
	t.Run("a restart that was asked for is finished, and is no failure", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := startAgent(t, parseJob(t, jobTextFromParts("service", `
				restart { attempts = 0 }`, `
				task "web" {
					driver       = "fake"
					kill_timeout = "10s"
					config { ignore_signals = true }
				}`)), nil)
			a.advance(time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _ = a.RestartTask(ctx, "web") }()
			a.advance(time.Second)
			a.die()
			cancel()
			b := a.startNextAgent(nil)
			b.advance(time.Minute)
			wantEqual(t, "events", b.taskEventTypes("web"), "[Received Task Setup Started Restart Signaled Terminated Restarting Started]")
			wantEqual(t, "state", []any{b.taskState("web").State, b.startCount("web")}, "[running 2]")
		})
	})
	t.Run("without its record, a task is found by the start in the time line, and continues", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), time.Second, func(a *testAgent) {
				a.store.unreadableTasks = map[string]bool{"web": true}
				a.drivers.findsUnknownTasks = true
				a.drivers.killPlugin()
			}, nil)
			a.advance(time.Minute)
			wantEqual(t, "alive", len(a.drivers.aliveTasks()), "1")
			wantEqual(t, "starts", a.startCount("web"), "1")
			wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Task Setup]")
		})
	})
	t.Run("RS-071: without a record and a time line, the task runs again after its process has ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var reportedStates map[string]*api.TaskState
			a := runAndRestartAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), time.Second, func(a *testAgent) {
				reportedStates = a.lastUpdate().TaskStates
				a.store = newFakeStore()
				a.die()
				a.drivers.findsUnknownTasks = true
				if err := os.Remove(filepath.Join(a.allocDirRoot, a.config.Alloc.ID, ".timeline")); err != nil {
					t.Error(err)
				}
			}, func(c *testConfig) {
				c.Alloc.ClientStatus, c.Alloc.TaskStates = api.AllocClientStatusRunning, reportedStates
			})
			a.advance(time.Minute)
			wantEqual(t, "alive", len(a.drivers.aliveTasks()), "1")
			wantEqual(t, "starts", a.startCount("web"), "2")
			wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Failed Restoring Task Restarting Task Setup Started]")
		})
	})
}

// The agent is killed during a StartTask call, which completes.
func TestStartThatTheAgentDidNotSee(t *testing.T) {
	const lost = "[Received Task Setup Failed Restoring Task Not Restarting]"
	for _, test := range []struct {
		name   string
		world  func(*fakeDrivers)
		alive  int // processes at the end; a task with unknown exit status has none if its driver finds it
		events string
	}{
		{"the plugin has survived", func(*fakeDrivers) {}, 1, "[Received Task Setup Started]"},
		{"the next plugin searches for it", func(w *fakeDrivers) { w.findsUnknownTasks = true; w.killPlugin() }, 1, "[Received Task Setup Started]"},
		{"the driver returns no handle", func(w *fakeDrivers) { w.returnsNoHandles = true }, 1, "[Received Task Setup Started]"},
		{"no process knows it", func(w *fakeDrivers) { w.forgetsTasks = true; w.killPlugin() }, 1, "[Received Task Setup Failed Restoring Task Driver Not Restarting]"},
		{"the search does not find its exit status", func(w *fakeDrivers) {
			w.findsUnknownTasks = true
			w.killPlugin()
			for _, t := range w.tasks {
				t.Unrecovered = true
			}
		}, 0, lost},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobTextFromParts("batch", `
					restart { attempts = 0 }`, `
					task "web" {
						driver = "fake"
						config { start_for = "2s" }
					}`)), nil)
				a.advance(time.Second)
				// The driver completes the StartTask call, but its result is not stored.
				a.die()
				a.advance(2 * time.Second)
				if a.store.fieldsByTask["web"].Handle != nil || a.store.fieldsByTask["web"].StartID == "" || len(a.drivers.aliveTasks()) != 1 {
					t.Fatalf("record %+v, alive %v", a.store.fieldsByTask["web"], a.drivers.aliveTasks())
				}
				test.world(a.drivers)
				b := a.startNextAgent(nil)
				b.advance(5 * time.Second)
				wantEqual(t, "events", b.taskEventTypes("web"), test.events)
				wantEqual(t, "alive", len(b.drivers.aliveTasks()), fmt.Sprint(test.alive))
				wantEqual(t, "starts", b.startCount("web"), "1")
				for _, id := range b.drivers.aliveTasks() { // ends the processes that no agent could find
					b.exitTask(strings.Split(id, "/")[1], driver.ExitResult{})
				}
				b.Stop()
			})
		})
	}
}

// The agent is killed before the driver executes the task: in one case the start goes on, in the other the plugin dies
// too. The next agent starts the task only in the second case.
func TestStartThatIsInProgressAtRestore(t *testing.T) {
	for name, pluginDies := range map[string]bool{"it goes on": false, "the plugin has died": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobTextFromParts("service", `
					task "web" {
						driver = "fake"
						config { start_for = "8s" }
					}`)), func(c *testConfig) {
					w := c.Drivers.(*fakeDrivers)
					w.findsUnknownTasks, w.keepsStarts = true, true
				})
				a.advance(time.Second)
				a.die()
				if pluginDies {
					a.drivers.killPlugin()
				}
				b := a.startNextAgent(nil)
				b.advance(5 * time.Second)
				wantEqual(t, "before the start is complete", b.taskEventTypes("web"), "[Received Task Setup]")
				b.advance(time.Minute)
				wantEqual(t, "events", b.taskEventTypes("web"), "[Received Task Setup Started]")
				starts := 1
				if pluginDies {
					starts = 2 // the first one has executed nothing
				}
				wantEqual(t, "starts", b.startCount("web"), fmt.Sprint(starts))
				wantEqual(t, "alive", len(b.drivers.aliveTasks()), "1")
				b.Stop()
			})
		})
	}
}

// The agent is killed during StartTask in a driver not made with package sdk. The plugin process survives, would
// complete the start later, and does not know the task until then.
func TestStartInProgressIsNotCompletedBesideTheNextStart(t *testing.T) {
	for group, want := range map[string]struct{ alive, starts, events string }{
		`restart { attempts = 0 }`: {"0", "1", "[Received Task Setup Failed Restoring Task Driver Not Restarting]"},
		`restart { delay = "1s" }`: {"1", "2", "[Received Task Setup Failed Restoring Task Driver Restarting Started]"},
	} {
		t.Run(group, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobTextFromParts("batch", group, `
					task "web" {
						driver = "fake"
						config { start_for = "8s" }
					}`)), func(c *testConfig) {
					w := c.Drivers.(*fakeDrivers)
					w.returnsNoHandles, w.keepsStarts = true, true
				})
				a.advance(time.Second)
				a.die()
				b := a.startNextAgent(nil)
				b.advance(time.Minute)
				wantEqual(t, "alive", len(b.drivers.aliveTasks()), want.alive)
				wantEqual(t, "starts", b.startCount("web"), want.starts)
				wantEqual(t, "events", b.taskEventTypes("web"), want.events)
				b.Stop()
				b.wait()
				wantEqual(t, "left", len(b.drivers.aliveTasks()), "0")
			})
		})
	}
}

// A driver that cannot find out about an interrupted start is called again, and the task has one event with the reason.
func TestInterruptedStartOfUndecidedDriverHasAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", `
			task "web" {
				driver = "fake"
				config { start_for = "2s" }
			}`)), func(c *testConfig) {
			w := c.Drivers.(*fakeDrivers)
			w.findsUnknownTasks, w.diesAfterStart, w.recoveryInconclusive = true, true, true
		})
		a.advance(time.Minute)
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Driver]")
		a.drivers.mu.Lock()
		a.drivers.recoveryInconclusive = false
		a.drivers.mu.Unlock()
		a.advance(time.Minute)
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Driver Started]")
		wantEqual(t, "starts", a.startCount("web"), "1")
		a.Stop()
	})
}

// The plugin dies during StartTask, and the agent lives. With a driver that leaves no mark the start counts as executed.
func TestStartDuringWhichThePluginDies(t *testing.T) {
	for name, test := range map[string]struct {
		executes bool // the plugin dies after the start has executed the task
		marks    bool // the driver is made with package sdk
		deaths   int  // how many plugin processes die
		events   string
		starts   int
	}{
		"before the start, with marks":             {false, true, 1, "[Received Task Setup Started Terminated]", 2},
		"before the start, with marks, four times": {false, true, 4, "[Received Task Setup Started Terminated]", 5},
		"before the start, with marks, five times": {false, true, 5, "[Received Task Setup Driver Failure Not Restarting]", 5},
		"before the start, without marks":          {false, false, 1, "[Received Task Setup Driver Driver Not Restarting]", 1},
		"after the start, with marks":              {true, true, 1, "[Received Task Setup Started Terminated]", 1},
		"after the start, without marks":           {true, false, 1, "[Received Task Setup Driver Driver Not Restarting]", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobTextFromParts("batch", `
					restart { attempts = 0 }`, `
					task "web" {
						driver = "fake"
						config {
							start_for = "2s"
							run_for   = "5s"
						}
					}`)), func(c *testConfig) {
					w := c.Drivers.(*fakeDrivers)
					w.findsUnknownTasks, w.diesAfterStart = test.marks, test.executes
				})
				for delay := time.Duration(0); !test.executes && test.deaths > 0; test.deaths-- {
					a.advance(delay + time.Second)
					a.drivers.killPlugin()
					delay = max(2*delay, time.Second)
				}
				a.wait()
				wantEqual(t, "events", a.taskEventTypes("web"), test.events)
				wantEqual(t, "starts", a.startCount("web"), fmt.Sprint(test.starts))
				for _, id := range a.drivers.aliveTasks() { // ends the process that no agent could find
					a.exitTask(strings.Split(id, "/")[1], driver.ExitResult{})
				}
			})
		})
	}
}

// A task that its driver cannot recover is awaited by its id. Its exit status is known if the plugin lives until then,
// also for a further agent.
func TestTaskWithoutHandleIsAwaited(t *testing.T) {
	for name, test := range map[string]struct {
		pluginDies bool
		events     string
	}{
		"the plugin lives": {false, "[Received Task Setup Started Terminated Not Restarting]"},
		"the plugin dies":  {true, "[Received Task Setup Started Failed Restoring Task Driver Not Restarting]"}, // the process may still run
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobTextFromParts("batch", `
					restart { attempts = 0 }`, `
					task "web" {
						driver = "fake"
						config { start_for = "2s" }
					}`)), func(c *testConfig) { c.Drivers.(*fakeDrivers).returnsNoHandles = true })
				a.advance(time.Second)
				a.die()
				a.advance(2 * time.Second)
				b := a.startNextAgent(nil)
				b.advance(time.Second)
				wantEqual(t, "state", b.taskState("web").State, "running")
				b.die()
				b.exitTask("web", driver.ExitResult{ExitCode: 3})
				if test.pluginDies {
					b.drivers.killPlugin()
				}
				c := b.startNextAgent(nil)
				c.wait()
				wantEqual(t, "events", c.taskEventTypes("web"), test.events)
				wantEqual(t, "starts", c.startCount("web"), "1")
			})
		})
	}
}

// TestDeathAtEachStep kills the agent at each write, with and without the plugin, and the next agent finishes the job.
// In every case, no task runs twice at the same time, no completed work is repeated, no start is executed twice, and
// each process gets one Terminated event.
func TestDeathAtEachStep(t *testing.T) {
	for _, delay := range []string{"3s", "0s"} {
		t.Run("delay "+delay, func(t *testing.T) {
			if testing.Short() && delay == "0s" {
				t.Skip("has the same steps without the delay")
			}
			testAgentDeathAtEachWrite(t, delay)
		})
	}
}

func testAgentDeathAtEachWrite(t *testing.T, delay string) {
	text := jobTextFromParts("batch", prestartTask, `
		restart {
			attempts = 1
			delay    = "`+delay+`"
			mode     = "fail"
		}`, `
		task "web" {
			driver = "fake"
			config {
				run_for    = "2s"
				exit_codes = [1, 0]
			}
		}`, poststopTask)
	j := parseJob(t, text)
	moments := map[bool]int{}
	for _, prompt := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a := startAgent(t, j, func(c *testConfig) { c.Store.(*fakeStore).asyncWritesImmediate = prompt })
			a.wait()
			moments[prompt] = a.store.writeCount
		})
	}
	t.Logf("%d writes in the life of three tasks with four starts, %d if none waits for another", moments[false], moments[true])
	if moments[false] < 10 || moments[true] < moments[false] {
		t.Fatal("that is not all")
	}
	step := 1
	if testing.Short() {
		step = 3 // odd, so that the plugin dies at every second write
	}
	for i := 0; i < 2*moments[true]; i += step {
		n, pluginDies := i/2+1, i%2 == 1
		for prompt, total := range moments {
			if n == 1 || n > total { // at the first write, the agent has only recorded that it received the task
				continue
			}
			t.Run(fmt.Sprintf("write %d, prompt %v, plugin dies %v", n, prompt, pluginDies), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					a := startWithWriteLimit(t, j, n-1, func(c *testConfig) {
						c.Store.(*fakeStore).asyncWritesImmediate = prompt
						w := c.Drivers.(*fakeDrivers)
						w.findsUnknownTasks = true
						w.checkStart = func(task string, alive []string) string {
							if slices.Contains(alive, task) {
								return task + " runs twice"
							}
							return ""
						}
					})
					if !a.awaitDeathOrEnd() {
						return
					}
					a.die()
					if pluginDies {
						a.drivers.killPlugin()
					}
					b := a.startNextAgent(nil)
					b.wait()
					if len(b.drivers.violations) > 0 {
						t.Errorf("%v", b.drivers.violations)
					}
					wantEqual(t, "alive", b.drivers.aliveTasks(), "[]")
					for _, task := range []string{"init", "web", "after"} {
						s := b.taskState(task)
						wantEqual(t, task, []any{s.State, s.Failed}, "[dead false]")
						var startCount, endCount int
						for _, e := range s.Events {
							switch e.Type {
							case api.TaskStarted:
								startCount++
							case api.TaskTerminated, model.TaskRestoreFailed:
								endCount++
							}
						}
						if startCount != endCount {
							t.Errorf("%s: %d starts and %d ends: %v", task, startCount, endCount, b.taskEventTypes(task))
						}
					}
					wantEqual(t, "status", b.lastUpdate().ClientStatus, "complete")
					wantEqual(t, "done", b.drivers.successfulRunCounts, "map[after:1 init:1 web:1]")
					wantEqual(t, "starts", b.drivers.startCounts, "map[after:1 init:1 web:2]") // web's first run fails
				})
			})
		}
	}
}

// RS-069.
func TestRestoreSendsNoSecondReceivedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		received := &api.TaskState{State: model.TaskPending}
		model.AppendTaskEvent(received, model.EventReceived(), time.Now())
		time.Sleep(time.Minute) // simulates an agent that only reported the event Received and exited without writing a record
		h := startHarness(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) {
			c.Alloc.TaskStates = map[string]*api.TaskState{"web": received}
		})
		h.advance(time.Second)
		wantEqual(t, "events", h.taskEventTypes("web"), "[Received Task Setup Started]")
		if e := h.taskState("web").Events[0]; e.Time != received.Events[0].Time {
			t.Error("Received is told anew")
		}
	})
}

func TestInheritContinuesAtOffset(t *testing.T) {
	root := t.TempDir()
	dirs := make([]*allocdir.Dir, 2)
	for i, id := range []string{"old", "new"} {
		dir, err := allocdir.New(root, id)
		if err == nil {
			err = dir.Build()
		}
		if err != nil {
			t.Fatal(err)
		}
		dirs[i] = dir
	}
	if err := os.WriteFile(dirs[0].Path()+"/alloc/data/x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := dirs[1].MoveDataFrom(dirs[0], []string{"web"}); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dirs[1].Path() + "/alloc/data/x"); err != nil {
			t.Error(err)
		}
	}
	// Existing files in the new directory are not replaced.
	if err := os.MkdirAll(dirs[0].Path()+"/alloc/data/y", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := dirs[1].MoveDataFrom(dirs[0], nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dirs[1].Path() + "/alloc/data/x"); err != nil {
		t.Error(err)
	}
	gone, err := allocdir.New(root, "gone")
	if err != nil {
		t.Fatal(err)
	}
	if err := dirs[1].MoveDataFrom(gone, []string{"web"}); err != nil {
		t.Errorf("from a directory that is not there: %v", err)
	}
}

// The next agent finishes a restart requested before, with the same result, even if many events were added after the
// request.
func TestRestoreFinishesRequestedRestart(t *testing.T) {
	for _, test := range []struct {
		name    string
		event   *api.TaskEvent
		failure bool
		want    string
	}{
		{"a user's request is not counted", model.EventRestartSignal(model.RestartTaskReason), false, "[running 1]"},
		{"a failure is counted, whatever its reason says", model.EventRestartSignal("unhealthy"), true, "[dead 0]"},
		{"a request is not counted, whatever its reason says", model.EventRestartSignal("healthcheck: a user's words"), false, "[running 1]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobTextFromParts("service", noRestartText, `
					task "web" {
						driver         = "fake"
						shutdown_delay = "10s"
					}`)), nil)
				a.advance(time.Second)
				web, _ := a.tasks.findByName("web")
				go func() { _ = web.Restart(t.Context(), test.event, test.failure) }()
				a.advance(time.Second)
				for range 10 {
					web.EmitEvent(model.EventHookMessage("", "an event for people", nil))
				}
				a.advance(time.Second)
				wantEqual(t, "pending in the events", model.LastEventOfTypeSinceStart(web.State(), api.TaskRestartSignal) != nil, "false")
				a.die()
				b := a.startNextAgent(nil)
				b.advance(time.Minute)
				wantEqual(t, "web", []any{b.taskState("web").State, b.taskState("web").Restarts}, test.want)
			})
		})
	}
}

// A request for a restart applies to one process: it must not restart the next process.
func TestRestoreForgetsFinishedRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), nil)
		a.advance(time.Second)
		if err := a.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		a.advance(time.Second)
		wantEqual(t, "starts", a.startCount("web"), "2")
		a.die()
		b := a.startNextAgent(nil)
		b.advance(time.Minute)
		wantEqual(t, "starts", b.startCount("web"), "2")
	})
}

// A dead task with a requested rerun runs again exactly once, whichever write the agent dies at.
func TestRestoreRunsRequestedTaskAgain(t *testing.T) {
	text := jobTextFromParts("batch", endlessTaskText, `
		task "short" {
			driver = "fake"
			config { run_for = "1s" }
		}`)
	request := func(a *testAgent) {
		short, _ := a.tasks.findByName("short")
		short.RequestRerunIfSucceeded(model.EventRestartSignal(model.RestartAllReason))
	}
	for n := 1; ; n++ {
		done := false
		t.Run(fmt.Sprintf("write %d after the request", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, text), func(c *testConfig) { c.Store.(*fakeStore).asyncWritesImmediate = true })
				a.advance(5 * time.Second)
				a.store.mu.Lock()
				a.store.maxWrites = a.store.writeCount + n
				a.store.mu.Unlock()
				go request(a)
				select { // after the death the test must not sleep, because the new process would end
				case <-a.store.agentDied:
				case <-time.After(5 * time.Second):
				}
				if done = !wait.IsClosed(a.store.agentDied); done {
					a.store.mu.Lock()
					defer a.store.mu.Unlock()
					a.store.maxWrites = 0
					return
				}
				a.die()
				b := a.startNextAgent(nil)
				b.advance(time.Minute)
				wantEqual(t, "short", []any{b.taskState("short").State, b.drivers.successfulRunCounts["short"]}, "[dead 2]")
			})
		})
		if done {
			if n < 4 {
				t.Fatalf("the agent has survived write %d", n)
			}
			return
		}
	}
}

// The status may be forced during task recovery. The race detector reports a read without the lock.
func TestRestoreReadsForcedStatusUnderLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), nil)
		a.advance(time.Second)
		a.Stop()
		a.wait()
		a.die()
		c := a.config
		c.EarlierRecords, c.RanUnderEarlierAgent = a.store.cloneForNextAgent(), true
		r, err := New(c.withMachine())
		if err != nil {
			t.Fatal(err)
		}
		r.Stop()
		ctx, stop := context.WithCancel(t.Context())
		var forcingWG sync.WaitGroup
		forcingWG.Go(func() {
			for ctx.Err() == nil {
				r.state.setPermanentOverride(statusOverride{api.AllocClientStatusComplete, model.MaxRunDurationExceeded})
			}
		})
		for range 200 {
			wantEqual(t, "restored", r.restoreTasks(t.Context()), "true")
		}
		stop()
		forcingWG.Wait()
	})
}

// recordingPluginHook is a hook in a plugin process. The process can be replaced by a new one.
type recordingPluginHook struct {
	hooks.BuiltinHookDefaults
	mu                sync.Mutex
	calls             []string
	processNumber     int
	exited            chan struct{}
	pluginExited      <-chan struct{}
	poststartDuration time.Duration // how long a Poststart call takes, unless its context is canceled
}

func (p *recordingPluginHook) Name() string { return "plugin" }

func (p *recordingPluginHook) recordCall(call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
}

func (p *recordingPluginHook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	p.mu.Lock()
	if p.exited == nil {
		p.exited = make(chan struct{})
	}
	p.calls = append(p.calls, fmt.Sprintf("poststart %d repeated=%t", p.processNumber, req.Repeated))
	p.pluginExited = p.exited
	p.mu.Unlock()
	select {
	case <-time.After(p.poststartDuration):
	case <-ctx.Done():
		p.recordCall("given up")
	}
	return hook.TaskPoststartResponse{}, nil
}

func (p *recordingPluginHook) PreKilling(context.Context, hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	p.recordCall("prekilling")
	return hook.TaskPreKillingResponse{}, nil
}

func (p *recordingPluginHook) Exited(context.Context, hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	p.recordCall("exited")
	return hook.TaskExitedResponse{}, nil
}

func (p *recordingPluginHook) PoststartPluginExited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pluginExited
}

func (p *recordingPluginHook) WaitPluginUp(ctx context.Context) error {
	time.Sleep(time.Second)
	return ctx.Err()
}

// replace ends the plugin process and starts the next one.
func (p *recordingPluginHook) replace() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.processNumber++
	close(p.exited)
	p.exited = make(chan struct{})
}

// A hook gets Poststart for a running task once per plugin process and once per agent;
// all calls but the first have Repeated set.
func TestPoststartIsRepeatedForEachPluginProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(recordingPluginHook)
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) {
			c.HookFactory = fixedHookFactory{task: []hooks.Hook{p}}
		})
		a.advance(time.Second)
		p.replace()
		a.advance(time.Minute)
		p.replace()
		a.advance(time.Minute)
		a.die()
		a.cancel(ErrShutdown)
		b := a.startNextAgent(nil)
		b.advance(time.Minute)
		if err := b.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Second)
		wantEqual(t, "calls", strings.Join(p.calls, ", "), "poststart 0 repeated=false, poststart 1 repeated=true, poststart 2 repeated=true, "+
			"poststart 2 repeated=true, prekilling, exited, poststart 2 repeated=false")
	})
}

// After a task is killed or has exited, Poststart is not repeated, and no Poststart call runs when the kill's hooks are
// called.
func TestPoststartIsNotRepeatedForAnEndingTask(t *testing.T) {
	for name, end := range map[string]func(*testAgent){
		"killed": func(a *testAgent) { a.Stop() },
		"exited": func(a *testAgent) { a.exitTask("web", driver.ExitResult{ExitCode: 1}) },
	} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, plugin back before: %t", name, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := new(recordingPluginHook)
					a := startAgent(t, parseJob(t, jobTextFromParts("batch", noRestartText, endlessTaskText)), func(c *testConfig) {
						c.HookFactory = fixedHookFactory{task: []hooks.Hook{p}}
					})
					a.advance(time.Second)
					p.mu.Lock()
					p.poststartDuration = time.Hour
					p.mu.Unlock()
					p.replace()
					calls := []string{"poststart 0 repeated=false"}
					if early {
						a.advance(time.Minute)
						calls = append(calls, "poststart 1 repeated=true", "given up")
					}
					end(a)
					a.wait()
					if name == "killed" {
						calls = append(calls, "prekilling")
					}
					wantEqual(t, "calls", p.calls, append(calls, "exited"))
				})
			})
		}
	}
}

// Once an allocation's stop is requested, Poststart is called for its poststop tasks only, although the other tasks run
// until the group's shutdown delay has passed.
func TestPoststartIsNotCalledForAStoppingAlloc(t *testing.T) {
	for name, stop := range map[string]func(*testAgent, *recordingPluginHook) *testAgent{
		"stopped under an earlier agent": func(a *testAgent, _ *recordingPluginHook) *testAgent {
			a.die()
			a.cancel(ErrShutdown)
			return a.startNextAgent(func(c *testConfig) { c.Alloc.DesiredStatus = api.AllocDesiredStatusStop })
		},
		"stopped before its plugin is replaced": func(a *testAgent, p *recordingPluginHook) *testAgent {
			a.Stop()
			a.advance(time.Second)
			p.replace()
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := new(recordingPluginHook)
				a := startAgent(t, parseJob(t, jobTextFromParts("service", `shutdown_delay = "1m"`, endlessTaskText, poststopTask)), func(c *testConfig) {
					c.HookFactory = fixedHookFactory{task: []hooks.Hook{p}}
				})
				a.advance(time.Second)
				b := stop(a, p)
				b.advance(30 * time.Second)
				p.mu.Lock()
				before := slices.Clone(p.calls)
				p.mu.Unlock()
				wantEqual(t, "calls before the kill", before, "[poststart 0 repeated=false]")
				b.wait()
				wantEqual(t, "calls of the stop", p.calls[1:], fmt.Sprintf("[prekilling exited poststart %d repeated=false exited]", p.processNumber))
			})
		})
	}
}

// A killed task does not count as successful, however many events were added since, and also under the
// next agent.
func TestKilledTaskHasNotSucceeded(t *testing.T) {
	for _, c := range []struct {
		name            string
		kill, nextAgent bool
		publish         string // expected start count for the task waiting for another task's success
	}{
		{"not killed", false, false, "1"},
		{"killed", true, false, "0"},
		{"killed under an earlier agent", true, true, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobTextFromParts("batch", `
					task "web" {
						driver         = "fake"
						shutdown_delay = "5s"
					}
					task "slow" {
						driver         = "fake"
						shutdown_delay = "1m"
					}
					task "publish" {
						driver = "fake"
						lifecycle { hook = "poststop" }
						meta { lite_after = "web:success, slow:exited" }
						config { run_for = "1s" }
					}`)), nil)
				a.advance(time.Second)
				if c.kill {
					a.Stop()
					a.advance(time.Second)
				}
				a.exitTask("web", driver.ExitResult{})
				a.advance(time.Second)
				web, _ := a.tasks.findByName("web")
				for range 10 {
					web.EmitEvent(model.EventHookMessage("", "an event for people", nil))
				}
				a.advance(time.Second)
				wantEqual(t, "killed in the events", model.LastEventOfTypeSinceStart(web.State(), api.TaskKilled) != nil, "false")
				if c.nextAgent {
					a.die()
					a = a.startNextAgent(nil)
					a.Stop()
				}
				a.advance(time.Second)
				a.exitTask("slow", driver.ExitResult{})
				a.advance(10 * time.Second)
				wantEqual(t, "starts of publish", a.startCount("publish"), c.publish)
			})
		})
	}
}

// A kill during a task's start applies to that start, and not to the next.
func TestKillBelongsToAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("batch", `
			task "web" {
				driver = "fake"
				config { start_for = "5s" }
			}`)), nil)
		a.advance(time.Second)
		web, _ := a.tasks.findByName("web")
		killed := func() bool { _, killed := web.Snapshot(); return killed }
		wantEqual(t, "before the kill", killed(), "false")
		web.Kill(model.EventKilling(time.Second))
		a.wait()
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Killing Started Terminated Killed]")
		wantEqual(t, "after the kill", killed(), "true")
	})
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("batch", oneSecondTaskText)), nil)
		a.wait()
		web, _ := a.tasks.findByName("web")
		web.Kill(model.EventKilling(time.Second))
		_, killed := web.Snapshot()
		wantEqual(t, "a kill after the end", killed, "false")
	})
}

// An event with the once annotation is added once per task, however many agents and plugin processes follow, even when
// it is no longer among the last ten events.
func TestDriverEventOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), nil)
		a.advance(time.Second)
		send := func(message string) {
			if !a.EmitDriverEvent(driver.TaskEvent{AllocID: testAllocID, TaskName: "web", Message: message,
				Annotations: map[string]string{driver.OnceAnnotation: "true"}}) {
				t.Error("the event is for another allocation")
			}
		}
		send("no limit")
		send("no limit")
		send("no network")
		wantEqual(t, "events", eventMessages(a, "web"), "[no limit no network]")
		for _, e := range a.taskState("web").Events {
			if e.DisplayMessage == "no limit" {
				wantEqual(t, "details", e.Details, "map[]")
			}
		}
		a.advance(time.Second)
		a.die()
		a = a.startNextAgent(nil)
		a.advance(time.Second)
		send("no limit")
		send("no space")
		wantEqual(t, "events under the next agent", eventMessages(a, "web"), "[no limit no network no space]")
		web, _ := a.tasks.findByName("web")
		for range 10 {
			web.EmitEvent(model.EventHookMessage("", "an event for people", nil))
		}
		send("no limit")
		wantEqual(t, "events after ten others", eventMessages(a, "web"), "[]")
	})
}
