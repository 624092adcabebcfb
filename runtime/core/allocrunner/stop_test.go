package allocrunner

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
)

func newStateWithShutdownDelay(delay time.Duration) *allocState {
	alloc := allocVersion(1, api.AllocDesiredStatusRun)
	alloc.Job.TaskGroups[0].ShutdownDelay = &delay
	return newAllocState(alloc)
}

func TestShutdownDelay(t *testing.T) {
	for _, c := range []struct {
		name   string
		length time.Duration
		during func(*allocState, context.CancelFunc) // called after a second
		took   time.Duration
	}{
		{"no delay", 0, nil, 0},
		{"the whole delay", time.Minute, nil, time.Minute},
		{"skipped", time.Minute, func(s *allocState, _ context.CancelFunc) { s.endShutdownDelay() }, time.Second},
		{"killed", time.Minute, func(_ *allocState, cancel context.CancelFunc) { cancel() }, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStateWithShutdownDelay(c.length)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.during != nil {
					time.AfterFunc(time.Second, func() { c.during(s, cancel) })
				}
				begin := time.Now()
				s.waitForShutdownDelay(ctx)
				wantEqual(t, "took", time.Since(begin), c.took)
			})
		})
	}
}

// A restart waits for the shutdown delay only as long as a task can run.
func TestShutdownDelayEndsWithTheTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHarness(t, parseJob(t, job("batch", noRestartText+"shutdown_delay = \"1m\"\n"+`task "web" {
			driver = "fake"
			config { run_for = "3s" }
		}`)), nil)
		h.advance(time.Second)
		wantEqual(t, "restart", h.RestartRunning(t.Context()), error(nil))
		wantEqual(t, "took", time.Since(h.startTime), "3s")
		h.wait()
		wantEqual(t, "starts", h.taskState("web").Restarts, 0)
	})
}

func TestSkippedShutdownDelayStaysSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStateWithShutdownDelay(time.Minute)
		s.endShutdownDelay()
		s.endShutdownDelay()
		begin := time.Now()
		s.waitForShutdownDelay(t.Context())
		wantEqual(t, "took", time.Since(begin), "0s")
	})
}

func TestStopCancelsTheContextsOfRun(t *testing.T) {
	request := func(s *allocState, _ context.CancelCauseFunc) { s.requestStop(stopReason{}) }
	shutdown := func(_ *allocState, cancelUntilShutdown context.CancelCauseFunc) { cancelUntilShutdown(ErrShutdown) }
	for _, c := range []struct {
		name  string
		do    func(s *allocState, cancelUntilShutdown context.CancelCauseFunc)
		cause [3]error // causes for untilShutdown, untilKill and contextUntilStop
	}{
		{"nothing", func(*allocState, context.CancelCauseFunc) {}, [3]error{}},
		{"request", request, [3]error{nil, nil, taskrunner.ErrKilled}},
		{"force kill", func(s *allocState, _ context.CancelCauseFunc) { s.requestForceKill() }, [3]error{nil, taskrunner.ErrKilled, taskrunner.ErrKilled}},
		{"shutdown", shutdown, [3]error{ErrShutdown, ErrShutdown, ErrShutdown}},
		{"shutdown during a stop", func(s *allocState, cancelUntilShutdown context.CancelCauseFunc) {
			request(s, nil)
			shutdown(s, cancelUntilShutdown)
		}, [3]error{ErrShutdown, ErrShutdown, taskrunner.ErrKilled}},
		{"end", func(s *allocState, cancelUntilShutdown context.CancelCauseFunc) {
			s.releaseRunContexts()
			cancelUntilShutdown(nil)
		}, [3]error{context.Canceled, context.Canceled, context.Canceled}},
	} {
		for _, before := range []bool{false, true} {
			if before && (c.name == "end" || c.cause[0] != nil) {
				continue // end is called only after begin, and a shutdown before begin cancels Run's context instead
			}
			s := newAllocState(allocVersion(1, api.AllocDesiredStatusRun))
			if before {
				c.do(s, nil)
			}
			untilShutdown, untilKill, untilStop, cancelUntilShutdown := s.newRunContexts(t.Context())
			if !before {
				c.do(s, cancelUntilShutdown)
			}
			got := [3]error{context.Cause(untilShutdown), context.Cause(untilKill), context.Cause(untilStop)}
			if got != c.cause {
				t.Errorf("%s, before Run %v:\n got %v\nwant %v", c.name, before, got, c.cause)
			}
		}
	}
}

func TestFirstReasonOfAStopCounts(t *testing.T) {
	s := newAllocState(allocVersion(1, api.AllocDesiredStatusRun))
	wantEqual(t, "requested", s.isStopRequested(), false)
	s.requestStop(stopReason{killingEventText: "first"})
	s.requestStop(stopReason{killingEventText: "second"})
	s.requestForceKill()
	wantEqual(t, "requested", s.isStopRequested(), true)
	reason, forceKilled := s.currentStop()
	wantEqual(t, "reason", reason.killingEventText, "first")
	wantEqual(t, "force kill", forceKilled, true)
}

func TestKillInOrderDoesNothingWithoutARequest(t *testing.T) {
	recorder := &recordingHook{name: "hook"}
	a := &allocTasks{state: newAllocState(allocVersion(1, api.AllocDesiredStatusRun))}
	a.state.setHooks(hooks.NewChain(hooks.ChainConfig{}, newHookEntries([]hooks.Hook{recordingAllocHook{recorder}})))
	wantEqual(t, "called PreKill", a.killInOrder(t.Context()), false)
	wantEqual(t, "calls", len(recorder.calls()), 0)
}

func TestCallAfterDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		calls := 0
		call := func() {
			time.Sleep(time.Second)
			calls++
		}
		prevented, waited := callAfterDone(ctx, call), callAfterDone(ctx, call)
		wantEqual(t, "called before ctx was done", prevented(), false)
		cancel(errors.New("done"))
		wantEqual(t, "called", waited(), true)
		wantEqual(t, "calls that have returned", calls, 1)
	})
}
