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

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// TestRandomLifecycleGraphs runs random groups with lifecycle extensions, while tasks fail, users restart tasks, and
// agents and plugins are killed. A historyChecker, which knows only the job and the process history, checks each start.
// A failed case's name is its seed.
func TestRandomLifecycleGraphs(t *testing.T) {
	cases := 40
	if testing.Short() {
		cases = 15
	}
	for seed := range cases {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(uint64(seed), 1))
			job := randomLifecycleJob(t, random)
			defer func() {
				if t.Failed() {
					t.Log(describeJob(job))
				}
			}()
			t.Run("left alone", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { runJobUndisturbed(t, job) })
			})
			t.Run("disturbed", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { runJobWithRandomActions(t, job, random) })
			})
		})
	}
}

// randomLifecycleJob returns a random valid job.
func randomLifecycleJob(t *testing.T, random *rand.Rand) *api.Job {
	pick := func(options ...string) string { return options[random.IntN(len(options))] }
	jobType := pick("service", "batch")
	stages := []string{"", "", "prestart", "prestart", "prestart+", "poststart", "poststart+", "poststop"}
	names := []string{"main"}
	kinds := []string{""}
	for i := range 3 + random.IntN(6) {
		kinds = append(kinds, stages[random.IntN(len(stages))])
		names = append(names, fmt.Sprintf("%s%d", strings.NewReplacer("+", "-side-").Replace(kinds[i+1]+"t"), i))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "job \"j\" {\n type = %q\n group \"g\" {\n", jobType)
	fmt.Fprintf(&b, "restart {\n attempts = 3\n delay = %q\n interval = \"30s\"\n mode = %q\n}\n", pick("0s", "2s"), pick("fail", "delay"))
	fmt.Fprintf(&b, "meta {\n lite_restart_group = %q\n}\n", pick("one_for_one", "one_for_all", "rest_for_one"))
	for i, name := range names {
		hook, sidecar := strings.CutSuffix(kinds[i], "+")
		fmt.Fprintf(&b, "task %q {\n driver = \"fake\"\n kill_timeout = %q\n", name, pick("1s", "3s"))
		ends := hook != "" && !sidecar || jobType == "batch" && hook == ""
		if hook != "" {
			fmt.Fprintf(&b, "lifecycle {\n hook = %q\n sidecar = %v\n}\n", hook, sidecar)
		}
		b.WriteString("config {\n")
		if ends {
			// The durations differ in all tasks, because simultaneous events would have no defined order.
			fmt.Fprintf(&b, "run_for = \"%dms\"\n", 500+random.IntN(700)*10+i)
			b.WriteString(pick("", "", "exit_codes = [1, 0]\n"))
		} else {
			fmt.Fprint(&b, pick("", fmt.Sprintf("run_for = \"%dms\"\nexit_codes = [1]\nonce = true\n", 2000+random.IntN(1500)*10+i)))
		}
		b.WriteString(pick("", "", "ignore_signals = true\n"))
		b.WriteString("}\n}\n")
	}
	b.WriteString("}\n}\n")
	job := parseJob(t, b.String())

	// Start conditions that can never hold make a job invalid: a random condition is kept only if the job stays valid.
	group := job.TaskGroups[0]
	for _, task := range group.Tasks {
		task.Meta = make(map[string]string)
		if l := task.Lifecycle; l != nil && !l.Sidecar && l.Hook != "poststop" && random.IntN(3) > 0 {
			task.Meta["lite_rerun"] = "restart"
		}
	}
	for range 3 + random.IntN(12) {
		task, other := group.Tasks[random.IntN(len(names))], names[random.IntN(len(names))]
		before, had := task.Meta["lite_after"]
		wish := other + ":" + pick("started", "success", "exited")
		if task.Meta["lite_after"] = wish; had {
			task.Meta["lite_after"] = before + ", " + wish
		}
		if model.Validate(job, model.JobLimits{}) == nil {
			continue
		}
		if task.Meta["lite_after"] = before; !had {
			delete(task.Meta, "lite_after")
		}
	}
	if err := model.Validate(job, model.JobLimits{}); err != nil {
		t.Fatal(err)
	}
	return job
}

func describeJob(job *api.Job) string {
	var b strings.Builder
	b.WriteString(*job.Type + "\n" + model.DescribeExtendedStartOrder(job))
	for _, t := range job.TaskGroups[0].Tasks {
		fmt.Fprintf(&b, "%s: %v %v\n", t.Name, t.Meta, t.Config)
	}
	return b.String()
}

// historyChecker records a world's process history and reports rule violations.
type historyChecker struct {
	job        *api.Job
	tasks      map[string]*api.Task
	mu         sync.Mutex // taken after world.mu
	histories  map[string]*taskHistory
	agentStart time.Time // agent start, which may not have seen events at this time
}

type taskHistory struct {
	startCount int
	lastStart  time.Time
	lastExit   time.Time // when the last run ended; zero before the first run has ended
	alive      bool
	succeeded  bool // the last run was successful and was not stopped
}

func newHistoryChecker(job *api.Job) *historyChecker {
	j := &historyChecker{job: job, tasks: make(map[string]*api.Task), histories: make(map[string]*taskHistory), agentStart: time.Now()}
	for _, t := range job.TaskGroups[0].Tasks {
		j.tasks[t.Name] = t
		j.histories[t.Name] = &taskHistory{}
	}
	return j
}

func lifecycleHookOf(t *api.Task) string {
	if t.Lifecycle == nil {
		return ""
	}
	return t.Lifecycle.Hook
}

func isLongRunning(t *api.Task) bool { return lifecycleHookOf(t) == "" || t.Lifecycle.Sidecar }

// checkStart is called before a process starts and checks whether the start violates a rule.
func (h *historyChecker) checkStart(name string, alive []string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	self, now := h.histories[name], time.Now()
	defer func() {
		self.startCount++
		self.lastStart, self.alive, self.succeeded = now, true, false
	}()
	if slices.Contains(alive, name) {
		return name + " runs twice"
	}
	task := h.tasks[name]
	for _, after := range strings.Split(task.Meta["lite_after"], ",") {
		if after == "" {
			continue
		}
		of, condition, _ := strings.Cut(strings.TrimSpace(after), ":")
		other := h.histories[of]
		holds := false
		switch condition {
		case "started":
			over := other.succeeded || lifecycleHookOf(task) == "poststop"
			holds = other.startCount > 0 && (other.alive || over || h.exitedJustNow(other))
		case "success":
			holds = other.succeeded
		case "exited":
			holds = !other.alive
		}
		if !holds {
			return fmt.Sprintf("%s starts, and not %s", name, after)
		}
	}
	// If an agent dies before it has stored a start's result, the next agent destroys that start and repeats it. The
	// repetition does not count as a restart.
	again := self.startCount > 0 && !self.lastExit.Equal(h.agentStart)
	for of, other := range h.histories {
		t := h.tasks[of]
		if lifecycleHookOf(task) == "poststop" && lifecycleHookOf(t) != "poststop" && other.alive {
			return fmt.Sprintf("%s starts while %s runs", name, of)
		}
		if lifecycleHookOf(task) == "" && again && lifecycleHookOf(t) == "prestart" && t.Meta["lite_rerun"] != "" &&
			(!other.succeeded || other.lastStart.Before(self.lastExit)) {
			return fmt.Sprintf("%s starts again before %s has run", name, of)
		}
		if lifecycleHookOf(task) == "poststart" && again && task.Meta["lite_rerun"] != "" && lifecycleHookOf(t) == "" && !other.alive && !other.succeeded && !h.exitedJustNow(other) {
			return fmt.Sprintf("%s starts again while %s is down", name, of)
		}
		if other.alive && isLongRunning(t) && isLongRunning(task) && again && other.lastStart.Before(self.lastExit) && h.mustRestartWith(of, name) {
			return fmt.Sprintf("%s starts again while %s still runs", name, of)
		}
	}
	return ""
}

// exitedJustNow reports whether a process has ended so recently that the runner cannot have reacted yet.
func (h *historyChecker) exitedJustNow(l *taskHistory) bool {
	now := time.Now()
	return !l.alive && (l.lastExit.Equal(now) || h.agentStart.Equal(now))
}

// mustRestartWith reports whether a task must restart when another task restarts.
func (h *historyChecker) mustRestartWith(task, first string) bool {
	switch h.job.TaskGroups[0].Meta["lite_restart_group"] {
	case "one_for_all":
		return task != first
	case "rest_for_one":
		return task != first && h.startsAfter(task, first, make(map[string]bool))
	}
	return false
}

func (h *historyChecker) startsAfter(task, first string, seen map[string]bool) bool {
	if task == first {
		return true
	}
	if seen[task] {
		return false
	}
	seen[task] = true
	order := []string{"prestart", "", "poststart"}
	mine := slices.Index(order, lifecycleHookOf(h.tasks[task]))
	for name, t := range h.tasks {
		earlier := mine > 0 && slices.Index(order, lifecycleHookOf(t)) == mine-1
		waits := slices.ContainsFunc(strings.Split(h.tasks[task].Meta["lite_after"], ","), func(after string) bool {
			return strings.HasPrefix(strings.TrimSpace(after), name+":")
		})
		if (earlier || waits) && h.startsAfter(name, first, seen) {
			return true
		}
	}
	return false
}

// recordExit is called when a process ends.
func (h *historyChecker) recordExit(name string, r driver.ExitResult) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.histories[name]
	l.alive, l.lastExit, l.succeeded = false, time.Now(), r.Successful()
}

func (h *historyChecker) observeDrivers(c *testConfig) {
	w := c.Drivers.(*fakeDrivers)
	w.checkStart, w.onExit = h.checkStart, h.recordExit
}

// runJobUndisturbed runs the job without restarts or kills by the test: no task may wait forever, and no completed work
// may be repeated.
func runJobUndisturbed(t *testing.T, job *api.Job) {
	j := newHistoryChecker(job)
	h := startHarness(t, job, j.observeDrivers)
	defer func() {
		if t.Failed() {
			t.Log(h.transcript())
		}
	}()
	h.advance(10 * time.Minute) // longer than all tasks run one after the other
	if *job.Type == "service" {
		for name, task := range j.tasks {
			if s := h.taskState(name); s.State == "pending" && lifecycleHookOf(task) != "poststop" && h.lastUpdate().ClientStatus != "failed" {
				t.Errorf("%s still waits", name)
			}
		}
		h.Stop()
	}
	h.wait()
	mains := 0 // restarts, summed over all main tasks
	for name, task := range j.tasks {
		if lifecycleHookOf(task) == "" {
			mains += int(h.taskState(name).Restarts)
		}
	}
	for name, task := range j.tasks {
		// One more run is allowed, because the first may fail.
		if runs := j.histories[name].startCount; task.Meta["lite_rerun"] != "" && runs > 2+mains {
			t.Errorf("%s has run %d times for %d restarts of main tasks", name, runs, mains)
		}
	}
	if failed := h.lastUpdate().ClientStatus == "failed"; !failed {
		for name, task := range j.tasks {
			s := h.taskState(name)
			skipped := slices.ContainsFunc(s.Events, func(e *api.TaskEvent) bool { return strings.Contains(e.DisplayMessage, "lite_after") })
			if s.StartedAt.IsZero() && !skipped && (task.Lifecycle == nil || !task.Lifecycle.Sidecar) {
				t.Errorf("%s was never started", name)
			}
			if skipped && lifecycleHookOf(task) != "poststop" {
				t.Errorf("%s was given up in a group that has not failed", name)
			}
			// A task stopped while it waits at its gate counts a restart without a start.
			if l := j.histories[name]; l.startCount != 1+int(s.Restarts) && !s.StartedAt.IsZero() && !(l.startCount == int(s.Restarts) && isLongRunning(task)) {
				t.Errorf("%s was started %d times with %d restarts", name, l.startCount, s.Restarts)
			}
		}
	}
	h.checkFinalState()
}

// checkFinalState checks an ended group's invariants.
func (h *harness) checkFinalState() {
	h.drivers.mu.Lock()
	for _, wrong := range h.drivers.violations {
		h.t.Error(wrong)
	}
	h.drivers.mu.Unlock()
	if alive := h.drivers.aliveTasks(); len(alive) > 0 {
		h.t.Errorf("processes left: %v", alive)
	}
	for name, s := range h.lastUpdate().TaskStates {
		if s.State != "dead" || s.FinishedAt.IsZero() {
			h.t.Errorf("%s is %s in the end", name, s.State)
		}
	}
}

// runJobWithRandomActions sends random requests to the group, ends plugins and agents at random times, and stops
// the group at a random time.
func runJobWithRandomActions(t *testing.T, job *api.Job, random *rand.Rand) {
	j := newHistoryChecker(job)
	a := startAgent(t, job, j.observeDrivers)
	defer func() {
		if t.Failed() {
			t.Log(a.transcript())
		}
	}()
	names := make([]string, len(a.tasks.taskSet))
	for i, r := range a.tasks.taskSet {
		names[i] = r.Name()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var actionsWG sync.WaitGroup
	for range 2 + random.IntN(8) {
		a.advance(time.Duration(random.IntN(6000))*time.Millisecond + time.Microsecond)
		name := names[random.IntN(len(names))]
		// Errors are ignored: a request fails if its task does not run, or if the allocation has ended.
		agent, asking := a, ctx
		switch random.IntN(8) {
		case 0, 1:
			actionsWG.Go(func() { _ = agent.RestartTask(asking, name) })
		case 2:
			actionsWG.Go(func() { _ = agent.RestartRunning(asking) })
		case 3:
			actionsWG.Go(func() { _ = agent.RestartAll(asking) })
		case 4:
			a.drivers.killPlugin()
		default:
			if wait.IsClosed(a.Done()) {
				continue
			}
			a.die()
			cancel()
			ctx, cancel = context.WithCancel(context.Background())
			a.advance(time.Duration(random.IntN(3)) * time.Second)
			j.mu.Lock()
			j.agentStart = time.Now()
			j.mu.Unlock()
			a = a.startNextAgent(nil)
		}
	}
	a.advance(time.Duration(random.IntN(30)) * time.Second)
	a.Stop()
	select {
	case <-a.Done():
		synctest.Wait()
	case <-time.After(10 * time.Minute): // longer than any stop and any poststop task
		t.Error("the stop does not end")
		a.ForceKill()
		a.wait()
	}
	cancel()
	actionsWG.Wait()
	a.checkFinalState()
}

// TestAgentDeathAtEachWriteInALifecycleGraph runs a group with all lifecycle extensions, once for each store write, and
// kills the agent in place of this write. The next agent completes or stops the group.
func TestAgentDeathAtEachWriteInALifecycleGraph(t *testing.T) {
	job := parseJob(t, `job "j" {
		type = "batch"
		group "g" {
			meta { lite_restart_group = "one_for_all" }
			restart {
				attempts = 1
				delay    = "3s"
				mode     = "fail"
			}
			task "db" {
				driver = "fake"
				lifecycle {
					hook    = "prestart"
					sidecar = true
				}
				config {}
			}
			task "init" {
				driver = "fake"
				lifecycle { hook = "prestart" }
				meta {
					lite_after = "db:started"
					lite_rerun = "restart"
				}
				config { run_for = "1s" }
			}
			task "web" {
				driver = "fake"
				config {
					run_for    = "2s"
					exit_codes = [1, 0]
				}
			}
			task "next" {
				driver = "fake"
				meta { lite_after = "web:success" }
				config { run_for = "1s" }
			}
			task "publish" {
				driver = "fake"
				lifecycle { hook = "poststop" }
				meta { lite_after = "next:success" }
				config { run_for = "1s" }
			}
		}
	}`)
	if err := model.Validate(job, model.JobLimits{}); err != nil {
		t.Fatal(err)
	}
	total := 0
	synctest.Test(t, func(t *testing.T) {
		a := startAgent(t, job, nil)
		a.wait()
		total = a.store.writeCount
		wantEqual(t, "done", a.drivers.successfulRunCounts, "map[init:2 next:1 publish:1 web:1]")
	})
	for n := 2; n <= total; n++ { // at the first write, the agent has only recorded that it received the tasks
		for _, stopped := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, stopped %v", n, stopped), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					j := newHistoryChecker(job)
					a := startWithWriteLimit(t, job, n-1, func(c *testConfig) {
						c.Drivers.(*fakeDrivers).findsUnknownTasks = true
						j.observeDrivers(c)
					})
					if !a.awaitDeathOrEnd() {
						return
					}
					a.die()
					j.agentStart = time.Now()
					b := a.startNextAgent(nil)
					if stopped {
						b.Stop()
					}
					b.wait()
					b.checkFinalState()
					if t.Failed() {
						t.Log(b.transcript())
					}
					if stopped || t.Failed() {
						return
					}
					wantEqual(t, "status", b.lastUpdate().ClientStatus, "complete")
					for _, name := range []string{"web", "next", "publish"} {
						wantEqual(t, name+" done", b.drivers.successfulRunCounts[name], "1")
					}
					// The agents may not have seen web's failed run, so init's work may be done again.
					if done := b.drivers.successfulRunCounts["init"]; done < 1 || done > 3 {
						t.Errorf("init has done its work %d times", done)
					}
				})
			})
		}
	}
}
