package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// openHierarchy returns the hierarchy of this machine, if the test can make cgroups in it.
func openHierarchy(t *testing.T) *Hierarchy {
	t.Helper()
	tree := Open(Options{})
	if tree.version == NoCgroups {
		t.Skip("no cgroups can be made here")
	}
	id := uuid.NewString()
	_, err := tree.Make(id, "try", 0)
	if err := tree.KillAndRemove(id, "try"); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf("no cgroups can be made here: %v", err)
	}
	return tree
}

// An agent that is not root makes cgroups in its delegated cgroup. If the agent itself is in it, they
// have no controllers, and the reason is known.
func TestDelegatedCgroup(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("is for an agent that is not root")
	}
	tree := Open(Options{})
	if tree.version == NoCgroups {
		if tree.UnavailableReason() == "" {
			t.Error("no reason")
		}
		t.Skip(tree.UnavailableReason())
	}
	id := uuid.NewString()
	group, err := tree.Make(id, "web", 0)
	if _, statErr := os.Stat(group.Path); group.Path == "" || statErr != nil {
		t.Errorf("%+v, %v, %v", group, err, statErr)
	}
	if _, limitErr := os.Stat(filepath.Join(group.Path, "memory.max")); limitErr != nil && err == nil {
		t.Errorf("neither controllers nor a reason: %v", limitErr)
	}
	if err := tree.KillAndRemove(id, "web"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(group.Path); err == nil {
		t.Errorf("%s is still there", group.Path)
	}
}

// taskDirs returns the directories that belong to a single task.
func (h *Hierarchy) taskDirs(allocID, task string) (dirs []string) {
	if h.version == V2 {
		return []string{h.taskScopePath(h.parent, shareSlice, allocID, task)}
	}
	for _, hierarchy := range v1Controllers {
		if h.isV1Mounted(hierarchy) {
			dirs = append(dirs, filepath.Join(h.mountPoint, hierarchy, h.parent, allocID+"."+task))
		}
	}
	return dirs
}

// With another parent, each cgroup of a task is below it, and searches find them, also those of the drivers' processes.
func TestUseParent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another parent is for root")
	}
	openHierarchy(t)
	parent := "nomad-lite-test-" + uuid.NewString()[:8] + ".slice/tasks.slice"
	tree, id := Open(Options{}), uuid.NewString()
	if err := tree.UseParent(parent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeParent(t, parent) })
	if recorded := osprocess.RecordedCgroupParents(); !slices.Contains(recorded, parent) {
		t.Errorf("recorded %q", recorded)
	}
	group, err := tree.Make(id, "web", 0)
	if err != nil || !tree.HasCustomParent() || !strings.Contains(group.Path, "/"+parent+"/") {
		t.Errorf("%+v, %v", group, err)
	}
	groups, err := osprocess.TaskCgroups(id, "web")
	if len(groups) != len(tree.taskDirs(id, "web")) || err != nil {
		t.Errorf("found %v, %v", groups, err)
	}
	for _, dir := range tree.taskDirs(id, "web") {
		if !slices.Contains(groups, osprocess.Cgroup(dir)) {
			t.Errorf("%s is not in %v", dir, groups)
		}
	}
	other := parent + "/other.slice"
	for _, parentOfNextAgent := range []string{parent, "", other} {
		if _, err := tree.Make(id, "web", 0); err != nil {
			t.Error(err)
		}
		next := Open(Options{})
		if err := next.UseParent(parentOfNextAgent); err != nil {
			t.Error(err)
		}
		if got, want := next.HasFormerParents(), parentOfNextAgent != parent; want && !got {
			t.Errorf("an agent with the parent %q does not know the former one", parentOfNextAgent)
		}
		if err := next.KillAndRemove(id, "web"); err != nil {
			t.Error(err)
		}
		if groups, err := osprocess.TaskCgroups(id, "web"); len(groups) > 0 || err != nil {
			t.Errorf("after an agent with the parent %q: left %v, %v", parentOfNextAgent, groups, err)
		}
	}
	removeParent(t, other)
}

// removeParent removes a parent of cgroups without processes from all hierarchies, and its record.
func removeParent(t *testing.T, parent string) {
	const file = "/run/nomad-lite-cgroup-parents"
	record, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
	}
	if record = []byte(strings.Replace(string(record), parent+"\n", "", 1)); len(record) == 0 {
		err = os.Remove(file)
	} else {
		err = os.WriteFile(file, record, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
	top, _, _ := strings.Cut(parent, "/")
	dirs, err := filepath.Glob(filepath.Join(mountPoint, "*", top))
	for _, dir := range append(dirs, filepath.Join(mountPoint, top)) {
		if err := osprocess.Cgroup(dir).Remove(); err != nil {
			t.Error(err)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func TestCheckParent(t *testing.T) {
	for parent, want := range map[string]bool{"nomad": true, "a.slice/b.slice": true, "": false, ".": false, "../x": false, "/x": false, "a//b": false} {
		if err := CheckParent(parent); (err == nil) != want {
			t.Errorf("%q: %v", parent, err)
		}
	}
}

func TestMakeAndRemove(t *testing.T) {
	tree := openHierarchy(t)
	id, other := uuid.NewString(), uuid.NewString()
	group, err := tree.Make(id, "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	path := group.Path
	if again, err := tree.Make(id, "web", 0); again != group || err != nil {
		t.Errorf("a second time: %s, %v, want %s", again, err, path)
	}
	besideGroup, err := tree.Make(other, "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	// The process enters the cgroups that a driver uses: the one that Make returns, and
	// those with fixed names.
	left := exec.Command("sleep", "3600")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()
	t.Cleanup(func() { left.Process.Kill() })
	for _, dir := range append(tree.taskDirs(id, "web"), path) {
		if dir == "" {
			continue // the machine has no cpuset hierarchy
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(left.Process.Pid)), 0); err != nil {
			t.Errorf("enter: %v", err)
		}
	}
	if tree.version == V2 {
		for _, limit := range []string{"memory.max", "cpu.weight", "cpuset.cpus", "pids.max", "io.weight", "cpu.max"} {
			if _, err := os.Stat(filepath.Join(path, limit)); err != nil && limit != "io.weight" { // some kernels have no io.weight
				t.Error(err)
			}
		}
	}

	if err := tree.KillAndRemove(id, "web"); err != nil {
		t.Error(err)
	}
	<-ended
	for _, dir := range tree.taskDirs(id, "web") {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	}
	for _, dir := range append(tree.taskDirs(other, "web"), besideGroup.Path) {
		if _, err := os.Stat(dir); dir != "" && err != nil {
			t.Errorf("of the other task: %v", err)
		}
	}
	if err := tree.KillAndRemove(other, "web"); err != nil {
		t.Error(err)
	}
	for _, dir := range tree.taskDirs(other, "web") {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	}
	if err := tree.KillAndRemove(other, "web"); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// Tasks are created and removed concurrently, and so are their shared parents.
func TestConcurrentMakeAndRemove(t *testing.T) {
	tree := openHierarchy(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				id := uuid.NewString()
				group, err := tree.Make(id, "task", 0)
				if err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(group.Path); group.Path != "" && err != nil {
					t.Error(err)
				}
				if err := tree.KillAndRemove(id, "task"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestMachineWithoutCgroups(t *testing.T) {
	none := &Hierarchy{mountPoint: t.TempDir()}
	if group, err := none.Make("id", "task", 0); group.Path != "" || err != nil {
		t.Errorf("without cgroups: %v, %v", group, err)
	}
	if err := none.KillAndRemove("id", "task"); err != nil {
		t.Error(err)
	}
	// Make ignores invalid names, because names come from jobs, and an earlier agent may
	// have accepted more of them.
	some := &Hierarchy{version: V2, mountPoint: t.TempDir()}
	for _, names := range [][2]string{{"", "task"}, {"id", ""}, {"../id", "task"}, {"id", "a/b"}} {
		if group, err := some.Make(names[0], names[1], 0); group.Path != "" || err != nil {
			t.Errorf("%q: %v, %v", names, group, err)
		}
	}
	if left, _ := os.ReadDir(some.mountPoint); len(left) > 0 {
		t.Errorf("made: %v", left)
	}
}

// A killed agent leaves the cgroups that it made for a driver.
func TestRemoveAllocCgroupsOfKilledAgent(t *testing.T) {
	tree := openHierarchy(t)
	id := uuid.NewString()
	if _, err := tree.Make(id, "task", 0); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, id), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAllocCgroups(dir); err != nil {
		t.Error(err)
	}
	for _, left := range tree.taskDirs(id, "task") { // taskDirs omits the common cpuset, which other agents may use
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s is still there", left)
		}
	}
}
