package allocrunner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
)

// TestSimulation runs random groups with random actions by tasks, plugins and users, and checks invariants. A failed
// case's name is its seed: -run TestSimulation/17.
func TestSimulation(t *testing.T) {
	cases := 60
	if testing.Short() {
		cases = 20
	}
	for seed := range cases {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			simulate(t, rand.New(rand.NewPCG(uint64(seed), 0)))
		})
	}
}

func simulate(t *testing.T, random *rand.Rand) {
	text := randomJob(random)
	job := parseJob(t, text)
	type randomAction struct {
		at time.Duration
		do int
	}
	var randomActions []randomAction
	for range random.IntN(7) {
		randomActions = append(randomActions, randomAction{time.Duration(random.IntN(20000)) * time.Millisecond, random.IntN(20)})
	}
	slices.SortFunc(randomActions, func(a, b randomAction) int { return int(a.at - b.at) })
	defer func() {
		if t.Failed() {
			t.Logf("%s\nactions %v", text, randomActions)
		}
	}()

	synctest.Test(t, func(t *testing.T) {
		alloc := recordingAllocHook{&recordingHook{name: "alloc"}}
		stops := recordingTaskHook{&recordingHook{name: "task"}}
		h := startHarness(t, job, func(c *testConfig) {
			c.HookFactory = fixedHookFactory{alloc: []hooks.Hook{alloc}, task: []hooks.Hook{stops}}
			c.Drivers.(*fakeDrivers).checkStart = newStartChecker(job)
		})
		names := make([]string, len(h.tasks.taskSet))
		for i, r := range h.tasks.taskSet {
			names[i] = r.Name()
		}
		ctx := context.Background()
		var actionsWG sync.WaitGroup
		for _, a := range randomActions {
			h.advance(a.at - time.Since(h.startTime))
			actionsWG.Go(func() {
				// Errors are ignored: a request fails if its task does not run, or if the allocation
				// has ended.
				name := names[a.do%len(names)]
				switch a.do {
				case 0, 1, 2, 3:
					h.drivers.killPlugin()
				case 4, 5, 6:
					_ = h.RestartTask(ctx, name)
				case 7, 8:
					_ = h.RestartRunning(ctx)
				case 9, 10, 11:
					_ = h.RestartAll(ctx)
				case 12:
					_ = h.Signal(ctx, "", "SIGHUP")
				case 13:
					h.Stop()
				case 14:
					h.tasks.skipShutdownDelay()
					h.Stop()
				case 15:
					h.ForceKill()
				case 16:
					h.cancel(nil)
				case 17, 18:
					next := newAllocation(job)
					next.AllocModifyIndex = uint64(a.at)
					h.Update(next)
				case 19:
					next := newAllocation(job)
					next.AllocModifyIndex = uint64(a.at)
					next.DesiredStatus = api.AllocDesiredStatusStop
					h.Update(next)
				}
			})
		}
		h.advance(time.Minute)
		h.Stop()
		select {
		case <-h.Done():
		case <-time.After(10 * time.Minute): // longer than any stop
			if poststop, ok := h.tasks.findByName("poststop"); !ok || poststop.State().Restarts == 0 {
				t.Error("the stop does not end")
			}
			h.ForceKill() // a poststop task may fail and restart without end
		}
		h.wait()
		actionsWG.Wait()
		h.checkEnd(alloc, stops)
	})
}

// checkEnd checks an ended allocation's invariants.
func (h *harness) checkEnd(alloc recordingAllocHook, stops recordingTaskHook) {
	t := h.t
	for _, wrong := range h.drivers.violations {
		t.Error(wrong)
	}
	if alive := h.drivers.aliveTasks(); len(alive) > 0 {
		t.Errorf("processes left: %v", alive)
	}
	final := ""
	for _, u := range h.reportedUpdates {
		if final != "" && u.ClientStatus != final && u.ClientDescription != "allocation exceeded max_run_duration" {
			t.Errorf("status goes from %s to %s", final, u.ClientStatus)
		}
		if u.Terminal() {
			final = u.ClientStatus
		}
	}
	if final == "" || h.lastUpdate().ClientStatus != final {
		t.Errorf("the last status is %s", h.lastUpdate().ClientStatus)
	}
	for name, s := range h.lastUpdate().TaskStates {
		if s.State != "dead" || s.FinishedAt.IsZero() || s.FinishedAt.Before(s.StartedAt) {
			t.Errorf("%s: %s, started %s, finished %s", name, s.State, h.at(s.StartedAt), h.at(s.FinishedAt))
		}
		killing := 0
		for i, e := range s.Events {
			if i > 0 && e.Time < s.Events[i-1].Time {
				t.Errorf("%s: %q is older than what precedes it", name, e.Type)
			}
			if e.Type == api.TaskKilling {
				killing++
			}
		}
		if killing > 1 {
			t.Errorf("%s: %d Killing events", name, killing)
		}
	}
	calls := alloc.calls()
	wantEqual(t, "prerun, prekill, postrun", []int{countCalls(calls, "prerun"), countCalls(calls, "prekill"), countCalls(calls, "postrun")}, "[1 1 1]")
	wantEqual(t, "stop hooks", []int{countCalls(stops.calls(), "stop"), countCalls(stops.calls(), "stop too late")}, []int{len(h.tasks.taskSet), 0})
	if t.Failed() {
		t.Log(h.transcript())
	}
}

func countCalls(calls []string, call string) (n int) {
	for _, c := range calls {
		if c == call {
			n++
		}
	}
	return n
}

// newStartChecker returns a function that is called when one of the job's tasks starts. It checks that the other running
// tasks are permitted.
func newStartChecker(job *api.Job) func(string, []string) string {
	stage := make(map[string]string)
	for _, t := range job.TaskGroups[0].Tasks {
		if t.Lifecycle != nil {
			stage[t.Name] = t.Lifecycle.Hook
		}
	}
	return func(task string, alive []string) string {
		for _, other := range alive {
			if other == task {
				return task + " runs twice"
			}
			if stage[task] == "poststop" && stage[other] != "poststop" {
				return task + " starts while " + other + " runs"
			}
		}
		return ""
	}
}

func randomJob(random *rand.Rand) string {
	pick := func(options ...string) string { return options[random.IntN(len(options))] }
	var b strings.Builder
	task := func(name, pluginHooks string, runs ...string) {
		runs = append(runs, "0s", "1s", "7s")
		fmt.Fprintf(&b, "task %q {\n driver = \"fake\"\n%s\n", name, pluginHooks)
		fmt.Fprintln(&b, pick("", "", "", "shutdown_delay = \"2s\""))
		fmt.Fprintln(&b, pick("", "", "kill_timeout = \"1s\""))
		fmt.Fprintln(&b, pick("", "", "", "leader = true"))
		fmt.Fprintf(&b, "config {\nrun_for = %q\n%s\n%s\n%s\n%s\n%s\n%s\n}\n}\n",
			pick(runs...),
			pick("", "", "exit_codes = [1]", "exit_codes = [1, 0]", "exit_codes = [1, 1, 0]"),
			pick("", "", "", "", `start_errors = ["x", ""]`, `start_errors = ["x"]`),
			pick("", "recoverable = true"),
			pick("", "", `start_for = "1500ms"`),
			pick("", "", "ignore_signals = true"),
			pick("", "", "", "stop_errors = 1", "unrecovered = true"))
	}
	lifecycle := func(hook string, sidecar bool) string {
		return fmt.Sprintf("lifecycle {\n hook = %q\n sidecar = %v\n}", hook, sidecar)
	}
	fmt.Fprintf(&b, "job \"j\" {\n type = %q\n group \"g\" {\n", pick("service", "batch"))
	fmt.Fprintf(&b, "restart {\n attempts = %s\n delay = %s\n interval = \"10s\"\n mode = %s\n}\n",
		pick("0", "1", "3"), pick(`"0s"`, `"1s"`), pick(`"fail"`, `"delay"`))
	fmt.Fprintln(&b, pick("", "", `shutdown_delay = "3s"`))
	task("main", "", "")
	if random.IntN(3) == 0 {
		task("main2", "", "")
	}
	for _, hook := range []string{"prestart", "poststart"} {
		if random.IntN(2) == 0 {
			task(hook, lifecycle(hook, false), "")
		}
		if random.IntN(2) == 0 {
			task(hook+"-side", lifecycle(hook, true), "")
		}
	}
	if random.IntN(2) == 0 {
		task("poststop", lifecycle("poststop", false))
	}
	b.WriteString("}\n}\n")
	return b.String()
}
