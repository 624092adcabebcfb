package process

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func limitsOf(t *testing.T, p *Process, resource int) Rlimit {
	t.Helper()
	var l unix.Rlimit
	if err := unix.Prlimit(p.PID(), resource, nil, &l); err != nil {
		t.Fatal(err)
	}
	return Rlimit{Soft: l.Cur, Hard: l.Max}
}

func TestRlimits(t *testing.T) {
	for name, h := range map[string]cgroupHierarchy{"with the cgroups of this machine": hostCgroupHierarchy(), "without cgroups": {}} {
		t.Run(name, func(t *testing.T) {
			useCgroupHierarchy(t, h)
			s := newStartRequest(t)
			c := shellCommand("echo $(ulimit -n) $(ulimit -Hn) $(ulimit -c) >limits; " + exitOnTriggerFileScript)
			c.Rlimits = map[string]Rlimit{"nofile": {100, 200}, "core": {0, 0}}
			p := startProcess(t, s, c)
			if got := waitForFile(t, s, "limits"); got != "100 200 0" {
				t.Errorf("limits of the program: %s, want 100 200 0", got)
			}
			var out bytes.Buffer
			if _, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "ulimit -n; exit 3"}, Stdout: &out}); err != nil || out.String() != "100\n" {
				t.Errorf("nofile of a command in the task: %q, %v, want 100", out.String(), err)
			}
			createTriggerFile(t, s)
			if got := waitExit(t, p); got != exitCodeSeven {
				t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
			}
		})
	}
}

func TestRlimitsOfRecoveredTask(t *testing.T) {
	k := startKeeper(t)
	s := newStartRequest(t)
	c := shellCommand("exec sleep 3600")
	c.Rlimits = map[string]Rlimit{"nofile": {100, 200}}
	p, err := Recover(t.Context(), s, startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: c}))
	if err != nil {
		t.Fatal(err)
	}
	defer destroyProcess(t, p)
	if got, want := limitsOf(t, p, unix.RLIMIT_NOFILE), c.Rlimits["nofile"]; got != want {
		t.Errorf("limits of the process %+v, want %+v", got, want)
	}
	var out bytes.Buffer
	if _, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "ulimit -n"}, Stdout: &out}); err != nil || out.String() != "100\n" {
		t.Errorf("nofile of a command in the task: %q, %v, want 100", out.String(), err)
	}
}

func TestRlimitThatCannotBeSet(t *testing.T) {
	for name, test := range map[string]struct {
		limits map[string]Rlimit
		want   string
	}{
		"unknown name":              {map[string]Rlimit{"files": {1, 1}}, `rlimit "files" is unknown; possible are as, core, cpu, `},
		"soft above hard":           {map[string]Rlimit{"nofile": {2, 1}}, `rlimit "nofile": the soft limit 2 exceeds the hard limit 1`},
		"more than the kernel does": {map[string]Rlimit{"nofile": {1, RlimitInfinity}}, `execute /bin/sh: set rlimit "nofile" to 1, 18446744073709551615: operation not permitted`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStartRequest(t)
			c := shellCommand("echo >ran; exec sleep 3600")
			c.Rlimits = test.limits
			p, err := Start(t.Context(), s, c)
			if err == nil {
				destroyProcess(t, p)
			}
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("Start: %v, want %s", err, test.want)
			}
			if found, err := Sweep(t.Context(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: s.Name}); found || err != nil {
				t.Errorf("a process is left running: %v, %v", found, err)
			}
			if pid, _, _ := osprocess.Waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT); pid > 0 {
				t.Errorf("process %d was not reaped", pid)
			}
		})
	}
}

// A program that cannot be executed is the same error with rlimits as without.
func TestRlimitsKeepErrorsOfExec(t *testing.T) {
	s := newStartRequest(t)
	program := filepath.Join(s.TaskDir(), "local", "program")
	if err := os.WriteFile(program, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, limits := range []map[string]Rlimit{nil, {"core": {0, 0}}} {
		p, err := Start(t.Context(), s, Command{Path: program, Rlimits: limits})
		if err == nil {
			destroyProcess(t, p)
		}
		if want := "execute " + program + ": the interpreter or loader that it names does not exist"; err == nil || err.Error() != want {
			t.Errorf("rlimits %v: %v, want %s", limits, err, want)
		}
	}
}

func TestStateEncodesRlimits(t *testing.T) {
	want := State{PID: 7, Rlimits: map[string]Rlimit{"nofile": {100, RlimitInfinity}}}
	encoded, err := hclspec.MarshalState(want)
	if err != nil {
		t.Fatal(err)
	}
	var got State
	if err := hclspec.UnmarshalState(encoded, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("decoded %+v, %v, want %+v", got, err, want)
	}
}
