package taskrunner

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func newTestRunner(task Task, restored *RestoredTask) *Runner {
	return New(Config{
		Task: task, RestoredTask: restored, Logger: hclog.NewNullLogger(), OnTaskStateChange: func() {},
		Env: taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{}), TaskDir: hook.TaskDir{},
	})
}

// A task runs again only after a success.
func TestMayRerun(t *testing.T) {
	succeeded := api.TaskState{State: model.TaskDead}
	for _, c := range []struct {
		name   string
		task   Task
		state  api.TaskState
		killed bool
		want   bool
	}{
		{"succeeded", Task{Name: "t"}, succeeded, false, true},
		{"failed", Task{Name: "t"}, api.TaskState{State: model.TaskDead, Failed: true}, false, false},
		{"runs", Task{Name: "t"}, api.TaskState{State: model.TaskRunning}, false, false},
		{"killed", Task{Name: "t"}, succeeded, true, false},
		{"poststop", Task{Name: "t", LifecycleHook: api.TaskLifecycleHookPoststop}, succeeded, false, false},
	} {
		r := record.Restore(time.Now(), record.Fields{}, &c.state)
		if c.killed {
			r, _ = record.Apply(r, record.Killed{Now: time.Now()})
		}
		if got := newTestRunner(c.task, nil).requests.mayRerun(r); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if lifecycle.StageOf(api.TaskLifecycleHookPoststop, false) != lifecycle.PoststopTask {
		t.Error("the poststop task of the test is another one")
	}
}

// A task that has failed and is not dead was being killed by an earlier agent, and is killed again.
func TestKillOfAnEarlierAgentContinues(t *testing.T) {
	for _, c := range []struct {
		name  string
		state api.TaskState
		want  bool
	}{
		{"runs", api.TaskState{State: model.TaskRunning}, false},
		{"has failed and is not dead", api.TaskState{State: model.TaskRunning, Failed: true}, true},
		{"has failed", api.TaskState{State: model.TaskDead, Failed: true}, false},
	} {
		r := newTestRunner(Task{Name: "t"}, &RestoredTask{TaskState: &c.state})
		if got := r.requests.isKillRequested(); got != c.want {
			t.Errorf("%s: killed %v, want %v", c.name, got, c.want)
		}
	}
}
