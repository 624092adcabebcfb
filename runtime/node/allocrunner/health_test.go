package allocrunner

import (
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/health"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
)

// healthReportingHook is a hook that may report health.
type healthReportingHook struct {
	runnerhooks.BuiltinHook
	name     string
	required bool
}

func (r healthReportingHook) Name() string        { return r.name }
func (r healthReportingHook) ReportsHealth() bool { return r.required }

// newTestHealthTracker returns the tracker of an allocation without tasks in deployment "d1".
func newTestHealthTracker() (*healthTracker, *api.Allocation) {
	alloc := &api.Allocation{DeploymentID: "d1"}
	return &healthTracker{alloc: func() *api.Allocation { return alloc }, reconcileSignal: newReconcileSignal(), logger: nullLogger}, alloc
}

func TestHookReportsBelongToAVersion(t *testing.T) {
	h, alloc := newTestHealthTracker()
	h.addHealthReporter(healthReportingHook{name: "required", required: true})
	h.addHealthReporter(healthReportingHook{name: "optional"})
	reports := func() (list []string) {
		for _, r := range h.hookHealthReports() {
			list = append(list, fmt.Sprint(r.Name, ":", r.ReportedHealthy, ":", r.ReportedUnhealthy))
		}
		return list
	}
	wantEqual(t, "before a report", reports(), "[required:false:false]")
	h.setHookHealth("optional", true, "")
	wantEqual(t, "requests a reconcile", len(h.reconcileSignal.reconcileRequested), 1)
	wantEqual(t, "healthy", reports(), "[optional:true:false required:false:false]")
	h.setHookHealth("required", false, "broken")
	h.setHookHealth("required", true, "")
	wantEqual(t, "unhealthy is final", reports(), "[optional:true:false required:false:true]")
	alloc.DeploymentID = "d2"
	wantEqual(t, "another version", reports(), "[required:false:false]")
	h.setHookHealth("required", true, "")
	wantEqual(t, "its report", reports(), "[required:true:false]")
}

func TestHealthBelongsToADeployment(t *testing.T) {
	h, alloc := newTestHealthTracker()
	wantEqual(t, "unknown", h.healthForClientStatus(api.AllocClientStatusRunning), (*Health)(nil))
	h.recordVerdict(health.Verdict{State: health.Healthy})
	wantEqual(t, "healthy", h.healthForClientStatus(api.AllocClientStatusFailed).Healthy, true)
	alloc.DeploymentID = "d2"
	wantEqual(t, "another deployment", h.healthForClientStatus(api.AllocClientStatusRunning), (*Health)(nil))
	alloc.DeploymentID = ""
	h.recordVerdict(health.Verdict{State: health.Stopped})
	wantEqual(t, "stopped without a deployment", h.recordedHealthOfVersion(alloc), (*Health)(nil))
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
		h, alloc := newTestHealthTracker()
		c.change(alloc)
		got := "unknown"
		if v := h.healthForClientStatus(api.AllocClientStatusFailed); v != nil && !v.Healthy {
			got = "unhealthy"
		}
		wantEqual(t, c.name, got, c.want)
	}
}
