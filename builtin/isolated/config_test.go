package isolated

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nomad-lite/nomad-lite/builtin/hostprocess"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
)

func TestConfigIsChecked(t *testing.T) {
	for want, c := range map[string]Config{
		`default_pid_mode is "all"; it must be "private" or "host"`: {DefaultPIDMode: "all"},
		`default_ipc_mode is "all"; it must be "private" or "host"`: {DefaultIPCMode: "all"},
		"allow_caps: there is no capability":                        {AllowCaps: []string{"root"}},
		"allow_caps: the capability block_suspend":                  {AllowCaps: []string{"all", "block_suspend"}},
		"denied_host_uids: ":                                        {Config: hostprocess.Config{DeniedUIDRanges: "x"}},
	} {
		if err := new(Driver).SetConfig(c); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// An empty list is not an absent one.
func TestListsInBlock(t *testing.T) {
	for _, test := range []struct {
		body       map[string]any
		caps, deny bool
	}{
		{nil, false, false},
		{map[string]any{"allow_caps": []any{}, "denied_users": []any{}}, true, true},
	} {
		value, diags := block.Decode(configSchema, test.body, nil)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		text, err := block.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		var c Config
		if err := hclspec.UnmarshalExact(text, &c); err != nil {
			t.Fatal(err)
		}
		if c.AllowCaps != nil != test.caps || c.DeniedUsers != nil != test.deny {
			t.Errorf("%v: %#v, %#v", test.body, c.AllowCaps, c.DeniedUsers)
		}
	}
}

func TestGrants(t *testing.T) {
	yes, no := true, false
	for _, test := range []struct {
		config Config
		want   string
	}{
		{Config{}, "[]"},
		{Config{Seccomp: &yes, DefaultPIDMode: "private", AllowCaps: []string{"kill", "audit_write"}}, "[]"},
		{Config{AllowCaps: []string{"kill", "net_raw", "dac_override"}}, "[allow_caps: tasks of all users can have the capabilities dac_override, net_raw]"},
		{Config{AllowHostPIDMode: true, DefaultIPCMode: "host", AllowHostModesForRoot: true, AllowSetuidSetgidBits: true, Seccomp: &no},
			"[allow_host_mode_root: tasks of root can share namespaces of the machine allow_pid_mode: tasks can see, signal and trace the processes of their user" +
				" allow_setid_bits: tasks can leave set-user-ID programs in their directories and volumes default_ipc_mode: tasks share the shared memory of the machine" +
				" seccomp: tasks can make all system calls, and leave set-user-ID programs in their directories and volumes]"},
	} {
		var got []string
		for _, g := range test.config.extraPermissions() {
			got = append(got, g.optionName+": "+g.description)
		}
		if fmt.Sprint(got) != test.want {
			t.Errorf("%+v: %v, want %s", test.config, got, test.want)
		}
	}
}

// A task shares a namespace of the host only if the operator says so, and root only if the operator names root.
func TestHostModes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: without it all are refused")
	}
	modes := []string{"", "private", "host"}
	bools := []bool{false, true}
	for _, option := range []string{"pid_mode", "ipc_mode"} {
		for _, byDefault := range modes {
			for _, byTask := range modes {
				for _, allowed := range bools {
					for _, allowRoot := range bools {
						for _, uid := range []uint32{0, 65534} {
							c, task := Config{AllowHostModesForRoot: allowRoot}, TaskConfig{}
							if option == "pid_mode" {
								c.DefaultPIDMode, c.AllowHostPIDMode, task.PIDMode = byDefault, allowed, byTask
							} else {
								c.DefaultIPCMode, c.AllowHostIPCMode, task.IPCMode = byDefault, allowed, byTask
							}
							isHost := byTask == "host" || byTask == "" && byDefault == "host"
							want := "<nil>"
							if isHost && !allowed && byDefault != "host" {
								want = option + ` = "host" is refused: the operator must set allow_` + option + " = true in the configuration of the driver"
							} else if isHost && uid == 0 && !allowRoot {
								want = option + ` = "host" is refused for a task of root: the operator must set allow_host_mode_root = true in the configuration of the driver, or the task must have another user`
							}
							o, err := c.sandboxOptions(&task, &syscall.Credential{Uid: uid, Gid: uid})
							if fmt.Sprint(err) != want || err == nil && (o.HostPID || o.HostIPC) != isHost {
								t.Errorf("%+v, %+v, uid %d: %v, %v; want %s, host %t", c, task, uid, err, o, want, isHost)
							}
						}
					}
				}
			}
		}
	}
}

// A task that can take other ids takes none that the operator denies.
func TestDeniedIDsOfTask(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: without it no task has capabilities")
	}
	setuid := []string{"setuid"}
	for _, test := range []struct {
		name         string
		config       Config
		task         TaskConfig
		uid          uint32
		denied, open []uint32
	}{
		{"no capability, no comparison", Config{}, TaskConfig{}, 65534, nil, []uint32{0, 1000}},
		{"root is denied by default", Config{AllowCaps: setuid}, TaskConfig{}, 65534, []uint32{0}, []uint32{1000, 65534}},
		{"root stays root", Config{AllowCaps: setuid}, TaskConfig{}, 0, nil, []uint32{0, 1000}},
		{"the users of the operator", Config{AllowCaps: setuid, DeniedUsers: []string{"1234", "no-such-account"}}, TaskConfig{}, 65534, []uint32{1234}, []uint32{0}},
		{"the ids of the operator", Config{AllowCaps: setuid, DeniedUsers: []string{}, Config: hostprocess.Config{DeniedUIDRanges: "5-7,9"}}, TaskConfig{}, 65534, []uint32{5, 7, 9}, []uint32{0, 8}},
		{"root in a namespace of the host", Config{AllowCaps: setuid, AllowHostPIDMode: true, DeniedUsers: []string{}}, TaskConfig{PIDMode: "host", CapAdd: setuid}, 65534, []uint32{0}, []uint32{1}},
		{"root, which the operator allows there", Config{AllowCaps: setuid, AllowHostPIDMode: true, AllowHostModesForRoot: true, DeniedUsers: []string{}}, TaskConfig{PIDMode: "host", CapAdd: setuid}, 65534, nil, []uint32{0}},
	} {
		if err := test.config.validate(); err != nil {
			t.Fatal(err)
		}
		o, err := test.config.sandboxOptions(&test.task, &syscall.Credential{Uid: test.uid, Gid: test.uid})
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		for _, id := range slices.Concat(test.denied, test.open) {
			if got, want := o.SetuidDeniedUIDs.Contains(id), slices.Contains(test.denied, id); got != want {
				t.Errorf("%s: %d is denied: %t, want %t", test.name, id, got, want)
			}
		}
	}
}
