package record

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// facts has a fact for each type.
var facts = []Fact{
	CapabilitiesSeen{&driver.Capabilities{Exec: true}},
	HooksAttached{map[string]string{"alloc": "{}"}, map[string]string{"h": "{}"}},
	HookAnswered{Hook: "h", Data: map[string]string{"a": "2"}, Done: true},
	HookDataStored{"h", map[string]string{"a": "3"}},
	StartChosen{searchTime, "new"},
	Started{Now: searchTime, Handle: &driver.Handle{Version: 2}},
	HandleStored{&driver.Handle{Config: &driver.TaskConfig{ID: "a"}}},
	StartFailed{searchTime, "no"},
	NothingExecuted{},
	Adopted{Handle: &driver.Handle{Version: 3}},
	TakenOver{searchTime},
	Exited{Now: searchTime, Policy: restart.Policy{Attempts: 1, Interval: time.Hour}, CandidateID: "next", Event: model.EventTerminated(1, 0, false, "")},
	ExitUnknown{searchTime, "lost"},
	Decided{Now: searchTime, RandomInt64N: noJitter, KilledEvent: model.EventKilled("")},
	RestartRequested{Now: searchTime, Event: model.EventRestartSignal("")},
	RestartFailed{},
	RerunRequested{Now: searchTime, Event: model.EventRestartSignal("")},
	RerunCancelled{},
	RerunBegun{},
	Killed{searchTime, model.EventKilling(0)},
	DestroyOwed{PendingDestroy{StartID: "x"}},
	UndecidedStartOwed{},
	Destroyed{},
	AllDestroyed{},
	DestroyDoubtful{},
	UnusedStartDropped{},
	Rebooted{searchTime},
	FilesLost{searchTime},
	Died{searchTime},
	Completed{},
	EventEmitted{searchTime, model.EventStarted()},
	EventEmittedOnce{searchTime, &api.TaskEvent{DisplayMessage: "once"}},
	VariableRead{"nomad/jobs"},
	Unhealthy{Now: searchTime, Event: model.EventAllocUnhealthy("no")},
}

// fullRecords returns records in which everything is set that a fact can change, one for each task state.
func fullRecords() (records []Record) {
	for _, state := range []string{model.TaskPending, model.TaskRunning, model.TaskDead} {
		for _, exit := range []*restart.RunEnd{nil, {Success: true, RunsInRow: 1}} {
			for _, next := range []string{"", "b"} {
				records = append(records, Record{
					fields: Fields{
						HookStateByName: map[string]HookState{"h": {AttachmentJSON: "{}", PrestartDone: true, Data: map[string]string{"a": "1"}, Env: map[string]string{"A": "1"}}}, AllocHookConfigByName: map[string]string{"x": "{}"},
						StartID: "a", Handle: &driver.Handle{Version: 1, Config: &driver.TaskConfig{ID: "a"}}, NetworkOverride: &driver.NetworkOverride{Addr: "1"},
						UnhandledExit: exit, NextStartID: next, LastEnd: &restart.RunEnd{ExitCode: 1, RunsInRow: 2},
						FirstPendingDestroy: &PendingDestroy{StartID: "c", Next: &PendingDestroy{StartID: "d"}},
						RestartState:        restart.State{EndsInWindow: 1}, KillRequested: true, LastKnownCapabilities: &driver.Capabilities{}, RestartRequest: &RestartRequest{Reason: "r"},
						ReportedOnceOnlyMessages: append(make([]string, 0, 4), "m"), ReadVariables: append(make([]string, 0, 4), "v"), DeploymentFailure: &restart.DeploymentFailure{Reason: "r"},
					},
					status: &api.TaskState{State: state, Events: append(make([]*api.TaskEvent, 0, 4), model.EventReceived())},
				})
			}
		}
	}
	return records
}

// Other goroutines and the store have record copies, which share maps, lists and pointers.
func TestApplyLeavesItsArgumentsAlone(t *testing.T) {
	for i := range fullRecords() {
		for _, f := range facts {
			r := fullRecords()[i]
			Apply(r, f)
			if want := fullRecords()[i]; !reflect.DeepEqual(r, want) {
				t.Errorf("%T changes its record: %+v", f, r.fields)
			}
			if spare := r.fields.ReadVariables[:2][1] + r.fields.ReportedOnceOnlyMessages[:2][1]; spare != "" || r.status.Events[:2][1] != nil {
				t.Errorf("%T appends to a list of its record in place", f)
			}
		}
	}
}

// Each fact in the package is in the tests' list.
func TestFactsAreComplete(t *testing.T) {
	listed := map[string]bool{}
	for _, f := range facts {
		listed[reflect.TypeOf(f).Name()] = true
	}
	for _, name := range factTypes(t) {
		if !listed[name] {
			t.Errorf("fact %s is in no test", name)
		}
	}
}

// factTypes returns the names of the types with the method apply.
func factTypes(t *testing.T) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "facts.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if method, ok := d.(*ast.FuncDecl); ok && method.Name.Name == "apply" {
			names = append(names, method.Recv.List[0].Type.(*ast.Ident).Name)
		}
	}
	return names
}

// A put costs a disk write, so a fact has one only if the next agent could not do without it.
func TestPutsOfFacts(t *testing.T) {
	type put struct {
		parts      Parts
		durability Durability
		tells      bool
	}
	now, soon, grouped := put{AllParts, Now, false}, put{AllParts, Soon, false}, put{AllParts, Grouped, false}
	tells := func(p put) put { p.tells = true; return p }
	r := fullRecords()[4] // a running task
	r.fields.RestartRequest, r.fields.StartID, r.fields.Handle = nil, "", nil
	for _, f := range facts {
		var want put
		switch f.(type) {
		case StartChosen, Adopted, FilesLost:
			want = now
		case Exited, ExitUnknown, RestartRequested, Killed, Rebooted:
			want = tells(now)
		case HookAnswered, RestartFailed, AllDestroyed, Completed:
			want = soon
		case Decided, Died, EventEmittedOnce:
			want = tells(soon)
		case HookDataStored, VariableRead:
			want = grouped
		case Started, Unhealthy:
			want = tells(grouped)
		case RerunBegun:
			want = put{StatusPart, Now, true}
		case EventEmitted:
			want = put{StatusPart, Soon, true}
		}
		if _, isFilesLost := f.(FilesLost); isFilesLost {
			want = tells(want)
		}
		_, c := Apply(r, f)
		if got := (put{c.Put, c.Durability, c.TellAlloc}); got != want {
			t.Errorf("%T: %+v, want %+v", f, got, want)
		}
	}
}
