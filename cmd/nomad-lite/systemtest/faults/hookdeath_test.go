package faults

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// jobSpecWithHooks returns the specification of a job. attached holds the attachments of its hooks by
// name. Its task fails the given number of times.
func jobSpecWithHooks(name string, failures int, killTimeout string, attached map[string]string) string {
	var metaLines strings.Builder
	for _, hook := range slices.Sorted(maps.Keys(attached)) {
		fmt.Fprintf(&metaLines, "      lite_hook_%s = jsonencode(%s)\n", hook, attached[hook])
	}
	return fmt.Sprintf(`
job "%[1]s" {
  group "g" {
    meta {
%[2]s    }
    update {
      max_parallel = 0
    }
    restart {
      attempts = %[3]d
      delay    = "0s"
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "t" {
      driver       = "raw_exec"
      kill_timeout = "%[4]s"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`, name, metaLines.String(), failures, killTimeout)
}

// crashingHookJob is a job whose hooks exit crashCount times at each hook point in at.
type crashingHookJob struct {
	job         string
	crashCount  int
	onErrorWarn bool
	at          []hook.Point
	seenEvents  map[string]bool
}

// hookName returns the name of the hook that exits at a hook point.
func (c *crashingHookJob) hookName(m hook.Point) string {
	if m.IsTask() {
		return "task-" + c.job
	}
	return "alloc-" + c.job
}

// jobSpec returns the job with two hooks: one exits at the hook points of the allocation, the other
// at the hook points of the task. A changed kill timeout makes a new version of the job.
func (c *crashingHookJob) jobSpec(n *faultNode, killTimeout string) string {
	attached := make(map[string]string)
	for _, of := range []hook.Point{hook.Prerun, hook.Prestart} {
		die := []string{}
		for _, m := range c.at {
			if m.IsTask() == of.IsTask() {
				die = append(die, m.String())
			}
		}
		list, err := json.Marshal(die)
		if err != nil {
			n.Fatal(err)
		}
		attached[c.hookName(of)] = fmt.Sprintf("{ ledger = %q, die = %s, often = %d }", n.hookLedgerFile(c.hookName(of)), list, c.crashCount)
	}
	return jobSpecWithHooks(c.job, 10, killTimeout, attached)
}

func (n *faultNode) hookLedgerFile(hook string) string { return filepath.Join(n.dir, "ledger."+hook) }

// countHookCalls returns how often a hook has exited during a call at a hook point, and how often
// it has answered.
func (n *faultNode) countHookCalls(name string, m hook.Point) (deaths, others int) {
	ledger, _ := os.ReadFile(n.hookLedgerFile(name)) // a hook that was never called has not created its ledger
	for line := range strings.Lines(string(ledger)) {
		point, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case point != m.String():
		case what == "dies":
			deaths++
		default:
			others++
		}
	}
	return deaths, others
}

// expectedEvent returns the event after the hook has exited twice at a hook point.
func (c *crashingHookJob) expectedEvent(m hook.Point) string {
	says := fmt.Sprintf("%s: plugin is shut down: it died at this call, twice; the agent's log has its last words", m)
	if m == hook.Stop || m == hook.Postrun {
		says += "; it is tried again until it succeeds"
	}
	switch {
	case c.onErrorWarn:
		says += " (on_error is warn)"
	case m == hook.Prerun:
		return fmt.Sprintf("%s: failed to setup alloc: pre-run hook %q failed: %s", api.TaskSetupFailure, c.hookName(m), says)
	}
	return fmt.Sprintf("%s: %s: %s", model.TaskHookFailed, c.hookName(m), says)
}

// isHookPointDone reports whether a hook point was called as often as expected, with the expected
// events.
func (c *crashingHookJob) isHookPointDone(n *faultNode, m hook.Point) bool {
	deaths, others := n.countHookCalls(c.hookName(m), m)
	cleansUp := m == hook.Stop || m == hook.Postrun || m == hook.Destroy
	switch {
	case deaths < c.crashCount:
		return false
	case c.crashCount == 1 || cleansUp:
		// A failure of Destroy creates no event, because the allocation was removed.
		return others > 0 && (c.crashCount == 1 || m == hook.Destroy || c.seenEvents[c.expectedEvent(m)])
	}
	return c.seenEvents[c.expectedEvent(m)]
}

// TestHookDeaths kills hook plugins at each hook point, once and twice, with on_error fail and with
// on_error warn. After the first exit, the plugin is started again and the call repeated. Cleanup
// calls are repeated until they succeed. At all other hook points on_error decides about a second
// exit, and the event names the hook and the hook point.
func TestHookDeaths(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	slowtest.Skip(t, "starts a hook plugin about 100 times")
	t.Parallel()
	all := slices.Collect(hook.AllPoints())
	lives := []*crashingHookJob{
		{job: "once", crashCount: 1, at: all},
		{job: "once-warn", crashCount: 1, at: all, onErrorWarn: true},
		{job: "twice", crashCount: 2, at: all[1:]}, // a second failure at the first hook point would end the job
		{job: "twice-warn", crashCount: 2, at: all, onErrorWarn: true},
	}
	begins := &crashingHookJob{job: "begins", crashCount: 2, at: all[:1]}
	n := newFaultNode(t, fault{step: -1})
	for _, v := range append(lives, begins) {
		v.seenEvents = map[string]bool{}
		for _, m := range []hook.Point{hook.Prerun, hook.Prestart} {
			if err := n.installHook("dying-hook", v.hookName(m)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// after waits until the given hook points were called for all jobs, and ok accepts the jobs'
	// allocations. A nil ok means that the allocations were removed.
	after := func(what string, ok func(*api.Allocation) bool, points ...hook.Point) {
		t.Helper()
		n.waitAllocReport(what, func(s programs.AllocReport) bool {
			done := true
			for _, v := range lives {
				a := s.FindAlloc(v.job, func(*api.Allocation) bool { return true })
				recordTaskEvents(a, v.seenEvents)
				done = done && (a == nil && ok == nil || a != nil && ok != nil && ok(a))
				for _, m := range points {
					done = done && (!slices.Contains(v.at, m) || v.isHookPointDone(n, m))
				}
			}
			return done
		})
	}
	each := func(verb string) {
		t.Helper()
		for _, v := range lives {
			n.do(verb+" "+v.job, new(string))
		}
	}

	n.startAgent()
	n.startBystander()
	n.registerJob(begins.jobSpec(n, "1s"))
	for _, v := range lives {
		n.registerJob(v.jobSpec(n, "1s"))
	}
	after("they run", allTasksRunning, hook.Prerun, hook.Prestart, hook.Poststart)
	if v := lives[2]; !v.seenEvents[api.TaskRestarting+": Task restarting in 0s"] {
		t.Errorf("the restart policy was not asked about %s: %q", hook.Prestart, slices.Sorted(maps.Keys(v.seenEvents)))
	}
	n.waitAllocReport("the one whose Prerun dies has failed", func(s programs.AllocReport) bool {
		a := s.FindAlloc(begins.job, (*api.Allocation).ClientTerminalStatus)
		recordTaskEvents(a, begins.seenEvents)
		return a != nil && a.ClientStatus == api.AllocClientStatusFailed && begins.isHookPointDone(n, hook.Prerun)
	})

	for _, v := range lives {
		n.registerJob(v.jobSpec(n, "2s"))
	}
	after("they are updated", allTasksRunning, hook.UpdateAlloc, hook.Update)

	var ids []string
	for _, v := range lives {
		ids = append(ids, n.findOnlyAllocOfJob(v.job))
	}
	n.do("restart "+strings.Join(ids, " "), new(string))
	after("they run again", allTasksRunning, hook.PreTaskRestart, hook.PreKilling, hook.Exited)

	n.agent.SendExitCommandAndWait("leave")
	n.startAgent()
	after("the next agent tells of the end of the last", allTasksRunning, hook.Shutdown, hook.ShutdownAlloc)

	each("end")
	after("they end", func(a *api.Allocation) bool { return a.ClientStatus == api.AllocClientStatusComplete }, hook.PreKill, hook.Stop, hook.Postrun)
	each("purge")
	after("they are gone", nil, hook.Destroy)

	for _, v := range lives {
		for _, m := range v.at {
			if deaths, _ := n.countHookCalls(v.hookName(m), m); deaths != v.crashCount {
				t.Errorf("%s: the hook has died %d times at %s", v.job, deaths, m)
			}
		}
		for message := range v.seenEvents {
			waited := strings.Contains(message, "waiting for hook plugin") // on a machine that is busy
			if v.crashCount == 1 && strings.Contains(message, "-"+v.job) && !waited {
				t.Errorf("%s: a call that went well the second time: %s", v.job, message)
			}
		}
	}
	n.checkBystander()
	n.agent.SendExitCommandAndWait("stop")
}

// recordTaskEvents adds the events of an allocation to heard, because a task keeps only its latest
// events.
func recordTaskEvents(a *api.Allocation, heard map[string]bool) {
	if a == nil {
		return
	}
	for _, task := range a.TaskStates {
		for _, e := range task.Events {
			heard[e.Type+": "+e.DisplayMessage] = true
		}
	}
}
