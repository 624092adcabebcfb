package jobhealth

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

var testTime = time.Date(2026, 5, 4, 12, 0, 0, 0, time.Local)

// taskState returns a task state with these events, one second apart; the last one was two seconds before testTime.
func taskState(state string, failed bool, events ...*api.TaskEvent) *api.TaskState {
	var s api.TaskState
	for i, e := range events {
		copied := *e
		model.AppendTaskEvent(&s, &copied, testTime.Add(time.Duration(i-len(events)-1)*time.Second))
		if e.Type == api.TaskStarted {
			s.StartedAt = time.Unix(0, copied.Time)
		}
	}
	s.State, s.Failed = state, failed
	return &s
}

// earlier moves all of a state's events into the past.
func earlier(s *api.TaskState, d time.Duration) *api.TaskState {
	for _, e := range s.Events {
		e.Time -= int64(d)
	}
	s.StartedAt = s.StartedAt.Add(-d)
	return s
}

func exit3() *api.TaskEvent { return model.EventTerminated(3, 0, false, "") }

// alloc returns an allocation for the test job's group g, with the task web.
func alloc(id, status string, web *api.TaskState) *api.Allocation {
	a := &api.Allocation{ID: id, TaskGroup: "g", ClientStatus: status, DesiredStatus: api.AllocDesiredStatusRun}
	if web != nil {
		a.TaskStates = map[string]*api.TaskState{"web": web}
	}
	return a
}

// withLastEnds returns a snapshot where each task with an exit event has ended accordingly. The task was stopped before if a
// restart was requested. The restart counts as a failure if its reason is unhealthyText.
func withLastEnds(s Snapshot) Snapshot {
	s.LastEnd = func(allocID, task string) *restart.RunEnd {
		i := slices.IndexFunc(s.Allocations, func(a *api.Allocation) bool { return a.ID == allocID })
		var end *restart.RunEnd
		var request *api.TaskEvent
		for _, e := range s.Allocations[i].TaskStates[task].Events {
			switch e.Type {
			case api.TaskRestartSignal:
				request = e
			case api.TaskTerminated:
				end = &restart.RunEnd{Time: time.Unix(0, e.Time), ExitCode: e.ExitCode}
				if request != nil {
					end.RestartRequested, end.RestartCountsAsFailure, end.RequestReason = true, request.RestartReason == unhealthyText, request.RestartReason
				}
			case api.TaskRestarting:
				end.NextStart = time.Unix(0, e.Time+e.StartDelay)
			}
		}
		return end
	}
	return s
}

const unhealthyText = `healthcheck: check "x" unhealthy`

func edit(a *api.Allocation, change func(*api.Allocation)) *api.Allocation {
	change(a)
	return a
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	runs := func() *api.TaskState { return earlier(taskState("running", false, model.EventStarted()), time.Hour) }
	restarts := func() *api.TaskState {
		return taskState("pending", false, model.EventStarted(), exit3(), model.EventRestarting("", 14*time.Second))
	}
	startedAgain := func() *api.TaskState {
		return taskState("running", false, model.EventStarted(), exit3(), model.EventRestarting("", time.Second), model.EventStarted())
	}
	failed := func() *api.TaskState {
		return taskState("dead", true, model.EventStarted(), exit3(), model.EventNotRestarting("Exceeded allowed attempts 2"))
	}
	succeeded := func() *api.TaskState {
		return taskState("dead", false, model.EventStarted(), model.EventTerminated(0, 0, false, ""))
	}
	setup := func() *api.TaskState { return taskState("pending", false, model.EventReceived()) }
	unplaced := []*api.Evaluation{
		{ID: "first", Status: api.EvalStatusComplete, StatusDescription: `group "g": memory exhausted: an allocation needs 99 MB`, FailedTGAllocs: map[string]*api.AllocationMetric{"g": {NodesExhausted: 1}}},
		{ID: "blocked", Status: api.EvalStatusBlocked, PreviousEval: "first", CreateIndex: 1, FailedTGAllocs: map[string]*api.AllocationMetric{"g": {NodesExhausted: 1}}},
	}
	deployment := func(status, description string) *api.Deployment {
		return &api.Deployment{ID: "d1234567-1", Status: status, StatusDescription: description, TaskGroups: map[string]*api.DeploymentState{"g": {DesiredTotal: 2, HealthyAllocs: 1, DesiredCanaries: 1}}}
	}
	failingCheck := []api.AllocCheckStatus{{Service: "web", Check: "alive", Status: model.CheckFailure, StatusCode: 500, Output: "oops"}, {Service: "a", Check: "a", Status: model.CheckSuccess}}
	device := func(healthy bool) *api.Node {
		return &api.Node{NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{{Vendor: "v", Type: "gpu", Name: "n", Instances: []*api.NodeDevice{{ID: "0", Healthy: healthy, HealthDescription: "too hot"}}}}}}
	}
	withDevice := func(id string) *api.Allocation {
		return edit(alloc("a", "running", runs()), func(a *api.Allocation) {
			a.AllocatedResources = &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"web": {Devices: []*api.AllocatedDeviceResource{{Vendor: "v", Type: "gpu", Name: "n", DeviceIDs: []string{id}}}}}}
		})
	}
	for name, c := range map[string]struct {
		kind     string // service if empty
		edit     func(*Snapshot)
		allocs   []*api.Allocation
		want     Word
		sentence string
	}{
		"all allocations run":    {allocs: []*api.Allocation{alloc("a", "running", runs()), alloc("b", "running", runs())}, want: Running},
		"a finite job completes": {kind: "batch", allocs: []*api.Allocation{alloc("a", "complete", succeeded())}, want: Complete},
		"a finite job without its allocations": {
			kind: "batch", edit: func(s *Snapshot) { s.Job.Status = new("dead") }, want: Complete,
		},
		"a task waits for its restart":                    {allocs: []*api.Allocation{alloc("a", "pending", restarts())}, want: Failing, sentence: `task "web": exit code 3, restarts at 12:00:12`},
		"a task was started again":                        {allocs: []*api.Allocation{alloc("a", "running", startedAgain())}, want: Failing, sentence: `task "web": exit code 3, started again at 11:59:58`},
		"a task that was started again runs for a minute": {allocs: []*api.Allocation{alloc("a", "running", earlier(startedAgain(), time.Minute))}, want: Running},
		"a restart on request": {
			allocs: []*api.Allocation{alloc("a", "running", taskState("running", false, model.EventStarted(), model.EventRestartSignal("User requested task to restart"), exit3(), model.EventRestarting("", 0), model.EventStarted()))},
			want:   Running,
		},
		"a restart by a check": {
			allocs:   []*api.Allocation{alloc("a", "pending", taskState("pending", false, model.EventStarted(), model.EventRestartSignal(unhealthyText), exit3(), model.EventRestarting("", 0)))},
			want:     Failing,
			sentence: `task "web": healthcheck: check "x" unhealthy, restarts at 11:59:58`,
		},
		"one of two restarts": {allocs: []*api.Allocation{alloc("a", "running", runs()), alloc("b", "pending", restarts())}, want: Degraded, sentence: `1 of 2 allocations: task "web": exit code 3, restarts at 12:00:12`},
		"a service fails for good": {
			allocs: []*api.Allocation{alloc("a", "failed", failed())}, want: Failed, sentence: `task "web": exit code 3, not restarted: Exceeded allowed attempts 2`,
		},
		"a finite job fails": {kind: "batch", allocs: []*api.Allocation{alloc("a", "complete", succeeded()), alloc("b", "failed", failed())}, want: Failed, sentence: `1 of 2 allocations: task "web": exit code 3, not restarted: Exceeded allowed attempts 2`},
		"a failure that is placed again later": {
			edit: func(s *Snapshot) {
				s.Evaluations = []*api.Evaluation{{ID: "later", Status: api.EvalStatusPending, WaitUntil: testTime.Add(30 * time.Second)}}
			},
			allocs: []*api.Allocation{edit(alloc("a", "failed", failed()), func(a *api.Allocation) { a.FollowupEvalID = "later" })},
			want:   Failing, sentence: `task "web": exit code 3, placed again at 12:00:30`,
		},
		"a replacement starts": {
			allocs: []*api.Allocation{
				edit(alloc("a", "failed", failed()), func(a *api.Allocation) { a.NextAllocation = "b" }),
				edit(alloc("b", "pending", setup()), func(a *api.Allocation) { a.PreviousAllocation = "a" }),
			},
			want: Failing, sentence: `task "web": exit code 3, placed again`,
		},
		"a replacement runs for a short time": {
			allocs: []*api.Allocation{
				edit(alloc("a", "failed", failed()), func(a *api.Allocation) { a.NextAllocation = "b" }),
				edit(alloc("b", "running", taskState("running", false, model.EventStarted())), func(a *api.Allocation) { a.PreviousAllocation = "a" }),
			},
			want: Failing, sentence: `task "web": exit code 3, placed again`,
		},
		"a replacement runs": {
			allocs: []*api.Allocation{
				edit(alloc("a", "failed", failed()), func(a *api.Allocation) { a.NextAllocation = "b" }),
				edit(alloc("b", "running", runs()), func(a *api.Allocation) { a.PreviousAllocation = "a" }),
			},
			want: Running,
		},
		"a missing command": {
			allocs: []*api.Allocation{alloc("a", "failed", taskState("dead", true, model.EventDriverFailure("command /bin/no: stat /bin/no: no such file or directory"), model.EventNotRestarting("Error was unrecoverable")))},
			want:   Failed, sentence: `task "web": cannot start: command /bin/no: stat /bin/no: no such file or directory, not restarted. Install /bin/no, or correct "command"`,
		},
		"lost": {allocs: []*api.Allocation{alloc("a", "lost", nil)}, want: Failed, sentence: "lost"},
		"nothing is placed": {
			edit: func(s *Snapshot) { s.Evaluations = unplaced }, want: Blocked, sentence: `no place for group "g": memory exhausted: an allocation needs 99 MB`,
		},
		"a part is placed": {
			edit: func(s *Snapshot) { s.Evaluations = unplaced }, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Degraded, sentence: `no place for group "g": memory exhausted: an allocation needs 99 MB`,
		},
		"the reason of the placement failure has changed": {
			edit: func(s *Snapshot) {
				s.Evaluations = []*api.Evaluation{{ID: "blocked", Status: api.EvalStatusBlocked, FailedTGAllocs: map[string]*api.AllocationMetric{"g": {NodesEvaluated: 1, NodesExhausted: 1, DimensionExhausted: map[string]int{"cpu": 1}, CoalescedFailures: 1}}}}
			},
			want: Blocked, sentence: `no place for 2 allocations of group "g": Resources exhausted on 1 nodes; Dimension "cpu" exhausted on 1 nodes`,
		},
		"the driver is missing": {
			edit: func(s *Snapshot) {
				s.Evaluations, s.Node = unplaced, &api.Node{Name: "n", Drivers: map[string]*api.DriverInfo{"exec": {Detected: true, Healthy: true}}}
			},
			want: Blocked, sentence: `no place for 1 allocation of group "g": task "web": driver "raw_exec": node "n" does not have it; it has exec`,
		},
		"a check fails": {
			edit:   func(s *Snapshot) { s.ChecksByAllocID = map[string][]api.AllocCheckStatus{"a": failingCheck} },
			allocs: []*api.Allocation{alloc("a", "running", runs())}, want: Degraded, sentence: `check "alive" of service "web" fails: HTTP status 500 Internal Server Error: oops`,
		},
		"a check without a name fails": {
			edit: func(s *Snapshot) {
				s.ChecksByAllocID = map[string][]api.AllocCheckStatus{"a": {{Service: "web", Check: `service: "web" check`, Status: model.CheckFailure, Output: "no"}}}
			},
			allocs: []*api.Allocation{alloc("a", "running", runs())}, want: Degraded, sentence: `check of service "web" fails: no`,
		},
		"a check fails before the deployment has decided": {
			edit: func(s *Snapshot) {
				s.ChecksByAllocID = map[string][]api.AllocCheckStatus{"a": failingCheck}
				s.Deployment = deployment("running", model.DeploymentRunning)
			},
			allocs: []*api.Allocation{edit(alloc("a", "running", runs()), func(a *api.Allocation) { a.DeploymentID = "d" })},
			want:   Deploying, sentence: `deployment of version 0: 1 of 2 allocations healthy; check "alive" of service "web" fails: HTTP status 500 Internal Server Error: oops`,
		},
		"a deployment continues": {
			edit: func(s *Snapshot) { s.Deployment = deployment("running", model.DeploymentRunning) }, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Deploying, sentence: "deployment of version 0: 1 of 2 allocations healthy",
		},
		"a deployment starts a task": {
			edit: func(s *Snapshot) { s.Deployment = deployment("running", model.DeploymentRunning) }, allocs: []*api.Allocation{alloc("a", "pending", setup())},
			want: Deploying, sentence: `deployment of version 0: 1 of 2 allocations healthy; task "web": is being set up`,
		},
		"a deployment of an earlier version": {
			edit:   func(s *Snapshot) { s.Deployment, s.Job.Version = deployment("failed", "x"), new(uint64(1)) },
			allocs: []*api.Allocation{alloc("a", "running", runs())}, want: Running,
		},
		"a canary waits for promotion": {
			edit: func(s *Snapshot) { s.Deployment = deployment("running", model.DeploymentNeedsPromotion) }, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Deploying, sentence: "deployment of version 0: 1 of 2 allocations healthy, waits for promotion. Promote it: nomad-lite deployment promote d1234567",
		},
		"a canary is not healthy yet": {
			edit: func(s *Snapshot) {
				s.Deployment = deployment("running", model.DeploymentNeedsPromotion)
				for _, g := range s.Deployment.TaskGroups {
					g.DesiredCanaries = g.HealthyAllocs + 1
				}
			}, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Deploying, sentence: "deployment of version 0: 1 of 2 allocations healthy, waits for its canaries",
		},
		"a paused deployment": {
			edit: func(s *Snapshot) { s.Deployment = deployment("paused", model.DeploymentPaused) }, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Deploying, sentence: "deployment of version 0: 1 of 2 allocations healthy, paused. Continue it: nomad-lite deployment resume d1234567",
		},
		"a failed deployment": {
			edit: func(s *Snapshot) {
				s.Deployment, s.Job.TaskGroups[0].Count = deployment("failed", model.DeploymentFailedProgressDeadline), new(2)
			}, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Degraded, sentence: "deployment of version 0 failed: Failed due to progress deadline. Version 0 is not deployed again, not even by job run with an unchanged file. Correct the file and run it: nomad-lite job run FILE",
		},
		"a failed deployment whose tasks run by now": {
			edit: func(s *Snapshot) { s.Deployment = deployment("failed", model.DeploymentFailedProgressDeadline) }, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Running,
		},
		"a failed deployment whose tasks run by now, and fail their check": {
			edit: func(s *Snapshot) {
				s.Deployment = deployment("failed", model.DeploymentFailedProgressDeadline)
				s.ChecksByAllocID = map[string][]api.AllocCheckStatus{"a": failingCheck}
			}, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Degraded, sentence: `check "alive" of service "web" fails: HTTP status 500 Internal Server Error: oops; deployment of version 0 failed. Version 0 is not deployed again, not even by job run with an unchanged file. Correct the file and run it: nomad-lite job run FILE`,
		},
		"a failed deployment of a later version": {
			edit: func(s *Snapshot) {
				s.Deployment, s.Job.Version = deployment("failed", model.DeploymentMarkedAsFailed), new(uint64(3))
				s.Deployment.JobVersion = 3
			}, allocs: []*api.Allocation{alloc("a", "running", runs())},
			want: Degraded, sentence: "deployment of version 3 failed: Deployment marked as failed. Version 3 is not deployed again, not even by job run with an unchanged file. Correct the file and run it: nomad-lite job run FILE, or go back to an earlier version: nomad-lite job revert j VERSION",
		},
		"a failed deployment whose task has failed": {
			edit: func(s *Snapshot) { s.Deployment = deployment("failed", model.DeploymentFailedAllocations) }, allocs: []*api.Allocation{alloc("a", "failed", failed())},
			want: Failed, sentence: `task "web": exit code 3, not restarted: Exceeded allowed attempts 2; deployment of version 0 failed. Version 0 is not deployed again, not even by job run with an unchanged file. Correct the file and run it: nomad-lite job run FILE`,
		},
		"a failed deployment whose template waits": {
			edit:   func(s *Snapshot) { s.Deployment = deployment("failed", model.DeploymentFailedProgressDeadline) },
			allocs: []*api.Allocation{alloc("a", "pending", taskState("pending", false, model.EventHookMessage("Template", "Missing: nomad.var.block(nomad/jobs/a@default.global)", nil)))},
			want:   Degraded, sentence: `task "web": template waits for variable nomad/jobs/a; deployment of version 0 failed. Write it: nomad-lite var put nomad/jobs/a KEY=VALUE`,
		},
		"a failed deployment of a stopped job": {
			edit: func(s *Snapshot) {
				s.Deployment, s.Job.Stop = deployment("failed", model.DeploymentFailedAllocations), new(true)
			},
			want: Stopped,
		},
		"a crash in a deployment": {
			edit: func(s *Snapshot) { s.Deployment = deployment("running", model.DeploymentRunning) }, allocs: []*api.Allocation{alloc("a", "pending", restarts())},
			want: Failing, sentence: `task "web": exit code 3, restarts at 12:00:12`,
		},
		"a template waits": {
			edit:   func(s *Snapshot) { s.Deployment = deployment("running", model.DeploymentRunning) },
			allocs: []*api.Allocation{alloc("a", "pending", taskState("pending", false, model.EventHookMessage("Template", "Missing: nomad.var.block(nomad/jobs/a@default.global)", nil)))},
			want:   Waiting, sentence: `task "web": template waits for variable nomad/jobs/a. Write it: nomad-lite var put nomad/jobs/a KEY=VALUE`,
		},
		"tasks are being set up": {kind: "batch", allocs: []*api.Allocation{alloc("a", "pending", nil)}, want: Waiting, sentence: "is being set up"},
		"a pending evaluation":   {edit: func(s *Snapshot) { s.Evaluations = []*api.Evaluation{{Status: api.EvalStatusPending}} }, want: Waiting, sentence: "its evaluation is pending"},
		"no instances":           {edit: func(s *Snapshot) { s.Job.TaskGroups[0].Count = new(0) }, want: Stopped, sentence: "the counts of all its groups are 0"},
		"stopped":                {edit: func(s *Snapshot) { s.Job.Stop = new(true) }, allocs: []*api.Allocation{alloc("a", "failed", failed())}, want: Stopped},
		"a stop that continues":  {edit: func(s *Snapshot) { s.Job.Stop = new(true) }, allocs: []*api.Allocation{alloc("a", "running", runs())}, want: Stopped, sentence: "1 allocation has not ended yet"},
		"an unhealthy device":    {edit: func(s *Snapshot) { s.Node = device(false) }, allocs: []*api.Allocation{withDevice("0")}, want: Degraded, sentence: `task "web": runs, but its device v/gpu/n[0] is not healthy: too hot. nomad-lite node status -verbose shows the devices`},
		"a device that is gone":  {edit: func(s *Snapshot) { s.Node = device(true) }, allocs: []*api.Allocation{withDevice("1")}, want: Degraded, sentence: `task "web": runs, but the node no longer has its device v/gpu/n[1]. nomad-lite node status -verbose shows the devices`},
		"a healthy device":       {edit: func(s *Snapshot) { s.Node = device(true) }, allocs: []*api.Allocation{withDevice("0")}, want: Running},
		"an unhealthy driver": {
			edit: func(s *Snapshot) {
				s.Node = &api.Node{Drivers: map[string]*api.DriverInfo{"raw_exec": {Detected: true, HealthDescription: "its plugin exits at once"}}}
			},
			allocs: []*api.Allocation{alloc("a", "running", runs())}, want: Degraded,
			sentence: `task "web": runs, but driver "raw_exec" is not healthy: its plugin exits at once. nomad-lite plugin list shows its plugin`,
		},
		"a parameterized job": {kind: "batch", edit: func(s *Snapshot) { s.Job.ParameterizedJob = &api.ParameterizedJobConfig{} }, want: Waiting, sentence: "starts when it is dispatched: nomad-lite job dispatch j"},
		"a periodic job": {
			kind: "batch", edit: func(s *Snapshot) {
				s.Job.Periodic = &api.PeriodicConfig{Enabled: new(true), Spec: new("30 12 * * *"), SpecType: new("cron"), TimeZone: new("UTC")}
				s.Now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
			},
			want: Waiting, sentence: "is launched next at 2026-05-04T12:30:00Z",
		},
		"a periodic job whose last launch failed": {
			kind: "batch", edit: func(s *Snapshot) {
				s.Job.Periodic = &api.PeriodicConfig{Enabled: new(true), Spec: new("30 12 * * *"), SpecType: new("cron"), TimeZone: new("UTC")}
				s.LastChild = &Child{"j/periodic-1", Evaluate(Snapshot{Now: s.Now, Job: &api.Job{ID: new("c"), Type: new("batch")}, Allocations: []*api.Allocation{alloc("a", "failed", failed())}})}
			},
			want: Degraded, sentence: `its last launch "j/periodic-1" is failed: task "web": exit code 3, not restarted: Exceeded allowed attempts 2`,
		},
	} {
		s := Snapshot{Now: testTime, Allocations: c.allocs, Job: &api.Job{
			ID: new("j"), Version: new(uint64(0)), Type: new(api.JobTypeService), Status: new("running"),
			TaskGroups: []*api.TaskGroup{{Name: new("g"), Count: new(1), Tasks: []*api.Task{{Name: "web", Driver: "raw_exec"}}}},
		}}
		if c.kind != "" {
			s.Job.Type = new(c.kind)
		}
		if c.edit != nil {
			c.edit(&s)
		}
		h := Evaluate(withLastEnds(s))
		if h.Word != c.want || h.Sentence() != c.sentence {
			t.Errorf("%s:\ngot  %s: %s\nwant %s: %s", name, h.Word, h.Sentence(), c.want, c.sentence)
		}
	}
}

func TestLastStderrLineIsPartOfTheSentence(t *testing.T) {
	t.Parallel()
	job := &api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "web"}}}}}
	state := taskState("pending", false, model.EventStarted(), exit3(), model.EventRestarting("", 14*time.Second))
	h := Evaluate(withLastEnds(Snapshot{Now: testTime, Job: job, Allocations: []*api.Allocation{alloc("b", "running", earlier(taskState("running", false, model.EventStarted()), time.Hour)), alloc("a", "pending", state)}}))
	if id, task, since, ok := h.WantedStderr(); id != "a" || task != "web" || !since.IsZero() || !ok {
		t.Error(id, task, since, ok)
	}
	const want = `1 of 2 allocations: task "web": exit code 3 (stderr: bind: address already in use), restarts at 12:00:12. Stop the process that uses the port (ss -ltnp shows it), or use another port`
	if got := h.WithStderrTail("bind: address already in use\n").Sentence(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, _, _, ok := (Health{}).WantedStderr(); ok {
		t.Error("a healthy job wants output")
	}
}

func TestWordsThatNeedAttentionComeFirst(t *testing.T) {
	t.Parallel()
	var got []string
	for _, w := range Words {
		if w.NeedsAttention() {
			got = append(got, string(w))
		}
	}
	if text := strings.Join(got, " "); text != "failing failed blocked degraded" || !Words[3].NeedsAttention() || Words[4].NeedsAttention() {
		t.Error(text)
	}
}

func TestRecheckEndsTheFailureOfATaskThatRuns(t *testing.T) {
	t.Parallel()
	state := taskState("running", false, model.EventStarted(), exit3(), model.EventRestarting("", time.Second), model.EventStarted())
	s := Snapshot{Now: testTime, Job: &api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "web"}}}}}, Allocations: []*api.Allocation{alloc("a", "running", state)}}
	s = withLastEnds(s)
	h := Evaluate(s)
	if want := testTime.Add(58 * time.Second); h.Word != Failing || !h.RecheckAt.Equal(want) {
		t.Fatalf("%s until %v, want %v", h.Word, h.RecheckAt, want)
	}
	s.Now = h.RecheckAt
	if h := Evaluate(s); h.Word != Running || !h.RecheckAt.IsZero() {
		t.Errorf("%s, and again at %v", h.Word, h.RecheckAt)
	}
}
