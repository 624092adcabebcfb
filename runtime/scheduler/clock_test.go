package scheduler_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
)

// wallClock is a wall clock that a test can set. It advances with the synctest
// bubble.
type wallClock struct {
	start  time.Time
	offset atomic.Int64
}

func newWallClock() *wallClock { return &wallClock{start: time.Now()} }

// Now returns a time without monotonic part, like a time that was read from the
// disk.
func (w *wallClock) Now() time.Time { return time.Now().Round(0).Add(time.Duration(w.offset.Load())) }

func (w *wallClock) Uptime() time.Duration { return time.Since(w.start) }

// Step sets the clock forward or back. A suspend looks like a step forward, because
// the monotonic clock stands still.
func (w *wallClock) Step(by time.Duration) { w.offset.Add(int64(by)) }

// clockBench is a bench with a clock that can be set.
type clockBench struct {
	*bench
	clock *wallClock
	host  scheduler.Env
	stop  func()
}

// newClockBench returns a bench that runs until the test ends.
func newClockBench(t *testing.T, life func(*api.Allocation) schedtest.AllocTimes) *clockBench {
	b := &clockBench{bench: &bench{t: t, store: schedtest.NewStore(t, schedtest.NewNode(1000))}, clock: newWallClock(), host: newHost()}
	b.host.Now, b.host.Uptime = b.clock.Now, b.clock.Uptime
	b.node = &schedtest.Node{Store: b.store, AllocTimes: life, Now: b.clock.Now}
	b.log = schedtest.NewTranscript(b.store)
	b.agent()
	b.node.Scheduler = b.Scheduler
	nodeCtx, endNode := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.node.Run(nodeCtx)
	}()
	t.Cleanup(func() {
		b.stop()
		endNode()
		<-ended
	})
	return b
}

// agent replaces the running scheduler by a new one.
func (b *clockBench) agent() {
	if b.stop != nil {
		b.stop()
	}
	s := scheduler.New(scheduler.Config{NodeID: "node", Store: b.store, Host: b.host, Logger: hclog.NewNullLogger()})
	b.Scheduler = s
	b.node.Use(s)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	b.stop = func() {
		cancel()
		<-ended
	}
	synctest.Wait()
}

// stepping has the situations in which the clock is set: while a scheduler runs,
// with and without a report, and between two schedulers.
var stepping = map[string]func(*clockBench, time.Duration){
	"while the agent runs": func(b *clockBench, by time.Duration) {
		b.clock.Step(by)
		b.ClockStepped()
		b.after(0)
	},
	"while the agent runs, and nothing reports the step": func(b *clockBench, by time.Duration) {
		b.clock.Step(by)
		b.after(0)
	},
	"between two agents": func(b *clockBench, by time.Duration) {
		b.stop()
		b.stop = nil
		b.clock.Step(by)
		b.agent()
	},
}

// launches returns the number of children of a periodic job.
func (b *clockBench) launches(key scheduler.JobKey) int {
	return len(b.store.Snapshot().JobChildren(nil, key.Namespace, key.ID))
}

func periodicJob(spec string) *api.Job {
	return serviceJob(func(j *api.Job, g *api.TaskGroup, _ *api.Task) {
		j.Type = new(api.JobTypeBatch)
		j.Periodic = &api.PeriodicConfig{Enabled: new(true), Spec: &spec}
		g.Count = new(1)
	})
}

func TestPeriodicJobContinuesAfterClockIsSetBack(t *testing.T) {
	for name, step := range stepping {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newClockBench(t, func(*api.Allocation) schedtest.AllocTimes { return schedtest.AllocTimes{Run: time.Second} })
				b.clock.Step(365 * 24 * time.Hour)
				b.agent()
				b.register(periodicJob("*/10 * * * *"))
				b.after(35 * time.Minute)
				step(b, -365*24*time.Hour)
				before := b.launches(web)
				b.after(time.Hour)
				if got := b.launches(web) - before; got != 6 {
					t.Errorf("%d launches in the hour after the clock was corrected, want 6", got)
				}
			})
		})
	}
}

func TestPeriodicJobIsLaunchedOnceAfterClockIsSetForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClockBench(t, func(*api.Allocation) schedtest.AllocTimes { return schedtest.AllocTimes{Run: time.Second} })
		b.register(periodicJob("0 * * * *"))
		b.after(5 * time.Minute)
		b.clock.Step(5 * time.Hour)
		b.ClockStepped()
		b.after(time.Second)
		if got := b.launches(web); got != 1 {
			t.Errorf("%d launches for five hours that the machine was suspended, want 1", got)
		}
	})
}

// A correction of less than a second, as by a time daemon, repeats no launch.
func TestSmallCorrectionRepeatsNoLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClockBench(t, func(*api.Allocation) schedtest.AllocTimes { return schedtest.AllocTimes{Run: time.Second} })
		b.register(periodicJob("*/10 * * * *"))
		b.after(10*time.Minute + 100*time.Millisecond)
		b.clock.Step(-500 * time.Millisecond)
		b.ClockStepped()
		b.after(5 * time.Minute)
		b.agent()
		b.after(time.Minute)
		if got := b.launches(web); got != 1 {
			t.Errorf("%d launches, want 1", got)
		}
	})
}

func failingJob(attempts int) *api.Job {
	return serviceJob(func(j *api.Job, g *api.TaskGroup, _ *api.Task) {
		j.Type = new(api.JobTypeBatch)
		g.Count = new(1)
		g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: &attempts, Interval: new(time.Hour), Delay: new(30 * time.Second), DelayFunction: new("constant"), Unlimited: new(attempts == 0)}
	})
}

// A reschedule delay keeps its length when the clock is set during the delay.
func TestRescheduleDelayIgnoresClockSteps(t *testing.T) {
	for name, step := range stepping {
		for _, by := range []time.Duration{-365 * 24 * time.Hour, -10 * time.Minute, 10 * time.Minute} {
			if by > 0 && name == "between two agents" {
				continue // the delay may have passed while no agent ran
			}
			t.Run(name+" by "+by.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newClockBench(t, func(*api.Allocation) schedtest.AllocTimes { return schedtest.AllocTimes{Run: time.Second, Fail: true} })
					b.clock.Step(365 * 24 * time.Hour)
					b.agent()
					b.register(failingJob(0))
					b.after(11 * time.Second) // 10 s of the delay have passed
					step(b, by)
					if name == "between two agents" {
						b.after(10 * time.Second) // the new scheduler cannot know that they have passed
					}
					b.after(19 * time.Second)
					if got := len(b.store.Snapshot().AllocationsByJob(nil, web.Namespace, web.ID)); got != 1 {
						t.Errorf("replaced before the delay: %d allocations", got)
					}
					b.after(61 * time.Second) // includes the minute after which an unreported step is noticed
					if got := len(b.store.Snapshot().AllocationsByJob(nil, web.Namespace, web.ID)); got < 2 {
						t.Errorf("not replaced after the delay: %d allocations", got)
					}
				})
			})
		}
	}
}

// Attempts that were made while the clock was ahead count for the interval of the
// policy, and no longer.
func TestRescheduleAttemptsExpireAfterClockIsSetBack(t *testing.T) {
	for name, step := range stepping {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newClockBench(t, func(a *api.Allocation) schedtest.AllocTimes {
					if a.RescheduleTracker != nil && len(a.RescheduleTracker.Events) == 1 {
						return schedtest.AllocTimes{Run: 90 * time.Minute, Fail: true}
					}
					return schedtest.AllocTimes{Run: time.Second, Fail: true}
				})
				b.clock.Step(365 * 24 * time.Hour)
				b.agent()
				b.register(failingJob(1))
				b.after(2 * time.Minute) // the first allocation has failed, the second runs
				step(b, -365*24*time.Hour)
				b.after(89*time.Minute + 30*time.Second) // not longer, because records of a dead job are collected
				if got := len(b.store.Snapshot().AllocationsByJob(nil, web.Namespace, web.ID)); got != 3 {
					t.Errorf("%d allocations, want 3: the attempt of before is out of the interval", got)
				}
			})
		})
	}
}

// The progress deadline of a deployment is a duration of the monotonic clock.
func TestProgressDeadlineIgnoresClockSteps(t *testing.T) {
	for _, by := range []time.Duration{-365 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * time.Hour} {
		for name, step := range stepping {
			if by > 0 && name == "between two agents" {
				continue // the deadline may have passed while no agent ran
			}
			t.Run(name+" by "+by.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newClockBench(t, func(*api.Allocation) schedtest.AllocTimes { return schedtest.AllocTimes{Healthy: time.Hour} })
					b.clock.Step(365 * 24 * time.Hour)
					b.agent()
					b.register(serviceJob(rolling(func(u *api.UpdateStrategy) {
						u.HealthyDeadline, u.ProgressDeadline = new(5*time.Minute), new(10*time.Minute)
					})))
					b.after(5 * time.Minute)
					step(b, by)
					b.after(4 * time.Minute)
					if d := b.store.Snapshot().LatestDeployment(nil, web.Namespace, web.ID); d.Status != api.DeploymentStatusRunning {
						t.Errorf("the deployment is %s (%s) before its progress deadline", d.Status, d.StatusDescription)
					}
					b.after(7 * time.Minute)
					if d := b.store.Snapshot().LatestDeployment(nil, web.Namespace, web.ID); d.StatusDescription != model.DeploymentDeadline {
						t.Errorf("the deployment is %s (%s) after its progress deadline", d.Status, d.StatusDescription)
					}
				})
			})
		}
	}
}

// The deadline of a drain is a duration of the monotonic clock.
func TestDrainDeadlineIgnoresClockSteps(t *testing.T) {
	for _, by := range []time.Duration{-365 * 24 * time.Hour, 5 * time.Hour} {
		for name, step := range stepping {
			if by > 0 && name == "between two agents" {
				continue // the deadline may have passed while no agent ran
			}
			t.Run(name+" by "+by.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newClockBench(t, nil)
					b.clock.Step(365 * 24 * time.Hour)
					b.agent()
					b.register(failingJob(1)) // a batch job, which may run until the deadline
					if _, err := b.Drain(t.Context(), scheduler.DrainRequest{Spec: &api.DrainSpec{Deadline: time.Hour}}); err != nil {
						t.Fatal(err)
					}
					b.after(30 * time.Minute)
					step(b, by)
					b.after(29 * time.Minute)
					if n := b.store.Snapshot().Node(nil, "node"); n.DrainStrategy == nil {
						t.Error("the drain is over before its deadline")
					}
					b.after(32 * time.Minute)
					if n := b.store.Snapshot().Node(nil, "node"); n.DrainStrategy != nil {
						t.Errorf("the drain goes on after its deadline, until %s", n.DrainStrategy.ForceDeadline)
					}
				})
			})
		}
	}
}

// Records with a time in the future are kept for their age after the correction,
// and no longer.
func TestRecordsAreCollectedAfterClockIsSetBack(t *testing.T) {
	for name, step := range stepping {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newClockBench(t, nil)
				b.clock.Step(365 * 24 * time.Hour)
				b.agent()
				b.register(serviceJob(nil))
				b.after(time.Minute)
				if _, err := b.Deregister(t.Context(), web, scheduler.DeregisterOptions{}); err != nil {
					t.Fatal(err)
				}
				b.after(time.Minute)
				step(b, -365*24*time.Hour)
				b.after(50 * time.Minute)
				if len(b.store.Snapshot().AllocationsByJob(nil, web.Namespace, web.ID)) == 0 {
					t.Error("collected before their time")
				}
				b.after(4 * time.Hour)
				if b.store.Snapshot().Job(nil, web.Namespace, web.ID) != nil {
					var left strings.Builder
					for _, e := range b.store.Snapshot().EvaluationsByJob(nil, web.Namespace, web.ID) {
						left.WriteString(e.TriggeredBy + " " + time.Unix(0, e.ModifyTime).String() + "; ")
					}
					t.Errorf("the job is still there, with %d allocations; %s", len(b.store.Snapshot().AllocationsByJob(nil, web.Namespace, web.ID)), left.String())
				}
			})
		})
	}
}
