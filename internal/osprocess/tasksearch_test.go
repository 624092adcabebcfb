//go:build linux

package osprocess

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/racedetector"
)

// startProgram starts a shell script that prints the pid of a task's process, which exits at the end of the test.
func startProgram(t *testing.T, attr *syscall.SysProcAttr, env []string, name string, args ...string) ID {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = attr
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // closed by Wait
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, convErr := strconv.Atoi(strings.TrimSpace(line))
	if convErr != nil {
		t.Fatalf("the program prints %q: %v", line, err)
	}
	p, err := LookupID(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Signal(unix.SIGKILL) }) // fails if the process has exited
	return p
}

// overwriteEnv is a program of Python that overwrites its environment as nginx does, and prints its pid.
const overwriteEnv = `
import os, sys
def at(pid):
    fields = open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()
    return int(fields[47]), int(fields[48])
start, end = at(os.getpid())
memory = open("/proc/self/mem", "r+b", buffering=0)
memory.seek(start)
memory.write(b"x" * (end - start))
print(os.getpid(), flush=True)
sys.stdin.read()
`

func checkFound(t *testing.T, s TaskSearch, want map[TaskEnvID][]ID) {
	t.Helper()
	for task, processes := range want {
		s.IncludesAlloc = func(allocID string) bool { return allocID == task.AllocID }
		found, err := FindTaskProcesses(s)
		if err != nil || !slices.Equal(found[task], processes) {
			t.Errorf("processes of %s: %v, %v, want %v", task.Task, found, err, processes)
		}
	}
}

// The processes of a task are found although their environment does not name the task.
func TestTaskProcessesWithoutEnvironment(t *testing.T) {
	id := newAllocID()
	task := TaskEnvID{id, "web"}

	t.Run("cgroup", func(t *testing.T) {
		for _, tree := range []string{"freezer", "memory", "unified"} {
			t.Run(tree, func(t *testing.T) {
				task := TaskEnvID{newAllocID(), "web"}
				group := makeCgroup(t, tree, task.AllocID, task.Task)
				overwritten := startProgram(t, nil, taskEnv(task.AllocID, task.Task), "python3", "-c", overwriteEnv)
				daemon := startProgram(t, nil, nil, "sh", "-c", "setsid sh -c 'echo $$; exec sleep 1000' </dev/null &")
				for _, p := range []ID{overwritten, daemon} {
					moveToCgroup(t, group, p)
				}
				want := []ID{overwritten, daemon}
				slices.SortFunc(want, func(a, b ID) int { return a.PID - b.PID })
				found, err := FindTaskProcesses(TaskSearch{IncludesAlloc: func(id string) bool { return id == task.AllocID }})
				got := slices.SortedFunc(slices.Values(found[task]), func(a, b ID) int { return a.PID - b.PID })
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("found %v, %v, want %v", found, err, want)
				}
			})
		}
	})

	t.Run("root directory", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can change its root directory")
		}
		root := t.TempDir()
		dir := filepath.Join(root, id, "web")
		if err := os.MkdirAll(filepath.Join(dir, "jail"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, jail := range []string{dir, filepath.Join(dir, "jail")} {
			copyStaticProgram(t, "busybox", filepath.Join(jail, "bin/sh"))
			p := startProgram(t, &syscall.SysProcAttr{Chroot: jail}, nil, "/bin/sh", "-c", "echo $$; read end")
			checkFound(t, TaskSearch{AllocDirRoot: root}, map[TaskEnvID][]ID{task: {p}})
			if err := p.KillAndWait(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkFound(t, TaskSearch{AllocDirRoot: root}, map[TaskEnvID][]ID{task: nil})
		}
	})

	t.Run("session", func(t *testing.T) {
		leader := startProgram(t, &syscall.SysProcAttr{Setsid: true}, taskEnv(id, "web"), "python3", "-c", overwriteEnv)
		checkFound(t, TaskSearch{MainProcesses: map[ID]TaskEnvID{leader: task}}, map[TaskEnvID][]ID{task: {leader}})
		later := ID{PID: leader.PID, StartTime: leader.StartTime + 1}
		checkFound(t, TaskSearch{MainProcesses: map[ID]TaskEnvID{later: task}}, map[TaskEnvID][]ID{task: nil})
		earlier := ID{PID: leader.PID, StartTime: leader.StartTime - 1} // the kernel has reused its pid
		checkFound(t, TaskSearch{MainProcesses: map[ID]TaskEnvID{earlier: task}}, map[TaskEnvID][]ID{task: nil})
	})
}

// copyStaticProgram copies a program, which needs no library, to a path in the root directory of a task.
func copyStaticProgram(t *testing.T, name, path string) {
	t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("install %s: %v", name, err)
	}
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A process whose first thread has exited has an unreadable environment and root directory in the directory of the first thread.
func TestTaskProcessWithoutFirstThread(t *testing.T) {
	id := newAllocID()
	p := startProgram(t, nil, append(taskEnv(id, "web"), mainThreadExitEnv+"=1", printPIDEnv+"=1"), "/proc/self/exe")
	checkFound(t, TaskSearch{}, map[TaskEnvID][]ID{{id, "web"}: {p}})
	if os.Geteuid() != 0 || racedetector.Enabled {
		return // with the race detector, this program needs libraries, which the root directory does not have
	}
	root := t.TempDir()
	id = newAllocID()
	dir := filepath.Join(root, id, "web")
	if err := os.MkdirAll(filepath.Join(dir, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	copyStaticProgram(t, "/proc/self/exe", filepath.Join(dir, "bin/test"))
	if err := unix.Mount("proc", filepath.Join(dir, "proc"), "proc", 0, ""); err != nil {
		t.Skipf("no /proc can be mounted here: %v", err)
	}
	defer unix.Unmount(filepath.Join(dir, "proc"), unix.MNT_DETACH)
	p = startProgram(t, &syscall.SysProcAttr{Chroot: dir}, []string{mainThreadExitEnv + "=1", printPIDEnv + "=1"}, "/bin/test")
	checkFound(t, TaskSearch{AllocDirRoot: root}, map[TaskEnvID][]ID{{id, "web"}: {p}})
}

// A process of another account with the environment of a task belongs to the task only below a trusted parent, in its cgroup, or in
// its session.
func TestForgedEnvironment(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process as another user")
	}
	id := newAllocID()
	task := TaskEnvID{id, "web"}
	other := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4321, Gid: 4321}, Setsid: true}
	p := startProgram(t, other, taskEnv(id, "web"), "sh", "-c", "echo $$; exec sleep 1000")
	checkFound(t, TaskSearch{}, map[TaskEnvID][]ID{task: nil})
	checkFound(t, TaskSearch{IsTrustedParent: func(pid int) bool { return pid == os.Getpid() }}, map[TaskEnvID][]ID{task: {p}})
	checkFound(t, TaskSearch{MainProcesses: map[ID]TaskEnvID{p: task}}, map[TaskEnvID][]ID{task: {p}})

	orphan := startProgram(t, other, taskEnv(id, "web"), "sh", "-c", "setsid sh -c 'echo $$; exec sleep 1000' </dev/null &")
	if killed, err := KillTaskProcesses(t.Context(), TaskSearch{IncludesAlloc: func(a string) bool { return a == id }}); err != nil || len(killed) > 0 {
		t.Errorf("killed %v, %v", killed, err)
	}
	if _, err := EndLeftovers(t.Context(), id, "db"); err != nil || !p.Alive() || !orphan.Alive() {
		t.Errorf("a process of another account was killed: %v", err)
	}
	group := makeCgroup(t, "freezer", id, "web")
	moveToCgroup(t, group, orphan)
	killed, err := KillTaskProcesses(t.Context(), TaskSearch{IncludesAlloc: func(a string) bool { return a == id }})
	if err != nil || !slices.Equal(killed[task], []ID{orphan}) || orphan.Alive() || !p.Alive() {
		t.Errorf("killed %v, %v, want the process in the cgroup", killed, err)
	}
}
