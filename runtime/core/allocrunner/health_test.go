package allocrunner

import (
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/health"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// healthReportingHook is a hook that may report health.
type healthReportingHook struct {
	hooks.BuiltinHookDefaults
	name     string
	required bool
}

func (r healthReportingHook) Name() string        { return r.name }
func (r healthReportingHook) ReportsHealth() bool { return r.required }

// newStateInDeployment returns an allocation's state in a deployment.
func newStateInDeployment(deploymentID string) *allocState {
	alloc := allocVersion(1, api.AllocDesiredStatusRun)
	alloc.DeploymentID = deploymentID
	return newAllocState(alloc)
}

// healthWithStatus returns the health in a report with the given client status.
func healthWithStatus(s *allocState, clientStatus string) *model.DeploymentHealth {
	s.override = statusOverride{status: clientStatus}
	return s.newReport(nil).Health
}

func TestHookReportsBelongToAVersion(t *testing.T) {
	s := newStateInDeployment("d1")
	s.addPluginHooks(nil, newHookEntries([]hooks.Hook{healthReportingHook{name: "required", required: true}, healthReportingHook{name: "optional"}}))
	reports := func() (list []string) {
		for _, r := range s.hookHealthReports() {
			list = append(list, fmt.Sprint(r.Name, ":", r.ReportedHealthy, ":", r.ReportedUnhealthy))
		}
		return list
	}
	wantEqual(t, "before a report", reports(), "[required:false:false]")
	s.setHookHealth(hookAttachment{hook: "optional"}, true, "")
	wantEqual(t, "requests a reconcile", len(s.reconcileRequested), 1)
	wantEqual(t, "healthy", reports(), "[optional:true:false required:false:false]")
	s.setHookHealth(hookAttachment{hook: "required"}, false, "broken")
	s.setHookHealth(hookAttachment{hook: "required"}, true, "")
	wantEqual(t, "unhealthy is final", reports(), "[optional:true:false required:false:true]")
	s.setAlloc(&api.Allocation{DeploymentID: "d2"})
	wantEqual(t, "another version", reports(), "[required:false:false]")
	s.setHookHealth(hookAttachment{hook: "required"}, true, "")
	wantEqual(t, "its report", reports(), "[required:true:false]")
}

func TestEachAttachedTaskNeedsAReport(t *testing.T) {
	s := newStateInDeployment("d1")
	for _, task := range []*api.Task{
		{Name: "a"},
		{Name: "b"},
		{Name: "init", Lifecycle: &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart}},
		{Name: "proxy", Lifecycle: &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart, Sidecar: true}},
	} {
		s.addPluginHooks(task, newHookEntries([]hooks.Hook{healthReportingHook{name: "h", required: true}}))
	}
	missing := func() (tasks []string) {
		for _, r := range s.hookHealthReports() {
			if !r.ReportedHealthy {
				tasks = append(tasks, r.Task)
			}
		}
		return tasks
	}
	report := func(task string, healthy bool) { s.setHookHealth(hookAttachment{"h", task}, healthy, "") }
	wantEqual(t, "tasks that run when the allocation is healthy", missing(), "[a b proxy]")
	report("a", true)
	report("proxy", true)
	wantEqual(t, "one task has no report", missing(), "[b]")
	report("b", true)
	wantEqual(t, "all tasks are healthy", missing(), "[]")

	s.setAlloc(&api.Allocation{DeploymentID: "d2"})
	report("", true)
	wantEqual(t, "report for the allocation", missing(), "[]")
	report("init", false)
	wantEqual(t, "any task can be unhealthy", missing(), "[init]")
	report("", true)
	wantEqual(t, "a report for the allocation revokes nothing", missing(), "[init]")
}

func TestHealthBelongsToADeployment(t *testing.T) {
	s := newStateInDeployment("d1")
	wantEqual(t, "unknown", healthWithStatus(s, api.AllocClientStatusRunning), (*model.DeploymentHealth)(nil))
	s.recordHealth(health.Healthy)
	wantEqual(t, "healthy", healthWithStatus(s, api.AllocClientStatusFailed).Healthy, true)
	s.setAlloc(&api.Allocation{DeploymentID: "d2"})
	wantEqual(t, "another deployment", healthWithStatus(s, api.AllocClientStatusRunning), (*model.DeploymentHealth)(nil))
	s.setAlloc(&api.Allocation{})
	recorded := s.recordHealth(health.Stopped)
	wantEqual(t, "stopped without a deployment", recorded, false)
	wantEqual(t, "health of it", healthWithStatus(s, api.AllocClientStatusRunning), (*model.DeploymentHealth)(nil))
}

func TestFailureBeforeAVerdictIsUnhealthy(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*api.Allocation)
		want   string // expected health after the allocation has failed
	}{
		{"in a deployment", func(*api.Allocation) {}, "unhealthy"},
		{"without a deployment", func(a *api.Allocation) { a.DeploymentID = "" }, "unknown"},
		{"health is known already", func(a *api.Allocation) {
			a.DeploymentStatus = &api.AllocDeploymentStatus{Healthy: new(true)}
		}, "unknown"},
	} {
		s := newStateInDeployment("d1")
		c.change(s.alloc)
		got := "unknown"
		if v := healthWithStatus(s, api.AllocClientStatusFailed); v != nil && !v.Healthy {
			got = "unhealthy"
		}
		wantEqual(t, c.name, got, c.want)
	}
}
