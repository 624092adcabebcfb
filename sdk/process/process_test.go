package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// cgroupV2Hierarchy returns the v2 hierarchy of this machine, wherever it is mounted.
func cgroupV2Hierarchy(t *testing.T) cgroupHierarchy {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making cgroups needs root")
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if h := detectCgroupHierarchy(mount); h.cgroupVersion == 2 {
			return h
		}
	}
	t.Skip("there is no cgroup v2 here")
	return cgroupHierarchy{}
}

func TestAllProcessesDieWithTheTask(t *testing.T) {
	// The script starts two children that ignore signals: one in its process group,
	// one in a session of its own.
	const forkingScript = `trap "" INT TERM HUP; (echo $(exec sh -c 'echo $PPID') >child; exec sleep 3600) & ` +
		`setsid sh -c 'echo $$ >own; exec sleep 3600' & until [ -s child ] && [ -s own ]; do sleep 0.01; done; `
	for name, machine := range map[string]func(*testing.T) cgroupHierarchy{
		"with the cgroups of this machine": func(*testing.T) cgroupHierarchy { return hostCgroupHierarchy() },
		"with cgroups v2":                  cgroupV2Hierarchy,
		"without cgroups":                  func(*testing.T) cgroupHierarchy { return cgroupHierarchy{} },
	} {
		t.Run(name, func(t *testing.T) {
			useCgroupHierarchy(t, machine(t))
			for name, end := range map[string]string{"that ends": "exit 0", "that is killed": "exec sleep 3600"} {
				t.Run(name, func(t *testing.T) {
					s := newStartRequest(t)
					p := startProcess(t, s, shellCommand(forkingScript+end))
					child, own := parseNumber(t, waitForFile(t, s, "child")), parseNumber(t, waitForFile(t, s, "own"))
					if end != "exit 0" {
						if err := p.Kill(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					waitExit(t, p)
					if err := p.Destroy(t.Context()); err != nil {
						t.Error(err)
					}
					for _, pid := range []int{child, own} {
						waitUntil(t, "every child is dead", func() bool { return hasProcessEnded(pid) })
					}
					if p.cgroup != nil {
						if _, err := os.Stat(p.cgroup.path); err == nil {
							t.Errorf("%s is still there", p.cgroup.path)
						}
					}
				})
			}
		})
	}
}

// A Destroy that could not search for processes, because this process had no
// free descriptor, returns an error and can be repeated.
func TestDestroyIsRepeatableAfterFDExhaustion(t *testing.T) {
	for name, h := range map[string]cgroupHierarchy{"with the cgroups of this machine": hostCgroupHierarchy(), "without cgroups": {}} {
		t.Run(name, func(t *testing.T) {
			useCgroupHierarchy(t, h)
			s := newStartRequest(t)
			p := startProcess(t, s, shellCommand("setsid sh -c 'echo $$ >own; exec sleep 3600' & until [ -s own ]; do sleep 0.01; done"))
			if r, err := p.Wait(t.Context()); err != nil || r.ExitCode != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			child, err := osprocess.LookupID(parseNumber(t, waitForFile(t, s, "own")))
			if err != nil {
				t.Fatal(err)
			}
			restore := processtest.LimitDescriptors(t, 0)
			destroyErr := p.Destroy(t.Context())
			restore()
			if !osprocess.IsResourceExhausted(destroyErr) || !child.Alive() {
				t.Errorf("without descriptors: %v, the child of the task runs: %v", destroyErr, child.Alive())
			}
			for range 2 {
				if err := p.Destroy(t.Context()); err != nil {
					t.Errorf("repeated: %v", err)
				}
				if child.Alive() {
					t.Error("the child of the task runs")
				}
			}
			if earlier, err := osprocess.LookupID(p.PID()); err == nil && earlier == p.processID {
				t.Error("the process was not reaped")
			}
		})
	}
}

func TestCgroupHoldsTheProcessFromItsBirth(t *testing.T) {
	for name, h := range map[string]cgroupHierarchy{"v1 or what there is": hostCgroupHierarchy(), "v2": cgroupV2Hierarchy(t)} {
		t.Run(name, func(t *testing.T) {
			useCgroupHierarchy(t, h)
			s := newStartRequest(t)
			p := startProcess(t, s, shellCommand("cat /proc/self/cgroup >where.new; mv where.new where; exec sleep 3600"))
			if p.cgroup == nil {
				t.Skip("no cgroup can be made here")
			}
			want := s.AllocID + ".task"
			if h.cgroupVersion == 2 {
				want = "/nomad.slice/share.slice/" + want + ".scope"
			}
			waitUntil(t, "the task has looked", func() bool { _, err := os.Stat(filepath.Join(s.TaskDir(), "where")); return err == nil })
			text, _ := os.ReadFile(filepath.Join(s.TaskDir(), "where"))
			if !strings.Contains(string(text), want) {
				t.Errorf("the first child of the task is in\n%swant %s", text, want)
			}
			if own, _ := os.ReadFile("/proc/self/cgroup"); strings.Contains(string(own), s.AllocID) {
				t.Errorf("the plugin is in the task's cgroup:\n%s", own)
			}
			var out bytes.Buffer
			if _, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/cat", "/proc/self/cgroup"}, Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), want) {
				t.Errorf("a command in the task is in\n%swant %s", out.String(), want)
			}
			var stats driver.TaskStats
			waitUntil(t, "the shell has become what sleeps: a process between two programs has no memory", func() bool {
				var err error
				if stats, err = p.Stats(t.Context()); err != nil {
					t.Fatal(err)
				}
				return stats.Total.Memory.RSS > 0 && len(stats.ByPID) > 0
			})
			controllers, _ := os.ReadFile(filepath.Join(h.mountPath, "cgroup.controllers"))
			if m := stats.Total.Memory; slices.Contains(strings.Fields(string(controllers)), "memory") && (m.Usage == 0 || !slices.Contains(m.Measured, "Usage")) {
				t.Errorf("the kernel could count the memory, and did not: %+v", m)
			}
		})
	}
}

func TestNestedCgroupsAreKilledAndRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making cgroups needs root")
	}
	for name, h := range map[string]cgroupHierarchy{"with the cgroups of this machine": hostCgroupHierarchy(), "with cgroups v2": cgroupV2Hierarchy(t)} {
		t.Run(name, func(t *testing.T) {
			useCgroupHierarchy(t, h)
			s := newStartRequest(t)
			// The child has an empty environment, so only the cgroup identifies it as part
			// of the task.
			s.Env["OWN"] = possibleTaskCgroupPaths(s.AllocID, s.Name)[0]
			p := startProcess(t, s, shellCommand(`mkdir -p $OWN/a/b && env -i setsid sh -c "echo \$\$ >$OWN/a/b/cgroup.procs; echo \$\$ >child; exec sleep 3600" & exec sleep 3600`))
			child := parseNumber(t, waitForFile(t, s, "child"))
			stats, err := p.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := stats.ByPID[strconv.Itoa(child)]; !ok {
				t.Errorf("statistics without process %d: %+v", child, stats)
			}
			destroyProcess(t, p)
			if !hasProcessEnded(child) {
				t.Errorf("process %d is still there", child)
			}
			if _, err := os.Stat(s.Env["OWN"]); err == nil {
				t.Errorf("%s is still there", s.Env["OWN"])
			}
		})
	}
}

func TestConfiguredCgroup(t *testing.T) {
	h := cgroupV2Hierarchy(t)
	useCgroupHierarchy(t, h)
	dir := filepath.Join(h.mountPath, fmt.Sprintf("process-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := osprocess.Cgroup(dir).Remove(); err != nil {
			t.Error(err)
		}
	})
	c := shellCommand("exec sleep 3600")
	c.CgroupV2 = filepath.Base(dir)
	p := startProcess(t, newStartRequest(t), c)
	if p.cgroup != nil {
		t.Errorf("the process also has %s", p.cgroup.path)
	}
	if got, err := osprocess.Cgroup(dir).PIDs(); err != nil || len(got) != 1 || got[0] != p.PID() {
		t.Errorf("in the cgroup are %v, %v, want %d", got, err, p.PID())
	}
	for _, bad := range []string{"no/such/cgroup", "../../etc"} {
		c.CgroupV2 = bad
		if p, err := Start(t.Context(), newStartRequest(t), c); err == nil {
			destroyProcess(t, p)
			t.Errorf("cgroup %q is taken", bad)
		}
	}
}

func TestStartKillsProcessesOfAnEarlierStart(t *testing.T) {
	for name, h := range map[string]cgroupHierarchy{"with the cgroups of this machine": hostCgroupHierarchy(), "without cgroups": {}} {
		t.Run(name, func(t *testing.T) {
			useCgroupHierarchy(t, h)
			resetLeftoverProcessSearch(t)
			s, other := newStartRequest(t), newStartRequest(t)
			// Both tasks are left by a plugin process that was killed, and are not recovered.
			state := startOrphan(t, nil, testPluginIO{Config: s.TaskConfig, Command: shellCommand("exec sleep 3600")})
			kept := startOrphan(t, nil, testPluginIO{Config: other.TaskConfig, Command: shellCommand("exec sleep 3600")})
			t.Cleanup(func() { Sweep(context.Background(), sdk.SweepRequest{AllocID: other.AllocID, TaskName: "task"}) })
			for _, state := range []State{state, kept} {
				waitUntil(t, "the kernel shows the environment of the task", func() bool {
					env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", state.PID))
					return len(env) > 0
				})
			}
			second := startProcess(t, s, shellCommand("exec sleep 3600"))
			waitUntil(t, "the earlier one is dead", func() bool { return hasProcessEnded(state.PID) })
			if hasProcessEnded(kept.PID) {
				t.Error("the task of another allocation was killed")
			}
			if _, err := Start(t.Context(), s, shellCommand("exec sleep 3600")); err == nil || !strings.Contains(err.Error(), strconv.Itoa(second.PID())) {
				t.Errorf("a third start beside the second: %v, want an error that names process %d", err, second.PID())
			}
			if hasProcessEnded(second.PID()) {
				t.Error("and it has killed the second")
			}
		})
	}
}

// A process that has ended and was not destroyed may have left children, which
// have no cgroup here.
func TestStartEndsChildrenOfAProcessThatWasNotDestroyed(t *testing.T) {
	useCgroupHierarchy(t, cgroupHierarchy{})
	s := newStartRequest(t)
	first, err := Start(t.Context(), s, shellCommand("setsid sh -c 'echo $$ >child; exec sleep 3600' & until [ -s child ]; do sleep 0.01; done"))
	if err != nil {
		t.Fatal(err)
	}
	child := parseNumber(t, waitForFile(t, s, "child"))
	waitExit(t, first)
	second := startProcess(t, s, shellCommand("exec sleep 3600"))
	waitUntil(t, "the child is dead", func() bool { return hasProcessEnded(child) })
	if err := first.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if hasProcessEnded(second.PID()) {
		t.Error("the late destroy of the first start has killed the second")
	}
}

func TestSweepKillsTaskProcesses(t *testing.T) {
	for name, h := range map[string]cgroupHierarchy{"with cgroups": hostCgroupHierarchy(), "without": {}} {
		t.Run(name, func(t *testing.T) {
			s := newStartRequest(t)
			// The orphaning plugin always uses a cgroup, because it detects the
			// cgroups of the machine.
			t.Cleanup(func() { Sweep(context.Background(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: "task"}) })
			useCgroupHierarchy(t, h)
			state := startOrphan(t, nil, testPluginIO{Config: s.TaskConfig, Command: shellCommand("exec sleep 3600")})
			if found, err := Sweep(t.Context(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: "other"}); found || err != nil {
				t.Errorf("sweep of another task: %v, %v", found, err)
			}
			if hasProcessEnded(state.PID) {
				t.Fatal("the sweep of another task has killed this one")
			}
			if found, err := Sweep(t.Context(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: "task"}); !found || err != nil {
				t.Errorf("sweep: %v, %v", found, err)
			}
			waitUntil(t, "the task is dead", func() bool { return hasProcessEnded(state.PID) })
			if found, err := Sweep(t.Context(), sdk.SweepRequest{AllocID: s.AllocID, TaskName: "task"}); found || err != nil {
				t.Errorf("a second sweep: %v, %v", found, err)
			}
		})
	}
}

func TestStartRejectsUnsafeOutputPaths(t *testing.T) {
	s := newStartRequest(t)
	logs := filepath.Join(s.AllocDir, "alloc/logs")
	outside := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(outside, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(filepath.Dir(outside), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fifoReader, err := os.OpenFile(fifo, os.O_RDWR, 0) // a start that follows a link to the FIFO does not wait for a reader
	if err != nil {
		t.Fatal(err)
	}
	defer fifoReader.Close()
	for name, make := range map[string]func(path string) error{
		"a link to a file":           func(p string) error { return os.Symlink(outside, p) },
		"a link to a FIFO elsewhere": func(p string) error { return os.Symlink(fifo, p) },
		"a hard link to a file":      func(p string) error { return os.Link(outside, p) },
		"a directory":                func(p string) error { return os.Mkdir(p, 0o700) },
		"nothing":                    func(string) error { return nil },
	} {
		for _, dir := range []string{logs, s.AllocDir} {
			t.Run(name+" in "+filepath.Base(dir), func(t *testing.T) {
				s.StdoutPath = filepath.Join(dir, strings.ReplaceAll(name, " ", "_"))
				if err := make(s.StdoutPath); err != nil {
					t.Fatal(err)
				}
				if p, err := Start(t.Context(), s, shellCommand("echo damaged")); err == nil {
					destroyProcess(t, p)
					t.Error("the task starts")
				}
			})
		}
	}
	t.Run("a FIFO of another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root gives files away")
		}
		s.StdoutPath = filepath.Join(logs, "of_another_user")
		if err := errors.Join(unix.Mkfifo(s.StdoutPath, 0o600), os.Chown(s.StdoutPath, 4242, 4242)); err != nil {
			t.Fatal(err)
		}
		reader, err := os.OpenFile(s.StdoutPath, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if p, err := Start(t.Context(), s, shellCommand("echo private")); err == nil {
			destroyProcess(t, p)
			t.Error("the task starts")
		}
	})
	t.Run("a directory that is a link to elsewhere", func(t *testing.T) {
		if err := os.Symlink(filepath.Dir(outside), filepath.Join(s.AllocDir, "link")); err != nil {
			t.Fatal(err)
		}
		s.StdoutPath = filepath.Join(s.AllocDir, "link", "fifo")
		if p, err := Start(t.Context(), s, shellCommand("echo damaged")); err == nil {
			destroyProcess(t, p)
			t.Error("the task starts")
		}
	})
	if text, err := os.ReadFile(outside); err != nil || string(text) != "precious" {
		t.Errorf("the file is now %q, %v", text, err)
	}
}

func TestOutputWaitsForAReader(t *testing.T) {
	s := newStartRequest(t)
	s.StdoutPath = filepath.Join(s.AllocDir, "alloc/logs/fifo")
	if err := unix.Mkfifo(s.StdoutPath, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, s, shellCommand("echo hello")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a reader: %v, want %v", err, context.DeadlineExceeded)
	}
	outputReaderTimeout = 30 * time.Millisecond
	_, err := Start(t.Context(), s, shellCommand("echo hello"))
	if !errors.Is(err, context.DeadlineExceeded) || !driver.IsRecoverable(err) {
		t.Errorf("without a reader and without a deadline: %v, want a recoverable error", err)
	}
	longer, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, _, err := OpenOutput(longer, s); err == nil || longer.Err() == nil {
		t.Errorf("the output of a task that runs: %v before the end of the context", err)
	}
	outputReaderTimeout = 30 * time.Second
	type readResult struct {
		text []byte
		err  error
	}
	c := make(chan readResult)
	go func() {
		text, err := os.ReadFile(s.StdoutPath)
		c <- readResult{text, err}
	}()
	waitExit(t, startProcess(t, s, shellCommand("echo hello")))
	if a := <-c; string(a.text) != "hello\n" || a.err != nil {
		t.Errorf("read %q, %v", a.text, a.err)
	}
}

func TestLookPath(t *testing.T) {
	s := newStartRequest(t)
	dir := s.TaskDir()
	bin := t.TempDir()
	for path, mode := range map[string]os.FileMode{
		filepath.Join(dir, "local/tool"):    0o755,
		filepath.Join(dir, "local/fetched"): 0o644,
		filepath.Join(dir, "other"):         0o755,
		filepath.Join(bin, "tool"):          0o755,
		filepath.Join(bin, "there"):         0o755,
		filepath.Join(bin, "plain"):         0o644,
	} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "local/link")); err != nil {
		t.Fatal(err)
	}
	s.Env["PATH"] = "relative:" + bin
	for _, test := range []struct{ name, command, want, fault string }{
		{"an absolute path is taken as it is", "/bin/sh", "/bin/sh", ""},
		{"the task's local directory comes first", "tool", dir + "/local/tool", ""},
		{"then the task's directory", "other", dir + "/other", ""},
		{"a path is relative to the task's directory", "local/tool", dir + "/local/tool", ""},
		{"then the PATH of the task", "there", bin + "/there", ""},
		{"what was downloaded is made executable", "fetched", dir + "/local/fetched", ""},
		{"a link out of the directory is not", "link", "", "link"},
		{"what is in PATH and not executable is not", "plain", "", bin},
		{"the PATH of the plugin does not count", "sh", "", "PATH"},
		{"a missing path says where it was looked for", "local/nothing", "", dir},
		{"a missing absolute path", "/no/such", "", "/no/such"},
		{"a directory is no program", "/bin", "", "directory"},
		{"nothing", "", "", "no command"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := findProgramOfTask(s, test.command)
			if got != test.want {
				t.Errorf("%q is %q, want %q", test.command, got, test.want)
			}
			if test.fault == "" && err != nil || test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)) {
				t.Errorf("error %v, want one with %q", err, test.fault)
			}
		})
	}
	if info, _ := os.Stat(outside); info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of a file outside is now %v", info.Mode())
	}
}

func TestStartFailures(t *testing.T) {
	script := func(t *testing.T, s *sdk.StartRequest, text string) string {
		path := filepath.Join(s.TaskDir(), "program")
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct {
		change func(t *testing.T, s *sdk.StartRequest, c *Command)
		want   string
	}{
		"an interpreter that is not there": {func(t *testing.T, s *sdk.StartRequest, c *Command) { c.Path = script(t, s, "#!/no/such\n") }, "interpreter"},
		"a file that is no program":        {func(t *testing.T, s *sdk.StartRequest, c *Command) { c.Path = script(t, s, "what?") }, "not a program"},
		"a work_dir that is not there":     {func(_ *testing.T, _ *sdk.StartRequest, c *Command) { c.Dir = "/no/such" }, "/no/such"},
		"a work_dir that is a file":        {func(_ *testing.T, _ *sdk.StartRequest, c *Command) { c.Dir = "/bin/sh" }, "not a directory"},
		"a work_dir that is relative":      {func(_ *testing.T, _ *sdk.StartRequest, c *Command) { c.Dir = "local" }, "absolute"},
		"a user that does not exist":       {func(_ *testing.T, s *sdk.StartRequest, _ *Command) { s.User = "nobody-of-that-name" }, "nobody-of-that-name"},
		"a score that is negative":         {func(_ *testing.T, _ *sdk.StartRequest, c *Command) { c.OOMScoreAdj = -1 }, "oom_score_adj"},
		"a score that is too high":         {func(_ *testing.T, _ *sdk.StartRequest, c *Command) { c.OOMScoreAdj = 1001 }, "oom_score_adj"},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newStartRequest(t), shellCommand("exit 0")
			test.change(t, s, &c)
			p, err := Start(t.Context(), s, c)
			if err == nil {
				destroyProcess(t, p)
				t.Fatal("it starts")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want an error with %q", err, test.want)
			}
			for _, path := range possibleTaskCgroupPaths(s.AllocID, s.Name) {
				if _, err := os.Stat(path); err == nil {
					t.Errorf("%s is left behind", path)
				}
			}
		})
	}
}

func TestStartUsesArgs0(t *testing.T) {
	p := startProcess(t, newStartRequest(t), Command{Path: "/bin/sleep", Args0: "clock", Args: []string{"1000"}})
	var cmdline []byte
	var err error
	for end := time.Now().Add(10 * time.Second); len(cmdline) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		cmdline, err = os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID())) // empty for the moment in which the process executes its program
	}
	if err != nil || string(cmdline) != "clock\x001000\x00" {
		t.Errorf("the command line is %q, %v", cmdline, err)
	}
}

func TestStartAsConfiguredUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("running as others needs root")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	for _, test := range []struct{ user, want string }{
		{"", "0:" + strconv.Itoa(os.Getegid())},
		{"nobody", nobody.Uid + ":" + nobody.Gid},
		{nobody.Uid, nobody.Uid + ":" + nobody.Gid},
		{nobody.Uid + ":12345", nobody.Uid + ":12345"},
		{"54321:12345", "54321:12345"},
		{"54321", "54321:54321"},
		{"nomad-80123", "80123:80123"},
	} {
		t.Run("user "+test.user, func(t *testing.T) {
			s := newStartRequest(t)
			s.User = test.user
			if err := os.Chmod(s.TaskDir(), 0o777); err != nil {
				t.Fatal(err)
			}
			for dir := s.AllocDir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			p := startProcess(t, s, shellCommand("echo $(id -u):$(id -g) >who; exec sleep 3600"))
			if got := waitForFile(t, s, "who"); got != test.want {
				t.Errorf("the task is %s, want %s", got, test.want)
			}
			var out bytes.Buffer
			exit, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "echo $(id -u):$(id -g)"}, Stdout: &out, TTY: true})
			if err != nil || !exit.Successful() {
				t.Fatalf("exec: %+v, %v", exit, err)
			}
			if got := strings.TrimSpace(out.String()); got != test.want {
				t.Errorf("a command in it is %s, want %s", got, test.want)
			}
		})
	}
	for _, bad := range []string{"-1", "4294967295", "0:nogroup-of-that-name", ":", "a:b:c"} {
		if cred, err := Credential(bad); err == nil {
			t.Errorf("user %q is %+v", bad, cred)
		}
	}
}

func TestOOMScore(t *testing.T) {
	c := shellCommand("exec sleep 3600")
	c.OOMScoreAdj = 321
	p := startProcess(t, newStartRequest(t), c)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID()))
	if got := strings.TrimSpace(string(text)); got != "321" || err != nil {
		t.Errorf("score %q, %v, want 321", got, err)
	}
}

// A task does not inherit its driver's protection from the OOM killer.
func TestTaskDoesNotInheritOOMScore(t *testing.T) {
	processtest.SetOOMScore(t, "-500")
	p := startProcess(t, newStartRequest(t), shellCommand("exec sleep 3600"))
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.PID()))
	if got := strings.TrimSpace(string(text)); got != "0" || err != nil {
		t.Errorf("the task has the score %q, %v, want 0", got, err)
	}
	var out bytes.Buffer
	command := []string{"/bin/sh", "-c", "i=0; while [ $i -lt 50 ] && grep -q - /proc/$$/oom_score_adj; do sleep 0.1; i=$((i+1)); done; cat /proc/$$/oom_score_adj"}
	exit, err := p.Exec(t.Context(), driver.Exec{Command: command, Stdout: &out})
	if err != nil || !exit.Successful() || strings.TrimSpace(out.String()) != "0" {
		t.Errorf("a command in it has the score %q, %+v, %v, want 0", out.String(), exit, err)
	}
}

func TestParseSignal(t *testing.T) {
	for name, want := range map[string]unix.Signal{
		"": unix.SIGINT, "SIGHUP": unix.SIGHUP, "HUP": unix.SIGHUP, "sigusr1": unix.SIGUSR1, "SIGKILL": unix.SIGKILL,
	} {
		if got, err := ParseSignal(name); got != want || err != nil {
			t.Errorf("%q is %v, %v, want %v", name, got, err, want)
		}
	}
	for _, bad := range []string{"SIGFOO", "9", "SIG", "SIGSIGHUP", "HUP "} {
		if got, err := ParseSignal(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

func TestWaitIsRepeatableAndCancellable(t *testing.T) {
	s := newStartRequest(t)
	p := startProcess(t, s, shellCommand(exitOnTriggerFileScript))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cancelled wait says %v", err)
	}
	createTriggerFile(t, s)
	for range 3 {
		if got := waitExit(t, p); got != exitCodeSeven {
			t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
		}
	}
	if st, err := osprocess.ReadStat(p.PID()); err != nil || st.State != 'Z' {
		t.Errorf("before it is destroyed the process must be a zombie, which keeps the status: %+v, %v", st, err)
	}
	if err := p.Signal(t.Context(), "SIGHUP"); err != nil {
		t.Errorf("signal to a process that has ended: %v", err)
	}
}

func TestProcessWithoutPidfd(t *testing.T) {
	// The test simulates a kernel without pidfds.
	s := newStartRequest(t)
	p := startProcess(t, s, shellCommand(exitOnTriggerFileScript))
	p.pidfd.Close()
	p.pidfd = nil
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cancelled wait says %v", err)
	}
	if err := p.Signal(t.Context(), "SIGCONT"); err != nil {
		t.Error(err)
	}
	createTriggerFile(t, s)
	if got := waitExit(t, p); got != exitCodeSeven {
		t.Errorf("exit result %+v, want %+v", got, exitCodeSeven)
	}
}

func TestExecOutputThatIsHeldOpen(t *testing.T) {
	if testing.Short() {
		t.Skip("waits half a second for output")
	}
	p := startProcess(t, newStartRequest(t), shellCommand("exec sleep 3600"))
	var out bytes.Buffer
	began := time.Now()
	exit, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "sleep 3600 & echo $!"}, Stdout: &out})
	if err != nil || !exit.Successful() {
		t.Fatalf("%+v, %v", exit, err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v, for a child that holds the output", took)
	}
	child := parseNumber(t, strings.TrimSpace(out.String()))
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.cgroup != nil {
		waitUntil(t, "what the command left running dies with the task", func() bool { return hasProcessEnded(child) })
	}
}

func TestExecOutputForSlowReaders(t *testing.T) {
	const size = 60_000 // a pipe holds as much after the first read
	p := startProcess(t, newStartRequest(t), shellCommand("exec sleep 3600"))
	for _, tty := range []bool{false, true} {
		for _, leftover := range []string{"", "sleep 3600 & "} {
			out := &slowWriter{delay: 2 * outputDrainTimeout}
			script := leftover + "head -c " + strconv.Itoa(size) + " /dev/zero"
			exit, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", script}, Stdout: out, TTY: tty})
			if err != nil || !exit.Successful() || out.size != size {
				t.Errorf("terminal %v, script %q: %+v, %v, %d of %d bytes", tty, script, exit, err, out.size, size)
			}
		}
	}
}

// A process that the command leaves behind can open the terminal after the kernel has hung it up. Then the terminal has no
// end, for which Exec does not wait.
func TestExecTerminalThatIsOpenedAgain(t *testing.T) {
	p := startProcess(t, newStartRequest(t), shellCommand("exec sleep 3600"))
	out := &slowWriter{delay: 2 * outputDrainTimeout}
	script := `terminal=$(tty); setsid sh -c "sleep 0.3; exec sleep 3600 <>$terminal" & sleep 0.1; echo ended`
	exit, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", script}, Stdout: out, TTY: true})
	if err != nil || !exit.Successful() || out.size != len("ended\r\n") {
		t.Errorf("%+v, %v, %d bytes: %q", exit, err, out.size, out.start)
	}
}

// slowWriter counts bytes. Its first Write takes delay.
type slowWriter struct {
	delay time.Duration
	size  int
	start []byte // the first bytes, for messages
}

func (s *slowWriter) Write(p []byte) (int, error) {
	if s.size == 0 {
		time.Sleep(s.delay)
	}
	s.size += len(p)
	s.start = append(s.start, p[:min(len(p), max(0, 200-len(s.start)))]...)
	return len(p), nil
}

func TestExecWriterThatFails(t *testing.T) {
	p := startProcess(t, newStartRequest(t), shellCommand("exec sleep 3600"))
	r, w := io.Pipe()
	r.Close()
	exit, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "head -c 1000000 /dev/zero; exit 3"}, Stdout: w})
	if err != nil || exit.ExitCode != 3 {
		t.Errorf("%+v, %v, want exit code 3", exit, err)
	}
}

func TestCPURates(t *testing.T) {
	var m cpuSampler
	at := time.Unix(1000, 0)
	first := m.computeRates(at, map[int]cpuTime{0: {user: time.Second}, 7: {user: time.Second}})
	if got := first[0].Percent; got != 0 {
		t.Errorf("the first sample says %v percent, want 0", got)
	}
	second := m.computeRates(at.Add(2*time.Second), map[int]cpuTime{0: {user: 2 * time.Second, system: time.Second}, 8: {system: time.Second}})
	if got := second[0]; got.User != 50 || got.System != 50 || got.Percent != 100 {
		t.Errorf("one second each in two: %+v", got)
	}
	if got := second[8].Percent; got != 50 {
		t.Errorf("a new process that has used one second of two: %v percent", got)
	}
	again := m.computeRates(at.Add(2*time.Second+time.Millisecond), map[int]cpuTime{0: {user: 3 * time.Second}})
	if got := again[0].Percent; got != 100 {
		t.Errorf("asked again at once: %v percent, want the last rate", got)
	}
	third := m.computeRates(at.Add(4*time.Second), map[int]cpuTime{0: {}})
	if got := third[0].Percent; got != 0 {
		t.Errorf("a sum that has shrunk: %v percent, want 0", got)
	}
}

func BenchmarkStart(b *testing.B) {
	limited := &driver.Resources{Linux: driver.LinuxResources{MemoryLimitBytes: 300 << 20, CPUShares: 100}}
	for _, test := range []struct {
		name      string
		machine   cgroupHierarchy
		resources *driver.Resources
	}{{"cgroup", hostCgroupHierarchy(), nil}, {"limits", hostCgroupHierarchy(), limited}, {"none", cgroupHierarchy{}, nil}} {
		b.Run(test.name, func(b *testing.B) {
			old := hostCgroupHierarchy
			hostCgroupHierarchy = func() cgroupHierarchy { return test.machine }
			defer func() { hostCgroupHierarchy = old }()
			dir := b.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "process-test-bench", "task"), 0o755); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				s := &sdk.StartRequest{TaskConfig: driver.TaskConfig{Name: "task", AllocID: "process-test-bench", AllocDir: filepath.Join(dir, "process-test-bench"), Resources: test.resources}}
				p, err := Start(b.Context(), s, Command{Path: "/bin/true"})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := p.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				if err := p.Destroy(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestTaskEntersGroupNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	ns := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(ns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread exits with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- err
			return
		}
		made <- unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), ns, "", unix.MS_BIND, "")
	}()
	if err := <-made; err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(ns, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	var wantNetns, own unix.Stat_t
	if err := errors.Join(unix.Stat(ns, &wantNetns), unix.Stat("/proc/self/ns/net", &own)); err != nil {
		t.Fatal(err)
	}
	s := newStartRequest(t)
	s.NetworkIsolation = &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: ns}
	p := startProcess(t, s, shellCommand("exec sleep 3600"))
	var got unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", p.PID()), &got); err != nil || got.Ino != wantNetns.Ino {
		t.Errorf("the task is in network %d, %v, want %d", got.Ino, err, wantNetns.Ino)
	}
	var out bytes.Buffer
	if _, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/sh", "-c", "stat -L -c %i /proc/self/ns/net"}, Stdout: &out}); err != nil || strings.TrimSpace(out.String()) != fmt.Sprint(wantNetns.Ino) {
		t.Errorf("a command in it is in network %s, %v, want %d", out.String(), err, wantNetns.Ino)
	}
	if err := unix.Stat("/proc/self/ns/net", &got); err != nil || got.Ino != own.Ino {
		t.Errorf("the plugin is in network %d, %v, want %d", got.Ino, err, own.Ino)
	}
	s.NetworkIsolation.Path = "/no/such/network"
	other := newStartRequest(t)
	other.NetworkIsolation = s.NetworkIsolation
	if p, err := Start(t.Context(), other, shellCommand("exit 0")); err == nil {
		destroyProcess(t, p)
		t.Error("a task starts in the plugin's network, when its own is not there")
	}
}

func TestExecAsADeletedUser(t *testing.T) {
	s := newStartRequest(t)
	first := startProcess(t, s, shellCommand("exec sleep 3600"))
	other := *s
	other.User = "nobody-of-that-name"
	second, err := Recover(t.Context(), &other, first.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	defer second.pidfd.Close()
	var out bytes.Buffer
	if _, err := second.Exec(t.Context(), driver.Exec{Command: []string{"/usr/bin/id", "-u"}, Stdout: &out}); err == nil {
		t.Errorf("the command has run as user %s", out.String())
	}
}

// The size of a terminal changes until the command has ended. The race detector reports a change of a closed terminal.
func TestResizeWhileCommandEnds(t *testing.T) {
	p := startProcess(t, newStartRequest(t), shellCommand("exec sleep 3600"))
	for range 10 {
		sizes, ended := make(chan driver.TerminalSize), make(chan struct{})
		var resizer sync.WaitGroup
		resizer.Go(func() {
			for {
				select {
				case sizes <- driver.TerminalSize{Height: 24, Width: 80}:
				case <-ended:
					return
				}
			}
		})
		if result, err := p.Exec(t.Context(), driver.Exec{Command: []string{"/bin/true"}, TTY: true, Resize: sizes}); err != nil || result.ExitCode != 0 {
			t.Errorf("%+v, %v", result, err)
		}
		close(ended)
		resizer.Wait()
	}
}
