package allocrunner

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func TestForcedClientStatus(t *testing.T) {
	failed := statusOverride{api.AllocClientStatusFailed, "restart failed"}
	complete := statusOverride{api.AllocClientStatusComplete, "job ended"}
	maxRun := statusOverride{api.AllocClientStatusComplete, model.MaxRunDurationExceeded}
	for _, c := range []struct {
		name   string
		forced []statusOverride
		want   statusOverride
	}{
		{"the states of the tasks count without it", nil, statusOverride{api.AllocClientStatusRunning, "Tasks are running"}},
		{"it is stronger than the states of the tasks", []statusOverride{failed}, failed},
		{"the first one counts", []statusOverride{failed, complete}, failed},
		{"max_run_duration is stronger than an earlier one", []statusOverride{failed, maxRun}, maxRun},
		{"max_run_duration is final", []statusOverride{maxRun, failed}, maxRun},
	} {
		t.Run(c.name, func(t *testing.T) {
			started := time.Now().Add(-time.Minute)
			status := newStateInDeployment("d1")
			for _, f := range c.forced {
				status.setPermanentOverride(f)
				<-status.reconcileRequested // each force call requests a reconcile
			}
			u := status.newReport(map[string]*api.TaskState{"web": {State: model.TaskRunning, StartedAt: started}})
			wantEqual(t, "status", statusOverride{u.ClientStatus, u.ClientDescription}, c.want)
			wantEqual(t, "health is that of the status", u.Health != nil, c.want.status == api.AllocClientStatusFailed)
			wantEqual(t, "the task has a time of its end", u.TaskStates["web"].FinishedAt.Equal(u.Time), u.Terminal())
		})
	}
}
