package scheduler_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
)

// harness is a scheduler with a store and a simulated node in a synctest bubble.
type harness struct {
	*scheduler.Scheduler
	t          *testing.T
	store      *schedtest.FaultyStore
	node       *schedtest.SimulatedNode
	transcript *schedtest.StoreTranscript
}

func newTestEnv() scheduler.Env {
	var ids atomic.Uint32
	return scheduler.Env{
		NewID:      func() string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000", ids.Add(1)) },
		IsPortFree: func(scheduler.HostPort) bool { return true },
		RandIntN:   func(int) int { return 0 },
		Now:        time.Now,
	}
}

// newHarness returns a harness that runs until the test ends.
func newHarness(t *testing.T, life func(*api.Allocation) schedtest.SimulatedAllocBehaviour) *harness {
	b := &harness{t: t, store: schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))}
	b.Scheduler = scheduler.New(scheduler.Config{NodeID: "node", Store: b.store, HostEnv: newTestEnv(), Logger: hclog.NewNullLogger()})
	b.node = &schedtest.SimulatedNode{Store: b.store, Scheduler: b.Scheduler, BehaviourOf: func(a *api.Allocation) schedtest.SimulatedAllocBehaviour {
		// A group's allocations act at different times, so that the event order is deterministic.
		l, index := life(a), time.Duration(a.Name[len(a.Name)-2]-'0')*10*time.Millisecond
		l.StartDuration, l.TimeToHealthReport, l.StopDuration = l.StartDuration+index, l.TimeToHealthReport+index, l.StopDuration+index
		return l
	}}
	b.transcript = schedtest.StartStoreTranscript(b.store)
	b.startLoops()
	return b
}

func (h *harness) startLoops() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx)
	}()
	nodeEnded := make(chan struct{})
	go func() {
		defer close(nodeEnded)
		h.node.Run(ctx)
	}()
	h.t.Cleanup(func() {
		cancel()
		<-ended
		<-nodeEnded
	})
}

// advance waits for d, and then until all goroutines are idle.
func (h *harness) advance(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
}

var webJobKey = scheduler.JobKey{Namespace: "default", ID: "web"}

// serviceJob returns a service job. Its group has a count of three, and an allocation's health is known after a second.
func serviceJob(edit func(*api.Job, *api.TaskGroup, *api.Task)) *api.Job {
	task := &api.Task{Name: "t", Driver: "mock", Env: map[string]string{"V": "0"}, Resources: &api.Resources{CPU: new(10), MemoryMB: new(20)}}
	group := &api.TaskGroup{Name: new("g"), Count: new(3), Tasks: []*api.Task{task}}
	job := &api.Job{ID: new("web"), Type: new(api.JobTypeService), TaskGroups: []*api.TaskGroup{group}}
	if edit != nil {
		edit(job, group, task)
	}
	model.Canonicalize(job)
	return job
}

func (h *harness) register(job *api.Job) scheduler.RequestOutcome {
	h.t.Helper()
	model.Canonicalize(job)
	h.transcript.AddTestComment("register")
	out, err := h.RegisterAndEvaluateJob(h.t.Context(), job, scheduler.RegisterOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	synctest.Wait()
	return out
}

// compareGolden compares a test's transcript with its golden file.
func (h *harness) compareGolden() {
	h.t.Helper()
	file := filepath.Join("testdata", strings.ToLower(strings.TrimPrefix(h.t.Name(), "Test"))+".golden")
	golden.Check(h.t, file, h.transcript.String())
}

func withEnv(value string) func(*api.Job, *api.TaskGroup, *api.Task) {
	return func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Env["V"] = value }
}

func combineEdits(all ...func(*api.Job, *api.TaskGroup, *api.Task)) func(*api.Job, *api.TaskGroup, *api.Task) {
	return func(j *api.Job, g *api.TaskGroup, t *api.Task) {
		for _, f := range all {
			f(j, g, t)
		}
	}
}

func withRollingUpdate(edit func(*api.UpdateStrategy)) func(*api.Job, *api.TaskGroup, *api.Task) {
	return func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
		g.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Second)}
		if edit != nil {
			edit(g.Update)
		}
	}
}

func healthyAfterTimes(d time.Duration) func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
	return func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
		return schedtest.SimulatedAllocBehaviour{TimeToHealthReport: d, StopDuration: time.Second, DelayFromTerminalToEndedReport: time.Second}
	}
}

// A change of env with count 3 and max_parallel 1 replaces one allocation at a time, each after the previous one is
// healthy; the old allocations complete. A replacement starts when its predecessor has ended, not when the
// predecessor's status is terminal. (rules RS-089 and RS-032)
func TestRollingUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, healthyAfterTimes(5*time.Second))
		b.register(serviceJob(nil))
		b.advance(10 * time.Second)
		b.register(serviceJob(withEnv("1")))
		b.advance(time.Minute)
		b.compareGolden()
	})
}

// A kill_timeout change keeps the allocations, and the new version's deployment succeeds. (rule RS-088)
func TestInPlaceUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, healthyAfterTimes(5*time.Second))
		b.register(serviceJob(nil))
		b.advance(10 * time.Second)
		b.register(serviceJob(func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.KillTimeout = new(9 * time.Second) }))
		b.advance(time.Minute)
		b.compareGolden()
	})
}

// With canary 1 and count 2 there are three allocations until the promotion. (rule RS-091)
func TestCanary(t *testing.T) {
	canary := withRollingUpdate(func(u *api.UpdateStrategy) { u.Canary = new(1) })
	two := func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Count = new(2) }
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, healthyAfterTimes(5*time.Second))
		b.register(serviceJob(combineEdits(two, canary)))
		b.advance(10 * time.Second)
		b.register(serviceJob(combineEdits(two, canary, withEnv("1"))))
		d := b.store.Snapshot().LatestDeployment(nil, webJobKey.Namespace, webJobKey.ID)
		_, err := b.PromoteDeployment(t.Context(), d.ID, nil)
		if want := "1 error occurred:\n\t* Task group \"g\" has 0/1 healthy allocations\n\n"; err == nil || err.Error() != want {
			t.Errorf("promotion of a canary that is not healthy: %v, want %s", err, want)
		}
		b.advance(time.Hour) // a deployment waiting for a manual promotion does not fail
		b.transcript.AddTestComment("promote")
		if _, err := b.PromoteDeployment(t.Context(), d.ID, nil); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Minute)
		b.compareGolden()
	})
}

// auto_promote promotes the canaries without a request.
func TestAutoPromote(t *testing.T) {
	canary := withRollingUpdate(func(u *api.UpdateStrategy) { u.Canary, u.AutoPromote, u.MaxParallel = new(2), new(true), new(2) })
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, healthyAfterTimes(5*time.Second))
		b.register(serviceJob(canary))
		b.advance(10 * time.Second)
		b.register(serviceJob(combineEdits(canary, withEnv("1"))))
		b.advance(time.Minute)
		b.compareGolden()
	})
}

// A job version that does not become healthy is rolled back, as a new version that becomes stable. (rule RS-090)
func TestAutoRevert(t *testing.T) {
	revert := withRollingUpdate(func(u *api.UpdateStrategy) { u.AutoRevert = new(true) })
	once := func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
		g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	}
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(a *api.Allocation) schedtest.SimulatedAllocBehaviour {
			if a.Job.TaskGroups[0].Tasks[0].Env["V"] == "bad" {
				return schedtest.SimulatedAllocBehaviour{TimeToHealthReport: 5 * time.Second, RunDuration: 2 * time.Second, FailsAfterRunDuration: true}
			}
			return schedtest.SimulatedAllocBehaviour{TimeToHealthReport: 5 * time.Second}
		})
		b.register(serviceJob(combineEdits(revert, once)))
		b.advance(10 * time.Second)
		b.register(serviceJob(combineEdits(revert, once, withEnv("bad"))))
		b.advance(time.Minute)
		b.compareGolden()
	})
}

// With attempts 2 and a constant 5 s delay an allocation is replaced exactly twice, then the job is dead. (rule RS-093)
func TestRescheduleUntilExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{RunDuration: time.Second, FailsAfterRunDuration: true, DelayFromTerminalToEndedReport: 7 * time.Second}
		})
		b.register(serviceJob(func(j *api.Job, g *api.TaskGroup, _ *api.Task) {
			j.Type = new(api.JobTypeBatch)
			g.Count = new(1)
			g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(2), Interval: new(time.Hour), Delay: new(5 * time.Second), DelayFunction: new("constant"), Unlimited: new(false)}
		}))
		b.advance(time.Hour)
		b.compareGolden()
	})
}

// A job that does not fit is blocked, and its evaluation has the reason. It is placed when another job has ended, not when that
// job's stop is requested.
func TestBlockedThenUnblocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, func(*api.Allocation) schedtest.SimulatedAllocBehaviour {
			return schedtest.SimulatedAllocBehaviour{StopDuration: 3 * time.Second, DelayFromTerminalToEndedReport: 2 * time.Second}
		})
		big := func(j *api.Job, g *api.TaskGroup, t *api.Task) { t.Resources.MemoryMB = new(400); g.Count = new(2) }
		b.register(serviceJob(big))
		b.register(serviceJob(combineEdits(big, func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.ID = new("second") })))
		b.advance(time.Minute)
		b.transcript.AddTestComment("stop web")
		if _, err := b.DeregisterJob(t.Context(), webJobKey, scheduler.DeregisterOptions{}); err != nil {
			t.Fatal(err)
		}
		b.advance(time.Minute)
		b.compareGolden()
	})
}
