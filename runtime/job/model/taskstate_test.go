package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestClientStatus(t *testing.T) {
	state := func(s string, failed bool) *api.TaskState { return &api.TaskState{State: s, Failed: failed} }
	for _, c := range []struct {
		name  string
		tasks []*api.TaskState
		want  string
	}{
		{"no tasks", nil, ", "},
		{"a failed task counts more than a running one", []*api.TaskState{state(TaskRunning, false), state(TaskDead, true)}, "failed, Failed tasks"},
		{"a task that failed and runs again has not failed for good", []*api.TaskState{state(TaskRunning, true)}, "running, Tasks are running"},
		{"one running task is enough", []*api.TaskState{state(TaskPending, false), state(TaskRunning, false), state(TaskDead, false)}, "running, Tasks are running"},
		{"a poststop task has not started", []*api.TaskState{state(TaskPending, false), state(TaskDead, false)}, "pending, No tasks have started"},
		{"all are dead", []*api.TaskState{state(TaskDead, false), state(TaskDead, false)}, "complete, All tasks have completed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tasks := make(map[string]*api.TaskState)
			for i, s := range c.tasks {
				tasks[fmt.Sprint(i)] = s
			}
			status, description := AllocClientStatus(tasks)
			if got := status + ", " + description; got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTaskEvents(t *testing.T) {
	for _, c := range []struct {
		event   *api.TaskEvent
		display string
		details string
	}{
		{EventReceived(), "Task received by client", ""},
		{EventTaskSetup(), "Building Task Directory", "message=Building Task Directory"},
		{EventSetupFailure("no net"), "no net", "fails_task=true setup_error=no net"},
		{EventSetupFailure(""), "Task setup failed", "fails_task=true setup_error="},
		{EventStarted(), "Task started by client", ""},
		{EventDriverMessage("pulling", map[string]string{"image": "x"}, time.Time{}), "pulling", "image=x"},
		{EventDriverFailure("no image"), "no image", "driver_error=no image"},
		{EventDriverFailure(""), "Failed to start task", "driver_error="},
		{EventFailedValidation("bad key"), "bad key", "validation_error=bad key"},
		{EventFailedValidation(""), "Validation of task failed", "validation_error="},
		{EventHookFailed("logmon", "no pipe"), "logmon: no pipe", "message=logmon: no pipe"},
		{EventTerminated(0, 0, false, ""), "Exit Code: 0", "exit_code=0 oom_killed=false signal=0"},
		{EventTerminated(137, 9, true, ""), "Exit Code: 137, Signal: 9", "exit_code=137 oom_killed=true signal=9"},
		{EventTerminated(0, 9, false, "oops"), `Exit Code: 0, Signal: 9, Exit Message: "oops"`, "exit_code=0 exit_message=oops oom_killed=false signal=9"},
		{EventRestarting("", 0), "Task restarting in 0s", "restart_reason= start_delay=0"},
		{EventRestarting("Restart within policy", time.Second), "Task restarting in 1s", "restart_reason=Restart within policy start_delay=1000000000"},
		{EventRestarting("Exceeded allowed attempts, applying a delay", 2*time.Second), "Exceeded allowed attempts, applying a delay - Task restarting in 2s",
			"restart_reason=Exceeded allowed attempts, applying a delay start_delay=2000000000"},
		{EventNotRestarting("Policy allows no restarts"), "Policy allows no restarts", "fails_task=true restart_reason=Policy allows no restarts"},
		{EventNotRestarting(""), "Task exceeded restart policy", "fails_task=true restart_reason="},
		{EventOrphanTaskAdopted(), "the state had lost its record; the agent continues from the copy of the allocation and from the running process", ""},
		{EventRestartSignal(RestartTaskReason), "User requested task to restart", "restart_reason=User requested task to restart"},
		{EventRestartSignal(""), "Task signaled to restart", "restart_reason="},
		{EventSignaling("SIGHUP"), "Task being sent a signal", "signal=SIGHUP"},
		{EventKilling(5 * time.Second), "Sent interrupt. Waiting 5s before force killing", "kill_timeout=5s"},
		{EventKilling(0), "Sent interrupt", "kill_timeout=0s"},
		{EventKillingReason("update missing task", true), "update missing task", "fails_task=true kill_reason=update missing task"},
		{EventKillingReason(MaxRunDurationExceeded, false), "allocation exceeded max_run_duration", "kill_reason=allocation exceeded max_run_duration"},
		{EventKilled(""), "Task successfully killed", ""},
		{EventKilled("stuck"), "stuck", "kill_error=stuck"},
		{EventWaitingShutdownDelay(3 * time.Second), "Waiting for shutdown_delay of 3s before killing the task.", ""},
		{EventSkippingShutdownDelay(3 * time.Second), "Skipping shutdown_delay of 3s before killing the task.", ""},
		{EventSiblingFailed("web"), `Task's sibling "web" failed`, "failed_sibling=web"},
		{EventSiblingFailed(""), "Task's sibling failed", "failed_sibling="},
		{EventLeaderDead(), "Leader Task in Group dead", ""},
		{EventMainDead(), "Main tasks in the group died", ""},
	} {
		s := &api.TaskState{}
		AppendTaskEvent(s, c.event, time.Unix(100, 0))
		e := s.Events[0]
		var details []string
		for _, key := range slices.Sorted(maps.Keys(e.Details)) {
			details = append(details, key+"="+e.Details[key])
		}
		if e.DisplayMessage != c.display || strings.Join(details, " ") != c.details || e.Details == nil {
			t.Errorf("%s: got %q, %q; want %q, %q", e.Type, e.DisplayMessage, details, c.display, c.details)
		}
		if e.Time != time.Unix(100, 0).UnixNano() {
			t.Errorf("%s: time %d", e.Type, e.Time)
		}
		if s.Failed != e.FailsTask || e.FailsTask != (e.Details["fails_task"] == "true") {
			t.Errorf("%s: task failed %v, event fails %v, details %v", e.Type, s.Failed, e.FailsTask, e.Details)
		}
	}
}

func TestTaskStateRules(t *testing.T) {
	at := func(sec int64) time.Time { return time.Unix(sec, 0) }
	s := &api.TaskState{State: TaskPending}

	SetTaskState(s, TaskRunning, at(1))
	SetTaskState(s, TaskRunning, at(2)) // the task runs already, so StartedAt must not change
	if !s.StartedAt.Equal(at(1)) {
		t.Errorf("started %v", s.StartedAt)
	}
	AppendTaskEvent(s, EventRestarting("", 0), at(3))
	SetTaskState(s, TaskPending, at(3))
	SetTaskState(s, TaskRunning, at(4))
	if s.Restarts != 1 || !s.LastRestart.Equal(at(3)) || !s.StartedAt.Equal(at(4)) {
		t.Errorf("after a restart: %+v", s)
	}
	SetTaskState(s, TaskDead, at(5))
	SetTaskState(s, TaskDead, at(6))
	AppendTaskEvent(s, EventNotRestarting("x"), at(6))
	AppendTaskEvent(s, EventKilled(""), at(7))
	if !s.FinishedAt.Equal(at(5)) || !s.Failed {
		t.Errorf("after the end: %+v", s)
	}
	ResetTaskForRerun(s)
	if !s.FinishedAt.IsZero() || s.Failed {
		t.Errorf("revived: %+v", s)
	}
}

// RS-007.
func TestNewestEventsAreKept(t *testing.T) {
	s := &api.TaskState{}
	for i := range 25 {
		AppendTaskEvent(s, EventDriverMessage(fmt.Sprint(i), nil, time.Time{}), time.Now())
	}
	var got []string
	for _, e := range s.Events {
		got = append(got, e.DriverMessage)
	}
	if want := "15 16 17 18 19 20 21 22 23 24"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// Progress takes one of the ten event places, and its operation's result replaces it.
func TestEventReplacesProgress(t *testing.T) {
	s := &api.TaskState{}
	appendEvent := func(id string, ongoing bool, message string) {
		e := EventHookMessage(api.TaskDownloadingArtifacts, message, nil)
		if id != "" {
			SetEventOperation(e, id, ongoing)
		}
		AppendTaskEvent(s, e, time.Now())
	}
	appendEvent("", false, "downloading")
	for i := range 20 {
		appendEvent("a", true, fmt.Sprint("a ", i))
		appendEvent("b", true, fmt.Sprint("b ", i))
	}
	earlier := CopyTaskState(s)
	appendEvent("a", false, "a done")
	appendEvent("a", false, "a done again")
	for state, want := range map[*api.TaskState]string{earlier: "downloading, a 19, b 19", s: "downloading, b 19, a done, a done again"} {
		var got []string
		for _, e := range state.Events {
			got = append(got, e.Message)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCopyTaskState(t *testing.T) {
	s := &api.TaskState{State: TaskRunning}
	AppendTaskEvent(s, EventKilling(time.Second), time.Now())
	c := CopyTaskState(s)
	c.State = TaskDead
	AppendTaskEvent(c, EventKilled(""), time.Now())
	AppendTaskEvent(s, EventMainDead(), time.Now())
	if s.State != TaskRunning || len(s.Events) != 2 || s.Events[1].Type != TaskMainDead || len(c.Events) != 2 || c.Events[1].Type != api.TaskKilled {
		t.Errorf("the copy shares something: %+v", s.Events)
	}
	if s.Events[0] != c.Events[0] {
		t.Error("it has events of its own")
	}
}
