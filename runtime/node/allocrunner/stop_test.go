package allocrunner

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
)

func TestShutdownDelay(t *testing.T) {
	for _, c := range []struct {
		name   string
		length time.Duration
		during func(*shutdownDelay, context.CancelFunc) // called after a second
		took   time.Duration
	}{
		{"no delay", 0, nil, 0},
		{"the whole delay", time.Minute, nil, time.Minute},
		{"skipped", time.Minute, func(d *shutdownDelay, _ context.CancelFunc) { d.skipDelay() }, time.Second},
		{"all tasks have ended", time.Minute, func(d *shutdownDelay, _ context.CancelFunc) { close(d.tasksEnded) }, time.Second},
		{"killed", time.Minute, func(_ *shutdownDelay, cancel context.CancelFunc) { cancel() }, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newShutdownDelay(func() time.Duration { return c.length })
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.during != nil {
					time.AfterFunc(time.Second, func() { c.during(d, cancel) })
				}
				begin := time.Now()
				d.waitForDelay(ctx)
				wantEqual(t, "took", time.Since(begin), c.took)
			})
		})
	}
}

func TestSkippedShutdownDelayStaysSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newShutdownDelay(func() time.Duration { return time.Minute })
		d.skipDelay()
		d.skipDelay()
		begin := time.Now()
		d.waitForDelay(t.Context())
		wantEqual(t, "took", time.Since(begin), "0s")
	})
}

func TestStopCancelsTheContextsOfRun(t *testing.T) {
	request := func(s *stopSequence) { s.requestStop(stopReason{}) }
	for _, c := range []struct {
		name  string
		do    func(*stopSequence)
		cause [3]error // causes of untilShutdown, untilKill and contextUntilStop
	}{
		{"nothing", func(*stopSequence) {}, [3]error{}},
		{"request", request, [3]error{nil, nil, taskrunner.ErrKilled}},
		{"force kill", (*stopSequence).forceKillTasks, [3]error{nil, taskrunner.ErrKilled, taskrunner.ErrKilled}},
		{"shutdown", (*stopSequence).cancelForShutdown, [3]error{ErrShutdown, ErrShutdown, ErrShutdown}},
		{"shutdown during a stop", func(s *stopSequence) {
			request(s)
			s.cancelForShutdown()
		}, [3]error{ErrShutdown, ErrShutdown, taskrunner.ErrKilled}},
		{"end", (*stopSequence).releaseRunContexts, [3]error{context.Canceled, context.Canceled, context.Canceled}},
	} {
		for _, before := range []bool{false, true} {
			if before && (c.name == "end" || c.cause[0] != nil) {
				continue // end is called only after begin, and a shutdown before begin cancels Run's context instead
			}
			s := newStopSequence(nil, nil, nil)
			if before {
				c.do(s)
			}
			untilShutdown, untilKill, untilStop := s.newRunContexts(t.Context())
			if !before {
				c.do(s)
			}
			got := [3]error{context.Cause(untilShutdown), context.Cause(untilKill), context.Cause(untilStop)}
			if got != c.cause {
				t.Errorf("%s, before Run %v:\n got %v\nwant %v", c.name, before, got, c.cause)
			}
		}
	}
}

func TestFirstReasonOfAStopCounts(t *testing.T) {
	s := newStopSequence(nil, nil, nil)
	wantEqual(t, "requested", s.isRequested(), false)
	s.requestStop(stopReason{killingText: "first"})
	s.requestStop(stopReason{killingText: "second"})
	s.forceKillTasks()
	wantEqual(t, "requested", s.isRequested(), true)
	wantEqual(t, "reason", s.reason.killingText, "first")
}

func TestStopSequenceDoesNothingWithoutARequest(t *testing.T) {
	s := newStopSequence(nil, nil, func(context.Context) { t.Error("PreKill hooks were called") })
	wantEqual(t, "called PreKill", s.killTasks(t.Context()), false)
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
