package services

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const webAddress = "10.0.0.1:20000"

// advanceTime advances the time, and waits until all goroutines block.
func advanceTime(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantList[T comparable](t *testing.T, what string, got []T, want ...T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestCheckTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService(core.GroupWorkload, tcpCheck("alive", 10*time.Second)))
		w.net.serve(webAddress, statusHandler(200, ""))
		w.StartChecks()
		wantList(t, "at first", w.statuses(), "alive pending 0 nomad: waiting to run")
		advanceTime(4999 * time.Millisecond)
		wantList(t, "before half an interval", w.statuses(), "alive pending 0 nomad: waiting to run")
		advanceTime(time.Millisecond)
		wantList(t, "after half an interval", w.statuses(), "alive success 0 nomad: tcp ok")

		// The interval between two runs starts when the first run ends.
		w.net.mu.Lock()
		w.net.dialDelay = 900 * time.Millisecond
		w.net.mu.Unlock()
		advanceTime(25 * time.Second)
		wantList(t, "runs", w.net.dialTimes(webAddress), 5*time.Second, 15*time.Second, 25900*time.Millisecond)
	})
}

// A check with thresholds changes its status after enough runs with the same outcome.
func TestCheckThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		check := httpCheck("alive", "/", time.Second)
		check.SuccessesToPass, check.FailuresToFail = 2, 3
		w := newTestSet(t, testService(core.GroupWorkload, check))
		var fails atomic.Bool
		w.net.serve(webAddress, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			if fails.Load() {
				rw.WriteHeader(http.StatusInternalServerError)
			}
		}))
		w.StartChecks()
		advanceTime(time.Second) // the first run is after half an interval
		var got []string
		for _, fail := range []bool{false, true, true, false, true, true, true, false, false} {
			fails.Store(fail)
			advanceTime(time.Second)
			got = append(got, strings.Fields(w.statuses()[0])[1])
		}
		wantList(t, "statuses", got, "success", "success", "success", "success", "success", "success", "failure", "failure", "success")
	})
}

func TestCheckResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := httpCheck("ready", "/ready", 4*time.Second)
		ready.OnUpdate = "ignore"
		w := newTestSet(t, testService(core.GroupWorkload, httpCheck("alive", "/", 4*time.Second)), testService("t", ready))
		w.net.serve(webAddress, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/" {
				http.Error(rw, "not yet", http.StatusNotFound)
			}
		}))
		w.StartChecks()
		advanceTime(2 * time.Second)
		results, ok, _ := w.CheckResults()
		if !ok || len(results) != 2 {
			t.Fatalf("%d results, ready %v", len(results), ok)
		}
		id := regexp.MustCompile(`^[0-9a-f]{64}$`)
		for i, want := range []string{
			"alive j.g[0]  web healthiness success 200 nomad: http ok",
			"ready j.g[0] t web readiness failure 404 not yet\n",
		} {
			r := results[i]
			got := fmt.Sprintf("%s %s %s %s %s %s %d %s", r.Check, r.Group, r.Task, r.Service, r.Mode, r.Status, r.StatusCode, r.Output)
			if got != want {
				t.Errorf("result %d: %q, want %q", i, got, want)
			}
			if !id.MatchString(r.ID) || r.Timestamp != time.Now().Unix() || !r.LastRunStartedAt.Equal(time.Now()) || r.IsReadiness() != (i == 1) {
				t.Errorf("result %d: %+v", i, r)
			}
		}
	})
}

func TestCheckID(t *testing.T) {
	base := httpCheck("c", "/", time.Second)
	of := func(edit func(*AllocServicesSpec, *Service, *Check)) string {
		spec, service, check := testSpec(), testService("t"), base
		edit(spec, &service, &check)
		return hashCheckID(spec, &service, &check)
	}
	same := of(func(*AllocServicesSpec, *Service, *Check) {})
	for name, edit := range map[string]func(*AllocServicesSpec, *Service, *Check){
		"body":          func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Body = "x" },
		"header":        func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Header = map[string][]string{"a": {"b"}} },
		"check_restart": func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Restart.Limit = 3 },
		"tags":          func(_ *AllocServicesSpec, s *Service, _ *Check) { s.Tags = []string{"x"} },
		"explicit port": func(_ *AllocServicesSpec, _ *Service, c *Check) { c.PortLabel = "http" },
	} {
		if of(edit) != same {
			t.Errorf("%s makes another id", name)
		}
	}
	seen := map[string]string{same: "nothing"}
	for name, edit := range map[string]func(*AllocServicesSpec, *Service, *Check){
		"alloc":           func(s *AllocServicesSpec, _ *Service, _ *Check) { s.AllocID = "x" },
		"group":           func(s *AllocServicesSpec, _ *Service, _ *Check) { s.Group = "x" },
		"task":            func(_ *AllocServicesSpec, s *Service, _ *Check) { s.Task = "x" },
		"service":         func(_ *AllocServicesSpec, s *Service, _ *Check) { s.Name = "x" },
		"name":            func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Name = "x" },
		"type":            func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Type = "tcp" },
		"port":            func(_ *AllocServicesSpec, _ *Service, c *Check) { c.PortLabel = "admin" },
		"on_update":       func(_ *AllocServicesSpec, _ *Service, c *Check) { c.OnUpdate = "ignore" },
		"address_mode":    func(_ *AllocServicesSpec, _ *Service, c *Check) { c.AddressMode = "alloc" },
		"interval":        func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Interval = time.Minute },
		"timeout":         func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Timeout = time.Minute },
		"protocol":        func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Protocol = "https" },
		"path":            func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Path = "/x" },
		"method":          func(_ *AllocServicesSpec, _ *Service, c *Check) { c.Method = "PUT" },
		"tls_skip_verify": func(_ *AllocServicesSpec, _ *Service, c *Check) { c.TLSSkipVerify = true },
		"a shifted border": func(_ *AllocServicesSpec, s *Service, c *Check) {
			s.Name, c.Name = s.Name+c.Name[:1], c.Name[1:]
		},
	} {
		id := of(edit)
		if other, ok := seen[id]; ok {
			t.Errorf("%s has the id of %s", name, other)
		}
		seen[id] = name
	}
}

// However often the job is updated, a check runs once per interval (rule RS-087 in docs/reference/rules.md).
func TestUpdatesDoNotMultiplyRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService(core.GroupWorkload, tcpCheck("alive", 2*time.Second)))
		w.net.serve(webAddress, statusHandler(200, ""))
		if err := w.RegisterServicesOf(core.GroupWorkload, nil); err != nil {
			t.Fatal(err)
		}
		w.StartChecks()
		for range 5 {
			advanceTime(700 * time.Millisecond)
			w.setServices(testService(core.GroupWorkload, tcpCheck("alive", 2*time.Second)))
			w.UpdateChecks()
			if err := errors.Join(w.UpdateRegistrations(core.GroupWorkload), w.RegisterServicesOf(core.GroupWorkload, nil)); err != nil {
				t.Fatal(err)
			}
		}
		advanceTime(10*time.Second - 3500*time.Millisecond)
		wantList(t, "runs in 10 s", w.net.dialTimes(webAddress), time.Second, 3*time.Second, 5*time.Second, 7*time.Second, 9*time.Second)
	})
}

// A changed check starts again at once, and its old observer ends: otherwise the test's bubble would not end.
func TestChangedCheckIsReplaced(t *testing.T) {
	base := httpCheck("alive", "/", 4*time.Second)
	for _, c := range []struct {
		name string
		edit func(*Service)
	}{
		{"body", func(s *Service) { s.Checks[0].Body = "new" }},
		{"header", func(s *Service) { s.Checks[0].Header = map[string][]string{"x": {"new"}} }},
		{"check_restart", func(s *Service) { s.Checks[0].Restart = CheckRestart{Limit: 9} }},
		{"path", func(s *Service) { s.Checks[0].Path = "/new" }},
		{"address", func(s *Service) { s.Address = "10.0.0.1" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestSet(t, testService(core.GroupWorkload, base))
				w.net.serve(webAddress, statusHandler(200, ""))
				w.StartChecks()
				advanceTime(3 * time.Second)
				next := testService(core.GroupWorkload, base)
				next.Checks = slices.Clone(next.Checks)
				c.edit(&next)
				w.setServices(next)
				w.UpdateChecks()
				replaced := c.name != "address"
				advanceTime(0)
				if got := w.statuses(); strings.Contains(got[0], "pending") != replaced {
					t.Errorf("after the update: %q", got)
				}
				advanceTime(7 * time.Second)
				if replaced {
					wantList(t, "runs", w.net.dialTimes(webAddress), 2*time.Second, 5*time.Second, 9*time.Second)
				} else { // the check's address has not changed
					wantList(t, "runs", w.net.dialTimes(webAddress), 2*time.Second, 6*time.Second, 10*time.Second)
				}
				if len(w.results.byID) != 1 {
					t.Errorf("%d results are kept", len(w.results.byID))
				}
			})
		})
	}
}

// A status reader wakes only for a new status.
func TestStatusesChangeOnlyWithTheResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService(core.GroupWorkload, tcpCheck("a", 2*time.Second)))
		w.StartChecks()
		defer w.StopChecks(true)
		_, changed := w.CheckStatuses()
		advanceTime(time.Second)
		if !wait.IsClosed(changed) {
			t.Error("the first result changes nothing")
		}
		statuses, changed := w.CheckStatuses()
		_, _, ran := w.CheckResults()
		advanceTime(2 * time.Second)
		if wait.IsClosed(changed) || !wait.IsClosed(ran) || len(statuses) != 1 {
			t.Errorf("after an equal result: changed %t, ran %t, statuses %v", wait.IsClosed(changed), wait.IsClosed(ran), statuses)
		}
		defer w.net.serve(webAddress, http.NotFoundHandler())()
		advanceTime(2 * time.Second)
		if !wait.IsClosed(changed) {
			t.Error("another result changes nothing")
		}
	})
}

func TestChecksAreAddedAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService(core.GroupWorkload, tcpCheck("a", 2*time.Second)))
		if _, ready, _ := w.CheckResults(); ready {
			t.Error("ready before the start")
		}
		w.UpdateChecks()
		if _, ready, _ := w.CheckResults(); ready {
			t.Error("an update starts the checks")
		}
		w.StartChecks()
		advanceTime(time.Second)
		w.setServices(testService(core.GroupWorkload, tcpCheck("b", 2*time.Second)))
		_, _, changed := w.CheckResults()
		w.UpdateChecks()
		select {
		case <-changed:
		default:
			t.Error("nobody is told of other checks")
		}
		wantList(t, "after the update", w.statuses(), "b pending 0 nomad: waiting to run")
		_, _, changed = w.CheckResults()
		advanceTime(time.Second)
		select {
		case <-changed:
		default:
			t.Error("nobody is told of a result")
		}
		w.StopChecks(true)
		w.StopChecks(true)
		w.UpdateChecks()
		if list, ready, _ := w.CheckResults(); ready || len(list) > 0 || len(w.results.byID) > 0 {
			t.Errorf("after the end: %v %v, kept %v", list, ready, w.results.byID)
		}
		runs := len(w.net.dialTimes(webAddress))
		advanceTime(time.Minute)
		if got := len(w.net.dialTimes(webAddress)); got != runs {
			t.Errorf("%d more runs after the end", got-runs)
		}
	})
}

// A result is written only when it has changed.
func TestResultsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService(core.GroupWorkload, tcpCheck("alive", 2*time.Second)))
		stop := w.net.serve(webAddress, statusHandler(200, ""))
		w.StartChecks()
		advanceTime(100 * time.Second)
		if runs := len(w.net.dialTimes(webAddress)); runs != 50 || w.results.putCount != 2 {
			t.Errorf("%d runs, %d writes; want 50 and 2", runs, w.results.putCount)
		}
		w.StopChecks(false)

		// The next agent continues with the stored result.
		next := w.newSet()
		next.StartChecks()
		defer next.StopChecks(true)
		got, _, _ := next.CheckResults()
		if len(got) != 1 || got[0].Status != model.CheckSuccess || !got[0].LastRunStartedAt.IsZero() {
			t.Errorf("after a restart: %+v", got)
		}
		advanceTime(time.Second)
		if got, _, _ := next.CheckResults(); !got[0].StatusSince.Equal(time.Now()) {
			t.Errorf("passes since %v, want %v: nobody knows what was before", got[0].StatusSince, time.Now())
		}
		stop()
		advanceTime(2 * time.Second)
		if w.results.putCount != 3 || w.results.byID[got[0].ID].Status != model.CheckFailure {
			t.Errorf("%d writes, kept %+v", w.results.putCount, w.results.byID[got[0].ID])
		}
	})
}

// A task's environment is complete once it has started. Then its checks are resolved again, as at each update.
func TestChecksAreInterpolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := httpCheck("${NAME}", "/${NAME}", 2*time.Second)
		c.Header = map[string][]string{"X-${NAME}": {"${attr.kernel.name}"}}
		c.Body = "${NAME}"
		w := newTestSet(t, Service{Task: "t", Name: "svc-${NAME}", PortLabel: "http", Checks: []Check{c}})
		var interpolatedTasks []string
		w.net.serve(webAddress, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			body := make([]byte, 20)
			n, _ := r.Body.Read(body)
			interpolatedTasks = append(interpolatedTasks, fmt.Sprintf("%s %s%s%s %s", r.URL.Path, r.Header.Get("X-one"), r.Header.Get("X-two"), r.Header.Get("X-three"), body[:n]))
		}))
		w.setVar("t", "NAME", "one")
		w.StartChecks()
		advanceTime(time.Second)
		w.setVar("t", "NAME", "two")
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		advanceTime(time.Second)
		w.setVar("t", "NAME", "three")
		w.UpdateChecks()
		advanceTime(time.Second)
		wantList(t, "requests", interpolatedTasks, "/one linux ${NAME}", "/two linux ${NAME}", "/three linux ${NAME}")
		wantList(t, "results", w.statuses(), "three success 200 nomad: http ok")
	})
}

func TestCheckWithoutAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tcpCheck("alive", 2*time.Second)
		c.PortLabel = "nope"
		w := newTestSet(t, testService(core.GroupWorkload, c))
		w.StartChecks()
		advanceTime(time.Second)
		wantList(t, "result", w.statuses(), `alive failure 0 nomad: invalid port "nope": port label not found`)
	})
}
