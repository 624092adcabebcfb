package exec

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// userID is an ordinary user, whose tests this test program runs.
const userID = 54321

// runAsUser runs tests of this program as an ordinary user. The cases must not all be skipped.
func runAsUser(t *testing.T, pattern string) {
	t.Helper()
	out := processtest.RunAsUser(t, userID, pattern)
	if !bytes.Contains(out, []byte("    --- PASS: ")) {
		t.Errorf("no case has passed:\n%s", out)
	}
}

func TestContractRootless(t *testing.T) {
	slowtest.Skip(t, "runs the contract suite a second time, which takes ten seconds")
	runAsUser(t, "^TestContract$")
}

func TestEscapesRootless(t *testing.T) {
	slowtest.Skip(t, "runs TestEscapes a second time")
	runAsUser(t, "^TestEscapes$")
}

func TestSetIDBitsRootless(t *testing.T) {
	if testing.Short() {
		t.Skip("runs TestSetIDBits a second time")
	}
	runAsUser(t, "^TestSetIDBits$")
}

func TestTaskOptionsRootless(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a container in each case; TestTaskOptions runs")
	}
	if os.Geteuid() == 0 {
		runAsUser(t, "^TestTaskOptionsRootless$")
		return
	}
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "file"), []byte("of the volume\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	user := fmt.Sprint(os.Geteuid())
	for _, test := range []struct {
		name   string
		config map[string]any
		change func(*sdk.StartRequest)
		script string
		want   string
	}{
		{"the user of the agent", nil, nil, "id -u; id -g", user + "\n" + user + "\n"},
		{"the user of the agent by its number", nil, func(s *sdk.StartRequest) { s.User = user }, "id -u", user + "\n"},
		{"the only ids", nil, nil, "echo $(cat /proc/self/uid_map)", user + " " + user + " 1\n"},
		{"another user", nil, func(s *sdk.StartRequest) { s.User = "nobody" }, "", `running as user "nobody" needs an agent of root: this agent runs all tasks as its own user ` + user},
		{"no capabilities", nil, nil, "sed -n 's/^Cap....*:.//p' /proc/self/status | sort -u", "0000000000000000\n"},
		{"no new privileges, and a filter", nil, nil, "sed -n 's/^NoNewPrivs:.//p; s/^Seccomp:.//p' /proc/self/status", "1\n2\n"},
		{"a dropped capability", map[string]any{"cap_drop": []any{"chown"}}, nil, "echo started", "started\n"},
		{"an added capability", map[string]any{"cap_add": []any{"chown"}}, nil, "", "cap_add needs an agent of root: a task in a user namespace has no capabilities on the machine"},
		{"the processes of the machine", map[string]any{"pid_mode": "host"}, nil, "", `pid_mode "host" needs an agent of root: the task could control the agent, which is a process of the same user`},
		{"the memory of the machine", map[string]any{"ipc_mode": "host"}, nil, "", `ipc_mode "host" needs an agent of root: the task could change the shared memory of the agent's user`},
		{"the task is process 1", nil, nil, "echo $$", "1\n"},
		{"another directory", map[string]any{"work_dir": "/local"}, nil, "pwd", "/local\n"},
		{"a volume", nil, withMount(driver.Mount{TaskPath: "/data/v", HostPath: volume}), "cat /data/v/file", "of the volume\n"},
		{"a read-only volume", nil, withMount(driver.Mount{TaskPath: "/v", HostPath: volume, Readonly: true}), "touch /v/x", "touch: cannot touch '/v/x': Read-only file system\n"},
		{"a volume whose mounts appear on the machine", nil, withMount(driver.Mount{TaskPath: "/v", HostPath: volume, PropagationMode: "bidirectional"}), "", `mount /v: the propagation mode "bidirectional" needs an agent of root: mounts of a user namespace do not appear on the machine; write "private" or "host-to-task"`},
		{"a device", nil, withDevice("rw"), "head -c 1 /dev/x/zero | wc -c; mknod /local/null c 1 3", "1\nmknod: /local/null: Operation not permitted\n"},
		{"a device for reading", nil, withDevice("r"), "", `device /dev/zero: the permissions "r" need an agent of root: without it, the permissions of the device on the machine apply`},
		{"standard devices", nil, nil, "echo $(ls /dev); echo x >/dev/null && head -c 1 /dev/zero | wc -c", "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero\n1\n"},
		{"no writable /dev", nil, nil, "touch /dev/x", "touch: cannot touch '/dev/x': Read-only file system\n"},
		{"no other file systems in /sys", nil, nil, "ls /sys/fs/cgroup /sys/kernel/debug 2>&1 | grep -c denied; grep -c ' /sys.* rw' /proc/self/mounts", "2\n0\n"},
		{"shared memory of its own", nil, nil, "ls /dev/shm; echo x >/dev/shm/x && cat /dev/shm/x", "x\n"},
		{"DNS of the group", nil, func(s *sdk.StartRequest) { s.DNS = &driver.DNSConfig{Servers: []string{"192.0.2.1"}} }, "cat /etc/resolv.conf", "nameserver 192.0.2.1\n"},
		{"a loopback interface without a network", nil, func(s *sdk.StartRequest) {
			s.NetworkIsolation = &driver.NetworkIsolation{Mode: driver.NetworkNone}
		}, "ls /sys/class/net; cat /sys/class/net/lo/flags", "lo\n0x9\n"},
		{"the network of a group", nil, func(s *sdk.StartRequest) {
			s.NetworkIsolation = &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: "/run/netns/x"}
		}, "", "the network namespace of the group can be entered only under an agent of root"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := runScript(t, &Driver{}, test.config, test.change, test.script); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
