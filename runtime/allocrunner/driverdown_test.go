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

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/restart"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// outages is a world (the fake processes of a test) whose driver can be unavailable.
type outages struct {
	*world
	builtin bool

	mu          sync.Mutex
	unavailable bool
	notServed   bool // no plugin serves the driver
	changed     chan struct{}
}

func newOutages(w *world) *outages { return &outages{world: w, changed: make(chan struct{})} }

var errBackOff = errors.New("exit status 2 (next try in 5s)")

// Driver implements Drivers. It returns an error during an outage.
func (o *outages) Driver(ctx context.Context, name string) (driver.Driver, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.notServed:
		return nil, &driver.UnavailableError{Err: errors.New("no such driver"), Changed: o.changed}
	case o.unavailable:
		return nil, &driver.UnavailableError{Plugin: `plugin "fake"`, Builtin: o.builtin, Err: fmt.Errorf("plugin %q: %w", "fake", errBackOff), Changed: o.changed}
	}
	return o.world.Driver(ctx, name)
}

// set starts or ends an outage. The start of an outage kills the plugin.
func (o *outages) set(away bool) {
	o.mu.Lock()
	o.unavailable = away
	close(o.changed)
	o.changed = make(chan struct{})
	o.mu.Unlock()
	if away {
		o.world.killPlugin()
	}
}

// wakeWaiters makes all callers that wait for the driver retry.
func (o *outages) wakeWaiters() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
}

// endTask implements taskrunner.EndTask: it ends the fake processes of a task without the driver.
func (o *outages) endTask(exit *driver.ExitResult) taskrunner.EndTask {
	return func(_ context.Context, req taskrunner.EndRequest) (result taskrunner.EndResult, err error) {
		o.world.recordCall("EndTask %s builtin=%v", req.Task, req.Builtin)
		o.world.mu.Lock()
		defer o.world.mu.Unlock()
		for id, t := range o.world.tasks {
			if strings.HasPrefix(id, req.AllocID+"/"+req.Task+"/") {
				result.Found = result.Found || !isClosed(t.exited)
				t.exit(driver.ExitResult{ExitCode: 137, Signal: 9})
				result.Exit = exit
			}
		}
		return result, nil
	}
}

// startWithOutages starts an agent whose driver can be unavailable.
func startWithOutages(t *testing.T, text string, mangle func(*Config, *outages)) (*agent, *outages) {
	t.Helper()
	var o *outages
	a := startAgent(t, parseJob(t, text), func(c *Config) {
		o = newOutages(c.Drivers.(*world))
		c.Drivers = o
		if mangle != nil {
			mangle(c, o)
		}
	})
	t.Cleanup(func() { o.set(false) }) // before the agent ends
	return a, o
}

func messages(a *agent, task string) (found []string) {
	for _, e := range a.state(task).Events {
		if e.Type == "Driver" {
			found = append(found, e.DisplayMessage)
		}
	}
	return found
}

// destroys returns the number of DestroyTask calls for a task.
func destroys(a *agent, task string) (n int) {
	for _, call := range a.world.recordedCalls("DestroyTask") {
		if strings.HasSuffix(call, " "+task) {
			n++
		}
	}
	return n
}

const (
	awayEvent = `driver unavailable, the task may still run: plugin "fake": exit status 2 (next try in 5s)`
	backEvent = "driver available again, the task was recovered"
)

func TestRunningTaskWaitsForItsDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithOutages(t, jobOf("batch", `
			restart { attempts = 0 }`, sleeper), nil)
		a.advance(time.Second)
		for range 2 {
			o.set(true)
			a.advance(time.Hour)
			o.wakeWaiters() // another launch has failed
			a.advance(time.Hour)
			want(t, "state", []any{a.state("web").State, a.last().ClientStatus, len(a.world.alive())}, "[running running 1]")
			o.set(false)
			a.advance(time.Second)
		}
		want(t, "events", messages(a, "web"), fmt.Sprint([]string{awayEvent, backEvent, awayEvent, backEvent}))
		want(t, "starts", a.starts("web"), "1")

		o.set(true)
		a.advance(time.Minute)
		a.exit("web", driver.ExitResult{}) // the task ends while no driver can report it
		a.advance(time.Minute)
		want(t, "before the driver is back", a.state("web").State, "running")
		o.set(false)
		a.wait()
		want(t, "end", []any{a.state("web").State, a.state("web").Failed, a.last().ClientStatus}, "[dead false complete]")
	})
}

func TestExitStatusUnknownOnlyWhenDriverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithOutages(t, jobOf("batch", `
			restart { attempts = 0 }`, sleeper, poststopTask), nil)
		a.advance(time.Second)
		o.set(true)
		a.advance(time.Minute)
		a.vanish("web")
		a.advance(time.Minute)
		want(t, "while the driver is away", a.state("web").State, "running")
		o.set(false)
		a.wait()
		want(t, "events", a.events("web"), "[Received Task Setup Started Driver Driver Not Restarting]")
		want(t, "end", messages(a, "web")[1], "exit status unknown: recover task: nothing to recover")
		want(t, "poststop", []any{a.starts("after"), a.last().ClientStatus}, "[1 failed]")
	})
}

func TestStopIsPendingWhileTheDriverIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithOutages(t, jobOf("service", sleeper, poststopTask), func(c *Config, o *outages) {
			c.EndTask = o.endTask(nil)
		})
		a.advance(time.Second)
		o.set(true)
		a.advance(time.Second)
		a.Stop()
		a.advance(time.Hour)
		want(t, "alive", len(a.world.alive()), "1")
		want(t, "state", []any{a.state("web").State, a.last().ClientStatus}, "[running running]")
		want(t, "event", messages(a, "web")[1], `stop is pending, driver unavailable: plugin "fake": exit status 2 (next try in 5s);`+
			` the task may still run; "job stop -purge" ends the processes that its cgroup or environment identifies`)
		want(t, "ended by the agent", a.world.recordedCalls("EndTask"), "[]")
		o.set(false)
		a.wait()
		want(t, "events", a.events("web"), "[Received Task Setup Started Driver Killing Driver Driver Terminated Killed]")
		want(t, "poststop", a.starts("after"), "1")
		want(t, "status", a.last().ClientStatus, "complete")
	})
}

func TestAgentEndsTasksOfBuiltinDriversAfterKillTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithOutages(t, jobOf("service", sleeper, poststopTask), func(c *Config, o *outages) {
			o.builtin = true
			c.EndTask = o.endTask(&driver.ExitResult{ExitCode: 137, Signal: 9})
		})
		a.advance(time.Second)
		o.set(true)
		a.advance(time.Second)
		a.Stop()
		a.advance(5*time.Second - time.Millisecond)
		want(t, "before kill_timeout", a.world.recordedCalls("EndTask"), "[]")
		a.advance(time.Second)
		want(t, "after kill_timeout", a.world.recordedCalls("EndTask"), "[+7s EndTask web builtin=true]")
		want(t, "events", a.events("web"), "[Received Task Setup Started Driver Killing Driver Driver Terminated Killed]")
		o.set(false) // ends the outage, because the poststop task needs the driver
		a.wait()
		want(t, "status", []any{a.starts("after"), a.last().ClientStatus}, "[1 complete]")
		want(t, "destroyed by the driver", destroys(a, "web"), "0")
	})
}

func TestPurgeEndsTasksWhoseDriverIsUnavailable(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("no plugin serves the driver: %v", gone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, o := startWithOutages(t, jobOf("service", sleeper), func(c *Config, o *outages) {
					c.EndTask = o.endTask(nil)
				})
				a.advance(time.Second)
				o.notServed = gone
				o.set(true)
				a.advance(time.Second)
				a.Stop()
				a.advance(time.Minute)
				want(t, "alive before the purge", len(a.world.alive()), "1")
				a.Purge()
				a.advance(time.Second)
				want(t, "alive", len(a.world.alive()), "0")
				want(t, "status", []any{a.state("web").State, a.last().ClientStatus}, "[dead complete]")
				if all := strings.Join(messages(a, "web"), "\n"); !strings.Contains(all, "exit status unknown") {
					t.Errorf("events: %s", all)
				}
				// A task whose driver is unavailable is destroyed when the driver is back. If no plugin
				// serves the driver, the allocation ends without waiting.
				want(t, "allocation has ended", isClosed(a.Done()), fmt.Sprint(gone))
				o.notServed = false
				o.set(false)
				a.wait()
			})
		})
	}
}

func TestKillNowDoesNotWaitForTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithOutages(t, jobOf("service", sleeper), func(c *Config, o *outages) {
			c.EndTask = o.endTask(nil)
		})
		a.advance(time.Second)
		o.set(true)
		a.Kill()
		a.advance(time.Second)
		want(t, "alive", []any{len(a.world.alive()), isClosed(a.Done())}, "[0 true]")
	})
}

func TestShutdownLeavesTasksWhoseDriverIsUnavailable(t *testing.T) {
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprintf("stop is pending: %v", stop), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, o := startWithOutages(t, jobOf("batch", `
					restart { attempts = 0 }`, sleeper), func(c *Config, o *outages) { c.EndTask = o.endTask(nil) })
				a.advance(time.Second)
				o.set(true)
				a.advance(time.Second)
				if stop {
					a.Stop()
					a.advance(time.Second)
				}
				a.cancel(ErrShutdown)
				a.wait()
				want(t, "needed", a.PluginsLeftRunning(), `[driver "fake"]`)
				a.die()

				b := a.again(func(c *Config) {
					if stop {
						c.Alloc.DesiredStatus = "stop"
					}
				})
				b.advance(time.Hour)
				want(t, "next agent", []any{b.state("web").State, b.starts("web"), len(b.world.alive())}, "[running 1 1]")
				o.set(false)
				b.advance(time.Minute)
				if stop {
					want(t, "stopped", []any{b.last().ClientStatus, len(b.world.alive())}, "[complete 0]")
					return
				}
				want(t, "recovered", []any{b.state("web").State, b.starts("web"), len(b.world.alive())}, "[running 1 1]")
				b.exit("web", driver.ExitResult{})
				b.wait()
				want(t, "end", b.last().ClientStatus, "complete")
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
				a, o := startWithOutages(t, jobOf("service", sleeper, sidecarTask), nil)
				a.advance(time.Second)
				a.die()
				o.notServed = test.gone
				o.set(true)
				b := a.again(nil)
				b.advance(time.Hour)
				want(t, "waiting", []any{b.state("web").State, b.last().ClientStatus, b.starts("web")}, "[running running 1]")
				want(t, "events", b.events("web"), "[Received Task Setup Started Driver]")
				started, _ := b.logs.snapshot()
				want(t, "output is collected", len(started), "2")
				o.notServed = false
				o.set(false)
				b.advance(time.Second)
				want(t, "starts", []int{b.starts("web"), b.starts("side")}, "[1 1]")
				want(t, "events", b.events("web"), "[Received Task Setup Started Driver Driver]")
				b.exit("web", driver.ExitResult{ExitCode: 3})
				b.advance(time.Minute)
				want(t, "watched again", []any{b.starts("web"), b.state("web").Restarts}, "[2 1]")
			})
		})
	}
}

// recovered returns the tasks for which RecoverTask was called.
func recovered(a *agent) (tasks []string) {
	for _, c := range a.world.recordedCalls("RecoverTask") {
		tasks = append(tasks, c[strings.LastIndex(c, " ")+1:])
	}
	return tasks
}

// startingDriver is a world with a second driver, whose plugin starts when started is closed.
type startingDriver struct {
	*world
	started chan struct{}
}

// Driver implements Drivers.
func (d startingDriver) Driver(ctx context.Context, name string) (driver.Driver, error) {
	if name == "slow" {
		select {
		case <-d.started:
		case <-ctx.Done():
			return nil, fmt.Errorf("driver slow is still being started: %w", context.Cause(ctx))
		}
	}
	return d.world.Driver(ctx, "fake")
}

// A plugin that is starting does not delay the recovery of the tasks of other drivers. The tasks of its
// own driver are recovered when it has started.
func TestStartingPluginDoesNotDelayOtherTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := startingDriver{started: make(chan struct{})}
		close(slow.started)
		a := startAgent(t, parseJob(t, jobOf("service", sleeper, strings.Replace(sidecarTask, "fake", "slow", 1))), func(c *Config) {
			slow.world = c.Drivers.(*world)
			c.Drivers = slow
		})
		a.advance(time.Second)
		want(t, "before", []any{a.state("web").State, a.state("side").State}, "[running running]")
		a.die()
		slow.started = make(chan struct{})
		b := a.again(func(c *Config) { c.Drivers = slow })
		synctest.Wait()
		want(t, "recovered at once", recovered(b), "[web]")

		b.advance(3 * time.Second)
		if err := b.Signal(t.Context(), "web", "SIGHUP"); err != nil {
			t.Error(err)
		}
		b.exit("web", driver.ExitResult{ExitCode: 3})
		b.advance(time.Minute)
		want(t, "watched", []any{b.starts("web"), b.state("web").Restarts}, "[2 1]")
		want(t, "recovered", recovered(b), "[web]")
		want(t, "side", b.state("side").State, "running")

		close(slow.started)
		b.advance(time.Second)
		want(t, "recovered", recovered(b), "[web side]")
		want(t, "events", b.events("side"), "[Received Task Setup Started]")
		b.exit("side", driver.ExitResult{})
		b.advance(time.Minute)
		want(t, "starts", []int{b.starts("web"), b.starts("side")}, "[2 2]")
	})
}

func TestUnavailableDriverIsARecoverableStartError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		o := newOutages(w)
		o.unavailable = true
		a := startAgent(t, parseJob(t, jobOf("batch", `
			restart {
				attempts = 3
				delay    = "10s"
				mode     = "fail"
			}`, sleeper)), func(c *Config) { c.Drivers = o })
		a.world = w
		a.advance(time.Second)
		want(t, "events", a.events("web"), "[Received Driver Failure Restarting]")
		want(t, "cause", a.state("web").Events[1].DriverError, `driver "fake": plugin "fake": exit status 2 (next try in 5s)`)
		o.set(false)
		a.advance(time.Minute)
		want(t, "events", a.events("web"), "[Received Driver Failure Restarting Task Setup Started]")
	})
}

// failingDestroys is a driver whose DestroyTask fails for a while.
type failingDestroys struct {
	*outages
	fail int // number of DestroyTask calls that fail; -1 for all
}

type failingPlugin struct {
	driver.Driver
	f *failingDestroys
}

func (f *failingDestroys) Driver(ctx context.Context, name string) (driver.Driver, error) {
	d, err := f.outages.Driver(ctx, name)
	if err != nil {
		return nil, err
	}
	return failingPlugin{d, f}, nil
}

func (p failingPlugin) DestroyTask(ctx context.Context, id string, force bool) error {
	p.f.mu.Lock()
	fails := p.f.fail != 0
	if p.f.fail > 0 {
		p.f.fail--
	}
	p.f.mu.Unlock()
	if fails {
		return errors.New("device is busy")
	}
	return p.Driver.DestroyTask(ctx, id, force)
}

func startFailingDestroys(t *testing.T, fail int, text string) (*agent, *failingDestroys) {
	t.Helper()
	f := &failingDestroys{fail: fail}
	a := startAgent(t, parseJob(t, text), func(c *Config) {
		f.outages = newOutages(c.Drivers.(*world))
		c.Drivers = f
	})
	t.Cleanup(func() {
		f.mu.Lock()
		f.fail = 0
		f.mu.Unlock()
	})
	return a, f
}

func TestDestroyIsPendingUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := startFailingDestroys(t, -1, jobOf("batch", `task "web" {
			driver = "fake"
			config { run_for = "1s" }
		}`, poststopTask))
		a.advance(time.Hour)
		want(t, "status", []any{a.last().ClientStatus, isClosed(a.Done())}, "[complete false]")
		want(t, "events", a.events("web"), "[Received Task Setup Started Terminated Driver]")
		want(t, "text", messages(a, "web"), "[destroying the task is pending: device is busy]")
		_, stopped := a.logs.snapshot()
		want(t, "log collection ended", stopped["web"], "0")
		a.die()

		b := a.again(func(c *Config) { c.Alloc.ClientStatus = "complete" })
		b.advance(time.Hour)
		want(t, "next agent", []any{isClosed(b.Done()), destroys(b, "web")}, "[false 0]")
		f.mu.Lock()
		f.fail = 0
		f.mu.Unlock()
		b.wait()
		want(t, "destroyed", []any{destroys(b, "web"), len(b.world.tasks)}, "[1 0]")
		_, stopped = b.logs.snapshot()
		want(t, "log collection ended", stopped["web"], "1")
	})
}

// If RecoverTask fails without the answer that the task does not exist, the task is neither given up
// nor started again. This holds with and without a restart of the agent.
func TestUndecidedRecoveryKeepsTask(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("the agent starts again: %v", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, _ := startWithOutages(t, jobOf("service", sleeper), nil)
				a.advance(time.Second)
				undecided := func(yes bool) {
					a.world.mu.Lock()
					defer a.world.mu.Unlock()
					a.world.recoveryUndecided = yes
				}
				undecided(true)
				if restart {
					a.die()
					a.world.killPlugin()
					a = a.again(nil)
				} else {
					a.world.killPlugin()
				}
				a.advance(time.Hour)
				want(t, "meanwhile", []any{a.state("web").State, a.starts("web"), len(a.world.alive())}, "[running 1 1]")
				want(t, "events", a.events("web"), "[Received Task Setup Started Driver]")
				want(t, "event", messages(a, "web"), "[driver unavailable, the task may still run: recover task: too many open files]")
				undecided(false)
				a.advance(time.Minute)
				want(t, "recovered", []any{a.state("web").State, a.starts("web")}, "[running 1]")
				a.Stop()
				a.wait()
				want(t, "end", []any{a.last().ClientStatus, len(a.world.alive()), destroys(a, "web")}, "[complete 0 1]")
			})
		})
	}
}

// If RecoverTask fails without the answer that the task does not exist, a pending DestroyTask call is
// not given up.
func TestUndecidedRecoveryKeepsTheDestroyPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, f := startFailingDestroys(t, -1, jobOf("batch", `task "web" {
			driver = "fake"
			config { run_for = "1s" }
		}`))
		a.advance(1500 * time.Millisecond)
		want(t, "the destroy has failed", messages(a, "web"), "[destroying the task is pending: device is busy]")
		setUndecided := func(yes bool) {
			a.world.mu.Lock()
			defer a.world.mu.Unlock()
			a.world.recoveryUndecided = yes
		}
		setUndecided(true)
		f.world.killPlugin()
		f.mu.Lock()
		f.fail = 0
		f.mu.Unlock()
		a.advance(time.Hour)
		want(t, "meanwhile", []any{isClosed(a.Done()), destroys(a, "web"), len(a.world.tasks)}, "[false 0 1]")
		setUndecided(false)
		a.wait()
		want(t, "destroyed", []any{destroys(a, "web"), len(a.world.tasks)}, "[1 0]")
	})
}

func TestNextStartWaitsForThePendingDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := startFailingDestroys(t, 2, jobOf("service", `
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
		a.world.mu.Lock()
		a.world.checkStart = func(string, []string) string {
			if len(a.world.tasks) > 0 {
				return "the start before is not destroyed"
			}
			return ""
		}
		a.world.mu.Unlock()
		a.advance(2 * time.Minute)
		want(t, "wrong", a.world.violations, "[]")
		want(t, "state", []any{a.state("web").State, a.starts("web")}, "[running 2]")
	})
}

// deadlyStarts is a world whose plugin exits at each start of the task "bad".
type deadlyStarts struct {
	*outages
	deaths    []time.Time
	callOrder []string // calls of RecoverTask and StartTask, in their order
}

type deadlyPlugin struct {
	*plugin
	d *deadlyStarts
}

func (d *deadlyStarts) Driver(ctx context.Context, name string) (driver.Driver, error) {
	inner, err := d.outages.Driver(ctx, name)
	if err != nil {
		return nil, err
	}
	return deadlyPlugin{inner.(*plugin), d}, nil
}

func (p deadlyPlugin) recordCall(format string, args ...any) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.callOrder = append(p.d.callOrder, fmt.Sprintf(format, args...))
}

func (p deadlyPlugin) RecoverTask(ctx context.Context, h *driver.Handle) error {
	time.Sleep(100 * time.Millisecond)
	err := p.plugin.RecoverTask(ctx, h)
	p.recordCall("recover %s", h.Config.Name)
	return err
}

func (p deadlyPlugin) StartTask(ctx context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	if c.Name != "bad" {
		return p.plugin.StartTask(ctx, c)
	}
	p.recordCall("start bad")
	p.d.mu.Lock()
	p.d.deaths = append(p.d.deaths, time.Now())
	p.d.mu.Unlock()
	p.world.killPlugin()
	return nil, nil, driver.ErrPluginDown
}

func TestStartThatKillsThePluginComesAfterTheRecoveryOfRunningTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deadlyStarts{}
		recovery := taskrunner.NewRecoveries()
		good := startAgent(t, parseJob(t, jobOf("service", sleeper, sidecarTask)), func(c *Config) {
			d.outages = newOutages(c.Drivers.(*world))
			c.Drivers, c.Recoveries = d, recovery
		})
		good.advance(time.Second)
		bad := start(t, parseJob(t, jobOf("batch", `
			restart {
				attempts = 2
				delay    = "0s"
				mode     = "fail"
			}`, `task "bad" { driver = "fake" }`)), func(c *Config) {
			c.Drivers, c.Recoveries = d, recovery
			other := *c.Alloc
			other.ID = "99999999-2222-3333-4444-555555555555"
			c.Alloc = &other
		})
		bad.wait()
		want(t, "bad", bad.events("bad"), "[Received Task Setup Driver Failure Restarting Driver Failure Restarting Driver Failure Not Restarting]")
		for _, task := range []string{"web", "side"} {
			want(t, task, []any{good.state(task).State, good.starts(task), good.events(task)}, "[running 1 [Received Task Setup Started]]")
		}
		for i, call := range d.callOrder {
			if i > 0 && call == "start bad" && d.callOrder[i-1] == "start bad" {
				t.Errorf("a start was repeated before the running tasks were recovered: %v", d.callOrder)
			}
		}
		for i := 2; i < len(d.deaths); i++ {
			if before, pause := d.deaths[i-1].Sub(d.deaths[i-2]), d.deaths[i].Sub(d.deaths[i-1]); pause <= before {
				t.Errorf("start %d was repeated after %v, the one before after %v", i, pause, before)
			}
		}
	})
}

// Records of an older agent, which lack the capabilities of drivers, can be read.
func TestRestoreReadsRecordsWithoutCapabilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o := startWithOutages(t, jobOf("service", sleeper), nil)
		a.advance(time.Second)
		a.die()
		local := a.store.locals["web"]
		a.store.locals["web"] = state.LocalState{Hooks: local.Hooks, StartID: local.StartID, Handle: local.Handle, Restart: restart.State{}}
		o.set(true)
		b := a.again(nil)
		b.advance(time.Minute)
		want(t, "waiting", b.state("web").State, "running")
		o.set(false)
		b.advance(time.Minute)
		want(t, "state", []any{b.state("web").State, b.starts("web")}, "[running 1]")
	})
}

// The log collector reads the output of a task as long as a process of the task may be alive. After the
// driver has confirmed DestroyTask, no process of that start is alive.
func TestCollectionEndsWhenTheTaskIsDestroyed(t *testing.T) {
	for _, c := range []struct {
		name  string
		task  string
		act   func(a *agent, o *outages)
		ended bool
	}{
		{"exit status unknown, then destroyed", `run_for = "1s"
			exit_error = "no status"`, func(*agent, *outages) {}, true},
		{"destroyed and started again", `run_for = "1s"
			once = true
			exit_error = "no status"`, func(a *agent, _ *outages) {
			a.advance(time.Minute)
			want(a.t, "starts", a.starts("web"), "2")
		}, true},
		{"no plugin knows the first of two starts", `unrecovered = true`, func(a *agent, _ *outages) {
			a.world.killPlugin()
			a.advance(time.Minute)
			want(a.t, "starts", a.starts("web"), "2")
			a.exit("web", driver.ExitResult{})
		}, false},
		{"the agent has ended the task of a builtin driver", ``, func(a *agent, o *outages) {
			o.set(true)
			a.advance(time.Second)
			a.Stop()
			a.advance(time.Minute)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, o := startWithOutages(t, jobOf("batch", `
					restart {
						attempts = 1
						delay    = "5s"
						mode     = "fail"
					}`, `task "web" {
					driver = "fake"
					config {
						`+c.task+`
					}
				}`), func(c *Config, o *outages) {
					o.builtin, c.EndTask = true, o.endTask(nil)
				})
				a.advance(time.Second)
				c.act(a, o)
				a.advance(time.Minute)
				a.Stop()
				a.wait()
				a.logs.mu.Lock()
				defer a.logs.mu.Unlock()
				want(t, "the collection was told that no process is left", a.logs.ended["web"], fmt.Sprint(c.ended))
			})
		})
	}
}
