package restart

import (
	"reflect"
	"testing"
)

func TestIsFailure(t *testing.T) {
	for _, row := range []struct {
		end  *RunEnd
		want bool
	}{
		{nil, false}, {&RunEnd{}, true}, {&RunEnd{Success: true}, true}, {&RunEnd{Stopped: true}, false},
		{&RunEnd{RestartRequested: true}, false}, {&RunEnd{RestartRequested: true, RestartCountsAsFailure: true}, true},
	} {
		if got := row.end.IsFailure(); got != row.want {
			t.Errorf("%+v: %v", row.end, got)
		}
	}
}

func TestHasCauseOf(t *testing.T) {
	all := RunEnd{StatusUnknown: true, RestartRequested: true, ExitCode: 1, Signal: 2, OOMKilled: true, Error: "e"}
	if same := all; !same.HasCauseOf(&all) {
		t.Error("an end has not the cause of an equal one")
	}
	for _, field := range []string{"StartFailed", "StatusUnknown", "RestartRequested", "ExitCode", "Signal", "OOMKilled"} {
		other := all
		switch f := reflect.ValueOf(&other).Elem().FieldByName(field); f.Kind() {
		case reflect.Bool:
			f.SetBool(!f.Bool())
		default:
			f.SetInt(9)
		}
		if other.HasCauseOf(&all) {
			t.Errorf("an end has the cause of one with another %s", field)
		}
	}
	other := all
	other.Error = "another text about the same exit"
	if !other.HasCauseOf(&all) {
		t.Error("the error of an exit counts as its cause")
	}
	if (&RunEnd{StartFailed: true, Error: "a"}).HasCauseOf(&RunEnd{StartFailed: true, Error: "b"}) {
		t.Error("two errors of a start have the same cause")
	}
}

func TestOutcome(t *testing.T) {
	for end, want := range map[RunEnd]RunOutcome{
		{}:                       {},
		{Success: true}:          {Success: true},
		{RestartRequested: true}: {RestartRequested: true},
		{RestartRequested: true, RestartCountsAsFailure: true}: {UnhealthyRestartRequested: true},
	} {
		if got := end.Outcome(); got != want {
			t.Errorf("%+v: %+v", end, got)
		}
	}
}
