package services

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core"
)

// TestRestartWatch calls updateRestartDueTime at the given seconds, and compares the results: "-" for nothing, "!" for a restart,
// otherwise the next call time.
func TestRestartWatch(t *testing.T) {
	type observation struct {
		at        int
		unhealthy bool
		want      string
	}
	for _, c := range []struct {
		name     string
		restart  CheckRestart
		interval int
		looks    []observation
	}{
		{"without a limit nothing happens", CheckRestart{}, 1, []observation{{0, true, "-"}, {100, true, "-"}}},
		{"nothing counts in the grace period", CheckRestart{Limit: 1, Grace: 5 * time.Second}, 10, []observation{{0, true, "5s"}, {4, true, "5s"}, {5, true, "!"}}},
		{"RS-086: limit 2, interval 1 s, grace 2 s", CheckRestart{Limit: 2, Grace: 2 * time.Second}, 1, []observation{{0, false, "2s"}, {2, true, "3s"}, {3, true, "!"}, {4, true, "-"}}},
		{"a good result takes the deadline back", CheckRestart{Limit: 3}, 10, []observation{{0, true, "20s"}, {19, false, "-"}, {21, true, "41s"}, {40, true, "41s"}, {41, true, "!"}}},
		{"healthy for ever", CheckRestart{Limit: 1}, 10, []observation{{0, false, "-"}, {10, false, "-"}}},
	} {
		begin := time.Now()
		var w restartWatch
		w.arm(begin, c.restart)
		for _, l := range c.looks {
			due, next := w.updateRestartDueTime(begin.Add(time.Duration(l.at)*time.Second), l.unhealthy, time.Duration(c.interval)*time.Second, c.restart.Limit)
			got := "-"
			switch {
			case due:
				got = "!"
			case !next.IsZero():
				got = next.Sub(begin).String()
			}
			if got != l.want {
				t.Errorf("%s: at %d s: %s, want %s", c.name, l.at, got, l.want)
			}
		}
	}
}

func withRestart(c Check, limit int, grace time.Duration) Check {
	c.Restart = CheckRestart{Limit: limit, Grace: grace}
	return c
}

// A check requests the restart 3 s after the start, and again after the task was registered again (rule RS-086 in
// docs/reference/rules.md).
func TestCheckRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService("t", withRestart(tcpCheck("alive", time.Second), 2, 2*time.Second)))
		w.StartChecks()
		advanceTime(time.Minute)
		wantList(t, "before the task is registered", w.restartRecorder.allRequests())

		w.restartRecorder.startTime = time.Now()
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		advanceTime(10 * time.Second)
		const firstRestart = `+3s t: healthcheck: check "alive" unhealthy`
		wantList(t, "once", w.restartRecorder.allRequests(), firstRestart)
		if err := errors.Join(w.DeregisterServicesOfWithRetry(t.Context(), "t"), w.RegisterServicesOf("t", nil)); err != nil {
			t.Fatal(err)
		}
		advanceTime(10 * time.Second)
		const secondRestart = `+13s t: healthcheck: check "alive" unhealthy`
		wantList(t, "again when it is back", w.restartRecorder.allRequests(), firstRestart, secondRestart)

		// A healthy task is not restarted, and neither is a deregistered task.
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		w.net.serve(webAddress, statusHandler(200, ""))
		advanceTime(10 * time.Second)
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		advanceTime(time.Second)
		if err := w.DeregisterServicesOfWithRetry(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		advanceTime(time.Minute)
		wantList(t, "in the end", w.restartRecorder.allRequests(), firstRestart, secondRestart)
	})
}

// A task's failing checks request one restart; other tasks' checks continue.
func TestOneRestartPerRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast := withRestart(tcpCheck("fast", 2*time.Second), 1, 3*time.Second)
		slow := withRestart(tcpCheck("slow", 4*time.Second), 2, 3*time.Second)
		w := newTestSet(t, testService("t", fast, slow), testService("u", slow), testService(core.GroupWorkload, withRestart(tcpCheck("g", 6*time.Second), 3, time.Second)))
		w.StartChecks()
		for _, task := range []string{core.GroupWorkload, "t", "u"} {
			if err := w.RegisterServicesOf(task, nil); err != nil {
				t.Fatal(err)
			}
		}
		advanceTime(14 * time.Second)
		wantList(t, "restarts", w.restartRecorder.allRequests(), `+3s t: healthcheck: check "fast" unhealthy`, `+7s u: healthcheck: check "slow" unhealthy`)
		advanceTime(2 * time.Second) // the group's first result is at 3 s
		wantList(t, "restarts", w.restartRecorder.allRequests()[2:], `+15s : healthcheck: check "g" unhealthy`)

		// A task registration gives the group a new grace period.
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		advanceTime(17500 * time.Millisecond)
		all := w.restartRecorder.allRequests()
		wantList(t, "a new round", all[3:], `+19s t: healthcheck: check "fast" unhealthy`, `+33s : healthcheck: check "g" unhealthy`)
	})
}

// A check without a result for the present process is not unhealthy: otherwise limit 1 would restart each task before its first
// run, and again for a result from before the restart.
func TestPendingIsNotUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService("t", withRestart(tcpCheck("alive", 10*time.Second), 1, time.Second)))
		stop := w.net.serve(webAddress, statusHandler(200, ""))
		w.StartChecks()
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		advanceTime(time.Minute)
		wantList(t, "restarts", w.restartRecorder.allRequests())

		stop()
		advanceTime(10 * time.Second)
		wantList(t, "restarts", w.restartRecorder.allRequests(), `+1m5s t: healthcheck: check "alive" unhealthy`)
		w.net.serve(webAddress, statusHandler(200, ""))
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		advanceTime(time.Minute)
		if got := w.restartRecorder.allRequests(); len(got) != 1 {
			t.Errorf("restarted for an old result: %v", got)
		}
	})
}

// A restart may take long, because a task has its shutdown_delay. It is not repeated
// while it runs, and does not delay StopChecks.
func TestStopEndsRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService("t", withRestart(tcpCheck("alive", time.Second), 1, 0)))
		var restartTimes []time.Duration
		w.AllocServices.config.RestartTaskOrGroup = func(ctx context.Context, _, _ string) error {
			begin := time.Now()
			<-ctx.Done()
			restartTimes = append(restartTimes, time.Since(begin))
			return ctx.Err()
		}
		w.StartChecks()
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		advanceTime(100 * time.Second)
		wantList(t, "given up", restartTimes)
		begin := time.Now()
		w.StopChecks(true)
		if took := time.Since(begin); took != 0 {
			t.Errorf("the stop took %v", took)
		}
		wantList(t, "cut short", restartTimes, 99500*time.Millisecond)
	})
}
