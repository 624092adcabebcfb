//go:build linux

package osprocess

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
)

// startSleep starts a process that exits at the end of the test.
func startSleep(t *testing.T, env ...string) (ID, <-chan error) {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() {
		exited <- cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-exited
	})
	p, err := LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p, exited
}

func taskEnv(allocID, task string) []string {
	return []string{"NOMAD_ALLOC_ID=" + allocID, "NOMAD_TASK_NAME=" + task}
}

func newAllocID() string {
	return fmt.Sprintf("leftover-test-%d-%d", os.Getpid(), time.Now().UnixNano())
}

// makeCgroup creates a cgroup of a task, as a driver does, in a v1 hierarchy or in v2.
func makeCgroup(t *testing.T, tree, allocID, task string) Cgroup {
	t.Helper()
	var fsStat unix.Statfs_t
	dir := filepath.Join(CgroupMount, tree, "nomad", allocID+"."+task)
	if unix.Statfs(CgroupMount, &fsStat) == nil && fsStat.Type == unix.CGROUP2_SUPER_MAGIC {
		dir = filepath.Join(CgroupMount, "nomad.slice/share.slice", allocID+"."+task+".scope")
	} else if unix.Statfs(filepath.Join(CgroupMount, tree), &fsStat) != nil || fsStat.Type != unix.CGROUP_SUPER_MAGIC {
		t.Skipf("there is no hierarchy %s here", tree)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("no cgroup can be made here: %v", err)
	}
	t.Cleanup(func() { Cgroup(dir).Remove() })
	return Cgroup(dir)
}

func moveToCgroup(t *testing.T, g Cgroup, p ID) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(g), "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0); err != nil {
		t.Fatal(err)
	}
}

// A cgroup without a freezer is tested too, because a driver can use any v1 hierarchy.
func TestEndLeftoversByCgroup(t *testing.T) {
	for _, tree := range []string{"freezer", "memory"} {
		t.Run(tree, func(t *testing.T) {
			id, other := newAllocID(), newAllocID()
			group, otherGroup := makeCgroup(t, tree, id, "web"), makeCgroup(t, tree, other, "web")
			leftover, exited := startSleep(t)
			moveToCgroup(t, group, leftover)
			kept, _ := startSleep(t)
			moveToCgroup(t, otherGroup, kept)
			sibling, _ := startSleep(t, taskEnv(id, "db")...)

			if got, err := findTaskLeftovers(id, "web"); err != nil || !slices.Equal(got, []ID{leftover}) {
				t.Errorf("found %v, %v, want %v", got, err, leftover)
			}
			ended, err := EndLeftovers(t.Context(), id, "web")
			if err != nil || !slices.Equal(ended, []ID{leftover}) {
				t.Errorf("ended %v, %v, want %v", ended, err, leftover)
			}
			<-exited
			if _, err := os.Stat(string(group)); err == nil {
				t.Errorf("%s is still there", group)
			}
			if !kept.Alive() || !sibling.Alive() {
				t.Error("a process of another allocation or of another task was killed")
			}
			if ended, err := EndLeftovers(t.Context(), id, "web"); err != nil || len(ended) > 0 {
				t.Errorf("a second time: %v, %v", ended, err)
			}
		})
	}
}

// awaitLeftover waits until the environment of a process is readable. It is empty for a
// short time after execve.
func awaitLeftover(t *testing.T, p ID, allocID, task string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		found, err := findTaskLeftovers(allocID, task)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(found, p) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is not found", p.PID)
		}
	}
}

func TestEndLeftoversByEnvironment(t *testing.T) {
	id := newAllocID()
	leftover, exited := startSleep(t, taskEnv(id, "web")...)
	var unrelatedProcs []ID
	for _, env := range [][]string{
		nil,
		taskEnv(id, "we"),
		taskEnv(id[1:], "web"),
		{"NOMAD_ALLOC_ID=" + id},
		{"NOMAD_TASK_NAME=web"},
	} {
		p, _ := startSleep(t, env...)
		unrelatedProcs = append(unrelatedProcs, p)
	}
	awaitLeftover(t, leftover, id, "web")
	if ids, err := AllTaskEnvIDs(); err != nil || !ids[TaskEnvID{AllocID: id, Task: "web"}] {
		t.Errorf("the tasks of all processes lack the task: %v", err)
	}
	ended, err := EndLeftovers(t.Context(), id, "web")
	if err != nil || !slices.Equal(ended, []ID{leftover}) {
		t.Errorf("ended %v, %v, want %v", ended, err, leftover)
	}
	<-exited
	for _, p := range unrelatedProcs {
		if !p.Alive() {
			t.Errorf("process %d was killed and is not the task's", p.PID)
		}
	}
}

func TestEndLeftoversNeedsBothNames(t *testing.T) {
	kept, _ := startSleep(t, "NOMAD_ALLOC_ID=", "NOMAD_TASK_NAME=")
	for _, names := range [][2]string{{"", ""}, {"", "web"}, {"id", ""}, {"../id", "a"}, {"..", "/"}} {
		if ended, err := EndLeftovers(t.Context(), names[0], names[1]); err != nil || len(ended) > 0 {
			t.Errorf("%q: %v, %v", names, ended, err)
		}
	}
	if !kept.Alive() {
		t.Error("a process without names was killed")
	}
}

// If this process has no free descriptors, it can read no process, and findLeftovers must
// return an error.
func TestLeftoversAreUnknownWithoutDescriptors(t *testing.T) {
	for _, by := range []string{"cgroup", "environment"} {
		t.Run(by, func(t *testing.T) {
			id := newAllocID()
			var leftover ID
			var exitedCh <-chan error
			if by == "cgroup" {
				group := makeCgroup(t, "freezer", id, "web")
				leftover, exitedCh = startSleep(t)
				moveToCgroup(t, group, leftover)
				t.Run("functions of Cgroup", func(t *testing.T) {
					restore := processtest.LimitDescriptors(t, 0)
					pids, err := group.PIDs()
					killErr := group.Kill(t.Context())
					restore()
					if !IsResourceExhausted(err) || !IsResourceExhausted(killErr) {
						t.Errorf("PIDs: %v, %v, Kill: %v, want errors of the descriptors", pids, err, killErr)
					}
				})
			} else {
				leftover, exitedCh = startSleep(t, taskEnv(id, "web")...)
				awaitLeftover(t, leftover, id, "web")
			}

			restore := processtest.LimitDescriptors(t, 0)
			found, findErr := findTaskLeftovers(id, "web")
			ended, endErr := EndLeftovers(t.Context(), id, "web")
			killErr := KillByTaskEnv(t.Context(), id, "web")
			_, parentsErr := TaskCgroupParents()
			_, allIDsErr := AllTaskEnvIDs()
			restore()
			for call, err := range map[string]error{
				"findLeftovers": findErr, "EndLeftovers": endErr, "KillByTaskEnv": killErr, "CgroupParents": parentsErr, "AllTaskEnvIDs": allIDsErr,
			} {
				if !IsResourceExhausted(err) {
					t.Errorf("%s: %v, want an error of the descriptors", call, err)
				}
			}
			if !leftover.Alive() {
				t.Fatalf("found %v, ended %v: the process was to be out of reach", found, ended)
			}

			// The process has descriptors again, so that EndLeftovers finds the leftover.
			ended, err := EndLeftovers(t.Context(), id, "web")
			if err != nil || !slices.Equal(ended, []ID{leftover}) {
				t.Errorf("repeated: ended %v, %v, want %v", ended, err, leftover)
			}
			<-exitedCh
		})
	}
}

// A cgroup that does not exist has no process: killing it is not an error.
func TestCgroupThatIsGoneHasNoProcess(t *testing.T) {
	group := makeCgroup(t, "freezer", newAllocID(), "web")
	file, err := os.Open(filepath.Join(string(group), "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := group.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Read(make([]byte, 1)); nilIfNotExist(err) != nil && !errors.Is(err, io.EOF) {
		t.Errorf("the list of a removed cgroup: %v is not known as its end", err)
	}
	if pids, err := group.PIDs(); err != nil || len(pids) > 0 {
		t.Errorf("processes %v, %v", pids, err)
	}
	if err := group.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// os/exec returns from Start while the kernel still executes the program, and the new process has no environment yet. A
// search that misses it would say that a task has no process.
func TestReadEnvOfProcessThatHasJustStarted(t *testing.T) {
	for range 500 {
		cmd := exec.Command("/bin/sleep", "100")
		cmd.Env = []string{"MARK=1"}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		env, err := ReadEnv(cmd.Process.Pid)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the error is that the process was killed
		if err != nil || string(env) != "MARK=1\x00" {
			t.Fatalf("environment %q, %v", env, err)
		}
	}
}

func TestReadEnvOfProcessWithoutEnvironment(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "100")
	cmd.Env = []string{}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // the error is that the process was killed
	}()
	if env, err := ReadEnv(cmd.Process.Pid); len(env) > 0 || err != nil {
		t.Errorf("environment %q, %v", env, err)
	}
}

// findTaskLeftovers returns the processes of a task that EndLeftovers would kill first.
func findTaskLeftovers(allocID, task string) ([]ID, error) {
	groups, err := TaskCgroups(allocID, task)
	leftovers, _, findErr := findLeftovers(groups, allocID, task)
	return leftovers, errors.Join(err, findErr)
}
