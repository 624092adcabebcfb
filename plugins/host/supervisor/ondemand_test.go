package supervisor

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

func onDemandEntry(name string) catalog.Entry {
	e := builtinEntry(name)
	e.StopsAfterFingerprint = true
	return e
}

func TestOnDemandProcessIsStoppedAfterItsFingerprint(t *testing.T) {
	for what, c := range map[string]struct {
		hasTasks, requested, unhealthy bool
		lifetime                       time.Duration // of the first process; zero if it runs until the end of the test
	}{
		"unused":                {lifetime: demandTimeout},
		"without a fingerprint": {unhealthy: true, lifetime: idleTimeout},
		"with tasks":            {hasTasks: true},
		"requested once":        {requested: true, lifetime: idleTimeout + time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := newFakePlugin("a", "0.1.0")
				first.drv.omitsFirstFingerprint = c.unhealthy
				launchCount := 0
				s := startSupervisorWithTasks(t, Config{}, Tasks{Use: func(PluginKey) bool { return c.hasTasks }}, []catalog.Entry{onDemandEntry("a")},
					func(_ context.Context, _ string, n int) (*fakePlugin, error) {
						if launchCount = n; n == 1 {
							return first, nil
						}
						return newFakePlugin("a", "0.1.0"), nil
					})
				started := time.Now()
				time.Sleep(time.Millisecond)
				if c.requested {
					mustDriver(t, s, "a")
				}
				select {
				case <-first.done:
				case <-time.After(10 * idleTimeout):
				}
				switch lifetime := time.Since(started); {
				case c.lifetime == 0 && hasExited(first), c.lifetime != 0 && lifetime != c.lifetime:
					t.Errorf("the process was stopped after %v, want %v", lifetime, c.lifetime)
				case c.lifetime == 0:
					return
				}
				synctest.Wait()
				if p := s.Plugins()[0]; !p.Idle || p.PID != 0 || !c.unhealthy && !s.DriverInfoByName()["a"].Healthy {
					t.Errorf("plugin %+v, driver %+v", p, s.DriverInfoByName()["a"])
				}
				mustDriver(t, s, "a")
				time.Sleep(demandTimeout + time.Second)
				if d := mustDriver(t, s, "a"); launchCount != 2 || hasExited(d.plugin) {
					t.Errorf("%d launches; exited: %v", launchCount, hasExited(d.plugin))
				}
			})
		})
	}
}

func TestSlowFingerprintDoesNotDelayReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const launchDuration, fingerprintDuration = 300 * time.Millisecond, 500 * time.Millisecond
		slow := onDemandEntry("slow")
		slow.NodeReadyWithoutFingerprint = true
		var slowLaunchedAt atomic.Pointer[time.Time]
		s := startSupervisor(t, Config{}, []catalog.Entry{builtinEntry("a"), slow}, func(_ context.Context, key string, _ int) (*fakePlugin, error) {
			f := newFakePlugin(strings.TrimPrefix(key, "builtin "), "1")
			if key == "builtin slow" {
				slowLaunchedAt.Store(new(time.Now()))
				time.Sleep(fingerprintDuration)
				return f, nil
			}
			time.Sleep(launchDuration)
			return f, nil
		})
		began := time.Now()
		if err := s.WaitBrieflyForFirstReports(t.Context()); err != nil || time.Since(began) != launchDuration {
			t.Errorf("ready after %v, %v; want %v", time.Since(began), err, launchDuration)
		}
		if err := s.WaitAllReportedOrFailed(t.Context()); err != nil || time.Since(began) != launchDuration+fingerprintDuration {
			t.Errorf("all states are known after %v, %v", time.Since(began), err)
		}
		if launched := slowLaunchedAt.Load().Sub(began); launched != launchDuration {
			t.Errorf("the plugin was launched after %v, want after the other one", launched)
		}
	})
}

func TestPIDsWithoutTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d, _, _ := startSupervisorOfHangingDriver(t)
		if got := s.PIDsWithoutTasks(); !slices.Equal(got, []int{42}) {
			t.Errorf("unused after a request without a task: %v", got)
		}
		if err := d.RecoverTask(t.Context(), &driver.Handle{Config: &driver.TaskConfig{ID: "a/t/1"}}); err != nil {
			t.Fatal(err)
		}
		if got := s.PIDsWithoutTasks(); len(got) != 0 {
			t.Errorf("unused with a task: %v", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f, _ := newHangingPlugin()
		e := externalEntry("slow")
		e.ChildrenAreNeverTasks = true
		s := startSupervisor(t, Config{}, []catalog.Entry{e}, func(context.Context, string, int) (*fakePlugin, error) { return f, nil })
		d, err := s.Driver(t.Context(), "slow")
		if err == nil {
			err = d.RecoverTask(t.Context(), &driver.Handle{Config: &driver.TaskConfig{ID: "a/t/1"}})
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := s.PIDsWithoutTasks(); !slices.Equal(got, []int{42}) {
			t.Errorf("a process without tasks: %v", got)
		}
	})
}
