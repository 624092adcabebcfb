package systemtest

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

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// hookedJob returns a job with hooks: their attachments, by name. Its task fails the given
// number of times.
func hookedJob(name string, failures int, killTimeout string, attached map[string]string) string {
	var meta strings.Builder
	for _, hook := range slices.Sorted(maps.Keys(attached)) {
		fmt.Fprintf(&meta, "      lite_hook_%s = jsonencode(%s)\n", hook, attached[hook])
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
`, name, meta.String(), failures, killTimeout)
}

// victimOfHooks is a job whose hooks die a number of times at each hook point.
type victimOfHooks struct {
	job    string
	deaths int
	warn   bool
	at     []hook.Point
	heard  map[string]bool
}

// hook returns the name of the hook that dies at a hook point.
func (v *victimOfHooks) hook(m hook.Point) string {
	if m.IsTask() {
		return "task-" + v.job
	}
	return "alloc-" + v.job
}

// text returns the job, with one hook that dies at the hook points of the allocation, and
// another hook that dies at the hook points of the task. Another kill timeout makes another
// version of the job.
func (v *victimOfHooks) text(n *node, killTimeout string) string {
	attached := make(map[string]string)
	for _, of := range []hook.Point{hook.Prerun, hook.Prestart} {
		die := []string{}
		for _, m := range v.at {
			if m.IsTask() == of.IsTask() {
				die = append(die, m.String())
			}
		}
		list, err := json.Marshal(die)
		if err != nil {
			n.Fatal(err)
		}
		attached[v.hook(of)] = fmt.Sprintf("{ ledger = %q, die = %s, often = %d }", n.ledger(v.hook(of)), list, v.deaths)
	}
	return hookedJob(v.job, 10, killTimeout, attached)
}

func (n *node) ledger(hook string) string { return filepath.Join(n.dir, "ledger."+hook) }

// calls counts how often a hook has died at a hook point, and how often it has survived.
func (n *node) calls(name string, m hook.Point) (deaths, others int) {
	ledger, _ := os.ReadFile(n.ledger(name)) // a hook that was never called has not created its ledger
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

// told returns the event of a second death at a hook point.
func (v *victimOfHooks) told(m hook.Point) string {
	says := fmt.Sprintf("%s: plugin is shut down: it died at this call, twice; the agent's log has its last words", m)
	if m == hook.Stop || m == hook.Postrun {
		says += "; it is tried again until it succeeds"
	}
	switch {
	case v.warn:
		says += " (on_error is warn)"
	case m == hook.Prerun:
		return fmt.Sprintf("%s: failed to setup alloc: pre-run hook %q failed: %s", api.TaskSetupFailure, v.hook(m), says)
	}
	return fmt.Sprintf("%s: %s: %s", model.TaskHookFailed, v.hook(m), says)
}

// suffered reports whether a hook point has come, with all its expected consequences.
func (v *victimOfHooks) suffered(n *node, m hook.Point) bool {
	deaths, others := n.calls(v.hook(m), m)
	cleansUp := m == hook.Stop || m == hook.Postrun || m == hook.Destroy
	switch {
	case deaths < v.deaths:
		return false
	case v.deaths == 1 || cleansUp:
		// A failure of Destroy is no event, because the allocation is gone.
		return others > 0 && (v.deaths == 1 || m == hook.Destroy || v.heard[v.told(m)])
	}
	return v.heard[v.told(m)]
}

// TestHookDeaths kills hook plugins at each hook point, once and twice, with on_error fail
// and with on_error warn. A plugin is started again and the call repeated once. Cleanup
// calls are repeated until they succeed; at all other hook points on_error decides about a
// second death, and the event names the hook and the hook point.
func TestHookDeaths(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	t.Parallel()
	all := slices.Collect(hook.AllPoints())
	lives := []*victimOfHooks{
		{job: "once", deaths: 1, at: all},
		{job: "once-warn", deaths: 1, at: all, warn: true},
		{job: "twice", deaths: 2, at: all[1:]}, // without the first hook point, where the job would end
		{job: "twice-warn", deaths: 2, at: all, warn: true},
	}
	begins := &victimOfHooks{job: "begins", deaths: 2, at: all[:1]}
	n := newNode(t, fault{step: -1})
	for _, v := range append(lives, begins) {
		v.heard = map[string]bool{}
		for _, m := range []hook.Point{hook.Prerun, hook.Prestart} {
			if err := n.makeHook("dying-hook", v.hook(m)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// after waits until the given hook points have come in all lives and ok accepts their
	// allocations.
	after := func(what string, ok func(*api.Allocation) bool, points ...hook.Point) {
		t.Helper()
		n.await(what, func(s allocReport) bool {
			done := true
			for _, v := range lives {
				a := s.of(v.job, func(*api.Allocation) bool { return true })
				hear(a, v.heard)
				done = done && (a == nil && ok == nil || a != nil && ok != nil && ok(a))
				for _, m := range points {
					done = done && (!slices.Contains(v.at, m) || v.suffered(n, m))
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

	n.start()
	n.startBystander()
	n.register(begins.text(n, "1s"))
	for _, v := range lives {
		n.register(v.text(n, "1s"))
	}
	after("they run", running, hook.Prerun, hook.Prestart, hook.Poststart)
	if v := lives[2]; !v.heard[api.TaskRestarting+": Task restarting in 0s"] {
		t.Errorf("the restart policy was not asked about %s: %q", hook.Prestart, slices.Sorted(maps.Keys(v.heard)))
	}
	n.await("the one whose Prerun dies has failed", func(s allocReport) bool {
		a := s.of(begins.job, model.ClientTerminal)
		hear(a, begins.heard)
		return a != nil && a.ClientStatus == api.AllocClientStatusFailed && begins.suffered(n, hook.Prerun)
	})

	for _, v := range lives {
		n.register(v.text(n, "2s"))
	}
	after("they are updated", running, hook.UpdateAlloc, hook.Update)

	var ids []string
	for _, v := range lives {
		ids = append(ids, n.only(v.job))
	}
	n.do("restart "+strings.Join(ids, " "), new(string))
	after("they run again", running, hook.PreTaskRestart, hook.PreKilling, hook.Exited)

	n.agent.end("leave")
	n.start()
	after("the next agent tells of the end of the last", running, hook.Shutdown, hook.ShutdownAlloc)

	each("end")
	after("they end", func(a *api.Allocation) bool { return a.ClientStatus == api.AllocClientStatusComplete }, hook.PreKill, hook.Stop, hook.Postrun)
	each("purge")
	after("they are gone", nil, hook.Destroy)

	for _, v := range lives {
		for _, m := range v.at {
			if deaths, _ := n.calls(v.hook(m), m); deaths != v.deaths {
				t.Errorf("%s: the hook has died %d times at %s", v.job, deaths, m)
			}
		}
		for message := range v.heard {
			if v.deaths == 1 && strings.Contains(message, "-"+v.job) {
				t.Errorf("%s: a call that went well the second time: %s", v.job, message)
			}
		}
	}
	n.checkBystander()
	n.agent.end("stop")
}

// hear notes the events of an allocation, which keeps only a few.
func hear(a *api.Allocation, heard map[string]bool) {
	if a == nil {
		return
	}
	for _, task := range a.TaskStates {
		for _, e := range task.Events {
			heard[e.Type+": "+e.DisplayMessage] = true
		}
	}
}
