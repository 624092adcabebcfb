package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// planCase is the input for one Plan call.
type planCase struct {
	input     PlanInput
	lastAlloc int
}

var planTime = time.Unix(1000, 0)

// newPlanCase returns a planCase for version 0 of a job with one group and count 2.
func newPlanCase(jobType string, edit func(*jobFixture)) *planCase {
	f := newJobFixture(func(f *jobFixture) {
		f.job.Type = &jobType
		f.group.Count = new(2)
		if edit != nil {
			edit(f)
		}
	})
	p := &planCase{input: PlanInput{Job: f.job, Node: testNode(), Env: testEnv(), Now: planTime}}
	p.input.Eval = &api.Evaluation{ID: "eval", JobID: "j", Namespace: "default", Type: jobType, Status: api.EvalStatusPending, Priority: 50}
	return p
}

// setNextVersion replaces planCase's job by its next version.
func (p *planCase) setNextVersion(edit func(*jobFixture)) *planCase {
	jobType := *p.input.Job.Type
	version := *p.input.Job.Version + 1
	f := newJobFixture(func(f *jobFixture) {
		f.job.Type = &jobType
		f.group.Count = new(2)
		edit(f)
	})
	f.job.Version = &version
	p.input.Job = f.job
	return p
}

// addAlloc adds an allocation with the current job version.
func (p *planCase) addAlloc(index int, status string, edits ...func(*api.Allocation)) *planCase {
	p.lastAlloc++
	a := &api.Allocation{
		ID: fmt.Sprintf("a%d", p.lastAlloc), Namespace: "default", JobID: "j", Job: p.input.Job, TaskGroup: "g", NodeID: "node",
		Name: fmt.Sprintf("j.g[%d]", index), DesiredStatus: "run", ClientStatus: status, CreateIndex: uint64(p.lastAlloc), AllocModifyIndex: uint64(p.lastAlloc),
	}
	if a.ClientTerminalStatus() {
		a.TaskStates = map[string]*api.TaskState{"t": {State: "dead", FinishedAt: planTime.Add(-3 * time.Second)}}
	}
	for _, edit := range edits {
		edit(a)
	}
	p.input.JobAllocs = append(p.input.JobAllocs, a)
	return p
}

// addFollowUpEval adds an evaluation that replaces a failed allocation when the wait is over.
func (p *planCase) addFollowUpEval(id, status string, wait time.Duration) *planCase {
	p.input.JobEvals = append(p.input.JobEvals, &api.Evaluation{ID: id, Status: status, TriggeredBy: "alloc-reschedule", WaitUntil: planTime.Add(wait)})
	return p
}

func withFollowUp(evalID string) func(*api.Allocation) {
	return func(a *api.Allocation) { a.FollowupEvalID = evalID }
}

func (p *planCase) plan() PlanChanges {
	p.input.NodeUsage = NewEmptyNodeUsage(p.input.Node)
	for _, a := range p.input.JobAllocs {
		p.input.NodeUsage.PutAlloc(a)
	}
	return Plan(p.input)
}

// changesText describes a plan's changes in one line.
func changesText(c PlanChanges) string {
	var changeTexts []string
	for _, a := range c.UpdatedAllocs {
		switch {
		case a.DesiredStatus == "stop":
			changeTexts = append(changeTexts, fmt.Sprintf("stop %s (%s)", a.ID, a.DesiredDescription))
		case a.FollowupEvalID != "":
			changeTexts = append(changeTexts, "later "+a.ID)
		default:
			changeTexts = append(changeTexts, fmt.Sprintf("update %s to v%d", a.ID, *a.Job.Version))
		}
	}
	for _, a := range c.PlacedAllocs {
		text := fmt.Sprintf("place %s v%d", strings.TrimPrefix(a.Name, "j."), *a.Job.Version)
		if a.DeploymentStatus != nil && a.DeploymentStatus.Canary {
			text += " canary"
		}
		if a.PreviousAllocation != "" {
			text += " for " + a.PreviousAllocation
		}
		changeTexts = append(changeTexts, text)
	}
	for _, d := range c.Deployments {
		changeTexts = append(changeTexts, fmt.Sprintf("deployment v%d %s", d.JobVersion, d.Status))
	}
	for _, e := range c.CreatedAndCancelledEvals {
		changeTexts = append(changeTexts, fmt.Sprintf("eval %s %s", e.TriggeredBy, e.Status))
	}
	return strings.Join(changeTexts, "; ")
}

func withHealth(yes bool, deployment string) func(*api.Allocation) {
	return func(a *api.Allocation) {
		a.DeploymentID = deployment
		a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: &yes}
	}
}

func withReschedulePolicy(attempts int, delay time.Duration) func(*jobFixture) {
	return func(f *jobFixture) {
		f.group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: &attempts, Interval: new(time.Hour), Delay: &delay, DelayFunction: new("constant"), Unlimited: new(false)}
	}
}

func withChangedEnv(f *jobFixture) { f.task.Env = map[string]string{"A": "new"} }

func withUpdate(edit func(*api.UpdateStrategy)) func(*jobFixture) {
	return func(f *jobFixture) {
		withChangedEnv(f)
		f.group.Update = &api.UpdateStrategy{}
		edit(f.group.Update)
	}
}

func newTestDeployment(version uint64, status string, state api.DeploymentState) *api.Deployment {
	state.DesiredTotal = 2
	return &api.Deployment{ID: "d", JobID: "j", Namespace: "default", JobVersion: version, Status: status, StatusDescription: "x", TaskGroups: map[string]*api.DeploymentState{"g": &state}}
}

func TestPlan(t *testing.T) {
	running, failed, complete := api.AllocClientStatusRunning, api.AllocClientStatusFailed, api.AllocClientStatusComplete
	for _, c := range []struct {
		name string
		make func() *planCase
		want string
	}{
		{"a new service is placed with a deployment", func() *planCase { return newPlanCase("service", nil) },
			"place g[0] v0; place g[1] v0; deployment v0 running"},
		{"a new batch job has no deployment", func() *planCase { return newPlanCase("batch", nil) },
			"place g[0] v0; place g[1] v0"},
		{"nothing to do", func() *planCase { return newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running) }, ""},
		{"the lowest free name is taken, without a deployment for a plain replacement", func() *planCase { return newPlanCase("service", nil).addAlloc(1, running) },
			"place g[0] v0"},

		// RS-092
		{"count down stops the highest indexes", func() *planCase {
			p := newPlanCase("service", func(f *jobFixture) { f.group.Count = new(3) }).addAlloc(0, running).addAlloc(1, running).addAlloc(2, running)
			return p.setNextVersion(func(f *jobFixture) { f.group.Count = new(1) })
		}, "stop a2 (alloc not needed due to job update); stop a3 (alloc not needed due to job update); update a1 to v1; deployment v1 running"},
		{"count up places what is missing and updates the rest", func() *planCase {
			return newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(func(f *jobFixture) { f.group.Count = new(3) })
		}, "update a1 to v1; update a2 to v1; place g[2] v1; deployment v1 running"},
		{"a group that is gone", func() *planCase {
			return newPlanCase("batch", nil).addAlloc(0, running).setNextVersion(func(f *jobFixture) { f.group.Name = new("h"); f.group.Count = new(1) })
		}, "stop a1 (alloc not needed due to job update); place h[0] v1"},
		{"a stopped job", func() *planCase {
			p := newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, failed)
			p.input.LatestDeployment = newTestDeployment(0, "running", api.DeploymentState{})
			return p.setNextVersion(func(f *jobFixture) { f.job.Stop = new(true) })
		}, "stop a1 (alloc not needed due to job update); deployment v0 cancelled"},
		{"a purged job", func() *planCase {
			p := newPlanCase("system", nil).addAlloc(0, running)
			p.input.Job = nil
			return p
		}, "stop a1 (alloc not needed due to job update)"},
		{"a periodic job has no allocations", func() *planCase {
			return newPlanCase("batch", func(f *jobFixture) { f.job.Periodic = &api.PeriodicConfig{Enabled: new(true)} })
		}, ""},

		// RS-094
		{"a sysbatch job that is done is not run again", func() *planCase {
			return newPlanCase("sysbatch", nil).addAlloc(0, complete).addAlloc(1, failed)
		}, ""},
		{"a new version of a sysbatch job is run", func() *planCase {
			return newPlanCase("sysbatch", nil).addAlloc(0, complete).addAlloc(1, failed).setNextVersion(withChangedEnv)
		}, "place g[0] v1; place g[1] v1"},
		{"a failed system allocation is replaced by each evaluation", func() *planCase {
			return newPlanCase("system", func(f *jobFixture) { f.group.Count = new(1) }).addAlloc(0, failed)
		}, "place g[0] v0"},
		{"a failed deployment does not hold back a system job", func() *planCase {
			p := newPlanCase("system", func(f *jobFixture) { f.group.Count = new(1) }).addAlloc(0, failed, withHealth(false, "d"))
			p.input.LatestDeployment = newTestDeployment(0, "failed", api.DeploymentState{})
			return p
		}, "place g[0] v0"},
		{"finished batch allocations count", func() *planCase { return newPlanCase("batch", nil).addAlloc(0, complete).addAlloc(1, running) }, ""},
		{"any change runs a batch job again", func() *planCase {
			return newPlanCase("batch", nil).addAlloc(0, complete).addAlloc(1, complete).setNextVersion(func(f *jobFixture) { f.task.KillTimeout = new(time.Second) })
		}, "place g[0] v1; place g[1] v1"},
		{"a service that ended well is replaced by the next evaluation", func() *planCase {
			return newPlanCase("service", nil).addAlloc(0, complete).addAlloc(1, running)
		}, "place g[0] v0"},

		// RS-088, RS-089
		{"one at a time is replaced", func() *planCase {
			return newPlanCase("service", nil).addAlloc(1, running).addAlloc(0, running).setNextVersion(withChangedEnv)
		}, "stop a2 (alloc is being updated due to job update); place g[0] v1 for a2; deployment v1 running"},
		{"max_parallel 0 replaces all, without a deployment", func() *planCase {
			return newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(withUpdate(func(u *api.UpdateStrategy) { u.MaxParallel = new(0) }))
		}, "stop a1 (alloc is being updated due to job update); stop a2 (alloc is being updated due to job update); place g[0] v1 for a1; place g[1] v1 for a2"},
		{"batch allocations are replaced at once", func() *planCase {
			return newPlanCase("batch", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(withChangedEnv)
		}, "stop a1 (alloc is being updated due to job update); stop a2 (alloc is being updated due to job update); place g[0] v1 for a1; place g[1] v1 for a2"},
		{"the next one waits for the health of the first", func() *planCase {
			p := newPlanCase("service", nil).addAlloc(1, running).setNextVersion(withChangedEnv).addAlloc(0, running, func(a *api.Allocation) { a.DeploymentID = "d" })
			p.input.LatestDeployment = newTestDeployment(1, "running", api.DeploymentState{})
			return p
		}, ""},
		{"the next one goes when the first is healthy", func() *planCase {
			p := newPlanCase("service", nil).addAlloc(1, running).setNextVersion(withChangedEnv).addAlloc(0, running, withHealth(true, "d"))
			p.input.LatestDeployment = newTestDeployment(1, "running", api.DeploymentState{})
			return p
		}, "stop a1 (alloc is being updated due to job update); place g[1] v1 for a1; deployment v1 running"},
		{"nothing goes on beside an unhealthy one", func() *planCase {
			p := newPlanCase("service", nil).addAlloc(1, running).setNextVersion(withUpdate(func(u *api.UpdateStrategy) { u.MaxParallel = new(5) })).addAlloc(0, running, withHealth(false, "d"))
			p.input.LatestDeployment = newTestDeployment(1, "running", api.DeploymentState{})
			return p
		}, ""},
		{"a paused deployment places nothing", func() *planCase {
			p := newPlanCase("service", nil).addAlloc(1, running).setNextVersion(withChangedEnv).addAlloc(0, running, withHealth(true, "d"))
			p.input.LatestDeployment = newTestDeployment(1, "paused", api.DeploymentState{})
			return p
		}, ""},
		{"a failed deployment places nothing", func() *planCase {
			p := newPlanCase("service", nil).setNextVersion(withChangedEnv).addAlloc(0, running, withHealth(true, "d"))
			p.input.LatestDeployment = newTestDeployment(1, "failed", api.DeploymentState{})
			return p
		}, ""},
		{"a node that does not satisfy the new constraints keeps the old ones, and says so", func() *planCase {
			return newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(func(f *jobFixture) {
				f.group.Constraints = []*api.Constraint{api.NewConstraint("${meta.rack}", "=", "r9")}
			})
		}, "deployment v1 running; eval queued-allocs blocked"},

		// RS-091
		{"canaries are placed beside what runs", func() *planCase {
			return newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(withUpdate(func(u *api.UpdateStrategy) { u.Canary = new(1) }))
		}, "place g[0] v1 canary; deployment v1 running"},
		{"a first version has no canaries", func() *planCase {
			return newPlanCase("service", withUpdate(func(u *api.UpdateStrategy) { u.Canary = new(1) }))
		}, "place g[0] v0; place g[1] v0; deployment v0 running"},
		{"an update in place needs no canaries", func() *planCase {
			return newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(func(f *jobFixture) { f.group.Update = &api.UpdateStrategy{Canary: new(1)} })
		}, "update a1 to v1; update a2 to v1; deployment v1 running"},
		{"canaries of a failed deployment go", func() *planCase {
			p := newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(withUpdate(func(u *api.UpdateStrategy) { u.Canary = new(1) })).
				addAlloc(0, running, withHealth(true, "d"), func(a *api.Allocation) { a.DeploymentStatus.Canary = true })
			p.input.LatestDeployment = newTestDeployment(1, "failed", api.DeploymentState{DesiredCanaries: 1, PlacedCanaries: []string{"a3"}})
			return p
		}, "stop a3 (alloc not needed due to job update)"},
		{"while canaries run, the old version is replaced by its like", func() *planCase {
			p := newPlanCase("service", withReschedulePolicy(3, 5*time.Second)).addAlloc(0, running).
				addAlloc(1, failed, func(a *api.Allocation) { a.TaskStates["t"].FinishedAt = planTime.Add(-time.Hour) }).
				setNextVersion(withUpdate(func(u *api.UpdateStrategy) { u.Canary = new(1) })).
				addAlloc(0, running, func(a *api.Allocation) {
					a.DeploymentID, a.DeploymentStatus = "d", &api.AllocDeploymentStatus{Canary: true}
				})
			p.input.LatestDeployment = newTestDeployment(1, "running", api.DeploymentState{DesiredCanaries: 1, PlacedCanaries: []string{"a3"}})
			return p
		}, "stop a2 (alloc was rescheduled because it failed); place g[1] v0 for a2"},
		{"promoted canaries take the place of those of the same name", func() *planCase {
			p := newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(withUpdate(func(u *api.UpdateStrategy) { u.Canary = new(1) })).
				addAlloc(0, running, withHealth(true, "d"))
			p.input.LatestDeployment = newTestDeployment(1, "running", api.DeploymentState{DesiredCanaries: 1, PlacedCanaries: []string{"a3"}, Promoted: true})
			return p
		}, "stop a1 (alloc not needed due to job update); stop a2 (alloc is being updated due to job update); place g[1] v1 for a2; deployment v1 running"},

		{"a failed allocation is replaced later", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(1, 5*time.Second)).addAlloc(0, failed).addAlloc(1, running)
		},
			"later a1; eval alloc-reschedule pending"},
		{"one that is due within a second is replaced now", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(1, 5*time.Second)).addAlloc(1, running).addAlloc(0, failed, func(a *api.Allocation) { a.TaskStates["t"].FinishedAt = planTime.Add(-4 * time.Second) })
		}, "stop a2 (alloc was rescheduled because it failed); place g[0] v0 for a2"},
		{"one out of attempts stays", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(0, 5*time.Second)).addAlloc(0, failed).addAlloc(1, running)
		}, ""},
		{"a failed allocation awaits its follow-up evaluation", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(1, 5*time.Second)).addAlloc(0, failed, withFollowUp("f")).addAlloc(1, running).addFollowUpEval("f", api.EvalStatusPending, 2*time.Second)
		}, ""},
		{"a follow-up evaluation that is lost is made again", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(1, 5*time.Second)).addAlloc(0, failed, withFollowUp("f")).addAlloc(1, running)
		}, "later a1; eval alloc-reschedule pending"},
		{"a follow-up evaluation that has ended is made again", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(1, 5*time.Second)).addAlloc(0, failed, withFollowUp("f")).addAlloc(1, running).addFollowUpEval("f", api.EvalStatusComplete, 0)
		}, "later a1; eval alloc-reschedule pending"},
		{"the follow-up evaluation replaces its allocation", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(1, time.Hour)).addAlloc(0, failed, withFollowUp("eval")).addAlloc(1, running)
		}, "stop a1 (alloc was rescheduled because it failed); place g[0] v0 for a1"},
		{"the time of a follow-up evaluation counts, which clock steps have moved", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(1, time.Hour)).addAlloc(0, failed, withFollowUp("f")).addAlloc(1, running).addFollowUpEval("f", api.EvalStatusPending, 0)
		}, "stop a1 (alloc was rescheduled because it failed); place g[0] v0 for a1; eval alloc-reschedule canceled"},
		{"a follow-up evaluation that no allocation awaits is cancelled", func() *planCase {
			return newPlanCase("batch", nil).addAlloc(0, running).addAlloc(1, running).addFollowUpEval("f", api.EvalStatusPending, time.Second)
		}, "eval alloc-reschedule canceled"},
		{"a failed allocation above the count is not replaced later", func() *planCase {
			return newPlanCase("service", withReschedulePolicy(1, 5*time.Second)).addAlloc(0, running).addAlloc(1, running).addAlloc(2, failed)
		}, "stop a3 (alloc not needed due to job update)"},
		{"an end after the allocation's last change counts as at that change", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(1, 5*time.Second)).addAlloc(1, running).addAlloc(0, failed, func(a *api.Allocation) {
				a.TaskStates["t"].FinishedAt, a.ModifyTime = planTime.Add(time.Hour), planTime.Add(-time.Minute).UnixNano()
			})
		}, "stop a2 (alloc was rescheduled because it failed); place g[0] v0 for a2"},
		{"a lost batch allocation runs again", func() *planCase {
			return newPlanCase("batch", nil).addAlloc(0, complete).addAlloc(1, api.AllocClientStatusLost)
		}, "place g[1] v0"},
		{"a batch job that was purged and registered again runs again", func() *planCase {
			return newPlanCase("batch", func(f *jobFixture) { f.group.Count = new(1) }).addAlloc(0, complete, func(a *api.Allocation) {
				purged := *a.Job
				purged.CreateIndex = new(*a.Job.CreateIndex + 1)
				a.Job = &purged
			})
		}, "place g[0] v0"},
		{"force replaces it all the same", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(0, 5*time.Second)).addAlloc(1, running).addAlloc(0, failed, func(a *api.Allocation) { a.DesiredTransition.ForceReschedule = new(true) })
		}, "stop a2 (alloc was rescheduled because it failed); place g[0] v0 for a2"},
		{"in a deployment only what it has released is replaced", func() *planCase {
			p := newPlanCase("service", withReschedulePolicy(3, 5*time.Second)).addAlloc(1, running, withHealth(true, "d")).addAlloc(0, failed, withHealth(false, "d"))
			p.input.LatestDeployment = newTestDeployment(0, "running", api.DeploymentState{})
			return p
		}, ""},

		// RS-032
		{"somebody stops an allocation", func() *planCase {
			return newPlanCase("batch", nil).addAlloc(1, running).addAlloc(0, running, func(a *api.Allocation) { a.DesiredTransition.Migrate = new(true) })
		}, "stop a2 (alloc is being migrated); place g[0] v0 for a2"},
		{"somebody reschedules an allocation", func() *planCase {
			return newPlanCase("batch", nil).addAlloc(1, running).addAlloc(0, running, func(a *api.Allocation) { a.DesiredTransition.Reschedule = new(true) })
		}, "stop a2 (); place g[0] v0 for a2"},
		{"an allocation that failed for good can be started again", func() *planCase {
			return newPlanCase("batch", withReschedulePolicy(0, 5*time.Second)).addAlloc(1, running).addAlloc(0, failed, func(a *api.Allocation) { a.DesiredTransition.Migrate = new(true) })
		}, "stop a2 (alloc is being migrated); place g[0] v0 for a2"},

		// RS-049
		{"a driver that is not there", func() *planCase {
			p := newPlanCase("batch", nil)
			p.input.Node.HealthyByDriver = map[string]bool{"x": true, "d": false}
			return p
		}, "eval queued-allocs blocked"},
		{"a static port beside itself", func() *planCase {
			return newPlanCase("batch", func(f *jobFixture) {
				f.group.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 80}}}}
			})
		}, "place g[0] v0; eval queued-allocs blocked"},
		{"distinct_hosts leaves the rest", func() *planCase {
			return newPlanCase("batch", func(f *jobFixture) { f.group.Constraints = []*api.Constraint{{Operand: "distinct_hosts"}} })
		}, "place g[0] v0; eval queued-allocs blocked"},
		{"a node that takes nothing", func() *planCase {
			p := newPlanCase("batch", nil)
			p.input.Node.IsIneligible = true
			return p
		}, "eval queued-allocs blocked"},
		{"an update in place on a node that takes nothing new", func() *planCase {
			p := newPlanCase("service", nil).addAlloc(0, running).addAlloc(1, running).setNextVersion(func(f *jobFixture) { f.task.KillTimeout = new(time.Second) })
			p.input.Node.IsIneligible = true
			return p
		}, "update a1 to v1; update a2 to v1; deployment v1 running"},
		{"an update in place of a job whose devices are gone", func() *planCase {
			widget := func(f *jobFixture) {
				f.task.Resources = &api.Resources{Devices: []*api.RequestedDevice{{Name: "widget"}}}
			}
			return newPlanCase("service", widget).addAlloc(0, running).addAlloc(1, running).setNextVersion(func(f *jobFixture) {
				widget(f)
				f.task.KillTimeout = new(time.Second)
			})
		}, "update a1 to v1; update a2 to v1; deployment v1 running"},
		{"another number of devices", func() *planCase {
			p := newPlanCase("batch", nil).addAlloc(0, running).setNextVersion(func(f *jobFixture) {
				f.group.Count = new(1)
				f.task.Resources = &api.Resources{Devices: []*api.RequestedDevice{{Name: "other/gpu"}}}
			})
			p.input.Node.Devices = deviceNode().Devices
			return p
		}, "stop a1 (alloc is being updated due to job update); place g[0] v1 for a1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := changesText(c.make().plan()); got != c.want {
				t.Errorf("plan\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// The reschedule policy still counts the earlier failures after a requested replacement.
func TestRequestedReplacementKeepsRescheduleTracker(t *testing.T) {
	tracker := &api.RescheduleTracker{Events: []*api.RescheduleEvent{{PrevAllocID: "a0"}}}
	p := newPlanCase("batch", nil).addAlloc(0, api.AllocClientStatusRunning).addAlloc(1, api.AllocClientStatusRunning, func(a *api.Allocation) {
		a.RescheduleTracker, a.DesiredTransition.Migrate = tracker, new(true)
	})
	if placed := p.plan().PlacedAllocs; len(placed) != 1 || placed[0].RescheduleTracker != tracker {
		t.Errorf("placed %+v", placed)
	}
}

// Placement failures are reported as metrics for clients and as an error text.
func TestMemoryMaxNeedsOversubscription(t *testing.T) {
	for _, c := range []struct {
		oversubscription bool
		memoryMax        int
		want             int64
	}{
		{false, 400, 0},
		{true, 400, 400},
		{true, -1, -1},
		{true, 0, 0},
	} {
		p := newPlanCase("service", func(f *jobFixture) { f.task.Resources = &api.Resources{MemoryMaxMB: &c.memoryMax} })
		p.input.MemoryOversubscription = c.oversubscription
		placed := p.plan().PlacedAllocs
		if len(placed) != 2 {
			t.Fatalf("%d allocations placed, want 2", len(placed))
		}
		granted := placed[0].AllocatedResources.Tasks["t"].Memory
		if granted.MemoryMaxMB != c.want {
			t.Errorf("oversubscription %v, memory_max %d: got %d, want %d", c.oversubscription, c.memoryMax, granted.MemoryMaxMB, c.want)
		}
	}
}

func TestPlanMetrics(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*planCase)
		want string
	}{
		{"a missing driver", func(p *planCase) { p.input.Node.HealthyByDriver = map[string]bool{} }, `map[missing drivers:1] map[] 1 evaluated 1 filtered 0 exhausted`},
		{"a constraint", func(p *planCase) {
			p.input.Job.TaskGroups[0].Constraints = []*api.Constraint{api.NewConstraint("${meta.a}", "=", "b")}
		}, `map[${meta.a} = b:1] map[] 1 evaluated 1 filtered 0 exhausted`},
		{"memory", func(p *planCase) { p.input.Node.Attributes["memory.totalbytes"] = "1048576" }, `map[] map[memory:1] 1 evaluated 0 filtered 1 exhausted`},
		{"a port", func(p *planCase) {
			p.input.Job.TaskGroups[0].Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 80, HostNetwork: "default"}}}}
			p.input.Node.ReservedPorts = []int{80}
		}, `map[] map[network: reserved port collision http=80:1] 1 evaluated 0 filtered 1 exhausted`},
		{"a datacenter", func(p *planCase) { p.input.Job.Datacenters = []string{"dc2"} }, `map[] map[] 0 evaluated 0 filtered 0 exhausted`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlanCase("batch", nil)
			p.input.Node.Attributes = map[string]string{}
			c.edit(p)
			out := p.plan()
			m := out.ProcessedEval.FailedTGAllocs["g"]
			if m == nil {
				t.Fatalf("no reason in %+v", out.ProcessedEval)
			}
			got := fmt.Sprintf("%v %v %d evaluated %d filtered %d exhausted", m.ConstraintFiltered, m.DimensionExhausted, m.NodesEvaluated, m.NodesFiltered, m.NodesExhausted)
			if got != c.want {
				t.Errorf("metrics %s, want %s", got, c.want)
			}
			if m.CoalescedFailures != 1 || out.ProcessedEval.QueuedAllocations["g"] != 2 || out.ProcessedEval.BlockedEval != out.CreatedAndCancelledEvals[0].ID || out.CreatedAndCancelledEvals[0].PreviousEval != "eval" {
				t.Errorf("evaluation %+v, blocked %+v", out.ProcessedEval, out.CreatedAndCancelledEvals[0])
			}
			if out.ProcessedEval.StatusDescription == "" {
				t.Error("the evaluation does not say in words why")
			}
		})
	}
}

// A plan's annotations have the numbers shown by `nomad job plan`.
func TestPlanAnnotations(t *testing.T) {
	three := func(f *jobFixture) { f.group.Count = new(3); withChangedEnv(f) }
	old := func() *planCase {
		return newPlanCase("service", func(f *jobFixture) { f.group.Count = new(3) }).addAlloc(0, "running").addAlloc(1, "running").addAlloc(2, "running")
	}
	for _, c := range []struct {
		name string
		p    *planCase
		want api.DesiredUpdates
	}{
		{"max_parallel 1", old().setNextVersion(three), api.DesiredUpdates{DestructiveUpdate: 1, Ignore: 2}},
		{"max_parallel 0", old().setNextVersion(func(f *jobFixture) { three(f); f.group.Update = &api.UpdateStrategy{MaxParallel: new(0)} }), api.DesiredUpdates{DestructiveUpdate: 3}},
		{"canary", old().setNextVersion(func(f *jobFixture) { three(f); f.group.Update = &api.UpdateStrategy{Canary: new(1)} }), api.DesiredUpdates{Canary: 1, Ignore: 3}},
		{"count down", old().setNextVersion(func(f *jobFixture) { f.group.Count = new(1) }), api.DesiredUpdates{Stop: 2, InPlaceUpdate: 1}},
		{"new", newPlanCase("batch", nil), api.DesiredUpdates{Place: 2}},
	} {
		if got := *c.p.plan().ProcessedEval.PlanAnnotations.DesiredTGUpdates["g"]; got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// An allocation's replacement reuses its static port and its resources; other allocations cannot.
func TestResourcesAreHandedOver(t *testing.T) {
	p := newPlanCase("batch", func(f *jobFixture) {
		f.group.Count = new(1)
		f.task.Resources = &api.Resources{MemoryMB: new(600)}
		f.group.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 80}}}}
	})
	p.input.Node.Attributes["memory.totalbytes"] = "1048576000"
	p.input.NodeUsage = NewEmptyNodeUsage(p.input.Node)
	first := Plan(p.input).PlacedAllocs[0]
	first.CreateIndex, first.AllocModifyIndex, first.ClientStatus = 1, 1, "running"
	p.input.NodeUsage.PutAlloc(first)

	p.input.Env.IsPortFree = func(HostPort) bool { return false } // the replaced allocation listens on the port
	p.input.JobAllocs = []*api.Allocation{first}
	p.setNextVersion(func(f *jobFixture) {
		f.group.Count = new(1)
		f.task.Resources = &api.Resources{MemoryMB: new(900)}
		f.group.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 80}}}}
	})
	out := Plan(p.input)
	if got, want := changesText(out), "stop "+first.ID+" (alloc is being updated due to job update); place g[0] v1 for "+first.ID; got != want {
		t.Fatalf("plan %s, want %s", got, want)
	}

	other := newPlanCase("batch", func(f *jobFixture) { f.group.Count = new(1); f.task.Resources = &api.Resources{MemoryMB: new(200)} })
	other.input.Job.ID, other.input.NodeUsage, other.input.Node = new("other"), p.input.NodeUsage, p.input.Node
	if got := changesText(Plan(other.input)); got != "eval queued-allocs blocked" {
		t.Errorf("another job beside both: %s", got)
	}
	p.input.NodeUsage.RemoveAlloc(first)
	p.input.NodeUsage.RemoveAlloc(out.PlacedAllocs[0])
	if got := changesText(Plan(other.input)); got != "place other.g[0] v0" {
		t.Errorf("another job when both have ended: %s", got)
	}
	if !slices.Equal(p.input.NodeUsage.usedResources[:], []float64{100, 200, 300, 0, 1, 6, 2, 2}) || len(p.input.NodeUsage.portHolders) != 0 {
		t.Errorf("left in the room: %v, ports %v", p.input.NodeUsage.usedResources, p.input.NodeUsage.portHolders)
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, count := range []int{1, 100, 500} {
		b.Run(fmt.Sprintf("place-%d", count), func(b *testing.B) {
			for b.Loop() {
				p := newPlanCase("service", func(f *jobFixture) {
					f.group.Count = &count
					f.task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
					f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a"}}}}
				})
				p.input.Env.RandIntN = func(n int) int { p.lastAlloc++; return p.lastAlloc % n }
				if out := p.plan(); len(out.PlacedAllocs) != count {
					b.Fatal(changesText(out))
				}
			}
		})
		b.Run(fmt.Sprintf("unchanged-%d", count), func(b *testing.B) {
			p := newPlanCase("service", func(f *jobFixture) { f.group.Count = &count })
			for i := range count {
				p.addAlloc(i, "running")
			}
			p.input.NodeUsage = NewEmptyNodeUsage(p.input.Node)
			for b.Loop() {
				Plan(p.input)
			}
		})
	}
	b.Run("jobs-1000", func(b *testing.B) {
		var cases []*planCase
		for i := range 1000 {
			p := newPlanCase("service", func(f *jobFixture) {
				f.group.Count = new(1)
				f.task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
			})
			p.input.Job.ID = new(fmt.Sprint("job", i))
			cases = append(cases, p)
		}
		for b.Loop() {
			room := NewEmptyNodeUsage(cases[0].input.Node)
			for _, p := range cases {
				p.input.NodeUsage = room
				Plan(p.input)
			}
		}
	})
}
