package taskreason

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

var testTime = time.Date(2026, 5, 4, 12, 0, 0, 0, time.Local)

// newTaskState returns the state of a task with these events, one second apart; the last one was two
// seconds before testTime.
func newTaskState(state string, failed bool, events ...*api.TaskEvent) *api.TaskState {
	var s api.TaskState
	for i, e := range events {
		copied := *e
		copied.Time = 0
		model.AppendTaskEvent(&s, &copied, testTime.Add(time.Duration(i-len(events)-1)*time.Second))
	}
	s.State, s.Failed = state, failed
	return &s
}

func TestFindOmitsTasksThatNeedNotRun(t *testing.T) {
	t.Parallel()
	task := func(name, hook string, sidecar bool) *api.Task {
		task := &api.Task{Name: name}
		if hook != "" {
			task.Lifecycle = &api.TaskLifecycle{Hook: hook, Sidecar: sidecar}
		}
		return task
	}
	job := &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{
		task("migrate", "prestart", false), task("proxy", "prestart", true), task("web", "", false), task("warm", "poststart", false), task("clean", "poststop", false),
	}}}}
	job.TaskGroups[0].Tasks[1].Meta = map[string]string{"lite_after": "migrate:success, web:healthy"}
	job.TaskGroups[0].Tasks[2].Meta = map[string]string{"lite_after": "migrate:success"}
	failed := map[string]*api.TaskState{"web": newTaskState("dead", true, model.EventTerminated(3, 0, false, ""))}
	setup := newTaskState("pending", false, model.EventReceived(), model.EventTaskSetup())
	allocs := []*api.AllocationListStub{
		{ID: "replaced", TaskGroup: "g", DesiredStatus: "run", NextAllocation: "new", CreateIndex: 1, TaskStates: failed},
		{ID: "stopped", TaskGroup: "g", DesiredStatus: "stop", CreateIndex: 2, TaskStates: failed},
		{ID: "failed", TaskGroup: "g", DesiredStatus: "run", CreateIndex: 3, TaskStates: failed},
		{ID: "starting", TaskGroup: "g", DesiredStatus: "run", CreateIndex: 4, TaskStates: map[string]*api.TaskState{
			"migrate": newTaskState("running", false, model.EventStarted()), "proxy": setup, "web": setup, "warm": setup, "clean": setup,
		}},
	}
	check := func(what string, job *api.Job, want ...string) {
		t.Helper()
		var got []string
		for _, task := range FindTasksNotRunning(job, allocs, testTime) {
			got = append(got, task.Alloc.ID+" "+task.Name+": "+task.Reason.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("with its job", job,
		`starting proxy: waits for task "migrate" to succeed, task "web" to be healthy`, `starting warm: waits for task "web" to start`,
		`starting web: waits for task "proxy" to start, task "migrate" to succeed`, "failed web: exit code 3")
	check("without its job", nil,
		"starting clean: is being set up", "starting proxy: is being set up", "starting warm: is being set up", "starting web: is being set up", "failed web: exit code 3")
}
