package record

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

var failPolicy = restart.Policy{Attempts: 1, Interval: time.Hour, Mode: restart.ModeFail}

// after returns a record after facts, and the last fact's change.
func after(r Record, facts ...Fact) (Record, Change) {
	var c Change
	for _, f := range facts {
		r, c = Apply(r, f)
	}
	return r, c
}

func started(at time.Time) Record {
	r, _ := after(New(at), StartChosen{at, "a"}, Started{Now: at, Handle: &driver.Handle{Version: 1}})
	return r
}

// failures in a row with the same cause are counted until the task has run for a minute.
func TestRunsInRow(t *testing.T) {
	at := searchTime
	run := func(r Record, duration time.Duration, end restart.RunEnd) Record {
		at = at.Add(duration)
		r, _ = after(r, Exited{Now: at, End: end, Policy: failPolicy, CandidateID: "b"}, Decided{Now: at, Policy: restart.Policy{Attempts: 9, Interval: time.Hour}, RandomInt64N: noJitter},
			StartChosen{at, "b"}, Started{Now: at, Handle: &driver.Handle{}})
		return r
	}
	r := started(at)
	for i, row := range []struct {
		duration time.Duration
		end      restart.RunEnd
		want     int
	}{
		{time.Second, restart.RunEnd{ExitCode: 1}, 1},
		{time.Second, restart.RunEnd{ExitCode: 1}, 2},
		{restart.RecoveredAfter - 1, restart.RunEnd{ExitCode: 1}, 3},
		{restart.RecoveredAfter, restart.RunEnd{ExitCode: 1}, 1},
		{time.Second, restart.RunEnd{ExitCode: 2}, 1},
		{time.Second, restart.RunEnd{ExitCode: 2}, 2},
	} {
		if r = run(r, row.duration, row.end); r.fields.LastEnd.RunsInRow != row.want {
			t.Errorf("run %d: %d in a row, want %d", i, r.fields.LastEnd.RunsInRow, row.want)
		}
	}
	for i := range 2 { // a failed start counts, however long ago the last run was
		at = at.Add(time.Hour)
		if r, _ = after(r, StartFailed{at, "no image"}); r.fields.LastEnd.RunsInRow != i+1 {
			t.Errorf("start %d has failed: %d in a row", i, r.fields.LastEnd.RunsInRow)
		}
	}
}

func TestLastEnd(t *testing.T) {
	end := searchTime.Add(time.Second)
	exit := Exited{Now: end, End: restart.RunEnd{ExitCode: 3, Signal: 9, OOMKilled: true, Error: "e"}, Policy: failPolicy, CandidateID: "b"}
	exited := restart.RunEnd{Time: end, OutputStart: searchTime, ExitCode: 3, Signal: 9, OOMKilled: true, Error: "e"}
	requested, stopped, failed, asFailure := exited, exited, exited, exited
	requested.RestartRequested, requested.RequestReason = true, "r"
	asFailure.RestartRequested, asFailure.RestartCountsAsFailure, asFailure.RequestReason, asFailure.RunsInRow = true, true, "r", 1
	stopped.Stopped = true
	failed.RunsInRow = 1
	exited.RunsInRow = 1
	for _, row := range []struct {
		name  string
		facts []Fact
		want  restart.RunEnd
	}{
		{"exit", []Fact{exit}, exited},
		{"requested restart", []Fact{RestartRequested{Now: end, Request: RestartRequest{Reason: "r"}}, exit}, requested},
		{"requested restart that is a failure", []Fact{RestartRequested{Now: end, Request: RestartRequest{Reason: "r", CountsAsFailure: true}}, exit}, asFailure},
		{"restart that has failed", []Fact{RestartRequested{Now: end}, RestartFailed{}, exit}, exited},
		{"kill", []Fact{Killed{Now: end}, exit}, stopped},
		{"kill because of a failure", []Fact{Killed{Now: end, Event: model.EventKillingReason("x", true)}, exit}, failed},
		{"unknown exit", []Fact{ExitUnknown{end, "lost"}}, restart.RunEnd{Time: end, OutputStart: searchTime, StatusUnknown: true, Error: "lost", RunsInRow: 1}},
		{"failed start", []Fact{RestartRequested{Now: end}, StartFailed{end, "no image"}}, restart.RunEnd{Time: end, OutputStart: searchTime, StartFailed: true, Error: "no image", RunsInRow: 1}},
	} {
		r, _ := after(started(searchTime), row.facts...)
		if got := *r.fields.LastEnd; got != row.want {
			t.Errorf("%s: %+v, want %+v", row.name, got, row.want)
		}
		if !row.want.StartFailed && r.fields.RestartRequest != nil {
			t.Errorf("%s: the request is not fulfilled", row.name)
		}
	}
}

// The policy's decision is in the task's state, events and last end.
func TestDecisions(t *testing.T) {
	at := searchTime.Add(time.Second)
	exit := func(success bool) Fact {
		return Exited{Now: at, End: restart.RunEnd{Success: success}, Policy: failPolicy, CandidateID: "b", Event: model.EventTerminated(0, 0, false, "")}
	}
	for _, row := range []struct {
		name   string
		policy restart.Policy
		facts  []Fact
		want   string
	}{
		{"restart at once", failPolicy, []Fact{exit(false)}, `pending failed false, start "b", next start in 0s, restarts 1, events Received Started Terminated Restarting, ended false failed false`},
		{"restart after a delay", restart.Policy{Attempts: 1, Interval: time.Hour, Delay: time.Minute, Mode: restart.ModeFail}, []Fact{exit(false)},
			`pending failed false, start "", next start in 1m0s, restarts 1, events Received Started Terminated Restarting, ended false failed false`},
		{"success", failPolicy, []Fact{exit(true)}, `dead failed false, start "", next start in -, restarts 0, events Received Started Terminated, ended true failed false`},
		{"no attempts", restart.Policy{}, []Fact{exit(false)}, `dead failed true, start "", next start in -, restarts 0, events Received Started Terminated Not Restarting, ended true failed true`},
		{"kill", failPolicy, []Fact{Killed{Now: at}, exit(false)}, `dead failed false, start "", next start in -, restarts 0, events Received Started Terminated Killed, ended true failed false`},
		{"destroy is owed", failPolicy, []Fact{exit(false), DestroyOwed{PendingDestroy{StartID: "a"}}}, `pending failed false, start "", next start in 0s, restarts 1, events Received Started Terminated Restarting, ended false failed false`},
	} {
		r, _ := after(started(searchTime), row.facts...)
		r, c := after(r, Decided{Now: at, Policy: row.policy, Outcome: r.fields.UnhandledExit.Outcome(), RandomInt64N: noJitter, KilledEvent: model.EventKilled("")})
		s, f := r.status, r.fields
		next := "-"
		if !f.LastEnd.NextStart.IsZero() {
			next = f.LastEnd.NextStart.Sub(at).String()
		}
		events := ""
		for _, e := range s.Events {
			events += " " + e.Type
		}
		got := fmt.Sprintf("%s failed %v, start %q, next start in %s, restarts %d, events%s, ended %v failed %v", s.State, s.Failed, f.StartID, next, s.Restarts, events, c.Ended, c.Failed)
		if got != row.want {
			t.Errorf("%s:\n got %s\nwant %s", row.name, got, row.want)
		}
		if f.UnhandledExit != nil || f.Handle != nil || f.NextStartID != "" || f.RestartRequest != nil {
			t.Errorf("%s: the exit is not handled: %+v", row.name, f)
		}
		if remaining := r.RemainingDelay(at); next != "-" && remaining.String() != next {
			t.Errorf("%s: %v remain", row.name, remaining)
		}
	}
}

func TestAttemptsAreCountedAcrossAgents(t *testing.T) {
	r := started(searchTime)
	for i, want := range []restart.Action{restart.ActionRestart, restart.ActionGiveUp} {
		var c Change
		r, _ = after(r, Exited{Now: searchTime, Policy: failPolicy, CandidateID: "b"})
		r = Restore(searchTime, r.fields, r.status)
		r, c = after(r, Decided{Now: searchTime, Policy: failPolicy, RandomInt64N: noJitter})
		if c.Decision.Action != want {
			t.Errorf("end %d: %v, want %v", i, c.Decision.Action, want)
		}
		r, _ = after(r, StartChosen{searchTime, "c"}, Started{Now: searchTime, Handle: &driver.Handle{}})
	}
}

func TestHookAnswered(t *testing.T) {
	ready, _ := after(New(searchTime), HookDataStored{"h", map[string]string{"a": "1"}}, StartChosen{searchTime, "a"})
	was := map[string]string{"a": "1"}
	answer := HookAnswered{Hook: "h", DataAtCall: was, Data: was, Done: true, Env: map[string]string{"E": "1"}, Mounts: []driver.Mount{{TaskPath: "/m"}}, Devices: []driver.Device{{TaskPath: "/d"}}}
	failed, withData, running := answer, answer, answer
	failed.Failed, failed.Data = true, nil
	withData.Failed, withData.Data = true, map[string]string{"a": "2"}
	running.AlreadyRunning = true
	cleared := HookAnswered{Hook: "h", DataAtCall: was}
	valid := HookState{PrestartDone: true, Data: was, Env: answer.Env, Mounts: answer.Mounts, Devices: answer.Devices}
	for _, row := range []struct {
		name    string
		answer  HookAnswered
		want    HookState
		startID string
	}{
		{"answer", answer, valid, ""},
		{"answer for a running task", running, valid, "a"},
		{"error", failed, HookState{Data: was}, "a"},
		{"error with data", withData, HookState{Data: map[string]string{"a": "2"}}, ""},
		{"answer without data", cleared, HookState{}, ""},
	} {
		r, c := after(ready, row.answer)
		if got := r.HookState("h"); !reflect.DeepEqual(got, row.want) || r.fields.StartID != row.startID {
			t.Errorf("%s: %+v, start %q, want %+v, %q", row.name, got, r.fields.StartID, row.want, row.startID)
		}
		if changed := !reflect.DeepEqual(row.want, HookState{Data: was}); c.Applied() != changed {
			t.Errorf("%s: changed %v", row.name, c.Applied())
		}
		if again, c := after(r, row.answer); c.Applied() && again.HookState("h").PrestartDone {
			t.Errorf("%s: the same answer changes the record again", row.name)
		}
	}
	// A hook's answer with the data from before the call does not replace data stored during the call.
	r, _ := after(ready, HookDataStored{"h", map[string]string{"a": "new"}}, answer)
	if got := r.HookState("h").Data["a"]; got != "new" {
		t.Errorf("data %q", got)
	}
	if _, c := after(r, HookDataStored{"h", map[string]string{"a": "new"}}); c.Applied() {
		t.Error("the same data is stored again")
	}
	if r, _ = after(r, HooksAttached{map[string]string{"x": "{}"}, map[string]string{"h": "{1}", "g": "{2}"}}); r.HookState("h").AttachmentJSON != "{1}" || r.HookState("h").Data["a"] != "new" || r.fields.AllocHookConfigByName["x"] != "{}" {
		t.Errorf("attached hooks: %+v", r.fields)
	}
	if got := r.AttachmentJSONByHookName(); !reflect.DeepEqual(got, map[string]string{"h": "{1}", "g": "{2}"}) {
		t.Errorf("attachments %v", got)
	}
	if got := New(searchTime).AttachmentJSONByHookName(); got != nil {
		t.Errorf("attachments %v of a new task", got)
	}
}

func TestKilled(t *testing.T) {
	event := func() *api.TaskEvent { return model.EventKilling(time.Second) }
	r, c := after(started(searchTime), Killed{searchTime, event()})
	if !r.IsKilled() || !r.fields.KillRequested || len(c.Events) != 1 {
		t.Errorf("%+v, %+v", r.fields, c)
	}
	if _, c := after(r, Killed{searchTime, event()}); c.Applied() {
		t.Error("a second kill has an effect")
	}
	if again, c := after(Restore(searchTime, r.fields, r.status), Killed{searchTime, event()}); len(c.Events) != 0 || !again.IsKilled() {
		t.Error("the event of an earlier agent is added again")
	}
	dead, _ := after(started(searchTime), Exited{Now: searchTime, Policy: failPolicy, End: restart.RunEnd{Success: true}}, Decided{Now: searchTime, Policy: failPolicy, Outcome: restart.RunOutcome{Success: true}, RandomInt64N: noJitter})
	if r, c := after(dead, Killed{searchTime, event()}); r.fields.KillRequested || len(c.Events) != 0 || !c.TellAlloc {
		t.Errorf("kill of a dead task: %+v, %+v", r.fields, c)
	}
	// A kill during the start is a kill for the new process, and a restart request is not for it.
	if r, _ := after(New(searchTime), StartChosen{searchTime, "a"}, Killed{Now: searchTime}, Started{Now: searchTime, Handle: &driver.Handle{}}); !r.fields.KillRequested {
		t.Error("the kill during the start is forgotten")
	}
	former := r.fields
	former.KillRequested = true
	if r, _ := after(Restore(searchTime, former, &api.TaskState{State: model.TaskPending}), Started{Now: searchTime, Handle: &driver.Handle{}}); r.fields.KillRequested {
		t.Error("the kill of a former process is one of this")
	}
}

func TestRestore(t *testing.T) {
	request := &RestartRequest{Reason: "r"}
	handle := &driver.Handle{Version: 1}
	for _, row := range []struct {
		name          string
		fields        Fields
		status        *api.TaskState
		request, kill bool
	}{
		{"nothing", Fields{}, nil, false, false},
		{"restart of a process", Fields{RestartRequest: request, Handle: handle}, &api.TaskState{State: model.TaskRunning}, true, false},
		{"restart of a process that has exited", Fields{RestartRequest: request, Handle: handle, UnhandledExit: &restart.RunEnd{}}, &api.TaskState{State: model.TaskRunning}, false, false},
		{"restart of a process without a stored handle", Fields{RestartRequest: request, StartID: "a"}, &api.TaskState{State: model.TaskPending}, true, false},
		{"restart of a process that was not stored", Fields{RestartRequest: request}, &api.TaskState{State: model.TaskPending}, false, false},
		{"rerun", Fields{RestartRequest: request}, &api.TaskState{State: model.TaskDead}, true, false},
		{"rerun of a task that has failed", Fields{RestartRequest: request}, &api.TaskState{State: model.TaskDead, Failed: true}, false, false},
		{"rerun of a task that is complete", Fields{RestartRequest: request, RunComplete: true}, &api.TaskState{State: model.TaskDead}, false, false},
		{"interrupted kill", Fields{Handle: handle}, &api.TaskState{State: model.TaskRunning, Failed: true}, false, true},
	} {
		r := Restore(searchTime, row.fields, row.status)
		if got := r.fields.RestartRequest != nil; got != row.request || r.IsKilled() != row.kill {
			t.Errorf("%s: request %v, killed %v", row.name, got, r.IsKilled())
		}
		if !r.fields.RestartState.WindowStart.Equal(searchTime) {
			t.Errorf("%s: no window", row.name)
		}
	}
	window := searchTime.Add(-time.Minute)
	if r := Restore(searchTime, Fields{RestartState: restart.State{WindowStart: window}}, nil); !r.fields.RestartState.WindowStart.Equal(window) || r.status.State != model.TaskPending || r.status.Events[0].Type != api.TaskReceived {
		t.Errorf("%+v, %+v", r.fields.RestartState, r.status)
	}
}

func TestLimitsOfLists(t *testing.T) {
	r := New(searchTime)
	for i := range maxReportedMessages + 1 {
		var c Change
		for range 2 {
			r, c = after(r, EventEmittedOnce{searchTime, &api.TaskEvent{DisplayMessage: fmt.Sprint(i)}})
		}
		if c.Applied() {
			t.Errorf("message %d is there twice", i)
		}
	}
	for i := range maxReadVariables + 1 {
		r, _ = after(r, VariableRead{fmt.Sprint(i)}, VariableRead{fmt.Sprint(i)})
	}
	if m, v := len(r.fields.ReportedOnceOnlyMessages), len(r.fields.ReadVariables); m != maxReportedMessages || v != maxReadVariables {
		t.Errorf("%d messages, %d variables", m, v)
	}
}

func TestFilesLost(t *testing.T) {
	for _, r := range fullRecords() {
		lost, _ := after(r, FilesLost{searchTime})
		f := lost.fields
		want := Fields{
			HookStateByName: map[string]HookState{"h": {AttachmentJSON: "{}", Data: map[string]string{"a": "1"}}}, LastKnownCapabilities: r.fields.LastKnownCapabilities,
			RestartState: restart.State{EndsInWindow: 1}, KillRequested: true,
			ReportedOnceOnlyMessages: r.fields.ReportedOnceOnlyMessages, ReadVariables: r.fields.ReadVariables, DeploymentFailure: r.fields.DeploymentFailure,
		}
		if !reflect.DeepEqual(f, want) || lost.status.State != model.TaskPending || lost.status.Failed || !lost.status.FinishedAt.IsZero() {
			t.Errorf("%+v, %+v", f, lost.status)
		}
	}
	failed, _ := after(Record{status: &api.TaskState{State: model.TaskDead, Failed: true, FinishedAt: searchTime}}, FilesLost{searchTime})
	if s := failed.status; s.State != model.TaskPending || s.Failed || !s.FinishedAt.IsZero() {
		t.Errorf("a task that had failed: %+v", s)
	}
}

func TestNew(t *testing.T) {
	r := New(searchTime)
	if r.status.State != model.TaskPending || !r.fields.RestartState.WindowStart.Equal(searchTime) || len(r.status.Events) != 1 || r.status.Events[0].Type != api.TaskReceived {
		t.Errorf("%+v, %+v", r.fields, r.status)
	}
}

func TestCompleted(t *testing.T) {
	complete, c := after(started(searchTime), Completed{})
	if !complete.fields.RunComplete || c.Put != AllParts || c.Durability != Soon {
		t.Errorf("%+v, %+v", complete.fields, c)
	}
	if _, c := after(complete, Completed{}); c.Applied() {
		t.Errorf("the second time: %+v", c)
	}
}

func TestStartsThatMustBeDestroyed(t *testing.T) {
	handle := &driver.Handle{Version: 1}
	r, _ := after(started(searchTime), DestroyOwed{PendingDestroy{StartID: "a", Handle: handle, NotFoundIsInconclusive: true}}, DestroyOwed{PendingDestroy{StartID: "b", Handle: handle}}, DestroyOwed{PendingDestroy{StartID: "a", Handle: handle}})
	show := func(r Record) (text string) {
		for _, d := range r.fields.StartsToDestroy() {
			text += fmt.Sprintf(" %s %v %v", d.StartID, d.Handle != nil, d.NotFoundIsInconclusive)
		}
		return text
	}
	if got, want := show(r), " a true false b false false"; got != want {
		t.Errorf("got%s, want%s", got, want)
	}
	for names, want := range map[bool]string{true: " a true false b false false", false: " a true false b false true"} {
		if later, _ := after(r, DestroyDoubtful{names}); show(later) != want {
			t.Errorf("finds by name %v:%s, want%s", names, show(later), want)
		}
	}
	if r, _ = after(r, Destroyed{}); show(r) != " b false false" {
		t.Errorf("got%s", show(r))
	}
	if r, _ = after(r, Destroyed{}, Destroyed{}); r.fields.FirstPendingDestroy != nil || show(r) != " a true false" {
		t.Errorf("got%s", show(r))
	}
}

func TestUnhealthy(t *testing.T) {
	failed, _ := after(started(searchTime), Exited{Now: searchTime, Policy: failPolicy, End: restart.RunEnd{ExitCode: 1}})
	again, _ := after(failed, Decided{Now: searchTime, Policy: failPolicy, RandomInt64N: noJitter}, Started{Now: searchTime, Handle: &driver.Handle{}})
	pending, _ := after(failed, Decided{Now: searchTime, Policy: failPolicy, RandomInt64N: noJitter})
	for _, row := range []struct {
		name   string
		record Record
		at     time.Duration
		hasEnd bool
	}{
		{"runs for the first time", started(searchTime), time.Second, false},
		{"has failed", pending, time.Hour, true},
		{"runs again", again, restart.RecoveredAfter - 1, true},
		{"runs again for long", again, restart.RecoveredAfter, false},
	} {
		r, c := after(row.record, Unhealthy{Now: searchTime.Add(row.at), Failure: restart.DeploymentFailure{DeploymentID: "d", Reason: "r"}, Event: model.EventAllocUnhealthy("r")})
		f := r.fields.DeploymentFailure
		if f.DeploymentID != "d" || f.Reason != "r" || !f.Time.Equal(searchTime.Add(row.at)) || f.End != nil != row.hasEnd || len(c.Events) != 1 {
			t.Errorf("%s: %+v", row.name, f)
		}
	}
}

func TestHooksCalledOrStarted(t *testing.T) {
	for name, r := range map[string]Record{
		"hooks": {fields: Fields{HookStateByName: map[string]HookState{"h": {}}}, status: &api.TaskState{State: model.TaskPending}}, "start": {fields: Fields{StartID: "a"}, status: &api.TaskState{State: model.TaskPending}},
		"destroy": {fields: Fields{FirstPendingDestroy: &PendingDestroy{}}, status: &api.TaskState{State: model.TaskPending}}, "complete": {fields: Fields{RunComplete: true}, status: &api.TaskState{State: model.TaskPending}},
		"state": {status: &api.TaskState{State: model.TaskDead}},
	} {
		if !r.HooksCalledOrStarted() {
			t.Errorf("%s: false", name)
		}
	}
	if New(searchTime).HooksCalledOrStarted() {
		t.Error("true for a new task")
	}
}

// The state is a copy, so its reader may change it.
func TestStatusIsACopy(t *testing.T) {
	r := started(searchTime)
	r.Status().State = "x"
	if r.status.State != model.TaskRunning || !r.status.StartedAt.Equal(searchTime) {
		t.Errorf("%+v", r.status)
	}
}

func TestRebootStartsTheTaskAgain(t *testing.T) {
	running := started(searchTime)
	running.fields.LastEnd = &restart.RunEnd{ExitCode: 1}
	r, c := after(running, RestartRequested{Now: searchTime}, DestroyOwed{PendingDestroy{StartID: "x"}}, Rebooted{searchTime})
	f := r.fields
	if r.status.State != model.TaskPending || f.StartID != "" || f.Handle != nil || f.RestartRequest != nil || f.FirstPendingDestroy != nil || f.LastEnd != nil || len(c.Events) != 1 {
		t.Errorf("%+v, %+v", f, c)
	}
	if _, c := after(New(searchTime), StartChosen{searchTime, "a"}, Rebooted{searchTime}); c.Applied() {
		t.Errorf("a task that did not run: %+v", c)
	}
	exited, _ := after(started(searchTime), Exited{Now: searchTime, CandidateID: "b"}, Rebooted{searchTime})
	if f := exited.fields; f.UnhandledExit == nil || f.StartID == "" || exited.status.State != model.TaskRunning {
		t.Errorf("the exit before the boot is not decided: %+v, %+v", f, exited.status)
	}
	dead, _ := after(started(searchTime), Died{searchTime}, RerunRequested{Now: searchTime}, Rebooted{searchTime})
	if dead.fields.RestartRequest == nil || dead.status.State != model.TaskDead {
		t.Errorf("the rerun that was requested before the boot is forgotten: %+v", dead.fields)
	}
}

func TestStartEndsRestartDelay(t *testing.T) {
	delayed := New(searchTime)
	delayed.fields.RestartState.NextStart, delayed.fields.RestartState.Delay = searchTime.Add(time.Minute), time.Minute
	for _, fact := range []Fact{StartChosen{searchTime, "a"}, TakenOver{searchTime}} {
		r, _ := after(delayed, fact)
		if s := r.fields.RestartState; !s.NextStart.IsZero() || s.Delay != 0 || r.RemainingDelay(searchTime) != 0 {
			t.Errorf("%T: %+v", fact, s)
		}
	}
}

// When a process has ended, nothing from its start is left for the next one.
func TestEndedStartIsForgotten(t *testing.T) {
	network := &driver.NetworkOverride{Addr: "1"}
	adopted := Adopted{Handle: &driver.Handle{}, Network: network, Unrecoverable: true}
	for name, facts := range map[string][]Fact{
		"decision": {adopted, ExitUnknown{searchTime, "lost"}, Decided{Now: searchTime, Policy: failPolicy, RandomInt64N: noJitter}},
		"boot":     {adopted, Rebooted{searchTime}}, "nothing executed": {adopted, NothingExecuted{}},
	} {
		r, _ := after(New(searchTime), append([]Fact{StartChosen{searchTime, "a"}}, facts...)...)
		if f := r.fields; f.StartID != "" || f.Handle != nil || f.NetworkOverride != nil || f.HandleUnrecoverable {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestCapabilitiesSeen(t *testing.T) {
	c := &driver.Capabilities{Exec: true}
	if r, _ := after(New(searchTime), CapabilitiesSeen{c}); r.fields.LastKnownCapabilities != c {
		t.Errorf("%+v", r.fields.LastKnownCapabilities)
	}
}

func TestTaskDiesOnce(t *testing.T) {
	dead, c := after(started(searchTime), Died{searchTime})
	if !c.Ended || c.Failed || !c.TellAlloc || dead.status.State != model.TaskDead || !dead.status.FinishedAt.Equal(searchTime) {
		t.Errorf("%+v, %+v", dead.status, c)
	}
	if again, c := after(dead, Died{searchTime.Add(time.Hour)}); c.Ended || c.TellAlloc || !again.status.FinishedAt.Equal(searchTime) {
		t.Errorf("the second time: %+v, %+v", again.status, c)
	}
}

func TestTakenOver(t *testing.T) {
	pending, _ := after(New(searchTime), StartChosen{searchTime, "a"}, Adopted{Handle: &driver.Handle{Version: 2}, Network: &driver.NetworkOverride{Addr: "1"}, Unrecoverable: true})
	if f := pending.fields; f.Handle.Version != 2 || f.NetworkOverride.Addr != "1" || !f.HandleUnrecoverable {
		t.Errorf("%+v", f)
	}
	if r, c := after(pending, TakenOver{searchTime}); r.status.State != model.TaskRunning || len(c.Events) != 1 || c.Durability != Grouped {
		t.Errorf("%+v, %+v", r.status, c)
	}
	if _, c := after(started(searchTime), TakenOver{searchTime}); c.Applied() {
		t.Errorf("%+v", c)
	}
}

func TestStarted(t *testing.T) {
	r, _ := after(New(searchTime), StartChosen{searchTime, "a"}, RestartRequested{Now: searchTime}, Started{searchTime, &driver.Handle{Version: 2}, &driver.NetworkOverride{Addr: "1"}, true})
	if f := r.fields; f.StartID != "a" || f.Handle.Version != 2 || f.NetworkOverride.Addr != "1" || !f.HandleUnrecoverable || f.RestartRequest == nil {
		t.Errorf("%+v", f) // the request was made when StartTask had returned
	}
}

func TestNothingExecuted(t *testing.T) {
	interrupted, _ := after(New(searchTime), StartChosen{searchTime, "a"}, RestartRequested{Now: searchTime}, NothingExecuted{})
	if interrupted.fields.RestartRequest != nil {
		t.Error("a restart is requested of a start that has executed nothing")
	}
	next, _ := after(started(searchTime), Exited{Now: searchTime, End: restart.RunEnd{ExitCode: 1}, Policy: restart.Policy{Attempts: 1, Interval: time.Hour}, CandidateID: "b"})
	if f := next.fields; f.NextStartID != "b" {
		t.Fatalf("%+v", f)
	}
	if r, _ := after(next, NothingExecuted{}); r.fields.StartID == "" || r.fields.Handle == nil || r.fields.NextStartID != "" {
		t.Errorf("the start before is forgotten: %+v", r.fields) // its exit is still to be handled
	}
}

func TestLastStart(t *testing.T) {
	handle, exit := &driver.Handle{}, &restart.RunEnd{}
	for _, row := range []struct {
		fields Fields
		state  string
		want   Start
	}{
		{Fields{}, model.TaskPending, NoStart},
		{Fields{StartID: "a"}, model.TaskPending, WithID},
		{Fields{StartID: "a"}, model.TaskRunning, RunningByID},
		{Fields{StartID: "a", Handle: handle}, model.TaskPending, WithHandle},
		{Fields{StartID: "a", Handle: handle}, model.TaskRunning, WithHandle},
		{Fields{}, model.TaskRunning, Lost},
		{Fields{StartID: "a", Handle: handle, UnhandledExit: exit}, model.TaskRunning, Ended},
		{Fields{StartID: "a", Handle: handle}, model.TaskDead, Ended},
		{Fields{StartID: "a"}, model.TaskDead, Ended},
		{Fields{StartID: "a", Handle: handle, UnhandledExit: exit, NextStartID: "b"}, model.TaskRunning, WithNextID},
		{Fields{NextStartID: "b"}, model.TaskPending, NoStart},
	} {
		if got := Restore(searchTime, row.fields, &api.TaskState{State: row.state}).LastStart(); got != row.want {
			t.Errorf("%+v, %s: %d, want %d", row.fields, row.state, got, row.want)
		}
	}
}

func TestPredictedDecisionHasNoJitter(t *testing.T) {
	policy := restart.Policy{Attempts: 1, Interval: time.Hour, Delay: time.Minute}
	if d := started(searchTime).PredictedDecision(searchTime, policy, restart.RunOutcome{}); d.Delay != time.Minute {
		t.Errorf("%+v", d)
	}
}

// The next start's id is chosen with the exit only if the start follows at once.
func TestNextStart(t *testing.T) {
	for _, row := range []struct {
		policy restart.Policy
		want   string
	}{
		{restart.Policy{Attempts: 1, Interval: time.Hour}, "b"},
		{restart.Policy{Attempts: 1, Interval: time.Hour, Delay: time.Second}, ""},
		{restart.Policy{}, ""},
	} {
		if r, _ := after(started(searchTime), Exited{Now: searchTime, Policy: row.policy, CandidateID: "b"}); r.fields.NextStartID != row.want {
			t.Errorf("%+v: %q", row.policy, r.fields.NextStartID)
		}
	}
}

// Only the first of several requests counts.
func TestSecondRestartRequest(t *testing.T) {
	r, c := after(started(searchTime), RestartRequested{Now: searchTime, Request: RestartRequest{Reason: "user"}}, RestartRequested{Now: searchTime, Request: RestartRequest{Reason: "check", CountsAsFailure: true}})
	if r.fields.RestartRequest.Reason != "user" || c.Applied() {
		t.Errorf("%+v, %+v", r.fields.RestartRequest, c)
	}
}

func TestRerun(t *testing.T) {
	succeeded, _ := after(started(searchTime), Exited{Now: searchTime, End: restart.RunEnd{Success: true}}, Decided{Now: searchTime, Outcome: restart.RunOutcome{Success: true}, RandomInt64N: noJitter})
	if !succeeded.MayRerun() {
		t.Fatalf("%+v", succeeded.status)
	}
	requested, c := after(succeeded, RerunRequested{Now: searchTime, Request: RestartRequest{Reason: "user"}, Event: model.EventStarted()})
	if request := requested.fields.RestartRequest; request == nil || request.Reason != "user" || !c.Applied() || c.Put != AllParts || c.Durability != Now || len(c.Events) != 1 {
		t.Errorf("%+v, %+v", request, c)
	}
	if r, c := after(requested, RerunRequested{Now: searchTime, Request: RestartRequest{Reason: "check"}}); r.fields.RestartRequest.Reason != "user" || c.Applied() {
		t.Errorf("the second request: %+v, %+v", r.fields.RestartRequest, c)
	}
	if r, _ := after(requested, RerunCancelled{}); r.fields.RestartRequest != nil {
		t.Error("the request is not cancelled")
	}
	if r, _ := after(requested, RerunBegun{}); r.fields.LastEnd != nil || r.status.State != model.TaskDead || !r.status.FinishedAt.IsZero() {
		t.Errorf("%+v, %+v", r.fields.LastEnd, r.status)
	}
	if r, c := after(started(searchTime), RerunRequested{Now: searchTime}); r.fields.RestartRequest != nil || c.Applied() {
		t.Error("a task that runs is requested to run again")
	}
}

func TestUnusedStartDropped(t *testing.T) {
	exit := &restart.RunEnd{}
	for _, row := range []struct {
		fields, want Fields
		applied      bool
	}{
		{Fields{StartID: "a"}, Fields{}, true},
		{Fields{StartID: "a", UnhandledExit: exit, NextStartID: "b"}, Fields{StartID: "a", UnhandledExit: exit}, true},
		{Fields{StartID: "a", UnhandledExit: exit}, Fields{StartID: "a", UnhandledExit: exit}, false},
		{Fields{StartID: "a", Handle: &driver.Handle{}}, Fields{StartID: "a", Handle: &driver.Handle{}}, false},
		{Fields{}, Fields{}, false},
	} {
		r, c := after(Record{fields: row.fields, status: &api.TaskState{}}, UnusedStartDropped{})
		if !reflect.DeepEqual(r.fields, row.want) || c.Applied() != row.applied || row.applied && (c.Put != AllParts || c.Durability != Soon) {
			t.Errorf("%+v: %+v, %+v", row.fields, r.fields, c)
		}
	}
}

// Only the handle of the same start is replaced, and without a put.
func TestHandleStored(t *testing.T) {
	full := &driver.Handle{Config: &driver.TaskConfig{ID: "a", Env: map[string]string{"A": "b"}}}
	r := Record{fields: Fields{StartID: "a", Handle: full}, status: &api.TaskState{State: model.TaskRunning}}
	for _, id := range []string{"other", "a"} {
		without := &driver.Handle{Config: &driver.TaskConfig{ID: id}}
		got, change := Apply(r, HandleStored{without})
		if (got.fields.Handle == without) != (id == "a") || change.Applied() {
			t.Errorf("%s: handle %+v, change %+v", id, got.fields.Handle, change)
		}
	}
	if got, _ := Apply(Record{status: r.status}, HandleStored{full}); got.fields.Handle != nil {
		t.Errorf("without a start: handle %+v", got.fields.Handle)
	}
}
