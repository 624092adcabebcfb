package process

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

const mebibyte = 1 << 20

// newLimitedStartRequest returns a start request with limits for memory and CPU.
func newLimitedStartRequest(t *testing.T, memory, cpu int64) *sdk.StartRequest {
	t.Helper()
	if limits, reason := UnenforcedLimits(); len(limits) > 0 {
		t.Skipf("there are no limits of %q: %s", limits, reason)
	}
	s := newStartRequest(t)
	s.Resources = &driver.Resources{Linux: driver.LinuxResources{MemoryLimitBytes: memory, CPUShares: cpu}}
	return s
}

// exceedMemoryScript is a command whose memory use grows without limit:
// /dev/zero has no newline, so tail buffers all of it.
const exceedMemoryScript = "tail /dev/zero"

func TestMemoryLimit(t *testing.T) {
	for name, test := range map[string]struct {
		memory int64
		script string
		want   driver.ExitResult
	}{
		"the process exceeds it":                            {20 * mebibyte, "exec " + exceedMemoryScript, driver.ExitResult{ExitCode: 137, Signal: 9, OOMKilled: true, Err: osprocess.ErrOOMKilled}},
		"a child exceeds it, and the process fails":         {20 * mebibyte, exceedMemoryScript + "; exit 3", driver.ExitResult{ExitCode: 3, OOMKilled: true, Err: osprocess.ErrOOMKilled}},
		"a child exceeds it, and the process does not mind": {20 * mebibyte, exceedMemoryScript + "; exit 0", driver.ExitResult{OOMKilled: true}},
		"nothing exceeds it":                                {64 * mebibyte, "head -c 20000000 /dev/zero | tail -n 1 | wc -c", driver.ExitResult{}},
		"there is none":                                     {0, "head -c 20000000 /dev/zero | tail -n 1 | wc -c", driver.ExitResult{}},
		"the process is killed by another":                  {20 * mebibyte, "kill -9 $$", driver.ExitResult{ExitCode: 137, Signal: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, newLimitedStartRequest(t, test.memory, 0), shellCommand(test.script))
			if got := waitExit(t, p); got != test.want {
				t.Errorf("exit result %+v, want %+v", got, test.want)
			}
			if len(p.unenforcedLimitMessages) > 0 {
				t.Errorf("not enforced: %q", p.unenforcedLimitMessages)
			}
		})
	}
}

// With memory_max, a task can use more than its memory, which is reserved for it.
func TestMemoryReservation(t *testing.T) {
	for name, test := range map[string]struct {
		memoryMB, maxMB int64
		script          string
		oomKilled       bool
		reserved        string
	}{
		"more than memory, less than memory_max": {20, 128, "head -c 60000000 /dev/zero | tail -n 1 | wc -c", false, "20971520"},
		"more than memory_max":                   {20, 40, "exec " + exceedMemoryScript, true, "20971520"},
		"no limit":                               {20, driver.NoMemoryLimit, "head -c 60000000 /dev/zero | tail -n 1 | wc -c", false, "20971520"},
		"no memory_max":                          {64, 0, "exit 0", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLimitedStartRequest(t, max(test.memoryMB, test.maxMB)*mebibyte, 0)
			s.Resources.MemoryMB, s.Resources.MemoryMaxMB = test.memoryMB, test.maxMB
			p := startProcess(t, s, shellCommand(test.script))
			dir, file, none := p.cgroup.v1MemoryDir, "memory.soft_limit_in_bytes", ""
			if hostCgroupHierarchy().cgroupVersion == 2 {
				dir, file, none = p.cgroup.path, memoryLow, "0"
			} else if text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file)); err == nil {
				none = strings.TrimSpace(string(text)) // the highest number
			}
			text, err := os.ReadFile(filepath.Join(dir, file))
			if got, want := strings.TrimSpace(string(text)), cmp.Or(test.reserved, none); err != nil || got != want {
				t.Errorf("%s is %q, %v, want %q", file, got, err, want)
			}
			if got := waitExit(t, p); got.OOMKilled != test.oomKilled {
				t.Errorf("exit result %+v, want OOMKilled %v", got, test.oomKilled)
			}
			if len(p.unenforcedLimitMessages) > 0 {
				t.Errorf("not enforced: %q", p.unenforcedLimitMessages)
			}
		})
	}
}

// The cgroups above a task have its reservation while the task exists.
func TestParentsReserveMemory(t *testing.T) {
	root := t.TempDir()
	g := &cgroup{path: filepath.Join(root, "nomad.slice/share.slice/a.task.scope"), isManagedByHost: true}
	for dir, low := range map[string]string{
		"nomad.slice": "000\n", "nomad.slice/share.slice": "00\n", "nomad.slice/reserve.slice": "100\n",
		"nomad.slice/share.slice/a.task.scope": "20\n", "nomad.slice/share.slice/b.task.scope": "33\n", "nomad.slice/share.slice/c.task.scope": "0\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, memoryLow), []byte(low), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when, share, all string) {
		t.Helper()
		for dir, want := range map[string]string{"nomad.slice/share.slice": share, "nomad.slice": all} {
			got, err := os.ReadFile(filepath.Join(root, dir, memoryLow))
			if err != nil || strings.TrimSpace(string(got)) != want { // all values of a file have the same length, because writes keep the rest
				t.Errorf("%s: %s has %q, %v, want %s", when, dir, got, err, want)
			}
		}
	}
	if err := g.updateParentMemoryReservations(); err != nil {
		t.Fatal(err)
	}
	check("at the start", "53", "153")
	for range 2 {
		if err := g.removeCgroups(); err != nil {
			t.Fatal(err)
		}
		check("at the end", "33", "133")
	}
}

// The kernel's count of OOM kills includes earlier starts in the same cgroup,
// which must not be reported for the next start.
func TestSecondStartGetsNewMemoryLimit(t *testing.T) {
	s := newLimitedStartRequest(t, 20*mebibyte, 0)
	first := startProcess(t, s, shellCommand("exec "+exceedMemoryScript))
	if got := waitExit(t, first); !got.OOMKilled {
		t.Errorf("exit result %+v, want a kill for memory", got)
	}
	// The first process is not destroyed: its cgroups stay, with their counters.
	s.Resources.Linux.MemoryLimitBytes = 40 * mebibyte
	second := startProcess(t, s, shellCommand("head -c 20000000 /dev/zero | tail -n 1 | wc -c"))
	if got := waitExit(t, second); got != (driver.ExitResult{}) {
		t.Errorf("exit result %+v below the new limit, want success", got)
	}
}

func TestMemoryLimitOutlivesThePlugin(t *testing.T) {
	for name, before := range map[string]bool{"it is exceeded while no plugin lives": true, "it is exceeded after the recovery": false} {
		t.Run(name, func(t *testing.T) {
			k := startKeeper(t)
			s := newLimitedStartRequest(t, 20*mebibyte, 0)
			state := startOrphan(t, k, testPluginIO{Config: s.TaskConfig, Command: shellCommand("until [ -e go ]; do sleep 0.01; done; exec " + exceedMemoryScript)})
			if before {
				createTriggerFile(t, s)
				waitUntil(t, "the task has ended", func() bool { return hasProcessEnded(state.PID) })
			}
			p, err := Recover(t.Context(), s, state)
			if err != nil {
				t.Fatal(err)
			}
			defer destroyProcess(t, p)
			if !before {
				createTriggerFile(t, s)
			}
			if got, want := waitExit(t, p), (driver.ExitResult{ExitCode: 137, Signal: 9, OOMKilled: true, Err: osprocess.ErrOOMKilled}); got != want {
				t.Errorf("exit result %+v, want %+v", got, want)
			}
		})
	}
}

func TestMemoryLimitOfCommandReplacesResources(t *testing.T) {
	for name, test := range map[string]struct {
		resources, command int64
		oomKilled          bool
	}{
		"a lower limit": {512 * mebibyte, 20 * mebibyte, true},
		"a higher one":  {20 * mebibyte, 512 * mebibyte, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := shellCommand("head -c 60000000 /dev/zero | tail -n 1 | wc -c")
			c.MemoryLimitBytes = test.command
			p := startProcess(t, newLimitedStartRequest(t, test.resources, 0), c)
			if got := waitExit(t, p); got.OOMKilled != test.oomKilled {
				t.Errorf("limit %d of the command, %d of the resources: %+v, want OOMKilled %v", test.command, test.resources, got, test.oomKilled)
			}
		})
	}
	c := shellCommand("exit 0")
	c.MemoryLimitBytes = -1
	if p, err := Start(t.Context(), newStartRequest(t), c); err == nil {
		destroyProcess(t, p)
		t.Error("a negative limit is accepted")
	}
}

func TestMemoryLimitHoldsForCommandsInTheTask(t *testing.T) {
	p := startProcess(t, newLimitedStartRequest(t, 20*mebibyte, 0), shellCommand("exec sleep 3600"))
	result, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "exec " + exceedMemoryScript}})
	if err != nil || result.Signal != int(unix.SIGKILL) {
		t.Errorf("a command that exceeds the limit: %+v, %v, want signal 9", result, err)
	}
}

func TestPidsLimit(t *testing.T) {
	s := newLimitedStartRequest(t, 0, 0)
	c := shellCommand("i=0; while [ $i -lt 40 ]; do sleep 3600 & i=$((i+1)); done; echo all >started")
	c.PidsLimit = 10
	p := startProcess(t, s, c)
	if got := waitExit(t, p); got.ExitCode == 0 || got.Err != nil {
		t.Errorf("40 processes with a limit of 10: %+v, want a failure", got)
	}
	if _, err := os.Stat(filepath.Join(s.TaskDir(), "started")); err == nil {
		t.Error("all processes were started")
	}
	if pids, err := p.cgroup.osCgroup().PIDs(); err != nil || len(pids) > 10 {
		t.Errorf("%d processes run, %v, want 10 at most", len(pids), err)
	}
	c.PidsLimit = -1
	if p, err := Start(t.Context(), newStartRequest(t), c); err == nil {
		destroyProcess(t, p)
		t.Error("a negative limit is accepted")
	}
}

// Two tasks that compete for one processor get CPU time in proportion to their
// shares.
func TestCPUShares(t *testing.T) {
	if testing.Short() {
		t.Skip("measures processor time for two seconds")
	}
	var one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	for cpu, first := 0, true; cpu < 1024; cpu++ {
		if one.IsSet(cpu) && !first {
			one.Clear(cpu)
		}
		first = first && !one.IsSet(cpu)
	}
	tasks := map[int64]*Process{}
	for _, shares := range []int64{200, 20000} {
		tasks[shares] = startProcess(t, newLimitedStartRequest(t, 0, shares), shellCommand("until [ -e go ]; do sleep 0.01; done; echo >looping; while :; do :; done"))
		if err := unix.SchedSetaffinity(tasks[shares].PID(), &one); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range tasks {
		createTriggerFile(t, p.startRequest)
	}
	before := map[int64]uint64{}
	ticks := func(shares int64) uint64 {
		st, err := osprocess.ReadStat(tasks[shares].PID())
		if err != nil {
			t.Fatal(err)
		}
		return st.UserTime + st.SystemTime
	}
	for _, p := range tasks {
		waitForFile(t, p.startRequest, "looping")
	}
	for shares := range tasks {
		before[shares] = ticks(shares)
	}
	used := map[int64]uint64{}
	waitUntil(t, "the tasks have used a second of CPU time", func() bool {
		for shares := range tasks {
			used[shares] = ticks(shares) - before[shares]
		}
		return osprocess.TicksToDuration(used[200]+used[20000]) >= time.Second
	})
	if used[20000] < 5*used[200] {
		t.Errorf("clock ticks by shares: %v, want much more for 20000 than for 200", used)
	}
}

func TestCgroupFilesOfLimits(t *testing.T) {
	describe := func(l cgroupLimits, version int) string {
		var b strings.Builder
		for _, s := range l.limitSettings(version) {
			for _, f := range s.cgroupFiles {
				fmt.Fprintf(&b, "%s=%s ", f.name, f.value)
			}
		}
		return strings.TrimSpace(b.String())
	}
	for _, test := range []struct {
		limits cgroupLimits
		v1, v2 string
	}{
		{cgroupLimits{}, "", ""},
		{cgroupLimits{memoryBytes: 20 << 20}, "memory.limit_in_bytes=20971520 memory.memsw.limit_in_bytes=20971520", "memory.max=20971520 memory.swap.max=0"},
		{cgroupLimits{cpuShares: 1}, "cpu.shares=2", "cpu.weight=1"},
		{cgroupLimits{cpuShares: 1024}, "cpu.shares=1024", "cpu.weight=39"},
		{cgroupLimits{cpuShares: 1 << 40}, "cpu.shares=262144", "cpu.weight=10000"},
		{cgroupLimits{maxPIDs: 5}, "pids.max=5", "pids.max=5"},
	} {
		if got := describe(test.limits, 1); got != test.v1 {
			t.Errorf("%+v with v1: %q, want %q", test.limits, got, test.v1)
		}
		if got := describe(test.limits, 2); got != test.v2 {
			t.Errorf("%+v with v2: %q, want %q", test.limits, got, test.v2)
		}
	}
}

func TestTaskWithoutMemoryLimit(t *testing.T) {
	for _, test := range []struct{ memoryMaxMB, want int64 }{
		{0, 64 << 20},
		{driver.NoMemoryLimit, 0},
	} {
		p := &ProcessWithoutExec{startRequest: &sdk.StartRequest{}}
		p.startRequest.Resources = &driver.Resources{MemoryMaxMB: test.memoryMaxMB, Linux: driver.LinuxResources{MemoryLimitBytes: 64 << 20}}
		if got := p.resourceLimits(Command{}).memoryBytes; got != test.want {
			t.Errorf("MemoryMaxMB %d: limit %d, want %d", test.memoryMaxMB, got, test.want)
		}
	}
}

// A limit that is not enforced is reported with the reason.
func TestLimitsThatAreNotEnforced(t *testing.T) {
	withoutPids := hostCgroupHierarchy()
	withoutPids.v1Controllers = []string{"freezer", "memory", "cpu"}
	for _, test := range []struct {
		name    string
		machine func(t *testing.T)
		change  func(t *testing.T, c *Command)
		want    []string
	}{
		{"no cgroups", func(t *testing.T) {
			useCgroupHierarchy(t, cgroupHierarchy{unavailableReason: "only root can make cgroups of version 1"})
		}, nil, []string{
			"memory limit not enforced here: only root can make cgroups of version 1",
			"pids limit not enforced here: only root can make cgroups of version 1",
		}},
		{"a controller is missing in v1", func(t *testing.T) {
			if withoutPids.cgroupVersion != 1 {
				t.Skip("has no cgroups v1")
			}
			useCgroupHierarchy(t, withoutPids)
		}, nil, []string{`pids limit not enforced here: the cgroup controller "pids" is not mounted`}},
		{"the user names a cgroup of v1", func(t *testing.T) {
			if hostCgroupHierarchy().cgroupVersion != 1 {
				t.Skip("has no cgroups v1")
			}
		}, func(t *testing.T, c *Command) {
			name := fmt.Sprintf("process-test-%d", os.Getpid())
			dir := filepath.Join("/sys/fs/cgroup/memory", name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Rmdir(dir) })
			c.CgroupV1 = map[string]string{"memory": name}
		}, []string{"memory limit not enforced here: cgroup_v1_override places the task into another cgroup"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.machine(t)
			s := newStartRequest(t)
			s.Resources = &driver.Resources{Linux: driver.LinuxResources{MemoryLimitBytes: 64 * mebibyte, CPUShares: 100}}
			c := shellCommand("exit 0")
			c.PidsLimit = 50
			if test.change != nil {
				test.change(t, &c)
			}
			p, err := Start(t.Context(), s, c)
			if err != nil {
				t.Fatal(err)
			}
			defer destroyProcess(t, p)
			if got := strings.Join(p.unenforcedLimitMessages, "\n"); got != strings.Join(test.want, "\n") {
				t.Errorf("not enforced:\n%s\nwant\n%s", got, strings.Join(test.want, "\n"))
			}
		})
	}
}

// On a hybrid machine the v2 hierarchy has no controllers.
func TestLimitWithoutControllers(t *testing.T) {
	h := cgroupV2Hierarchy(t)
	controllers, _ := os.ReadFile(filepath.Join(h.mountPath, "cgroup.controllers"))
	if strings.Contains(string(controllers), "memory") {
		t.Skip("the controllers are there")
	}
	useCgroupHierarchy(t, h)
	s := newStartRequest(t)
	s.Resources = &driver.Resources{Linux: driver.LinuxResources{MemoryLimitBytes: 64 * mebibyte, CPUShares: 100}}
	p := startProcess(t, s, shellCommand("exit 0"))
	if got := strings.Join(p.unenforcedLimitMessages, "\n"); !strings.HasPrefix(got, `memory limit not enforced here: the cgroup controller "memory" is not available`) {
		t.Errorf("not enforced: %q", got)
	}
}
