package faults

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"google.golang.org/grpc/codes"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// init adds commands of killable agents for the tests of hostile hooks.
func init() {
	programs.KillableAgentCommands["end"] = func(ctx context.Context, a *agent.Agent, job string) any {
		_, err := a.Scheduler().DeregisterJob(ctx, scheduler.JobKey{Namespace: "default", ID: job}, scheduler.DeregisterOptions{})
		return fmt.Sprint(err)
	}
	programs.KillableAgentCommands["restart"] = func(ctx context.Context, a *agent.Agent, ids string) any {
		for _, id := range strings.Fields(ids) {
			go func() { _ = a.Allocs().AllocRunner(id).RestartAll(ctx) }() // the test checks the result of the restart in the task's events
		}
		return "ok"
	}
}

// hookFault is a way in which a hook misbehaves, and the message that an event must contain.
type hookFault struct {
	at              hook.Point
	mode            string
	expectedText    string
	harmless        bool // the fault does not fail the task, even with on_error fail
	onlyInAllFaults bool // there are many similar faults, of which TestHostileHooks has a sample
}

// allHookFaults returns the faults of all hook points.
func allHookFaults() (list []hookFault) {
	for m := range hook.AllPoints() {
		list = append(list,
			hookFault{at: m, mode: "hang", expectedText: "no answer within 2s", onlyInAllFaults: true},
			hookFault{at: m, mode: "late", expectedText: "no answer within 2s", onlyInAllFaults: true},
			hookFault{at: m, mode: "refuse", expectedText: "I do not like it", onlyInAllFaults: true},
			hookFault{at: m, mode: "flood", harmless: true, onlyInAllFaults: true},
			hookFault{at: m, mode: "corrupt", onlyInAllFaults: true})
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		list = append(list, hookFault{at: hook.Poststart, mode: fmt.Sprintf("code %d", code), onlyInAllFaults: true})
	}
	return append(list,
		hookFault{at: hook.Prestart, mode: "corrupt"},
		hookFault{at: hook.Poststart, mode: "flood", harmless: true},
		hookFault{at: hook.Poststart, mode: "oversize", expectedText: "bytes that are taken"},
		hookFault{at: hook.Poststart, mode: "chatter", expectedText: "xxx"},
		hookFault{at: hook.Prestart, mode: "steal", harmless: true},
		hookFault{at: hook.Poststart, mode: "steal", harmless: true},
		hookFault{at: hook.PreKill, mode: "steal", harmless: true},
		hookFault{at: hook.Prestart, mode: "lie env", expectedText: `sets the variable "BAD" to what no environment can hold`},
		hookFault{at: hook.Prestart, mode: "lie mount", expectedText: `mounts "/etc" at "/local/../../../etc"`},
		hookFault{at: hook.Prestart, mode: "lie device", expectedText: `shares the device "/dev/null" at "dev" with permissions "everything"`},
		hookFault{at: hook.Prestart, mode: "lie state", expectedText: "its answer has 2097153 bytes, more than the 1048576 that are kept"},
		hookFault{at: hook.Prestart, mode: "lie crowd", expectedText: "bytes, more than the 1048576 that are kept"})
}

// faultyHookJob is a job with a hook that misbehaves.
type faultyHookJob struct {
	hookFault
	jobID, attachedHook string
	onErrorWarn         bool
	seenEvents          map[string]bool
	steps               []jobStep // steps of the job that are not done yet
}

// hookName returns the name of the hook plugin that has the fault.
func (h hookFault) hookName() string {
	if h.mode == "hang" || h.mode == "late" {
		return programs.ShortTimeoutHookName(h.at)
	}
	return "bad"
}

// jobSpec returns the specification of the job, with the hook that misbehaves.
func (f *faultyHookJob) jobSpec(killTimeout string) string {
	return jobSpecWithHooks(f.jobID, 0, killTimeout, map[string]string{f.attachedHook: fmt.Sprintf("{ at = %q, mode = %q }", f.at, f.mode)})
}

// jobStep is a condition for which a test waits, and the action that follows.
type jobStep struct {
	description string
	ok          func(*api.Allocation) bool // reports whether the action can run; if ok is nil, the step waits until the allocation was removed
	action      func(*api.Allocation)
}

func (f *faultyHookJob) String() string {
	return fmt.Sprintf("%s at %s, lenient %v", f.mode, f.at, f.onErrorWarn)
}

// hasExpectedEvent reports whether an event contains the expected text of the fault.
func (f *faultyHookJob) hasExpectedEvent() bool {
	for message := range f.seenEvents {
		if strings.Contains(message, f.attachedHook) && strings.Contains(message, f.at.String()+": ") && strings.Contains(message, f.expectedText) && strings.Contains(message, "(on_error is warn)") == f.onErrorWarn {
			return true
		}
	}
	return false
}

// planSteps sets the steps of the job. Steps for the shutdown of the agent come after all other
// steps of all jobs; replaced is set when the next agent runs.
func (f *faultyHookJob) planSteps(n *faultNode, replaced *bool) {
	register := func(timeout string) {
		n.registerJob(f.jobSpec(timeout))
	}
	do := func(verb string) func(*api.Allocation) {
		return func(*api.Allocation) { n.do(verb+" "+f.jobID, new(string)) }
	}
	over := func(status string) func(*api.Allocation) bool {
		return func(a *api.Allocation) bool {
			if a.ClientTerminalStatus() && a.ClientStatus != status {
				n.Errorf("%v: %s", f, a.ClientStatus)
			}
			return a.ClientTerminalStatus() && (f.harmless || f.hasExpectedEvent())
		}
	}
	gone := jobStep{"is gone", nil, nil}
	register("1s")
	switch f.at {
	case hook.Prerun, hook.Prestart:
		if !f.onErrorWarn && !f.harmless {
			f.steps = []jobStep{{"fails, and says why", over(api.AllocClientStatusFailed), do("purge")}, gone}
			return
		}
	case hook.Shutdown, hook.ShutdownAlloc:
		f.steps = []jobStep{
			{"runs", allTasksRunning, func(*api.Allocation) {}},
			{"is told by the next agent", func(*api.Allocation) bool { return *replaced && (f.harmless || f.hasExpectedEvent()) }, do("purge")},
			gone,
		}
		return
	case hook.Destroy:
		f.steps = []jobStep{
			{"runs", allTasksRunning, do("end")},
			{"ends", func(a *api.Allocation) bool { return a.ClientStatus == api.AllocClientStatusComplete }, do("purge")},
			gone,
		}
		return
	}
	f.steps = []jobStep{
		{"runs", allTasksRunning, func(*api.Allocation) { register("2s") }},
		{"is updated", func(a *api.Allocation) bool {
			return *a.Job.Version == 1 && (f.harmless || f.at != hook.Update && f.at != hook.UpdateAlloc || f.hasExpectedEvent())
		}, func(a *api.Allocation) { n.do("restart "+a.ID, new(string)) }},
		{"runs again", func(a *api.Allocation) bool { return allTasksRunning(a) && a.TaskStates["t"].Restarts == 1 }, do("end")},
		{"ends", over(api.AllocClientStatusComplete), do("purge")},
		gone,
	}
}

// runNextStep runs the next step of the job if its condition holds, and reports whether no step is
// left.
func (f *faultyHookJob) runNextStep(a *api.Allocation) bool {
	recordTaskEvents(a, f.seenEvents)
	if len(f.steps) == 0 {
		return true
	}
	next := f.steps[0]
	switch {
	case a == nil && next.ok == nil:
		f.steps = nil
	case a != nil && next.ok != nil && next.ok(a):
		f.steps = f.steps[1:]
		next.action(a)
	}
	return len(f.steps) == 0
}

// TestHostileHooks makes a hook misbehave in each way at each hook point, for many jobs at once.
// Each fault affects its own allocation as on_error says, and no other allocation: neither an
// allocation in which the same hook is correct, nor an allocation without the hook.
func TestHostileHooks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	t.Parallel()
	var faults []hookFault
	for i, f := range allHookFaults() {
		if !f.onlyInAllFaults || i%9 == 0 {
			faults = append(faults, f)
		}
	}
	testHostileHooks(t, faults)
}

func testHostileHooks(t *testing.T, faults []hookFault) {
	n := newFaultNode(t, fault{step: -1})
	var all []*faultyHookJob
	hooks := map[string]bool{}
	replaced := false
	for i, w := range faults {
		for _, hook := range []string{w.hookName(), w.hookName() + "-warn"} {
			hooks[hook] = true
			all = append(all, &faultyHookJob{
				hookFault: w, jobID: fmt.Sprintf("job-%d-%s", i, hook), attachedHook: hook, onErrorWarn: strings.HasSuffix(hook, "-warn"), seenEvents: map[string]bool{},
			})
		}
	}
	for name := range hooks {
		if err := n.installHook("hostile-hook", name); err != nil {
			t.Fatal(err)
		}
	}
	n.startAgent()
	n.startBystander()
	neighbour := &faultyHookJob{hookFault: hookFault{at: hook.Prerun, mode: "nothing"}, jobID: "neighbour", attachedHook: "bad", seenEvents: map[string]bool{}}
	n.registerJob(neighbour.jobSpec("1s"))

	// At most this many jobs run at once. The next ones start when some have ended.
	const maxConcurrentJobs = 40
	begun := 0
	var unfinishedJobs []string
	await := func(what string, enough func(remainingJobs []*faultyHookJob) bool) {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Logf("not over: %q", unfinishedJobs)
			}
		}()
		n.waitAllocReport(what, func(seen programs.AllocReport) bool {
			var remainingJobs []*faultyHookJob
			unfinishedJobs = nil
			for _, s := range all[:begun] {
				if !s.runNextStep(seen.FindAlloc(s.jobID, func(*api.Allocation) bool { return true })) {
					remainingJobs = append(remainingJobs, s)
					unfinishedJobs = append(unfinishedJobs, fmt.Sprintf("%v: %s: %v", s, s.steps[0].description, slices.Sorted(maps.Keys(s.seenEvents))))
				}
			}
			for ; begun < len(all) && len(remainingJobs) < maxConcurrentJobs; begun++ {
				all[begun].planSteps(n, &replaced)
				remainingJobs = append(remainingJobs, all[begun])
			}
			recordTaskEvents(seen.FindAlloc(neighbour.jobID, allTasksRunning), neighbour.seenEvents)
			return begun == len(all) && enough(remainingJobs)
		})
	}
	await("all are over but those that wait for the end of the agent", func(remainingJobs []*faultyHookJob) bool {
		return !slices.ContainsFunc(remainingJobs, func(s *faultyHookJob) bool {
			return (s.at != hook.Shutdown && s.at != hook.ShutdownAlloc) || len(s.steps) == 3
		})
	})
	n.agent.SendExitCommandAndWait("leave")
	n.startAgent()
	replaced = true
	await("all are over", func(remainingJobs []*faultyHookJob) bool { return len(remainingJobs) == 0 })

	for _, s := range all {
		for message := range s.seenEvents {
			if s.harmless && strings.Contains(message, "failed") {
				t.Errorf("%v: %s", s, message)
			}
			if len(message) > 4<<10 {
				t.Errorf("%v: an event of %d bytes", s, len(message))
			}
		}
	}
	if got := slices.Sorted(maps.Keys(neighbour.seenEvents)); len(got) != 3 {
		t.Errorf("the neighbour has heard %q", got)
	}
	for _, s := range all {
		if said := n.readLog(); s.at == hook.Destroy && s.expectedText != "" && !strings.Contains(said, s.expectedText) {
			t.Errorf("%v: the agent does not say so", s)
		}
	}
	n.checkBystander()
	n.agent.SendExitCommandAndWait("stop")
}
