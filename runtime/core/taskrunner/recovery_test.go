package taskrunner

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// The start ids in the test's records.
const (
	startID = "alloc/web/1"
	nextID  = "alloc/web/2"
)

// recordOf returns a record for each start state.
func recordOf(start record.Start) *RestoredTask {
	handle := &driver.Handle{Config: &driver.TaskConfig{ID: startID, Name: taskName, AllocID: "alloc"}}
	exit := &restart.RunEnd{ExitCode: 1, Time: time.Now()}
	running, pending := &api.TaskState{State: model.TaskRunning, StartedAt: time.Now()}, &api.TaskState{State: model.TaskPending}
	switch start {
	case record.NoStart:
		return &RestoredTask{TaskState: pending}
	case record.WithID:
		return &RestoredTask{Fields: record.Fields{StartID: startID}, TaskState: pending}
	case record.RunningByID:
		return &RestoredTask{Fields: record.Fields{StartID: startID}, TaskState: running}
	case record.WithHandle:
		return &RestoredTask{Fields: record.Fields{StartID: startID, Handle: handle}, TaskState: running}
	case record.Lost:
		return &RestoredTask{TaskState: running}
	case record.Ended:
		return &RestoredTask{Fields: record.Fields{StartID: startID, Handle: handle, UnhandledExit: exit}, TaskState: running}
	default: // record.WithNextID
		return &RestoredTask{Fields: record.Fields{StartID: startID, Handle: handle, UnhandledExit: exit, NextStartID: nextID}, TaskState: running}
	}
}

var startNames = [record.StartCount]string{"no start", "id", "id of a running task", "handle", "lost record of a running task", "exit", "exit and next id"}

var answerNames = [taskdriver.AnswerCount]string{"none for a minute, then the task", "task", "task without handle", "not executed", "unknown", "reboot"}

// setAnswer makes the driver give an answer about a record's last start.
func (d *fakeDriver) setAnswer(start record.Start, answer taskdriver.Answer) {
	last := startID
	if start == record.WithNextID {
		last = nextID
	}
	switch answer {
	case taskdriver.AnswerNone, taskdriver.AnswerTask, taskdriver.AnswerTaskWithoutHandle:
		d.addProcess(last)
	}
	switch answer {
	case taskdriver.AnswerNone:
		d.inspectErr = driver.Recoverable(fmt.Errorf("no answer"))
		d.recoverErr = d.inspectErr
	case taskdriver.AnswerTaskWithoutHandle:
		d.status = &driver.TaskStatus{State: driver.TaskRunning}
	case taskdriver.AnswerUnknown:
		d.status = &driver.TaskStatus{}
	}
}

// recovery is one recovery of an earlier agent's task.
type recovery struct {
	name     string
	restored *RestoredTask
	facts    RecoveryFacts
	driver   func(*fakeDriver)    // prepares the driver
	later    func(*world, *agent) // what happens a second after Run was called; nil for nothing
	change   func(*world)         // changes the task; nil for nothing
}

func recoveries() (list []recovery) {
	knows := RecoveryFacts{DriverKnowsInterruptedStarts: true}
	answers := func(w *world, _ *agent) { w.driver.setErrors(nil) }
	for start := range record.StartCount {
		for answer := range taskdriver.AnswerCount {
			isAsked := start != record.NoStart && start != record.Lost && start != record.Ended
			if !isAsked && answer != taskdriver.AnswerReboot && (answer != taskdriver.AnswerTask || start == record.NoStart) {
				continue // the driver is not asked
			}
			r := recovery{startNames[start] + ": " + answerNames[answer], recordOf(start), knows, func(d *fakeDriver) { d.setAnswer(start, answer) }, nil, nil}
			switch answer {
			case taskdriver.AnswerNone:
				r.later = answers
			case taskdriver.AnswerReboot:
				r.facts.Rebooted = true
			}
			list = append(list, r)
		}
	}
	noAnswer := func(start record.Start) func(*fakeDriver) {
		return func(d *fakeDriver) { d.setAnswer(start, taskdriver.AnswerNone) }
	}
	kill := func(w *world, a *agent) {
		a.Kill(model.EventKilling(time.Second))
		time.Sleep(time.Second)
		w.driver.setErrors(nil)
	}
	request := func(r *RestoredTask) *RestoredTask {
		r.Fields.RestartRequest = &record.RestartRequest{Reason: "user"}
		return r
	}
	owed := func(r *RestoredTask, d *record.PendingDestroy) *RestoredTask {
		r.Fields.FirstPendingDestroy = d
		return r
	}
	delayed := func(w *world) { w.task.RestartPolicy.Delay = 5 * time.Second }
	unrecoverable := recordOf(record.WithHandle)
	unrecoverable.Fields.HandleUnrecoverable = true
	list = append(list,
		recovery{"id: no answer before a kill", recordOf(record.WithID), knows, noAnswer(record.WithID), kill, nil},
		recovery{"exit and next id: no answer before a kill", recordOf(record.WithNextID), knows, func(d *fakeDriver) {
			d.addProcess(startID)
			d.setAnswer(record.WithNextID, taskdriver.AnswerNone)
		}, kill, nil},
		recovery{"exit and next id: no answer, and the next version of the task is not restarted", recordOf(record.WithNextID), knows, noAnswer(record.WithNextID), answers, func(w *world) { w.task.RestartPolicy.Attempts = 0 }},
		recovery{"exit and next id: the driver still has the start before", recordOf(record.WithNextID), knows, func(d *fakeDriver) {
			d.addProcess(startID)
			d.statusByID = map[string]*driver.TaskStatus{nextID: {}, startID: {State: driver.TaskExited}}
		}, nil, nil},
		recovery{"exit and next id: unknown, and no answer about the start before", recordOf(record.WithNextID), knows, func(d *fakeDriver) {
			d.addProcess(startID)
			d.statusByID = map[string]*driver.TaskStatus{nextID: {}}
			d.inspectErr = driver.Recoverable(fmt.Errorf("no answer"))
		}, answers, nil},
		recovery{"handle that cannot be recovered: the driver does not know the task", unrecoverable, RecoveryFacts{}, func(d *fakeDriver) { d.inspectErr = driver.ErrTaskNotFound }, nil, nil},
		recovery{"lost record: the driver finds tasks by name", recordOf(record.Lost), RecoveryFacts{DriverFindsTasksByName: true}, func(*fakeDriver) {}, nil, nil},
		recovery{"id: the driver of another author does not know the start", recordOf(record.WithID), RecoveryFacts{}, func(d *fakeDriver) { d.status = &driver.TaskStatus{} }, nil, nil},
		recovery{"id: the plugin of another author is launched again", recordOf(record.WithID), RecoveryFacts{DriverKnowsInterruptedStarts: true, RestartReattachedPlugin: func(context.Context) error { return nil }},
			func(d *fakeDriver) { d.status = &driver.TaskStatus{} }, nil, nil},
		recovery{"id and requested restart: task", request(recordOf(record.WithID)), knows, func(d *fakeDriver) { d.setAnswer(record.WithID, taskdriver.AnswerTask) }, nil, nil},
		recovery{"id and requested restart: not executed", request(recordOf(record.WithID)), knows, func(*fakeDriver) {}, nil, nil},
		recovery{"requested restart of a lost process", request(recordOf(record.WithHandle)), knows, func(*fakeDriver) {}, nil, nil},
		recovery{"requested restart of a process", request(recordOf(record.WithHandle)), knows, func(d *fakeDriver) { d.setAnswer(record.WithHandle, taskdriver.AnswerTask) }, nil, nil},
		recovery{"destroy owed: the driver does not answer at first", owed(recordOf(record.Ended), &record.PendingDestroy{StartID: startID}), RecoveryFacts{}, func(d *fakeDriver) {
			d.addProcess(startID)
			d.destroyErr = driver.Recoverable(fmt.Errorf("no answer"))
		}, func(w *world, _ *agent) {
			delete(w.driver.processes, startID)
			w.driver.setErrors(nil)
		}, delayed},
		recovery{"destroy owed without a handle: the driver does not answer before its plugin exits", owed(recordOf(record.NoStart), &record.PendingDestroy{StartID: startID, Next: &record.PendingDestroy{StartID: nextID}}), RecoveryFacts{}, func(d *fakeDriver) {
			d.addProcess(startID)
			d.destroyErr = driver.Recoverable(fmt.Errorf("no answer"))
		}, func(w *world, _ *agent) {
			delete(w.driver.processes, startID)
			w.driver.setErrors(nil)
		}, delayed},
		recovery{"destroy owed without a handle: the driver finds tasks by name", owed(recordOf(record.NoStart), &record.PendingDestroy{StartID: startID}), RecoveryFacts{DriverFindsTasksByName: true}, func(d *fakeDriver) {
			d.destroyErr = driver.Recoverable(fmt.Errorf("no answer"))
		}, answers, delayed},
		recovery{"two destroys owed", owed(recordOf(record.Ended), &record.PendingDestroy{StartID: startID, Next: &record.PendingDestroy{StartID: nextID}}), knows, func(d *fakeDriver) {
			d.addProcess(startID)
			d.addProcess(nextID)
		}, nil, nil},
		recovery{"dead and complete", &RestoredTask{Fields: record.Fields{RunComplete: true}, TaskState: &api.TaskState{State: model.TaskDead}}, knows, func(*fakeDriver) {}, nil, nil},
	)
	return list
}

// describe returns a record in one line.
func describe(f record.Fields, status *api.TaskState) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s, failed %v", status.State, status.Failed)
	if f.StartID != "" {
		fmt.Fprintf(b, ", start %s", f.StartID)
	}
	if f.Handle != nil {
		b.WriteString(", handle")
	}
	if f.HandleUnrecoverable {
		b.WriteString(" that cannot be recovered")
	}
	if exit := f.UnhandledExit; exit != nil {
		fmt.Fprintf(b, ", exit (code %d, unknown %v, restart requested %v)", exit.ExitCode, exit.StatusUnknown, exit.RestartRequested)
	}
	if f.NextStartID != "" {
		fmt.Fprintf(b, ", next start %s", f.NextStartID)
	}
	if f.RestartRequest != nil {
		b.WriteString(", restart requested")
	}
	for d := f.FirstPendingDestroy; d != nil; d = d.Next {
		fmt.Fprintf(b, ", owes the destroy of %s (with handle %v, inconclusive %v)", d.StartID, d.Handle != nil, d.NotFoundIsInconclusive)
	}
	if f.RunComplete {
		b.WriteString(", complete")
	}
	return b.String()
}

// TestRecovery shows for each record and each driver answer what an agent does with an earlier agent's task: the driver calls,
// the record before Run, a minute later, and at the end, after the task was killed.
func TestRecovery(t *testing.T) {
	const goldenFile = "testdata/recovery.txt"
	text := &strings.Builder{}
	for _, r := range recoveries() {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { r.play(t, text) })
		})
	}
	golden.Check(t, goldenFile, text.String())
}

func (r recovery) play(t *testing.T, text *strings.Builder) {
	w := newWorld()
	w.task.RestartPolicy = restart.Policy{Attempts: 5, Interval: time.Hour, Mode: restart.ModeFail}
	if r.change != nil {
		r.change(w)
	}
	r.driver(w.driver)
	a := w.newAgent(r.restored)
	newIDs := strings.NewReplacer()
	line := func(what string, show func() string) {
		fields := a.records.fields()
		if fields.StartID != "" && fields.StartID != startID && fields.StartID != nextID {
			newIDs = strings.NewReplacer(fields.StartID, "new")
		}
		fmt.Fprintf(text, "%-10s%s\n", what, newIDs.Replace(show()))
	}
	current := func() string { return describe(a.records.fields(), a.State()) }

	fmt.Fprintf(text, "%s\n", r.name)
	a.RecoverTaskOfEarlierAgent(t.Context(), r.facts)
	line("calls:", w.driver.takeCalls)
	line("record:", current)
	go a.Run(t.Context(), t.Context())
	time.Sleep(time.Second)
	if r.later != nil {
		r.later(w, a)
	}
	time.Sleep(time.Minute)
	line("calls:", w.driver.takeCalls)
	line("record:", current)
	a.Kill(model.EventKilling(time.Second))
	time.Sleep(time.Hour)
	if !wait.IsClosed(a.Done()) {
		t.Fatal("the task does not end")
	}
	line("calls:", w.driver.takeCalls)
	line("record:", current)
	line("hooks:", w.hook.takeCalls)
	line("events:", func() string {
		var events []string
		for _, e := range a.State().Events {
			if e.Type == api.TaskRestarting {
				e.DisplayMessage = "" // the delay is random
			}
			events = append(events, fmt.Sprintf("%s (%s)", e.Type, e.DisplayMessage))
		}
		return strings.Join(events, ", ")
	})
	text.WriteString("\n")
	if ids := w.driver.ids(); len(ids) > 0 || w.driver.most > 1 {
		t.Errorf("the driver has %v at the end; %d processes ran at the same time", ids, w.driver.most)
	}
}
