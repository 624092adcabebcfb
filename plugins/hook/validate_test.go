package hook_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

func TestFaultOfPrestartResponse(t *testing.T) {
	for what, c := range map[string]struct {
		answer hook.TaskPrestartResponse
		fault  string // "" means no fault
	}{
		"nothing": {},
		"everything": {hook.TaskPrestartResponse{
			Env: map[string]string{"A": "b=c", "empty": ""}, State: map[string]string{"": "\x00"},
			Mounts:  []driver.Mount{{TaskPath: "/a..b/", HostPath: "/", PropagationMode: "private"}, {TaskPath: "/c", HostPath: "/d"}},
			Devices: []driver.Device{{TaskPath: "/dev/x", HostPath: "/dev/y", Permissions: "rw"}, {TaskPath: "/dev/z", HostPath: "/dev/z"}},
		}, ""},
		"a variable without a name":   {hook.TaskPrestartResponse{Env: map[string]string{"": "x"}}, `the variable "" to`},
		"a name with =":               {hook.TaskPrestartResponse{Env: map[string]string{"a=b": "x"}}, `the variable "a=b" to`},
		"a value with NUL":            {hook.TaskPrestartResponse{Env: map[string]string{"a": "secret\x00"}}, `the variable "a" to what no environment can hold`},
		"a variable that is too long": {hook.TaskPrestartResponse{Env: map[string]string{"a": strings.Repeat("x", 32*os.Getpagesize()-2)}}, `sets the variable "a", of`},
		"the longest variable":        {hook.TaskPrestartResponse{Env: map[string]string{"a": strings.Repeat("x", 32*os.Getpagesize()-3)}}, ""},
		"a relative place":            {hook.TaskPrestartResponse{Mounts: []driver.Mount{{TaskPath: "a", HostPath: "/b"}}}, `mounts "/b" at "a"`},
		"a place outside":             {hook.TaskPrestartResponse{Mounts: []driver.Mount{{TaskPath: "/a/../../etc", HostPath: "/b"}}}, `at "/a/../../etc"`},
		"a relative source":           {hook.TaskPrestartResponse{Mounts: []driver.Mount{{TaskPath: "/a", HostPath: "b"}}}, `mounts "b"`},
		"no source":                   {hook.TaskPrestartResponse{Mounts: []driver.Mount{{TaskPath: "/a"}}}, `mounts ""`},
		"a path with NUL":             {hook.TaskPrestartResponse{Mounts: []driver.Mount{{TaskPath: "/a\x00", HostPath: "/b"}}}, `at "/a\x00"`},
		"an unknown propagation":      {hook.TaskPrestartResponse{Mounts: []driver.Mount{{TaskPath: "/a", HostPath: "/b", PropagationMode: "shared"}}}, "there are private, host-to-task, bidirectional"},
		"unknown permissions":         {hook.TaskPrestartResponse{Devices: []driver.Device{{TaskPath: "/a", HostPath: "/b", Permissions: "rx"}}}, `permissions "rx"`},
		"a device outside":            {hook.TaskPrestartResponse{Devices: []driver.Device{{TaskPath: "/..", HostPath: "/b"}}}, `at "/.."`},
		"a large state":               {hook.TaskPrestartResponse{State: map[string]string{"x": strings.Repeat("x", 1<<20)}}, "its answer has 1048577 bytes, more than the 1048576"},
		"many entries without texts":  {hook.TaskPrestartResponse{Mounts: make([]driver.Mount, 1<<15)}, "its answer has"},
	} {
		fault := c.answer.Validate()
		if (fault == nil) != (c.fault == "") || fault != nil && (!strings.Contains(fault.Error(), c.fault) || strings.Contains(fault.Error(), "secret")) {
			t.Errorf("%s: %v, want %s", what, fault, c.fault)
		}
	}
}

func TestEventFault(t *testing.T) {
	tooMany := map[string]string{}
	for i := range 17 {
		tooMany[fmt.Sprint(i)] = ""
	}
	for _, c := range []struct {
		event hook.Event
		want  string // part of the error; "" if the event is valid
	}{
		{hook.Event{Message: "hello"}, ""},
		{hook.Event{Type: hook.EventFailed, OperationID: "a"}, ""},
		{hook.Event{OperationID: "a", Ongoing: true}, ""},
		{hook.Event{Ongoing: true}, "without an OperationID"},
		{hook.Event{Type: "Killed"}, `type "Killed"`},
		{hook.Event{Details: tooMany}, "17 details"},
	} {
		err := c.event.Validate()
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.event, err, c.want)
		}
	}
}

func TestValidateState(t *testing.T) {
	if err := hook.ValidateState(map[string]string{"k": strings.Repeat("x", 1<<20-1)}); err != nil {
		t.Errorf("a state of 1 MiB: %v", err)
	}
	if err := hook.ValidateState(map[string]string{"k": strings.Repeat("x", 1<<20)}); err == nil {
		t.Error("a state of more than 1 MiB is accepted")
	}
}
