package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/restart"
	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// fakeStore is a Store, and the TaskRecords of the next agent. A test simulates the death of the agent
// by a call of die or by a maximum number of writes. After its death the store writes no more, and
// goroutines that wait for a write exit. Async puts are written immediately if writesAsyncAtOnce is
// set, otherwise with the next write or after a delay.
type fakeStore struct {
	mu                sync.Mutex
	locals            map[string]state.LocalState
	states            map[string]*api.TaskState
	unreadable        map[string]bool // tasks whose local records cannot be read
	writes            int
	limit             int // maximum number of writes before the agent dies; 0 means no limit
	writesAsyncAtOnce bool
	pendingWrites     []func()
	deathComplete     bool          // the calls of the dead agent are ignored
	dead              chan struct{} // closed when limit is reached
	ended             chan struct{} // closed when the dead agent's context was canceled
}

func newFakeStore() *fakeStore {
	return &fakeStore{
		locals: make(map[string]state.LocalState),
		states: make(map[string]*api.TaskState),
		dead:   make(chan struct{}),
		ended:  make(chan struct{}),
	}
}

func (l *fakeStore) put(h state.Durability, f func()) state.WaitFunc {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pendingWrites = append(l.pendingWrites, f)
	if h == state.Async && !l.writesAsyncAtOnce {
		time.AfterFunc(50*time.Millisecond, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.writeLocked()
		})
		return noWait // an async put needs no wait, and the store does not reject it
	}
	l.writeLocked()
	if !isClosed(l.dead) {
		return noWait
	}
	return func() error {
		l.mu.Lock()
		deathComplete := l.deathComplete
		l.mu.Unlock()
		if deathComplete {
			return errors.New("the agent is dead")
		}
		<-l.ended
		runtime.Goexit()
		return nil
	}
}

func (l *fakeStore) writeLocked() {
	switch {
	case len(l.pendingWrites) == 0:
	case isClosed(l.dead), l.limit > 0 && l.writes == l.limit:
		closeOnce(l.dead)
	default:
		l.writes++
		for _, f := range l.pendingWrites {
			f()
		}
		l.pendingWrites = nil
	}
}

func (l *fakeStore) PutTaskState(_, task string, s *api.TaskState, h state.Durability) state.WaitFunc {
	return l.put(h, func() { l.states[task] = s })
}

func (l *fakeStore) PutTask(_, task string, local state.LocalState, s *api.TaskState, h state.Durability) state.WaitFunc {
	return l.put(h, func() { l.locals[task], l.states[task] = local, s })
}

func (l *fakeStore) TaskLocal(_, task string) (state.LocalState, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreadable[task] {
		return state.LocalState{}, true, errors.New("checksum is wrong")
	}
	s, ok := l.locals[task]
	return s, ok, nil
}

func (l *fakeStore) AllocHooks(string) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]string)
	for _, local := range l.locals {
		maps.Copy(all, local.AllocHooks)
	}
	return all
}

func (l *fakeStore) TaskState(_, task string) (*api.TaskState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.states[task], nil
}

// cloneForNextAgent returns a copy of the store, which the next agent uses.
func (l *fakeStore) cloneForNextAgent() *fakeStore {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := newFakeStore()
	n.locals, n.states, n.unreadable = maps.Clone(l.locals), maps.Clone(l.states), l.unreadable
	return n
}

// agent is one agent that runs one allocation with a fakeStore.
type agent struct {
	*harness
	store  *fakeStore
	config Config
}

func startAgent(t *testing.T, job *api.Job, mangle func(*Config)) *agent {
	t.Helper()
	return startWithWriteLimit(t, job, 0, mangle)
}

// startWithWriteLimit starts an agent that dies instead of making the given write.
func startWithWriteLimit(t *testing.T, job *api.Job, writes int, mangle func(*Config)) *agent {
	t.Helper()
	a := &agent{store: newFakeStore()}
	a.store.limit = writes
	a.harness = start(t, job, func(c *Config) {
		c.Store = a.store
		if mangle != nil {
			mangle(c)
		}
		a.config = *c
	})
	a.awaitDeath()
	return a
}

// dies waits for the simulated death of the agent. It returns false if the job has ended before,
// because it made fewer writes than in another run: which puts share a write is not deterministic.
func (a *agent) dies() bool {
	select {
	case <-a.store.dead:
	case <-a.Done():
	}
	if !isClosed(a.store.dead) { // after a death the test must not sleep, because a process that was started would end
		time.Sleep(time.Second) // Async puts are written
	}
	if !isClosed(a.store.dead) {
		return false
	}
	if synctest.Wait(); !isClosed(a.store.ended) {
		close(a.store.ended) // awaitDeath has seen that Run returned, and not the death
	}
	return true
}

// awaitDeath cancels the agent's context when the store simulates the death of the agent.
func (a *agent) awaitDeath() {
	go func() {
		select {
		case <-a.store.dead:
			a.cancel(ErrShutdown)
			close(a.store.ended)
		case <-a.Done():
		}
	}()
}

// die simulates kill -9 of the agent: from then on the store writes no more.
func (a *agent) die() {
	a.store.mu.Lock()
	closeOnce(a.store.dead)
	a.store.mu.Unlock()
	synctest.Wait()
	a.store.mu.Lock()
	a.store.deathComplete = true
	a.store.mu.Unlock()
}

// again starts the next agent with the same fake processes and the content of the store. mangle may
// change the configuration, and the allocation in it.
func (a *agent) again(mangle func(*Config)) *agent {
	a.t.Helper()
	if !isClosed(a.store.dead) {
		a.t.Fatal("the agent before lives")
	}
	next := &agent{store: a.store.cloneForNextAgent()}
	next.harness = start(a.t, a.config.Alloc.Job, func(c *Config) {
		alloc, report := *a.config.Alloc, c.Report
		*c = a.config
		c.Alloc, c.Store, c.Report = &alloc, next.store, report
		c.TaskRecords, c.Restored = next.store, true
		if mangle != nil {
			mangle(c)
		}
		next.config = *c
	})
	next.world, next.logs, next.begin = a.world, a.logs, a.begin
	next.awaitDeath()
	return next
}

// restarted runs a job for a while, kills the agent, calls meanwhile, and starts the next agent.
func restarted(t *testing.T, job *api.Job, after time.Duration, meanwhile func(*agent), mangle func(*Config)) *agent {
	t.Helper()
	a := startAgent(t, job, nil)
	a.advance(after)
	a.die()
	if meanwhile != nil {
		meanwhile(a)
	}
	b := a.again(mangle)
	synctest.Wait()
	return b
}

func (a *agent) exit(task string, r driver.ExitResult) {
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	for id, t := range a.world.tasks {
		if strings.Split(id, "/")[1] == task {
			t.exit(r)
		}
	}
}

// vanish removes a process so that no driver knows it.
func (a *agent) vanish(task string) {
	a.exit(task, driver.ExitResult{})
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	maps.DeleteFunc(a.world.tasks, func(id string, _ *fakeTask) bool { return strings.Split(id, "/")[1] == task })
	if a.world.plugin != nil {
		close(a.world.plugin.down)
		a.world.plugin = nil
	}
}

func (a *agent) starts(task string) int {
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	return a.world.starts[task]
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

func jobOf(typ string, parts ...string) string { return job(typ, strings.Join(parts, "\n")) }

func sticky() string {
	return `
		ephemeral_disk { sticky = true }`
}

// RS-062.
func TestRestoreRecoversRunningTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		a := restarted(t, parseJob(t, jobOf("service", prestartTask, sidecarTask, sleeper)), 5*time.Second, func(a *agent) {
			events = slices.Concat(a.events("init"), a.events("side"), a.events("web"))
		}, nil)
		a.advance(time.Minute)
		want(t, "starts", []int{a.starts("init"), a.starts("side"), a.starts("web")}, "[1 1 1]")
		want(t, "events", slices.Concat(a.events("init"), a.events("side"), a.events("web")), fmt.Sprint(events))
		want(t, "status", a.last().ClientStatus, "running")
		if !a.state("web").StartedAt.Equal(a.begin.Add(time.Second)) {
			t.Errorf("web started at %v", a.state("web").StartedAt)
		}
	})
}

// RS-063.
func TestShutdownLeavesTasksRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobOf("service", sleeper)), nil)
		a.advance(time.Second)
		a.cancel(ErrShutdown)
		a.wait()
		want(t, "left running", a.PluginsLeftRunning(), `[driver "fake"]`)
		want(t, "finished", a.Finished(), "false")
		a.die()
		b := a.again(nil)
		b.advance(time.Second)
		want(t, "starts", b.starts("web"), "1")
		want(t, "state", b.state("web").State, "running")
		b.Stop()
		b.wait()
		want(t, "finished", b.Finished(), "true")
		want(t, "left running", b.PluginsLeftRunning(), "[]")
	})
}

// RS-064.
func TestRestoreReportsTaskThatWasKilledMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := restarted(t, parseJob(t, jobOf("service", sleeper)), 5*time.Second, func(a *agent) {
			a.exit("web", driver.ExitResult{ExitCode: 137, Signal: 9})
		}, nil)
		a.advance(time.Minute)
		want(t, "events", a.events("web"), "[Received Task Setup Started Terminated Restarting Started]")
		e := a.state("web").Events[3]
		want(t, "end", []any{e.DisplayMessage, a.state("web").Restarts}, "[Exit Code: 137, Signal: 9 1]")
	})
}

// RS-065.
func TestRestoreHandlesTasksThatExitedMeanwhile(t *testing.T) {
	t.Run("main of a batch job", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("batch", `
				restart { attempts = 0 }`, sleeper, poststopTask)), 5*time.Second, func(a *agent) {
				a.exit("web", driver.ExitResult{ExitCode: 4})
			}, nil)
			a.wait()
			want(t, "events", a.events("web"), "[Received Task Setup Started Terminated Not Restarting]")
			want(t, "end", a.state("web").Events[3].DisplayMessage, "Exit Code: 4")
			want(t, "poststop", a.events("after"), "[Received Task Setup Started Terminated]")
			want(t, "status", a.last().ClientStatus, "failed")
		})
	})
	t.Run("prestart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("service", prestartTask, sleeper)), 500*time.Millisecond, func(a *agent) {
				time.Sleep(time.Minute) // after this time, the prestart task has ended successfully
				synctest.Wait()
			}, nil)
			a.advance(time.Second)
			want(t, "prestart", a.events("init"), "[Received Task Setup Started Terminated]")
			want(t, "main", a.events("web"), "[Received Task Setup Started]")
		})
	})
}

// The process of a task ends without an exit status while no agent runs. The restart policy applies, as
// after a failed run. (rule RS-066)
func vanishWeb(a *agent) { a.vanish("web") }

func TestUnknownEndAtRestorePassesThroughTheRestartPolicy(t *testing.T) {
	for _, test := range []struct {
		name, job string
		lose      func(*agent)
		events    string
		state     string
		alloc     string
	}{
		{"restarts are left", jobOf("service", sleeper), vanishWeb,
			"[Received Task Setup Started Failed Restoring Task Restarting Started]", "[running false 1 2]", "running"},
		{"the handle was not stored", jobOf("service", sleeper), func(a *agent) {
			local := a.store.locals["web"]
			local.Handle = nil
			a.store.locals["web"] = local
		},
			"[Received Task Setup Started Failed Restoring Task Restarting Started]", "[running false 1 2]", "running"},
		{"batch job without attempts", jobOf("batch", `
			restart { attempts = 0 }`, sleeper), vanishWeb,
			"[Received Task Setup Started Failed Restoring Task Not Restarting]", "[dead true 0 1]", "failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := restarted(t, parseJob(t, test.job), 5*time.Second, test.lose, nil)
				a.advance(time.Minute)
				want(t, "events", a.events("web"), test.events)
				s := a.state("web")
				want(t, "state", []any{s.State, s.Failed, s.Restarts, a.starts("web")}, test.state)
				want(t, "alloc", a.last().ClientStatus, test.alloc)
			})
		})
	}
}

// RS-067.
func TestRestoreDoesNotRerunCompletedTasks(t *testing.T) {
	t.Run("complete allocation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			text := jobOf("batch", `task "web" {
				driver = "fake"
				config { run_for = "1s" }
			}`)
			a := startAgent(t, parseJob(t, text), nil)
			a.wait()
			events := fmt.Sprint(a.events("web"))
			a.die()
			for range 2 {
				a = a.again(func(c *Config) { c.Alloc.ClientStatus = "complete" })
				a.wait()
				want(t, "events", a.events("web"), events)
				want(t, "starts", a.starts("web"), "1")
				want(t, "status", a.last().ClientStatus, "complete")
				a.die()
			}
		})
	})
	t.Run("dead task of a live allocation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("batch", sleeper, `
				task "short" {
					driver = "fake"
					config { run_for = "1s" }
				}`)), 5*time.Second, nil, nil)
			a.advance(time.Minute)
			want(t, "starts", []int{a.starts("web"), a.starts("short")}, "[1 1]")
			want(t, "short", a.state("short").State, "dead")
			if err := a.RestartAll(t.Context()); err != nil {
				t.Fatal(err)
			}
			a.advance(time.Minute)
			want(t, "starts", []int{a.starts("web"), a.starts("short")}, "[2 2]")
		})
	})
}

// A request during the restore of the tasks waits until they are restored: before that,
// they have no processes.
func TestRequestsDuringRestore(t *testing.T) {
	for _, c := range []struct {
		name    string
		request func(context.Context, *agent) error
		starts  string // expected numbers of starts of the tasks web and before, after the request
	}{
		{"restart all", func(ctx context.Context, a *agent) error { return a.RestartAll(ctx) }, "[2 2]"},
		{"restart running", func(ctx context.Context, a *agent) error { return a.RestartRunning(ctx) }, "[2 1]"},
		{"restart task", func(ctx context.Context, a *agent) error { return a.RestartTask(ctx, "web") }, "[2 1]"},
		{"signal", func(ctx context.Context, a *agent) error { return a.Signal(ctx, "web", "SIGHUP") }, "[1 1]"},
		{"exec", func(ctx context.Context, a *agent) error {
			_, err := a.Exec(ctx, "web", []string{"true"}, time.Second)
			return err
		}, "[1 1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := restarted(t, parseJob(t, jobOf("batch", sleeper, `
					task "before" {
						driver = "fake"
						config { run_for = "1s" }
						lifecycle { hook = "prestart" }
					}`)), 5*time.Second, func(a *agent) { a.world.recoveryTime = time.Second }, nil)
				short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := c.request(short, a); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a request that gives up before that: %v", err)
				}
				if err := c.request(t.Context(), a); err != nil {
					t.Error(err)
				}
				a.advance(time.Minute)
				want(t, "starts", []int{a.starts("web"), a.starts("before")}, c.starts)
				want(t, "web", a.state("web").State, "running")
			})
		})
	}
}

// RS-068.
func TestRestoreExecutesPendingStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task, alloc := &recordingHook{name: "task"}, &recordingHook{name: "alloc"}
		a := restarted(t, parseJob(t, jobOf("service", sleeper, poststopTask)), 5*time.Second, nil, func(c *Config) {
			c.Alloc.DesiredStatus = api.AllocDesiredStatusStop
			c.Hooks = extraHooks{task: []hooks.Hook{recordingTaskHook{task}}, alloc: []hooks.Hook{recordingAllocHook{alloc}}}
		})
		a.wait()
		want(t, "events", a.events("web"), "[Received Task Setup Started Terminated]")
		want(t, "poststop", a.state("after").State, "dead")
		want(t, "poststop starts", a.starts("after"), "1")
		if strings.Contains(strings.Join(alloc.calls(), " "), "prerun") {
			t.Errorf("alloc hooks: %v", alloc.calls())
		}
		if calls := strings.Join(task.calls(), " "); !strings.Contains(calls, "stop") {
			t.Errorf("task hooks: %v", calls)
		}
		_, stopped := a.logs.snapshot()
		want(t, "logs", stopped["web"], "1")
		want(t, "status", a.last().ClientStatus, "complete")
	})
}

// RS-069.
func TestRestoreKeepsRestartDelaysAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := restarted(t, parseJob(t, jobOf("service", `
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
			}`, poststopTask)), 11*time.Second, func(*agent) { time.Sleep(10 * time.Second) }, nil)
		due := time.Unix(0, a.state("web").Events[4].Time).Add(time.Duration(a.state("web").Events[4].StartDelay))
		want(t, "events", a.events("web"), "[Received Task Setup Started Terminated Restarting]")
		want(t, "state", a.state("web").State, "pending")
		want(t, "poststop", a.events("after"), "[Received]")
		a.advance(time.Until(due) - time.Millisecond)
		want(t, "starts before the delay is over", a.starts("web"), "1")
		a.advance(time.Millisecond)
		want(t, "starts", a.starts("web"), "2")
		a.wait()
		last := a.state("web").Events[len(a.state("web").Events)-1]
		want(t, "end", []any{last.Type, a.state("web").Restarts}, "[Not Restarting 2]")
	})
}

// RS-070.
func TestRestoreWithoutAllocDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := restarted(t, parseJob(t, jobOf("service", sleeper, sidecarTask, poststopTask)), 5*time.Second, func(a *agent) {
			if err := a.Dir().Destroy(); err != nil {
				t.Fatal(err)
			}
		}, nil)
		a.wait()
		want(t, "alive", a.world.alive(), "[]")
		want(t, "status", a.last().ClientStatus, "failed")
		if d := a.last().ClientDescription; !strings.HasPrefix(d, "allocation directory is inaccessible: ") {
			t.Errorf("description %q", d)
		}
		want(t, "events", a.events("web"), "[Received Task Setup Started Setup Failure Terminated]")
		want(t, "starts", []int{a.starts("web"), a.starts("side"), a.starts("after")}, "[1 1 0]")
		if _, err := os.Stat(a.Dir().Path()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory was made again: %v", err)
		}
	})
}

// RS-071.
func TestAllocWithoutRecordIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobOf("service", sleeper)), func(c *Config) {
			c.Restored, c.TaskRecords = true, newFakeStore()
		})
		a.advance(time.Second)
		want(t, "events", a.events("web"), "[Received Task Setup Started]")
	})
}

// RS-072.
func TestRestoreAfterReboot(t *testing.T) {
	reboot := func(t *testing.T, text string, meanwhile func(*agent)) *agent {
		return restarted(t, parseJob(t, text), 5*time.Second, func(a *agent) {
			a.world.mu.Lock()
			for _, task := range a.world.tasks {
				task.exit(driver.ExitResult{})
			}
			clear(a.world.tasks)
			close(a.world.plugin.down)
			a.world.plugin = nil
			a.world.mu.Unlock()
			if meanwhile != nil {
				meanwhile(a)
			}
		}, func(c *Config) { c.Rebooted = true })
	}
	t.Run("tasks start again, in memory is built again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := reboot(t, jobOf("service", prestartTask, sleeper), func(a *agent) {
				if err := a.Dir().DropSecrets("web"); err != nil { // removing the secrets simulates the loss of the memory file system
					t.Fatal(err)
				}
			})
			want(t, "events", a.events("web"), "[Received Task Setup Started Failed Restoring Task Started]")
			want(t, "starts", []int{a.starts("init"), a.starts("web")}, "[1 2]")
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
			var mounted []bool
			templates := recordingTaskHook{&recordingHook{name: "templates"}}
			templates.prestartResponse = func(int) (hook.TaskPrestartResponse, error) {
				_, err := os.Stat(templates.last.Dir.SecretsDir + "/.nomad-mount")
				mounted = append(mounted, err == nil)
				return hook.TaskPrestartResponse{}, nil
			}
			a := startAgent(t, parseJob(t, jobOf("service", sleeper)), withHooks(nil, []hooks.Hook{templates}))
			a.advance(time.Second)
			a.die()
			a.vanish("web")
			if err := a.Dir().DropSecrets("web"); err != nil {
				t.Fatal(err)
			}
			a = a.again(func(c *Config) { c.Rebooted = true })
			a.advance(time.Minute)
			want(t, "secrets in memory when the hook is called", mounted, "[true true]")
		})
	})
	t.Run("prestart that wants to run again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := reboot(t, jobOf("service", strings.Replace(prestartTask, "config", `meta { lite_rerun = "restart, reboot" }
				config`, 1), sleeper), nil)
			want(t, "web waits", a.state("web").State, "pending")
			a.advance(time.Second)
			want(t, "starts", []int{a.starts("init"), a.starts("web")}, "[2 2]")
		})
	})
	t.Run("with the directory everything begins anew", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := reboot(t, jobOf("service", prestartTask, sleeper), func(a *agent) {
				if err := a.Dir().Destroy(); err != nil {
					t.Fatal(err)
				}
			})
			a.advance(time.Second)
			want(t, "starts", []int{a.starts("init"), a.starts("web")}, "[2 2]")
			want(t, "status", a.last().ClientStatus, "running")
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
			a := startAgent(t, parseJob(t, jobOf("service", sleeper)), withHooks(nil, []hooks.Hook{h}))
			a.advance(time.Second)
			a.die()
			a.vanish("web")
			if err := a.Dir().Destroy(); err != nil {
				t.Fatal(err)
			}
			a = a.again(func(c *Config) { c.Rebooted = true })
			a.advance(time.Second)
			want(t, "previous state", h.last.PreviousState, "map[leased:10.0.0.7]")
			_, has := a.world.config("web").Env["IP"]
			want(t, "what it has given up is in the environment", has, false)
			a.Stop()
			a.wait()
		})
	})
}

// attachedHook is a hook that is attached with a configuration.
type attachedHook struct {
	hooks.Hook
	attachment string
}

func (h attachedHook) Attachment() string { return h.attachment }

// recordingFactory is a hook factory that records which hooks the previous agent had.
type recordingFactory struct {
	extraHooks
	previousHooks map[string]string
}

func (f *recordingFactory) AllocHooks(a *api.Allocation, c hookplugin.Target) []hooks.Entry {
	f.recordPrevious("", c)
	return f.extraHooks.AllocHooks(a, c)
}

func (f *recordingFactory) TaskHooks(a *api.Allocation, t *api.Task, c hookplugin.Target) []hooks.Entry {
	f.recordPrevious("t:"+t.Name, c)
	return f.extraHooks.TaskHooks(a, t, c)
}

func (f *recordingFactory) recordPrevious(whose string, c hookplugin.Target) {
	if f.previousHooks == nil {
		f.previousHooks = make(map[string]string)
	}
	f.previousHooks[whose] = ""
	if len(c.PreviousAttachments) > 0 {
		f.previousHooks[whose] = fmt.Sprint(c.PreviousAttachments)
	}
}

// RS-077.
func TestStickyDiskIsMigrated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobOf("service", sticky(), sleeper)), nil)
		a.advance(time.Second)
		old := a.Dir().Path()
		for _, file := range []string{"alloc/data/a", "web/local/b", "alloc/tmp/c", "alloc/logs/d", "web/secrets/e"} {
			if err := os.WriteFile(old+"/"+file, []byte(file), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		const id = "66666666-2222-3333-4444-555555555555"
		b := start(t, a.config.Alloc.Job, func(c *Config) {
			c.AllocDirRoot = a.config.AllocDirRoot
			c.Alloc.ID, c.Alloc.PreviousAllocation = id, testAllocID
			c.AllocDone = func(allocID string) <-chan struct{} {
				want(t, "previous", allocID, testAllocID)
				return a.Done()
			}
		})
		b.advance(time.Hour) // the wait for the earlier allocation has no timeout
		want(t, "while the old one runs", b.state("web").State, "pending")
		a.Stop()
		a.wait()
		b.advance(time.Second)
		want(t, "afterwards", b.state("web").State, "running")
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
		text := jobOf("service", `
			task "web" {
				driver       = "fake"
				kill_timeout = "20s"
				config { ignore_signals = true }
			}`)
		a := startAgent(t, parseJob(t, text), nil)
		a.advance(time.Second)
		next := place(parseJob(t, strings.Replace(text, "20s", "3s", 1)))
		next.AllocModifyIndex = 7
		a.Update(next)
		a.advance(0)
		want(t, "starts", a.starts("web"), "1")

		// An update of the allocation also applies to a recovered task.
		a.die()
		b := a.again(func(c *Config) { c.Alloc = next })
		b.advance(time.Second)
		last := place(parseJob(t, strings.Replace(text, "20s", "4s", 1)))
		last.AllocModifyIndex = 8
		b.Update(last)
		b.advance(0)
		b.Stop()
		b.wait()
		want(t, "stop", b.world.recordedCalls("StopTask"), `[+2s StopTask web timeout=4s signal=""]`)
	})
}

// Each case restores an allocation that has one state.
func TestRestore(t *testing.T) {
	t.Run("batch that has completed waits for its allocation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("batch", sleeper, `
				task "short" {
					driver = "fake"
					config { run_for = "1s" }
				}`)), 5*time.Second, nil, nil)
			short, _ := a.tasks.named("short")
			want(t, "over", isClosed(short.Done()), "false")
			a.Stop()
			a.wait()
			a.advance(time.Second) // time in which the records of the allocation's end are written
			a.die()
			b := a.again(nil)
			b.wait()
			short, _ = b.tasks.named("short")
			want(t, "rerun of a task that is over", short.Rerun(model.EventRestartSignal("x")), "false")
			if err := short.Restart(t.Context(), model.EventRestartSignal("x"), false); !errors.Is(err, ErrNotRunning) {
				t.Errorf("restart of a task that is over: %v", err)
			}
		})
	})
	t.Run("gates stand where they stood", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("service", prestartTask, sidecarTask, sleeper, `
				task "up" {
					driver = "fake"
					lifecycle { hook = "poststart" }
				}`)), 5*time.Second, nil, nil)
			want(t, "phase", a.restore.gates.coordinator.Phase(), "poststart")
			for stage, open := range map[lifecycle.Stage]bool{
				lifecycle.PrestartEphemeral: false, lifecycle.PrestartSidecar: true,
				lifecycle.MainTask: true, lifecycle.PoststartEphemeral: true,
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				want(t, fmt.Sprint("gate ", stage), a.restore.gates.coordinator.Gate(stage).Wait(ctx) == nil, fmt.Sprint(open))
				cancel()
			}
		})
	})
	t.Run("leader and follower of a restored group are stopped", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("service", sleeper, `
				task "lead" {
					driver = "fake"
					leader = true
				}`)), time.Second, nil, nil)
			a.Stop()
			a.wait()
			want(t, "alive", a.world.alive(), "[]")
			want(t, "status", a.last().ClientStatus, "complete")
		})
	})
	t.Run("environment of a hook that is done", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			env := &recordingHook{name: "env", prestartResponse: func(int) (hook.TaskPrestartResponse, error) {
				return hook.TaskPrestartResponse{Done: true, Env: map[string]string{"FROM_HOOK": "1"}}, nil
			}}
			a := startAgent(t, parseJob(t, jobOf("service", sleeper)), func(c *Config) {
				c.Hooks = extraHooks{task: []hooks.Hook{recordingTaskHook{env}}}
			})
			a.advance(time.Second)
			a.die()
			a.vanish("web")
			before := len(env.calls())
			b := a.again(nil)
			b.advance(time.Minute)
			want(t, "starts", b.starts("web"), "2")
			want(t, "env", b.world.config("web").Env["FROM_HOOK"], "1")
			for _, call := range env.calls()[before:] {
				if strings.Contains(call, "prestart") {
					t.Errorf("called again: %v", call)
				}
			}
		})
	})
	t.Run("the next agent knows what was attached", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			factory := &recordingFactory{extraHooks: extraHooks{
				alloc: []hooks.Hook{attachedHook{recordingAllocHook{&recordingHook{name: "whole"}}, `{"a": 1}`}},
				task:  []hooks.Hook{attachedHook{recordingTaskHook{&recordingHook{name: "quiet"}}, "{}"}, recordingTaskHook{&recordingHook{name: "builtin"}}},
			}}
			a := startAgent(t, parseJob(t, jobOf("service", sleeper)), func(c *Config) { c.Hooks = factory })
			want(t, "at first", factory.previousHooks, "map[: t:web:]")
			a.advance(time.Second)
			a.die()
			b := a.again(nil)
			want(t, "then", factory.previousHooks, `map[:map[whole:{"a": 1}] t:web:map[quiet:{}]]`)
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
			a := startAgent(t, parseJob(t, jobOf("service", sleeper)), func(c *Config) {
				c.Hooks = extraHooks{task: []hooks.Hook{recordingTaskHook{h}}}
			})
			a.advance(time.Second)
			a.die()
			b := a.again(nil)
			b.advance(time.Second)
			want(t, "request", []any{h.last.Running, h.last.PreviousState}, "[true map[n:1]]")
			want(t, "starts", b.starts("web"), "1")
			want(t, "events", b.events("web"), "[Received Task Setup Started Task hook failed]")
			want(t, "state", b.state("web").State, "running")
		})
	})
	t.Run("prerun fails on restore", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			failing := &recordingHook{name: "failing", errs: map[string]error{"prerun": errors.New("no")}}
			a := restarted(t, parseJob(t, jobOf("service", sleeper)), time.Second, nil, func(c *Config) {
				c.Hooks = extraHooks{alloc: []hooks.Hook{recordingAllocHook{failing}}}
			})
			a.wait()
			want(t, "status", a.last().ClientStatus, "failed")
			want(t, "alive", a.world.alive(), "[]")
			want(t, "events", a.events("web"), "[Received Task Setup Started Setup Failure Terminated]")
		})
	})
	t.Run("nobody is there to be asked on restore", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			away := &recordingHook{name: "away", errs: map[string]error{"prerun": fmt.Errorf("prerun: %w", &hooks.UnavailableError{Err: errors.New("nobody is there")})}}
			next := &recordingHook{name: "next"}
			withHooks := func(c *Config) {
				c.Hooks = extraHooks{alloc: []hooks.Hook{recordingAllocHook{away}, recordingAllocHook{next}}}
			}
			a := restarted(t, parseJob(t, jobOf("service", sleeper)), time.Second, nil, withHooks)
			a.advance(time.Minute)
			want(t, "starts", a.starts("web"), "1")
			want(t, "state", a.state("web").State, "running")
			want(t, "events", a.events("web"), "[Received Task Setup Started Task hook failed]")
			want(t, "next hook", next.calls(), "[prerun]")

			first := startAgent(t, parseJob(t, jobOf("service", sleeper)), withHooks)
			first.wait()
			want(t, "a task that does not run yet", first.events("web"), "[Received Setup Failure]")
		})
	})
	t.Run("deadline counts from the creation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("batch", `
				max_run_duration = "60s"`, sleeper, poststopTask)), 20*time.Second, nil, nil)
			a.wait()
			want(t, "end", time.Since(a.begin), "1m0s")
			want(t, "status", a.last().ClientDescription, model.MaxRunDurationExceeded)
			a.die()
			b := a.again(func(c *Config) {
				c.Alloc.ClientStatus, c.Alloc.ClientDescription = a.last().ClientStatus, a.last().ClientDescription
			})
			b.wait()
			want(t, "poststop", b.starts("after"), "0")
			want(t, "status", b.last().ClientDescription, model.MaxRunDurationExceeded)
		})
	})
	t.Run("the plugin dies with the agent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("service", sleeper)), time.Second, func(a *agent) { a.world.killPlugin() }, nil)
			a.advance(time.Second)
			want(t, "starts", a.starts("web"), "1")
			a.exit("web", driver.ExitResult{ExitCode: 5})
			a.advance(time.Minute)
			want(t, "events", a.events("web"), "[Received Task Setup Started Terminated Restarting Started]")
		})
	})
	t.Run("a restart that was asked for is finished, and is no failure", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := startAgent(t, parseJob(t, jobOf("service", `
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
			b := a.again(nil)
			b.advance(time.Minute)
			want(t, "events", b.events("web"), "[Received Task Setup Started Restart Signaled Terminated Restarting Started]")
			want(t, "state", []any{b.state("web").State, b.starts("web")}, "[running 2]")
		})
	})
	t.Run("a lost record starts no second process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := restarted(t, parseJob(t, jobOf("service", sleeper)), time.Second, func(a *agent) {
				a.store.unreadable = map[string]bool{"web": true}
				a.world.findsUnknownTasks = true
				a.world.killPlugin()
			}, nil)
			a.advance(time.Minute)
			want(t, "alive", len(a.world.alive()), "1")
			want(t, "events", a.events("web"), "[Received Task Setup Started Failed Restoring Task Restarting Task Setup Started]")
		})
	})
	t.Run("RS-071: without any record it is known what was reported, and the plugin searches", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var reported map[string]*api.TaskState
			a := restarted(t, parseJob(t, jobOf("service", sleeper)), time.Second, func(a *agent) {
				reported = a.last().TaskStates
				a.store = newFakeStore()
				a.die()
				a.world.findsUnknownTasks = true
			}, func(c *Config) {
				c.Alloc.ClientStatus, c.Alloc.TaskStates = api.AllocClientStatusRunning, reported
			})
			a.advance(time.Minute)
			want(t, "alive", len(a.world.alive()), "1")
			want(t, "starts", a.starts("web"), "2")
			want(t, "events", a.events("web"), "[Received Task Setup Started Failed Restoring Task Restarting Task Setup Started]")
		})
	})
}

// The agent is killed during the call of StartTask.
func TestStartThatTheAgentDidNotSee(t *testing.T) {
	for _, test := range []struct {
		name   string
		world  func(*world)
		alive  int
		events string
	}{
		{"the plugin has survived, and destroys it", func(*world) {}, 1, "[Received Task Setup Started]"},
		{"the next plugin looks for it", func(w *world) { w.findsUnknownTasks = true; w.killPlugin() }, 1, "[Received Task Setup Started]"},
		{"nobody can know", func(w *world) { w.forgetsTasks = true; w.killPlugin() }, 2, "[Received Task Setup Driver Started]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobOf("service", `
					task "web" {
						driver = "fake"
						config { start_for = "2s" }
					}`)), nil)
				a.advance(time.Second)
				// The driver completes the StartTask call, but its result is not stored.
				a.die()
				a.advance(2 * time.Second)
				if a.store.locals["web"].Handle != nil || a.store.locals["web"].StartID == "" || len(a.world.alive()) != 1 {
					t.Fatalf("record %+v, alive %v", a.store.locals["web"], a.world.alive())
				}
				test.world(a.world)
				b := a.again(nil)
				b.advance(5 * time.Second)
				want(t, "events", b.events("web"), test.events)
				want(t, "alive", len(b.world.alive()), fmt.Sprint(test.alive))
				for _, id := range b.world.alive() { // ends the processes that no agent could find
					b.exit(strings.Split(id, "/")[1], driver.ExitResult{})
				}
				b.Stop()
			})
		})
	}
}

// TestDeathAtEachStep kills the agent at each of its writes, with and without the plugin, and the next
// agent finishes the job. In every case, no task runs twice at the same time, no completed work is
// repeated, and each process gets one Terminated event.
func TestDeathAtEachStep(t *testing.T) {
	for _, delay := range []string{"3s", "0s"} {
		t.Run("delay "+delay, func(t *testing.T) { testDeathAtEachStep(t, delay) })
	}
}

func testDeathAtEachStep(t *testing.T, delay string) {
	text := jobOf("batch", prestartTask, `
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
			a := startAgent(t, j, func(c *Config) { c.Store.(*fakeStore).writesAsyncAtOnce = prompt })
			a.wait()
			moments[prompt] = a.store.writes
		})
	}
	t.Logf("%d writes in the life of three tasks with four starts, %d if none waits for another", moments[false], moments[true])
	if moments[false] < 10 || moments[true] < moments[false] {
		t.Fatal("that is not all")
	}
	for n := range 2 * moments[true] {
		n, pluginDies := n/2+1, n%2 == 1
		for prompt, total := range moments {
			if n == 1 || n > total { // at the first write, the agent has only recorded that the task was received
				continue
			}
			t.Run(fmt.Sprintf("write %d, prompt %v, plugin dies %v", n, prompt, pluginDies), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					a := startWithWriteLimit(t, j, n-1, func(c *Config) {
						c.Store.(*fakeStore).writesAsyncAtOnce = prompt
						w := c.Drivers.(*world)
						w.findsUnknownTasks = pluginDies // needed only after the plugin was killed: a plugin that continues to run knows each start by its id
						w.checkStart = func(task string, alive []string) string {
							if slices.Contains(alive, task) {
								return task + " runs twice"
							}
							return ""
						}
					})
					if !a.dies() {
						return
					}
					a.die()
					if pluginDies {
						a.world.killPlugin()
					}
					b := a.again(nil)
					b.wait()
					if len(b.world.violations) > 0 {
						t.Errorf("%v", b.world.violations)
					}
					want(t, "alive", b.world.alive(), "[]")
					for _, task := range []string{"init", "web", "after"} {
						s := b.state(task)
						want(t, task, []any{s.State, s.Failed}, "[dead false]")
						var started, ended int
						for _, e := range s.Events {
							switch e.Type {
							case api.TaskStarted:
								started++
							case api.TaskTerminated, model.TaskRestoreFailed:
								ended++
							}
						}
						if started != ended {
							t.Errorf("%s: %d starts and %d ends: %v", task, started, ended, b.events(task))
						}
					}
					want(t, "status", b.last().ClientStatus, "complete")
					// A task whose run was cut short may run once more; a task whose run was completed
					// must not.
					want(t, "done", b.world.successCounts, "map[after:1 init:1 web:1]")
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
		time.Sleep(time.Minute) // simulates that an agent has only reported the event Received and exited without writing a record
		h := start(t, parseJob(t, jobOf("service", sleeper)), func(c *Config) {
			c.Alloc.TaskStates = map[string]*api.TaskState{"web": received}
		})
		h.advance(time.Second)
		want(t, "events", h.events("web"), "[Received Task Setup Started]")
		if e := h.state("web").Events[0]; e.Time != received.Events[0].Time {
			t.Error("Received is told anew")
		}
	})
}

func TestDelayIsNotKeptPastAStart(t *testing.T) {
	tracker := restart.New(restart.Policy{Attempts: 3, Interval: time.Hour, Delay: time.Minute}, time.Now(), func(int64) int64 { return 0 })
	tracker.Next(time.Now(), restart.Outcome{})
	if tracker.RemainingDelay(time.Now()) == 0 {
		t.Fatal("no delay")
	}
	tracker.ClearDelay()
	if d := tracker.RemainingDelay(time.Now()); d != 0 {
		t.Errorf("%v remain", d)
	}
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
		if err := dirs[1].Inherit(dirs[0], []string{"web"}); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dirs[1].Path() + "/alloc/data/x"); err != nil {
			t.Error(err)
		}
	}
	// Files that exist in the new directory are not replaced.
	if err := os.MkdirAll(dirs[0].Path()+"/alloc/data/y", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := dirs[1].Inherit(dirs[0], nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dirs[1].Path() + "/alloc/data/x"); err != nil {
		t.Error(err)
	}
	gone, err := allocdir.New(root, "gone")
	if err != nil {
		t.Fatal(err)
	}
	if err := dirs[1].Inherit(gone, []string{"web"}); err != nil {
		t.Errorf("from a directory that is not there: %v", err)
	}
}

// The next agent finishes a restart that was requested before, with the same result, even if many
// events were added after the request.
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
				a := startAgent(t, parseJob(t, jobOf("service", noTry, `
					task "web" {
						driver         = "fake"
						shutdown_delay = "10s"
					}`)), nil)
				a.advance(time.Second)
				web, _ := a.tasks.named("web")
				go func() { _ = web.Restart(t.Context(), test.event, test.failure) }()
				a.advance(time.Second)
				for range 10 {
					web.EmitEvent(model.EventHookMessage("", "an event for people", nil))
				}
				a.advance(time.Second)
				want(t, "pending in the events", model.FindEventSinceStart(web.State(), api.TaskRestartSignal) != nil, "false")
				a.die()
				b := a.again(nil)
				b.advance(time.Minute)
				want(t, "web", []any{b.state("web").State, b.state("web").Restarts}, test.want)
			})
		})
	}
}

// A request for a restart applies to one process: it must not restart the next process.
func TestRestoreForgetsFinishedRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobOf("service", sleeper)), nil)
		a.advance(time.Second)
		if err := a.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		a.advance(time.Second)
		want(t, "starts", a.starts("web"), "2")
		a.die()
		b := a.again(nil)
		b.advance(time.Minute)
		want(t, "starts", b.starts("web"), "2")
	})
}

// A dead task for which a rerun was requested runs again exactly once, whichever write the agent dies
// at.
func TestRestoreRunsRequestedTaskAgain(t *testing.T) {
	text := jobOf("batch", sleeper, `
		task "short" {
			driver = "fake"
			config { run_for = "1s" }
		}`)
	request := func(a *agent) {
		short, _ := a.tasks.named("short")
		short.Rerun(model.EventRestartSignal(model.RestartAllReason))
	}
	for n := 1; ; n++ {
		done := false
		t.Run(fmt.Sprintf("write %d after the request", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, text), func(c *Config) { c.Store.(*fakeStore).writesAsyncAtOnce = true })
				a.advance(5 * time.Second)
				a.store.mu.Lock()
				a.store.limit = a.store.writes + n
				a.store.mu.Unlock()
				go request(a)
				select { // after the death the test must not sleep, because the new process would end
				case <-a.store.dead:
				case <-time.After(5 * time.Second):
				}
				if done = !isClosed(a.store.dead); done {
					a.store.mu.Lock()
					defer a.store.mu.Unlock()
					a.store.limit = 0
					return
				}
				a.die()
				b := a.again(nil)
				b.advance(time.Minute)
				want(t, "short", []any{b.state("short").State, b.world.successCounts["short"]}, "[dead 2]")
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

// The status may be forced while the tasks are being recovered. The race detector reports a read
// without the lock.
func TestRestoreReadsForcedStatusUnderLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobOf("service", sleeper)), nil)
		a.advance(time.Second)
		a.Stop()
		a.wait()
		a.die()
		c := a.config
		c.TaskRecords, c.Restored = a.store.cloneForNextAgent(), true
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		r.Stop()
		ctx, stop := context.WithCancel(t.Context())
		var forcing sync.WaitGroup
		forcing.Go(func() {
			for ctx.Err() == nil {
				r.status.force(statusOverride{api.AllocClientStatusComplete, model.MaxRunDurationExceeded})
			}
		})
		for range 200 {
			want(t, "restored", r.restore.run(t.Context()), "true")
		}
		stop()
		forcing.Wait()
	})
}

// recordingPluginHook is a hook in a plugin process. The process can be replaced by a new one.
type recordingPluginHook struct {
	hooks.Builtin
	mu           sync.Mutex
	calls        []string
	process      int
	exited       chan struct{}
	pluginExited <-chan struct{}
	poststart    time.Duration // how long a call of Poststart takes, unless its context is canceled
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
	p.calls = append(p.calls, fmt.Sprintf("poststart %d repeated=%t", p.process, req.Repeated))
	p.pluginExited = p.exited
	p.mu.Unlock()
	select {
	case <-time.After(p.poststart):
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

func (p *recordingPluginHook) PluginExited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pluginExited
}

func (p *recordingPluginHook) WaitPlugin(ctx context.Context) error {
	time.Sleep(time.Second)
	return ctx.Err()
}

// replace ends the plugin process and starts the next one.
func (p *recordingPluginHook) replace() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process++
	close(p.exited)
	p.exited = make(chan struct{})
}

// A hook gets Poststart for a running task once per plugin process and once per agent;
// all calls but the first have Repeated set.
func TestPoststartIsRepeatedForEachPluginProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(recordingPluginHook)
		a := startAgent(t, parseJob(t, jobOf("service", sleeper)), func(c *Config) {
			c.Hooks = extraHooks{task: []hooks.Hook{p}}
		})
		a.advance(time.Second)
		p.replace()
		a.advance(time.Minute)
		p.replace()
		a.advance(time.Minute)
		a.die()
		a.cancel(ErrShutdown)
		b := a.again(nil)
		b.advance(time.Minute)
		if err := b.RestartTask(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Second)
		want(t, "calls", strings.Join(p.calls, ", "), "poststart 0 repeated=false, poststart 1 repeated=true, poststart 2 repeated=true, "+
			"poststart 2 repeated=true, prekilling, exited, poststart 2 repeated=false")
	})
}

// After a task is killed or has exited, Poststart is not repeated, and no Poststart call runs when the
// hooks of the kill are called.
func TestPoststartIsNotRepeatedForAnEndingTask(t *testing.T) {
	for name, end := range map[string]func(*agent){
		"killed": func(a *agent) { a.Stop() },
		"exited": func(a *agent) { a.exit("web", driver.ExitResult{ExitCode: 1}) },
	} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, plugin back before: %t", name, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := new(recordingPluginHook)
					a := startAgent(t, parseJob(t, jobOf("batch", noTry, sleeper)), func(c *Config) {
						c.Hooks = extraHooks{task: []hooks.Hook{p}}
					})
					a.advance(time.Second)
					p.mu.Lock()
					p.poststart = time.Hour
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
					want(t, "calls", p.calls, append(calls, "exited"))
				})
			})
		}
	}
}

// A killed task does not count as successful, however many events were added since, and also under the
// next agent.
func TestKilledTaskHasNotSucceeded(t *testing.T) {
	for _, c := range []struct {
		name            string
		kill, nextAgent bool
		publish         string // expected number of starts of the task that waits for the success of another task
	}{
		{"not killed", false, false, "1"},
		{"killed", true, false, "0"},
		{"killed under an earlier agent", true, true, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startAgent(t, parseJob(t, jobOf("batch", `
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
				a.exit("web", driver.ExitResult{})
				a.advance(time.Second)
				web, _ := a.tasks.named("web")
				for range 10 {
					web.EmitEvent(model.EventHookMessage("", "an event for people", nil))
				}
				a.advance(time.Second)
				want(t, "killed in the events", model.FindEventSinceStart(web.State(), api.TaskKilled) != nil, "false")
				if c.nextAgent {
					a.die()
					a = a.again(nil)
					a.Stop()
				}
				a.advance(time.Second)
				a.exit("slow", driver.ExitResult{})
				a.advance(10 * time.Second)
				want(t, "starts of publish", a.starts("publish"), c.publish)
			})
		})
	}
}

// A kill during the start of a task applies to that start, and not to the next start.
func TestKillBelongsToAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobOf("batch", `
			task "web" {
				driver = "fake"
				config { start_for = "5s" }
			}`)), nil)
		a.advance(time.Second)
		web, _ := a.tasks.named("web")
		killed := func() bool { _, killed := web.Snapshot(); return killed }
		want(t, "before the kill", killed(), "false")
		web.Kill(model.EventKilling(time.Second))
		a.wait()
		want(t, "events", a.events("web"), "[Received Task Setup Killing Started Terminated Killed]")
		want(t, "after the kill", killed(), "true")
	})
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobOf("batch", shortRun)), nil)
		a.wait()
		web, _ := a.tasks.named("web")
		web.Kill(model.EventKilling(time.Second))
		_, killed := web.Snapshot()
		want(t, "a kill after the end", killed, "false")
	})
}

// An event with the once annotation is added once per task, through any number of
// agents and plugin processes, even when it is no longer among the last ten events.
func TestDriverEventOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, parseJob(t, jobOf("service", sleeper)), nil)
		a.advance(time.Second)
		send := func(message string) {
			if !a.TaskEvent(driver.TaskEvent{AllocID: testAllocID, TaskName: "web", Message: message,
				Annotations: map[string]string{driver.OnceAnnotation: "true"}}) {
				t.Error("the event is for another allocation")
			}
		}
		send("no limit")
		send("no limit")
		send("no network")
		want(t, "events", messages(a, "web"), "[no limit no network]")
		for _, e := range a.state("web").Events {
			if e.DisplayMessage == "no limit" {
				want(t, "details", e.Details, "map[]")
			}
		}
		a.advance(time.Second)
		a.die()
		a = a.again(nil)
		a.advance(time.Second)
		send("no limit")
		send("no space")
		want(t, "events under the next agent", messages(a, "web"), "[no limit no network no space]")
		web, _ := a.tasks.named("web")
		for range 10 {
			web.EmitEvent(model.EventHookMessage("", "an event for people", nil))
		}
		send("no limit")
		want(t, "events after ten others", messages(a, "web"), "[]")
	})
}
