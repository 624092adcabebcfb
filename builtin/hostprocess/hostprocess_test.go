package hostprocess

import (
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

func TestDeniedUsers(t *testing.T) {
	for _, test := range []struct {
		name, uids, gids, user string
		denied                 bool
	}{
		{"nothing is denied", "", "", "nobody", false},
		{"another user is denied", "1-99", "", "nobody", false},
		{"the user is denied by name", "0-99,65534", "", "nobody", true},
		{"the user is denied by uid", "1, 12345-12346", "", "12345:12345", true},
		{"the group is denied", "", "12346", "12345:12346", true},
		{"no user is named, and the plugin's own is denied", "0-4294967295", "", "", true},
		{"a user that does not exist", "0", "", "nobody-of-that-name", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := Config{DeniedUIDRanges: test.uids, DeniedGIDRanges: test.gids}
			if err := c.ValidateAndParseIDRanges(); err != nil {
				t.Fatal(err)
			}
			if err := c.CheckUserNotDenied(test.user); (err != nil) != test.denied {
				t.Errorf("%v, want denied: %v", err, test.denied)
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	for want, c := range map[string]Config{
		"pids_limit is -1; it cannot be negative": {PidsLimit: -1},
		"denied_host_uids: ":                      {DeniedUIDRanges: "x"},
		"denied_host_gids: ":                      {DeniedGIDRanges: "x"},
	} {
		if err := c.ValidateAndParseIDRanges(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestDecodeState(t *testing.T) {
	want := process.State{PID: 7, StartTime: 8}
	state, err := hclspec.MarshalState(map[string]any{"process": want, "sandbox": map[string]any{"host_pid": true}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeProcessState(state); err != nil || got.PID != want.PID || got.StartTime != want.StartTime {
		t.Errorf("the process is %+v (%v), want %+v", got, err, want)
	}
	if _, err := DecodeProcessState(nil); err == nil {
		t.Error("an empty state has a process")
	}
}
