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

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
)

// wallClock is a settable wall clock. It advances with the synctest bubble.
type wallClock struct {
	start                  time.Time
	offsetAtLastAdjustment atomic.Int64
	uptimeError            atomic.Int64 // added to Uptime
}

func newWallClock() *wallClock { return &wallClock{start: time.Now()} }

// Now returns a time without monotonic part, like a time read from the disk.
func (w *wallClock) Now() time.Time {
	return time.Now().Round(0).Add(time.Duration(w.offsetAtLastAdjustment.Load()))
}

func (w *wallClock) Uptime() time.Duration {
	return time.Since(w.start) + time.Duration(w.uptimeError.Load())
}

// Step sets the clock forward or back. A suspend looks like a step forward, because
// the monotonic clock stands still.
func (w *wallClock) Step(by time.Duration) { w.offsetAtLastAdjustment.Add(int64(by)) }

// clockHarness is a harness with a settable clock.
type clockHarness struct {
	*harness
	clock         *wallClock
	env           scheduler.Env
	stopScheduler func()
}

// newClockHarness returns a harness that runs until the test ends.
func newClockHarness(t *testing.T, life func(*api.Allocation) schedtest.SimulatedAllocBehaviour) *clockHarness {
	b := &clockHarness{harness: &harness{t: t, store: schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))}, clock: newWallClock(), env: newTestEnv()}
	b.env.Now, b.env.MonotonicUptime = b.clock.Now, b.clock.Uptime
	b.node = &schedtest.SimulatedNode{Store: b.store, BehaviourOf: life, Now: b.clock.Now}
	b.transcript = schedtest.StartStoreTranscript(b.store)
	b.startScheduler()
	b.node.Scheduler = b.Scheduler
	nodeCtx, endNode := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.node.Run(nodeCtx)
	}()
	t.Cleanup(func() {
		b.stopScheduler()
		endNode()
		<-ended
	})
	return b
}

// startScheduler replaces the running scheduler by a new one.
func (c *clockHarness) startScheduler() { c.startSchedulerAfter(func() {}) }

// startSchedulerAfter replaces the running scheduler by a new one, and calls beforeRun before the new one runs.
func (c *clockHarness) startSchedulerAfter(beforeRun func()) {
	if c.stopScheduler != nil {
		c.stopScheduler()
	}
	s := scheduler.New(scheduler.Config{NodeID: "node", Store: c.store, HostEnv: c.env, Logger: hclog.NewNullLogger()})
	c.Scheduler = s
	c.node.SetScheduler(s)
	beforeRun()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	c.stopScheduler = func() {
		cancel()
		<-ended
	}
	synctest.Wait()
}

// clockStepCases has the situations in which the clock is set: while a scheduler runs, with and without calling
// RequestClockCheck, and between two schedulers.
var clockStepCases = map[string]func(*clockHarness, time.Duration){
	"while the agent runs": func(b *clockHarness, by time.Duration) {
		b.clock.Step(by)
		b.RequestClockCheck()
		b.advance(0)
	},
	"while the agent runs, and nothing reports the step": func(b *clockHarness, by time.Duration) {
		b.clock.Step(by)
		b.advance(0)
	},
	"between two agents": func(b *clockHarness, by time.Duration) {
		b.stopScheduler()
		b.stopScheduler = nil
		b.clock.Step(by)
		b.startScheduler()
	},
	"between two agents, and before the second one has written anything": func(b *clockHarness, by time.Duration) {
		b.stopScheduler()
		b.stopScheduler = nil
		b.clock.Step(by)
		b.startSchedulerAfter(func() { b.clock.Step(-45 * time.Second) })
	},
}

// launchCount returns how many children a periodic job has.
func (c *clockHarness) launchCount(key scheduler.JobKey) int {
	return len(c.store.Snapshot().JobChildren(nil, key.Namespace, key.ID))
}

func periodicJob(spec string) *api.Job {
	return serviceJob(func(j *api.Job, g *api.TaskGroup, _ *api.Task) {
		j.Type = new(api.JobTypeBatch)
		j.Periodic = &api.PeriodicConfig{Enabled: new(true), Spec: &spec}
		g.Count = new(1)
	})
}

func TestPeriodicJobContinuesAfterClockIsSetBack(t *testing.T) {
	for name, step := range clockStepCases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newClockHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
					return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second}
				})
				b.clock.Step(365 * 24 * time.Hour)
				b.startScheduler()
				b.register(periodicJob("*/10 * * * *"))
				b.advance(35 * time.Minute)
				step(b, -365*24*time.Hour)
				before := b.launchCount(webJobKey)
				b.advance(time.Hour)
				if got := b.launchCount(webJobKey) - before; got != 6 {
					t.Errorf("%d launches in the hour after the clock was corrected, want 6", got)
				}
			})
		})
	}
}

func TestPeriodicJobIsLaunchedOnceAfterClockIsSetForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClockHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second}
		})
		b.register(periodicJob("0 * * * *"))
		b.advance(5 * time.Minute)
		b.clock.Step(5 * time.Hour)
		b.RequestClockCheck()
		b.advance(time.Second)
		if got := b.launchCount(webJobKey); got != 1 {
			t.Errorf("%d launches for five hours that the machine was suspended, want 1", got)
		}
	})
}

// A correction under one second, as by a time daemon, repeats no launch.
func TestSmallCorrectionRepeatsNoLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClockHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second}
		})
		b.register(periodicJob("*/10 * * * *"))
		b.advance(10*time.Minute + 100*time.Millisecond)
		b.clock.Step(-500 * time.Millisecond)
		b.RequestClockCheck()
		b.advance(5 * time.Minute)
		b.startScheduler()
		b.advance(time.Minute)
		if got := b.launchCount(webJobKey); got != 1 {
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
	for name, step := range clockStepCases {
		for _, by := range []time.Duration{-365 * 24 * time.Hour, -10 * time.Minute, 10 * time.Minute} {
			if by > 0 && strings.HasPrefix(name, "between two agents") {
				continue // a reschedule delay may have passed while no agent ran
			}
			t.Run(name+" by "+by.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newClockHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
						return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second, FailsAfterRunDuration: true}
					})
					b.clock.Step(365 * 24 * time.Hour)
					b.startScheduler()
					b.register(failingJob(0))
					b.advance(11 * time.Second) // 10 s into the reschedule delay
					step(b, by)
					if strings.HasPrefix(name, "between two agents") {
						b.advance(10 * time.Second) // a new scheduler starts the delay again, because it cannot measure how much has passed
					}
					b.advance(19 * time.Second)
					if got := len(b.store.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)); got != 1 {
						t.Errorf("replaced before the delay: %d allocations", got)
					}
					b.advance(61 * time.Second) // the rest of the delay, and the minute after which an unreported step is noticed
					if got := len(b.store.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)); got < 2 {
						t.Errorf("not replaced after the delay: %d allocations", got)
					}
				})
			})
		}
	}
}

// The two clocks are not read at the same time, so a step is measured inaccurately. If the scheduler notices the step
// when an evaluation is due, the evaluation may be due a little later, and is processed then.
func TestEvaluationIsProcessedAfterInaccurateClockStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClockHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second, FailsAfterRunDuration: true}
		})
		b.clock.uptimeError.Store(int64(time.Millisecond))
		b.startScheduler()
		b.register(failingJob(0))
		b.advance(11 * time.Second) // 10 s into the reschedule delay
		b.clock.uptimeError.Store(0)
		b.clock.Step(10 * time.Minute)
		b.advance(21 * time.Second)
		if got := len(b.store.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)); got != 2 {
			t.Errorf("%d allocations after the reschedule delay, want 2", got)
		}
	})
}

// Reschedule attempts made while the clock was ahead count until the policy's interval has passed, and no longer.
func TestRescheduleAttemptsExpireAfterClockIsSetBack(t *testing.T) {
	for name, step := range clockStepCases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newClockHarness(t, func(a *api.Allocation) schedtest.SimulatedAllocBehaviour {
					if a.RescheduleTracker != nil && len(a.RescheduleTracker.Events) == 1 {
						return schedtest.SimulatedAllocBehaviour{RunDuration: 90 * time.Minute, FailsAfterRunDuration: true}
					}
					return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second, FailsAfterRunDuration: true}
				})
				b.clock.Step(365 * 24 * time.Hour)
				b.startScheduler()
				b.register(failingJob(1))
				b.advance(2 * time.Minute) // the first allocation has failed, the second runs
				step(b, -365*24*time.Hour)
				b.advance(89*time.Minute + 30*time.Second) // a longer wait would exceed the time after which a dead job is deleted
				if got := len(b.store.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)); got != 3 {
					t.Errorf("%d allocations, want 3: the attempt of before is out of the interval", got)
				}
			})
		})
	}
}

// The monotonic clock measures a deployment's progress deadline.
func TestProgressDeadlineIgnoresClockSteps(t *testing.T) {
	for _, by := range []time.Duration{-365 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * time.Hour} {
		for name, step := range clockStepCases {
			if by > 0 && strings.HasPrefix(name, "between two agents") {
				continue // a progress deadline may have passed while no agent ran
			}
			t.Run(name+" by "+by.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newClockHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
						return schedtest.SimulatedAllocBehaviour{TimeToHealthReport: time.Hour}
					})
					b.clock.Step(365 * 24 * time.Hour)
					b.startScheduler()
					b.register(serviceJob(withRollingUpdate(func(u *api.UpdateStrategy) {
						u.HealthyDeadline, u.ProgressDeadline = new(5*time.Minute), new(10*time.Minute)
					})))
					b.advance(5 * time.Minute)
					step(b, by)
					b.advance(4 * time.Minute)
					if d := b.store.Snapshot().LatestDeployment(nil, webJobKey.Namespace, webJobKey.ID); d.Status != api.DeploymentStatusRunning {
						t.Errorf("the deployment is %s (%s) before its progress deadline", d.Status, d.StatusDescription)
					}
					b.advance(7 * time.Minute)
					if d := b.store.Snapshot().LatestDeployment(nil, webJobKey.Namespace, webJobKey.ID); d.StatusDescription != model.DeploymentFailedProgressDeadline {
						t.Errorf("the deployment is %s (%s) after its progress deadline", d.Status, d.StatusDescription)
					}
				})
			})
		}
	}
}

// The monotonic clock measures a drain's deadline.
func TestDrainDeadlineIgnoresClockSteps(t *testing.T) {
	for _, by := range []time.Duration{-365 * 24 * time.Hour, 5 * time.Hour} {
		for name, step := range clockStepCases {
			if by > 0 && strings.HasPrefix(name, "between two agents") {
				continue // a drain deadline may have passed while no agent ran
			}
			t.Run(name+" by "+by.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newClockHarness(t, nil)
					b.clock.Step(365 * 24 * time.Hour)
					b.startScheduler()
					b.register(failingJob(1)) // a batch job, which the drain stops only at the deadline
					if _, err := b.StartOrEndDrain(t.Context(), scheduler.DrainRequest{Spec: &api.DrainSpec{Deadline: time.Hour}}); err != nil {
						t.Fatal(err)
					}
					b.advance(30 * time.Minute)
					step(b, by)
					b.advance(29 * time.Minute)
					if n := b.store.Snapshot().Node(nil, "node"); n.DrainStrategy == nil {
						t.Error("the drain is over before its deadline")
					}
					b.advance(32 * time.Minute)
					if n := b.store.Snapshot().Node(nil, "node"); n.DrainStrategy != nil {
						t.Errorf("the drain goes on after its deadline, until %s", n.DrainStrategy.ForceDeadline)
					}
				})
			})
		}
	}
}

// Records with a time in the future are deleted when their minimum age has passed after the clock was corrected.
func TestRecordsAreCollectedAfterClockIsSetBack(t *testing.T) {
	for name, step := range clockStepCases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newClockHarness(t, nil)
				b.clock.Step(365 * 24 * time.Hour)
				b.startScheduler()
				b.register(serviceJob(nil))
				b.advance(time.Minute)
				if _, err := b.DeregisterJob(t.Context(), webJobKey, scheduler.DeregisterOptions{}); err != nil {
					t.Fatal(err)
				}
				b.advance(time.Minute)
				step(b, -365*24*time.Hour)
				b.advance(50 * time.Minute)
				if len(b.store.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)) == 0 {
					t.Error("collected before their time")
				}
				b.advance(4 * time.Hour)
				if b.store.Snapshot().Job(nil, webJobKey.Namespace, webJobKey.ID) != nil {
					var leftRecords strings.Builder
					for _, e := range b.store.Snapshot().EvaluationsByJob(nil, webJobKey.Namespace, webJobKey.ID) {
						leftRecords.WriteString(e.TriggeredBy + " " + time.Unix(0, e.ModifyTime).String() + "; ")
					}
					t.Errorf("the job is still there, with %d allocations; %s", len(b.store.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)), leftRecords.String())
				}
			})
		})
	}
}
