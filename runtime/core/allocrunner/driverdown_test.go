package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
)

// unavailableDrivers is a world (a test's fake processes) with a driver that can be unavailable.
type unavailableDrivers struct {
	*fakeDrivers
	builtin bool

	mu            sync.Mutex
	unavailable   bool
	withoutPlugin bool // no plugin serves the driver
	changed       chan struct{}
}

func newUnavailableDrivers(w *fakeDrivers) *unavailableDrivers {
	return &unavailableDrivers{fakeDrivers: w, changed: make(chan struct{})}
}

var errBackOff = errors.New("exit status 2 (next try in 5s)")

// Driver implements Drivers. It returns an error during an outage.
func (u *unavailableDrivers) Driver(ctx context.Context, name string) (driver.Driver, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.withoutPlugin:
		return nil, &driver.UnavailableError{Err: errors.New("no such driver"), RetryOnClose: u.changed}
	case u.unavailable:
		return nil, &driver.UnavailableError{Plugin: `plugin "fake"`, TasksAreHostProcesses: u.builtin, Err: fmt.Errorf("plugin %q: %w", "fake", errBackOff), RetryOnClose: u.changed}
	}
	return u.fakeDrivers.Driver(ctx, name)
}

// set starts or ends an outage. An outage starts by killing the plugin.
func (u *unavailableDrivers) set(away bool) {
	u.mu.Lock()
	u.unavailable = away
	close(u.changed)
	u.changed = make(chan struct{})
	u.mu.Unlock()
	if away {
		u.fakeDrivers.killPlugin()
	}
}

// wakeWaiters makes all callers waiting for the driver retry.
func (u *unavailableDrivers) wakeWaiters() {
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.changed)
	u.changed = make(chan struct{})
}

// endTask implements taskdriver.EndTaskWithoutDriverFunc: it ends a task's fake processes without the driver.
func (u *unavailableDrivers) endTask(exit *driver.ExitResult) taskdriver.EndTaskWithoutDriverFunc {
	return func(_ context.Context, req taskdriver.EndTaskRequest) (result taskdriver.EndTaskResult, err error) {
		u.fakeDrivers.recordCall("EndTask %s builtin=%v", req.Task, req.TasksAreHostProcesses)
		u.fakeDrivers.mu.Lock()
		defer u.fakeDrivers.mu.Unlock()
		for id, t := range u.fakeDrivers.tasks {
			if strings.HasPrefix(id, req.AllocID+"/"+req.Task+"/") {
				result.FoundProcesses = result.FoundProcesses || !wait.IsClosed(t.exited)
				t.exit(driver.ExitResult{ExitCode: 137, Signal: 9})
				result.ExitResult = exit
			}
		}
		return result, nil
	}
}

// startWithUnavailableDriver starts an agent with a driver that can be unavailable.
func startWithUnavailableDriver(t *testing.T, text string, mangle func(*testConfig, *unavailableDrivers)) (*testAgent, *unavailableDrivers) {
	t.Helper()
	var o *unavailableDrivers
	a := startAgent(t, parseJob(t, text), func(c *testConfig) {
		o = newUnavailableDrivers(c.Drivers.(*fakeDrivers))
		c.Drivers = o
		if mangle != nil {
			mangle(c, o)
		}
	})
	t.Cleanup(func() { o.set(false) }) // before the agent ends
	return a, o
}

func eventMessages(a *testAgent, task string) (found []string) {
	for _, e := range a.taskState(task).Events {
		if e.Type == "Driver" {
			found = append(found, e.DisplayMessage)
		}
	}
	return found
}

// countDestroyCalls returns how often DestroyTask was called for a task.
func countDestroyCalls(a *testAgent, task string) (n int) {
	for _, call := range a.drivers.recordedCalls("DestroyTask") {
		if strings.HasSuffix(call, " "+task) {
			n++
		}
	}
	return n
}

const (
	driverUnavailableMessage = `driver unavailable, the task may still run: plugin "fake": exit status 2 (next try in 5s)`
	driverAvailableMessage   = "driver available again, the task was recovered"
)

func TestRunningTaskWaitsForItsDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithUnavailableDriver(t, jobTextFromParts("batch", `
			restart { attempts = 0 }`, endlessTaskText), nil)
		a.advance(time.Second)
		for range 2 {
			o.set(true)
			a.advance(time.Hour)
			o.wakeWaiters() // another launch has failed
			a.advance(time.Hour)
			wantEqual(t, "state", []any{a.taskState("web").State, a.lastUpdate().ClientStatus, len(a.drivers.aliveTasks())}, "[running running 1]")
			o.set(false)
			a.advance(time.Second)
		}
		wantEqual(t, "events", eventMessages(a, "web"), fmt.Sprint([]string{driverUnavailableMessage, driverAvailableMessage, driverUnavailableMessage, driverAvailableMessage}))
		wantEqual(t, "starts", a.startCount("web"), "1")

		o.set(true)
		a.advance(time.Minute)
		a.exitTask("web", driver.ExitResult{}) // the task ends while no driver can report it
		a.advance(time.Minute)
		wantEqual(t, "before the driver is back", a.taskState("web").State, "running")
		o.set(false)
		a.wait()
		wantEqual(t, "end", []any{a.taskState("web").State, a.taskState("web").Failed, a.lastUpdate().ClientStatus}, "[dead false complete]")
	})
}

func TestExitStatusUnknownOnlyWhenDriverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithUnavailableDriver(t, jobTextFromParts("batch", `
			restart { attempts = 0 }`, endlessTaskText, poststopTask), nil)
		a.advance(time.Second)
		o.set(true)
		a.advance(time.Minute)
		a.removeTaskProcess("web")
		a.advance(time.Minute)
		wantEqual(t, "while the driver is away", a.taskState("web").State, "running")
		o.set(false)
		a.wait()
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Driver Driver Not Restarting]")
		wantEqual(t, "end", eventMessages(a, "web")[1], "exit status unknown: recover task: nothing to recover")
		wantEqual(t, "poststop", []any{a.startCount("after"), a.lastUpdate().ClientStatus}, "[1 failed]")
	})
}

func TestStopIsPendingWhileTheDriverIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithUnavailableDriver(t, jobTextFromParts("service", endlessTaskText, poststopTask), func(c *testConfig, o *unavailableDrivers) {
			c.EndTaskWithoutDriver = o.endTask(nil)
		})
		a.advance(time.Second)
		o.set(true)
		a.advance(time.Second)
		a.Stop()
		a.advance(time.Hour)
		wantEqual(t, "alive", len(a.drivers.aliveTasks()), "1")
		wantEqual(t, "state", []any{a.taskState("web").State, a.lastUpdate().ClientStatus}, "[running running]")
		wantEqual(t, "event", eventMessages(a, "web")[1], `stop is pending, driver unavailable: plugin "fake": exit status 2 (next try in 5s);`+
			` the task may still run; "job stop -purge" ends the processes that its cgroup or environment identifies`)
		wantEqual(t, "ended by the agent", a.drivers.recordedCalls("EndTask"), "[]")
		o.set(false)
		a.wait()
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Driver Killing Driver Driver Terminated Killed]")
		wantEqual(t, "poststop", a.startCount("after"), "1")
		wantEqual(t, "status", a.lastUpdate().ClientStatus, "complete")
	})
}

func TestAgentEndsTasksOfBuiltinDriversAfterKillTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithUnavailableDriver(t, jobTextFromParts("service", endlessTaskText, poststopTask), func(c *testConfig, o *unavailableDrivers) {
			o.builtin = true
			c.EndTaskWithoutDriver = o.endTask(&driver.ExitResult{ExitCode: 137, Signal: 9})
		})
		a.advance(time.Second)
		o.set(true)
		a.advance(time.Second)
		a.Stop()
		a.advance(5*time.Second - time.Millisecond)
		wantEqual(t, "before kill_timeout", a.drivers.recordedCalls("EndTask"), "[]")
		a.advance(time.Second)
		wantEqual(t, "after kill_timeout", a.drivers.recordedCalls("EndTask"), "[+7s EndTask web builtin=true]")
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Driver Killing Driver Driver Terminated Killed]")
		o.set(false) // ends the outage, because the poststop task needs the driver
		a.wait()
		wantEqual(t, "status", []any{a.startCount("after"), a.lastUpdate().ClientStatus}, "[1 complete]")
		wantEqual(t, "destroyed by the driver", countDestroyCalls(a, "web"), "0")
	})
}

func TestPurgeEndsTasksWhoseDriverIsUnavailable(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("no plugin serves the driver: %v", gone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, o := startWithUnavailableDriver(t, jobTextFromParts("service", endlessTaskText), func(c *testConfig, o *unavailableDrivers) {
					c.EndTaskWithoutDriver = o.endTask(nil)
				})
				a.advance(time.Second)
				o.withoutPlugin = gone
				o.set(true)
				a.advance(time.Second)
				a.Stop()
				a.advance(time.Minute)
				wantEqual(t, "alive before the purge", len(a.drivers.aliveTasks()), "1")
				a.AllowTaskEndWithoutDriver()
				a.advance(time.Second)
				wantEqual(t, "alive", len(a.drivers.aliveTasks()), "0")
				wantEqual(t, "status", []any{a.taskState("web").State, a.lastUpdate().ClientStatus}, "[dead complete]")
				if all := strings.Join(eventMessages(a, "web"), "\n"); !strings.Contains(all, "exit status unknown") {
					t.Errorf("events: %s", all)
				}
				// A task with an unavailable driver is destroyed when the driver is back. If no plugin serves the
				// driver, the allocation ends without waiting.
				wantEqual(t, "allocation has ended", wait.IsClosed(a.Done()), fmt.Sprint(gone))
				o.withoutPlugin = false
				o.set(false)
				a.wait()
			})
		})
	}
}

func TestKillNowDoesNotWaitForTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithUnavailableDriver(t, jobTextFromParts("service", endlessTaskText), func(c *testConfig, o *unavailableDrivers) {
			c.EndTaskWithoutDriver = o.endTask(nil)
		})
		a.advance(time.Second)
		o.set(true)
		a.ForceKill()
		a.advance(time.Second)
		wantEqual(t, "alive", []any{len(a.drivers.aliveTasks()), wait.IsClosed(a.Done())}, "[0 true]")
	})
}

func TestShutdownLeavesTasksWhoseDriverIsUnavailable(t *testing.T) {
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprintf("stop is pending: %v", stop), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, o := startWithUnavailableDriver(t, jobTextFromParts("batch", `
					restart { attempts = 0 }`, endlessTaskText), func(c *testConfig, o *unavailableDrivers) { c.EndTaskWithoutDriver = o.endTask(nil) })
				a.advance(time.Second)
				o.set(true)
				a.advance(time.Second)
				if stop {
					a.Stop()
					a.advance(time.Second)
				}
				a.cancel(ErrShutdown)
				a.wait()
				wantEqual(t, "needed", a.PluginsNeededAfterShutdown(), `[{driver fake}]`)
				a.die()

				b := a.startNextAgent(func(c *testConfig) {
					if stop {
						c.Alloc.DesiredStatus = "stop"
					}
				})
				b.advance(time.Hour)
				wantEqual(t, "next agent", []any{b.taskState("web").State, b.startCount("web"), len(b.drivers.aliveTasks())}, "[running 1 1]")
				o.set(false)
				b.advance(time.Minute)
				if stop {
					wantEqual(t, "stopped", []any{b.lastUpdate().ClientStatus, len(b.drivers.aliveTasks())}, "[complete 0]")
					return
				}
				wantEqual(t, "recovered", []any{b.taskState("web").State, b.startCount("web"), len(b.drivers.aliveTasks())}, "[running 1 1]")
				b.exitTask("web", driver.ExitResult{})
				b.wait()
				wantEqual(t, "end", b.lastUpdate().ClientStatus, "complete")
			})
		})
	}
}

func TestRestoreWaitsForTheDriver(t *testing.T) {
	for _, test := range []struct {
		name string
		gone bool
	}{{"its plugin cannot be launched", false}, {"no plugin serves it", true}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, o := startWithUnavailableDriver(t, jobTextFromParts("service", endlessTaskText, sidecarTask), nil)
				a.advance(time.Second)
				a.die()
				o.withoutPlugin = test.gone
				o.set(true)
				b := a.startNextAgent(nil)
				b.advance(time.Hour)
				wantEqual(t, "waiting", []any{b.taskState("web").State, b.lastUpdate().ClientStatus, b.startCount("web")}, "[running running 1]")
				wantEqual(t, "events", b.taskEventTypes("web"), "[Received Task Setup Started Driver]")
				started, _ := b.logs.snapshot()
				wantEqual(t, "output is collected", len(started), "2")
				o.withoutPlugin = false
				o.set(false)
				b.advance(time.Second)
				wantEqual(t, "starts", []int{b.startCount("web"), b.startCount("side")}, "[1 1]")
				wantEqual(t, "events", b.taskEventTypes("web"), "[Received Task Setup Started Driver Driver]")
				b.exitTask("web", driver.ExitResult{ExitCode: 3})
				b.advance(time.Minute)
				wantEqual(t, "watched again", []any{b.startCount("web"), b.taskState("web").Restarts}, "[2 1]")
			})
		})
	}
}

// recoveredTasks returns the tasks passed to RecoverTask.
func recoveredTasks(a *testAgent) (tasks []string) {
	for _, c := range a.drivers.recordedCalls("RecoverTask") {
		tasks = append(tasks, c[strings.LastIndex(c, " ")+1:])
	}
	return tasks
}

// slowStartingDrivers is a world with a second driver. Its plugin starts when started is closed.
type slowStartingDrivers struct {
	*fakeDrivers
	pluginStarted chan struct{}
}

// Driver implements Drivers.
func (d slowStartingDrivers) Driver(ctx context.Context, name string) (driver.Driver, error) {
	if name == "slow" {
		select {
		case <-d.pluginStarted:
		case <-ctx.Done():
			return nil, fmt.Errorf("driver slow is still being started: %w", context.Cause(ctx))
		}
	}
	return d.fakeDrivers.Driver(ctx, "fake")
}

// A starting plugin does not delay recovery for other drivers' tasks. Its own driver's tasks are recovered when it has
// started.
func TestStartingPluginDoesNotDelayOtherTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := slowStartingDrivers{pluginStarted: make(chan struct{})}
		close(slow.pluginStarted)
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText, strings.Replace(sidecarTask, "fake", "slow", 1))), func(c *testConfig) {
			slow.fakeDrivers = c.Drivers.(*fakeDrivers)
			c.Drivers = slow
		})
		a.advance(time.Second)
		wantEqual(t, "before", []any{a.taskState("web").State, a.taskState("side").State}, "[running running]")
		a.die()
		slow.pluginStarted = make(chan struct{})
		b := a.startNextAgent(func(c *testConfig) { c.Drivers = slow })
		synctest.Wait()
		wantEqual(t, "recovered at once", recoveredTasks(b), "[web]")

		b.advance(3 * time.Second)
		if err := b.Signal(t.Context(), "web", "SIGHUP"); err != nil {
			t.Error(err)
		}
		b.exitTask("web", driver.ExitResult{ExitCode: 3})
		b.advance(time.Minute)
		wantEqual(t, "watched", []any{b.startCount("web"), b.taskState("web").Restarts}, "[2 1]")
		wantEqual(t, "recovered", recoveredTasks(b), "[web]")
		wantEqual(t, "side", b.taskState("side").State, "running")

		close(slow.pluginStarted)
		b.advance(time.Second)
		wantEqual(t, "recovered", recoveredTasks(b), "[web side]")
		wantEqual(t, "events", b.taskEventTypes("side"), "[Received Task Setup Started]")
		b.exitTask("side", driver.ExitResult{})
		b.advance(time.Minute)
		wantEqual(t, "starts", []int{b.startCount("web"), b.startCount("side")}, "[2 2]")
	})
}

// A start with an unavailable driver does not count as an attempt in the restart policy.
func TestStartWaitsForUnavailableDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeDrivers()
		o := newUnavailableDrivers(w)
		o.unavailable = true
		a := startAgent(t, parseJob(t, jobTextFromParts("batch", `
			restart {
				attempts = 0
				mode     = "fail"
			}`, endlessTaskText)), func(c *testConfig) { c.Drivers = o })
		a.drivers = w
		a.advance(time.Hour)
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Driver]")
		wantEqual(t, "message", eventMessages(a, "web"), `[waiting for the driver's plugin: plugin "fake": exit status 2 (next try in 5s)]`)
		wantEqual(t, "state", a.taskState("web").State, "pending")
		o.wakeWaiters()
		a.advance(time.Second)
		o.set(false)
		a.advance(time.Second)
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Driver Task Setup Started]")
	})
}

// A kill ends the wait for the driver.
func TestStopOfTaskThatWaitsForDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeDrivers()
		o := newUnavailableDrivers(w)
		o.unavailable = true
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) { c.Drivers = o })
		a.drivers = w
		a.advance(time.Minute)
		a.Stop()
		a.advance(time.Second)
		wantEqual(t, "ended", []any{wait.IsClosed(a.Done()), a.lastUpdate().ClientStatus, a.startCount("web")}, "[true complete 0]")
	})
}

// A builtin driver's task exit is reported during the driver's outage, which may last two minutes.
func TestExitDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithUnavailableDriver(t, jobTextFromParts("batch", `
			restart {
				attempts = 0
				mode     = "fail"
			}`, endlessTaskText), func(c *testConfig, o *unavailableDrivers) {
			o.builtin = true
			c.EndTaskWithoutDriver = o.endTask(nil)
			c.AwaitExitWithoutDriver = func(ctx context.Context, name string, h *driver.Handle) (*driver.ExitResult, error) {
				o.fakeDrivers.mu.Lock()
				task := o.fakeDrivers.tasks[h.Config.ID]
				o.fakeDrivers.mu.Unlock()
				select {
				case <-task.exited:
					return &task.result, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		})
		a.advance(time.Second)
		o.set(true)
		a.advance(time.Minute)
		o.wakeWaiters()
		a.advance(time.Second)
		wantEqual(t, "state during the outage", a.taskState("web").State, "running")
		a.exitTask("web", driver.ExitResult{ExitCode: 3})
		a.advance(time.Second)
		wantEqual(t, "state", []any{a.taskState("web").State, a.taskState("web").Failed}, "[dead true]")
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Driver Terminated Not Restarting]")
		wantEqual(t, "exit code", a.taskState("web").Events[4].ExitCode, "3")
		wantEqual(t, "destroyed without the driver", a.drivers.recordedCalls("EndTask"), "[+1m2s EndTask web builtin=true]")
	})
}

// failingDestroyDrivers is a driver for which DestroyTask fails for a while.
type failingDestroyDrivers struct {
	*unavailableDrivers
	remainingFailures int           // how many DestroyTask calls fail; -1 for all
	duration          time.Duration // how long a DestroyTask call takes
}

type failingDestroyPlugin struct {
	driver.Driver
	f *failingDestroyDrivers
}

func (f *failingDestroyDrivers) Driver(ctx context.Context, name string) (driver.Driver, error) {
	d, err := f.unavailableDrivers.Driver(ctx, name)
	if err != nil {
		return nil, err
	}
	return failingDestroyPlugin{d, f}, nil
}

func (p failingDestroyPlugin) DestroyTask(ctx context.Context, id string, force bool) error {
	p.f.mu.Lock()
	fails := p.f.remainingFailures != 0
	if p.f.remainingFailures > 0 {
		p.f.remainingFailures--
	}
	duration := p.f.duration
	p.f.mu.Unlock()
	select {
	case <-time.After(duration):
	case <-ctx.Done():
		return ctx.Err()
	}
	if fails {
		return errors.New("device is busy")
	}
	return p.Driver.DestroyTask(ctx, id, force)
}

// setDuration sets how long the next DestroyTask calls take.
func (f *failingDestroyDrivers) setDuration(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.duration = d
}

func startWithFailingDestroys(t *testing.T, fail int, text string) (*testAgent, *failingDestroyDrivers) {
	t.Helper()
	f := &failingDestroyDrivers{remainingFailures: fail}
	a := startAgent(t, parseJob(t, text), func(c *testConfig) {
		f.unavailableDrivers = newUnavailableDrivers(c.Drivers.(*fakeDrivers))
		c.Drivers = f
	})
	t.Cleanup(func() {
		f.mu.Lock()
		f.remainingFailures = 0
		f.mu.Unlock()
	})
	return a, f
}

func TestDestroyIsPendingUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := startWithFailingDestroys(t, -1, jobTextFromParts("batch", `task "web" {
			driver = "fake"
			config { run_for = "1s" }
		}`, poststopTask))
		a.advance(time.Hour)
		wantEqual(t, "status", []any{a.lastUpdate().ClientStatus, wait.IsClosed(a.Done())}, "[complete false]")
		wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Terminated Driver]")
		wantEqual(t, "text", eventMessages(a, "web"), "[destroying the task is pending: device is busy]")
		_, stopped := a.logs.snapshot()
		wantEqual(t, "log collection ended", stopped["web"], "0")
		a.die()

		b := a.startNextAgent(func(c *testConfig) { c.Alloc.ClientStatus = "complete" })
		b.advance(time.Hour)
		wantEqual(t, "next agent", []any{wait.IsClosed(b.Done()), countDestroyCalls(b, "web")}, "[false 0]")
		f.mu.Lock()
		f.remainingFailures = 0
		f.mu.Unlock()
		b.wait()
		wantEqual(t, "destroyed", []any{countDestroyCalls(b, "web"), len(b.drivers.tasks)}, "[1 0]")
		_, stopped = b.logs.snapshot()
		wantEqual(t, "log collection ended", stopped["web"], "1")
	})
}

// A driver that destroys a whole node's tasks at the same time needs longer than for one task.
func TestSlowDestroyIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := startWithFailingDestroys(t, 0, jobTextFromParts("batch", `
			restart {
				attempts = 0
				mode     = "fail"
			}
			task "web" {
				driver = "fake"
				config { run_for = "1s" }
			}`))
		f.setDuration(40 * time.Second)
		a.advance(42 * time.Second)
		wantEqual(t, "messages", eventMessages(a, "web"), "[]")
		wantEqual(t, "destroyed", a.drivers.recordedCalls("DestroyTask"), "[+41s DestroyTask web]")
	})
}

// Between process exit and the state dead, a task can neither be restarted nor rerun. Restarting all tasks then waits
// for the state: otherwise the task would stay dead, and the others would wait for it.
func TestRestartAllFindsTaskThatWasEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := startWithFailingDestroys(t, 0, jobTextFromParts("service", `
			task "first" {
				driver = "fake"
				lifecycle { hook = "prestart" }
				config { run_for = "1s" }
			}`, endlessTaskText))
		f.setDuration(2 * time.Second)
		a.advance(2 * time.Second) // DestroyTask was called for the first task, and has not returned
		if err := a.RestartAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "time of the restart", time.Since(a.startTime), "3s")
		a.advance(time.Minute)
		wantEqual(t, "first", []any{a.taskState("first").State, a.taskState("first").Restarts}, "[dead 1]")
		wantEqual(t, "web", []any{a.taskState("web").State, a.taskState("web").Restarts}, "[running 0]")
	})
}

// If RecoverTask fails with an error other than driver.ErrTaskNotFound, the task is neither given up nor started again.
// This holds with and without an agent restart.
func TestInconclusiveRecoveryKeepsTask(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("the agent starts again: %v", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, _ := startWithUnavailableDriver(t, jobTextFromParts("service", endlessTaskText), nil)
				a.advance(time.Second)
				undecided := func(yes bool) {
					a.drivers.mu.Lock()
					defer a.drivers.mu.Unlock()
					a.drivers.recoveryInconclusive = yes
				}
				undecided(true)
				if restart {
					a.die()
					a.drivers.killPlugin()
					a = a.startNextAgent(nil)
				} else {
					a.drivers.killPlugin()
				}
				a.advance(time.Hour)
				wantEqual(t, "meanwhile", []any{a.taskState("web").State, a.startCount("web"), len(a.drivers.aliveTasks())}, "[running 1 1]")
				wantEqual(t, "events", a.taskEventTypes("web"), "[Received Task Setup Started Driver]")
				wantEqual(t, "event", eventMessages(a, "web"), "[driver unavailable, the task may still run: recover task: too many open files]")
				undecided(false)
				a.advance(time.Minute)
				wantEqual(t, "recovered", []any{a.taskState("web").State, a.startCount("web")}, "[running 1]")
				a.Stop()
				a.wait()
				wantEqual(t, "end", []any{a.lastUpdate().ClientStatus, len(a.drivers.aliveTasks()), countDestroyCalls(a, "web")}, "[complete 0 1]")
			})
		})
	}
}

// If RecoverTask fails with an error other than driver.ErrTaskNotFound, a pending DestroyTask call is not given up.
func TestInconclusiveRecoveryKeepsTheDestroyPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := startWithFailingDestroys(t, -1, jobTextFromParts("batch", `task "web" {
			driver = "fake"
			config { run_for = "1s" }
		}`))
		a.advance(1500 * time.Millisecond)
		wantEqual(t, "the destroy has failed", eventMessages(a, "web"), "[destroying the task is pending: device is busy]")
		setUndecided := func(yes bool) {
			a.drivers.mu.Lock()
			defer a.drivers.mu.Unlock()
			a.drivers.recoveryInconclusive = yes
		}
		setUndecided(true)
		f.fakeDrivers.killPlugin()
		f.mu.Lock()
		f.remainingFailures = 0
		f.mu.Unlock()
		a.advance(time.Hour)
		wantEqual(t, "meanwhile", []any{wait.IsClosed(a.Done()), countDestroyCalls(a, "web"), len(a.drivers.tasks)}, "[false 0 1]")
		setUndecided(false)
		a.wait()
		wantEqual(t, "destroyed", []any{countDestroyCalls(a, "web"), len(a.drivers.tasks)}, "[1 0]")
	})
}

func TestNextStartWaitsForThePendingDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := startWithFailingDestroys(t, 2, jobTextFromParts("service", `
			restart {
				attempts = 5
				delay    = "30s"
				mode     = "fail"
			}`, `task "web" {
			driver = "fake"
			config {
				run_for    = "1s"
				once       = true
				exit_codes = [1]
			}
		}`))
		a.drivers.mu.Lock()
		a.drivers.checkStart = func(string, []string) string {
			if len(a.drivers.tasks) > 0 {
				return "the start before is not destroyed"
			}
			return ""
		}
		a.drivers.mu.Unlock()
		a.advance(2 * time.Minute)
		wantEqual(t, "wrong", a.drivers.violations, "[]")
		wantEqual(t, "state", []any{a.taskState("web").State, a.startCount("web")}, "[running 2]")
	})
}

// crashingDrivers is a world with a plugin that exits whenever the task "bad" is started.
type crashingDrivers struct {
	*unavailableDrivers
	crashTimes []time.Time
	callOrder  []string // StartTask calls and successful RecoverTask calls, in call order
}

type crashingPlugin struct {
	*fakePlugin
	d *crashingDrivers
}

func (d *crashingDrivers) Driver(ctx context.Context, name string) (driver.Driver, error) {
	inner, err := d.unavailableDrivers.Driver(ctx, name)
	if err != nil {
		return nil, err
	}
	return crashingPlugin{inner.(*fakePlugin), d}, nil
}

func (p crashingPlugin) recordCall(format string, args ...any) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.callOrder = append(p.d.callOrder, fmt.Sprintf(format, args...))
}

func (p crashingPlugin) RecoverTask(ctx context.Context, h *driver.Handle) error {
	if h.Config.Name != "bad" {
		time.Sleep(1500 * time.Millisecond) // longer than the pause before "bad" is started again
	}
	err := p.fakePlugin.RecoverTask(ctx, h)
	if err == nil {
		p.recordCall("recover %s", h.Config.Name)
	}
	return err
}

func (p crashingPlugin) StartTask(ctx context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	if c.Name != "bad" {
		return p.fakePlugin.StartTask(ctx, c)
	}
	p.recordCall("start bad")
	p.d.mu.Lock()
	p.d.crashTimes = append(p.d.crashTimes, time.Now())
	p.d.mu.Unlock()
	p.drivers.killPlugin()
	return nil, nil, driver.ErrPluginDown
}

func TestStartThatKillsThePluginComesAfterTheRecoveryOfRunningTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &crashingDrivers{}
		recovery := taskdriver.NewRecoveryTracker()
		good := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText, sidecarTask)), func(c *testConfig) {
			c.Drivers.(*fakeDrivers).findsUnknownTasks = true
			d.unavailableDrivers = newUnavailableDrivers(c.Drivers.(*fakeDrivers))
			c.Drivers, c.RecoveryTracker = d, recovery
		})
		good.advance(time.Second)
		bad := startHarness(t, parseJob(t, jobTextFromParts("batch", `
			restart {
				attempts = 2
				delay    = "0s"
				mode     = "fail"
			}`, `task "bad" { driver = "fake" }`)), func(c *testConfig) {
			c.Drivers, c.RecoveryTracker = d, recovery
			other := *c.Alloc
			other.ID = "99999999-2222-3333-4444-555555555555"
			c.Alloc = &other
		})
		bad.wait()
		wantEqual(t, "bad", bad.taskEventTypes("bad"), "[Received Task Setup Driver Failure Restarting Driver Failure Restarting Driver Failure Not Restarting]")
		for _, task := range []string{"web", "side"} {
			wantEqual(t, task, []any{good.taskState(task).State, good.startCount(task), good.taskEventTypes(task)}, "[running 1 [Received Task Setup Started]]")
		}
		for i, call := range d.callOrder {
			if i > 0 && call == "start bad" && d.callOrder[i-1] == "start bad" {
				t.Errorf("a start was repeated before the running tasks were recovered: %v", d.callOrder)
			}
		}
		for i := 2; i < len(d.crashTimes); i++ {
			if before, pause := d.crashTimes[i-1].Sub(d.crashTimes[i-2]), d.crashTimes[i].Sub(d.crashTimes[i-1]); pause < min(before+1, time.Minute) {
				t.Errorf("start %d was repeated after %v, the one before after %v", i, pause, before)
			}
		}
	})
}

// lazyDrivers are drivers for which the first StopTask call succeeds and stops nothing.
type lazyDrivers struct {
	*unavailableDrivers
	stopCount int
}

type lazyPlugin struct {
	driver.Driver
	drivers *lazyDrivers
}

func (l *lazyDrivers) Driver(ctx context.Context, name string) (driver.Driver, error) {
	d, err := l.unavailableDrivers.Driver(ctx, name)
	if err != nil {
		return nil, err
	}
	return lazyPlugin{d, l}, nil
}

func (p lazyPlugin) StopTask(ctx context.Context, id string, timeout time.Duration, signal string) error {
	if p.drivers.stopCount++; p.drivers.stopCount == 1 {
		return nil
	}
	return p.Driver.StopTask(ctx, id, timeout, signal)
}

// If the plugin dies before the process has exited, the stop is repeated when the driver is available again, and not
// only when the exit report is overdue.
func TestStopIsRepeatedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lazy *lazyDrivers
		a := startAgent(t, parseJob(t, jobTextFromParts("service", endlessTaskText)), func(c *testConfig) {
			lazy = &lazyDrivers{unavailableDrivers: newUnavailableDrivers(c.Drivers.(*fakeDrivers))}
			c.Drivers = lazy
		})
		a.advance(time.Second)
		a.Stop()
		a.advance(time.Second)
		lazy.set(true)
		a.advance(time.Second)
		lazy.set(false)
		a.wait()
		// The outage's end may be noticed twice, which repeats the call once more.
		if lazy.stopCount < 2 {
			t.Errorf("%d stops", lazy.stopCount)
		}
		wantEqual(t, "took", time.Since(a.startTime), "3s")
	})
}

// An older agent's records, which lack driver capabilities, can be read.
func TestRestoreReadsRecordsWithoutCapabilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithUnavailableDriver(t, jobTextFromParts("service", endlessTaskText), nil)
		a.advance(time.Second)
		a.die()
		local := a.store.fieldsByTask["web"]
		a.store.fieldsByTask["web"] = record.Fields{HookStateByName: local.HookStateByName, StartID: local.StartID, Handle: local.Handle, RestartState: restart.State{}}
		o.set(true)
		b := a.startNextAgent(nil)
		b.advance(time.Minute)
		wantEqual(t, "waiting", b.taskState("web").State, "running")
		o.set(false)
		b.advance(time.Minute)
		wantEqual(t, "state", []any{b.taskState("web").State, b.startCount("web")}, "[running 1]")
	})
}

// The log collector reads a task's output as long as a process may be alive. After the driver has confirmed DestroyTask,
// that start has no live process.
func TestCollectionEndsWhenTheTaskIsDestroyed(t *testing.T) {
	for _, c := range []struct {
		name  string
		task  string
		act   func(a *testAgent, o *unavailableDrivers)
		ended bool
	}{
		{"exit status unknown, then destroyed", `run_for = "1s"
			exit_error = "no status"`, func(*testAgent, *unavailableDrivers) {}, true},
		{"destroyed and started again", `run_for = "1s"
			once = true
			exit_error = "no status"`, func(a *testAgent, _ *unavailableDrivers) {
			a.advance(time.Minute)
			wantEqual(a.t, "starts", a.startCount("web"), "2")
		}, true},
		{"no plugin knows the first of two starts", `unrecovered = true`, func(a *testAgent, _ *unavailableDrivers) {
			a.drivers.killPlugin()
			a.advance(time.Minute)
			wantEqual(a.t, "starts", a.startCount("web"), "2")
			a.exitTask("web", driver.ExitResult{})
		}, false},
		{"the agent has ended the task of a builtin driver", ``, func(a *testAgent, o *unavailableDrivers) {
			o.set(true)
			a.advance(time.Second)
			a.Stop()
			a.advance(time.Minute)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, o := startWithUnavailableDriver(t, jobTextFromParts("batch", `
					restart {
						attempts = 1
						delay    = "5s"
						mode     = "fail"
					}`, `task "web" {
					driver = "fake"
					config {
						`+c.task+`
					}
				}`), func(c *testConfig, o *unavailableDrivers) {
					o.builtin, c.EndTaskWithoutDriver = true, o.endTask(nil)
				})
				a.advance(time.Second)
				c.act(a, o)
				a.advance(time.Minute)
				a.Stop()
				a.wait()
				a.logs.mu.Lock()
				defer a.logs.mu.Unlock()
				wantEqual(t, "the collection was told that no process is left", a.logs.endedTasks["web"], fmt.Sprint(c.ended))
			})
		})
	}
}

const runOnceText = `
	restart {
		attempts = 0
		mode     = "fail"
	}`

// A driver in its back-off holds back an allocation with a network as it holds back one without: nothing fails.
func TestNetworkHookWaitsForDriverInBackOff(t *testing.T) {
	for name, networkText := range map[string]string{"without a network": "", "with a network": bridgeNetworkText} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var drivers *unavailableDrivers
				a := startAgent(t, parseJob(t, jobTextFromParts("batch", networkText+runOnceText, endlessTaskText)), func(c *testConfig) {
					fakes := c.Drivers.(*fakeDrivers)
					fakes.capabilities = driver.Capabilities{NetworkIsolationModes: []driver.NetworkMode{driver.NetworkGroup}}
					drivers = newUnavailableDrivers(fakes)
					drivers.unavailable = true
					c.Drivers = drivers
					c.NetworkManager = network.New(&networkRecords{}, drivers, &fakeHostNetworks{}, nullLogger)
				})
				a.advance(3 * time.Minute)
				if status := a.lastUpdate().ClientStatus; status != api.AllocClientStatusPending {
					t.Errorf("%s during the back-off:\n%s", status, a.transcript())
				}
				drivers.set(false)
				a.advance(time.Second)
				if status := a.lastUpdate().ClientStatus; status != api.AllocClientStatusRunning {
					t.Errorf("%s after the back-off:\n%s", status, a.transcript())
				}
			})
		})
	}
}

// driversDyingOnce are drivers with a plugin that dies in the next TaskConfigSchema call if dies is set, and is then in
// its back-off.
type driversDyingOnce struct {
	*unavailableDrivers
	dies bool
}

type dyingDriver struct {
	driver.Driver
	drivers *driversDyingOnce
}

func (d *driversDyingOnce) Driver(ctx context.Context, name string) (driver.Driver, error) {
	inner, err := d.unavailableDrivers.Driver(ctx, name)
	if err != nil {
		return nil, err
	}
	return dyingDriver{inner, d}, nil
}

func (d dyingDriver) TaskConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	if d.drivers.dies {
		d.drivers.dies = false
		d.drivers.set(true)
		return nil, driver.ErrPluginDown
	}
	return d.Driver.TaskConfigSchema(ctx)
}

// The plugin dies between the outage's end and the request for its driver description.
func TestStartWaitsForPluginThatDiesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drivers := &driversDyingOnce{}
		a := startAgent(t, parseJob(t, jobTextFromParts("batch", runOnceText, endlessTaskText)), func(c *testConfig) {
			drivers.unavailableDrivers = newUnavailableDrivers(c.Drivers.(*fakeDrivers))
			drivers.unavailable = true
			c.Drivers = drivers
		})
		a.advance(3 * time.Second)
		drivers.dies = true
		drivers.set(false)
		a.advance(3 * time.Second)
		drivers.set(false)
		a.advance(time.Second)
		if status := a.lastUpdate().ClientStatus; status != api.AllocClientStatusRunning {
			t.Errorf("%s:\n%s", status, a.transcript())
		}
	})
}
