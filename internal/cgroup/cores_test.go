package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// openWithCores returns the hierarchy of this machine, if the test can reserve count cores in it,
// and its cores.
func openWithCores(t *testing.T, count int) (*Hierarchy, []int) {
	t.Helper()
	lockCores(t)
	tree := openHierarchy(t)
	id := uuid.NewString()
	if _, err := tree.Make(id, "try", 1); err != nil {
		_ = tree.KillAndRemove(id, "try")
		t.Skipf("no cores can be reserved here: %v", err)
	}
	all, err := tree.usableCores()
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.KillAndRemove(id, "try"); err != nil {
		t.Fatal(err)
	}
	if len(all) < count {
		t.Skipf("has %d cores, needs %d", len(all), count)
	}
	return tree, all
}

// lockCores waits until no other test of this machine reserves cores.
func lockCores(t *testing.T) {
	lock, err := os.Open("/sys/fs/cgroup") // a directory that exists leaves nothing behind
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// sharedCores returns the cores of the tasks that share cores.
func sharedCores(t *testing.T, tree *Hierarchy) []int {
	t.Helper()
	cores, err := readCores(tree.sharedCoresPath(), "cpuset.cpus")
	if err != nil {
		t.Fatal(err)
	}
	return cores
}

// Cores are reserved for one task, and all other tasks are kept off them, also under the next
// agent, until the task has ended.
func TestReserveCores(t *testing.T) {
	tree, all := openWithCores(t, 2)
	shared, pinned := uuid.NewString(), uuid.NewString()
	for _, id := range []string{shared, pinned} {
		t.Cleanup(func() { _ = tree.KillAndRemove(id, "web") })
	}
	if _, err := tree.Make(shared, "web", 0); err != nil {
		t.Fatal(err)
	}
	group, err := tree.Make(pinned, "web", 1)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(group.Path) != tree.reservedCoresPath() || group.CPUs != fmt.Sprint(all[0]) {
		t.Errorf("cgroup %+v, want one in %s with core %d", group, tree.reservedCoresPath(), all[0])
	}
	if text, err := os.ReadFile(filepath.Join(group.Path, "cpuset.cpus")); err != nil || strings.TrimSpace(string(text)) != group.CPUs {
		t.Errorf("cpuset.cpus %q, %v", text, err)
	}
	if got := sharedCores(t, tree); !slices.Equal(got, all[1:]) {
		t.Errorf("shared cores %v, want %v", got, all[1:])
	}

	next := Open(Options{})
	other := uuid.NewString()
	t.Cleanup(func() { _ = next.KillAndRemove(other, "web") })
	if again, err := next.Make(pinned, "web", 1); err != nil || again != group {
		t.Errorf("the next agent: %+v, %v, want %+v", again, err, group)
	}
	if _, err := next.Make(other, "web", len(all)); err == nil || !strings.Contains(err.Error(), "are reserved for other tasks") {
		t.Errorf("a reserved core is reserved again: %v", err)
	}
	if second, err := next.Make(other, "web", len(all)-1); err != nil || second.CPUs != formatCores(all[1:]) {
		t.Errorf("the remaining cores: %+v, %v, want %v", second, err, all[1:])
	}
	if err := next.KillAndRemove(other, "web"); err != nil {
		t.Error(err)
	}
	if got := sharedCores(t, tree); !slices.Equal(got, all[1:]) {
		t.Errorf("shared cores %v, want %v", got, all[1:])
	}
	if err := next.KillAndRemove(pinned, "web"); err != nil {
		t.Error(err)
	}
	if got := sharedCores(t, tree); !slices.Equal(got, all) {
		t.Errorf("shared cores %v after the end of the task, want %v", got, all)
	}
	if _, err := os.Stat(group.Path); err == nil {
		t.Errorf("%s is still there", group.Path)
	}
}

// Only the cores that the operator names are reserved for a task.
func TestReservableCores(t *testing.T) {
	_, all := openWithCores(t, 2)
	tree := Open(Options{ReservableCores: all[1:2]})
	first, second := uuid.NewString(), uuid.NewString()
	t.Cleanup(func() {
		for _, id := range []string{first, second} {
			_ = tree.KillAndRemove(id, "web")
		}
	})
	if group, err := tree.Make(first, "web", 1); err != nil || group.CPUs != fmt.Sprint(all[1]) {
		t.Errorf("%+v, %v, want core %d", group, err, all[1])
	}
	if group, err := tree.Make(second, "web", 1); err == nil {
		t.Errorf("%+v", group)
	}
}

// Tasks do not get cores that the operator keeps for other programs.
func TestCoresOfTheOperator(t *testing.T) {
	_, all := openWithCores(t, 2)
	tree := Open(Options{TaskCores: all[1:]})
	id := uuid.NewString()
	t.Cleanup(func() {
		_ = tree.KillAndRemove(id, "web")
		_ = Open(Options{}).updateSharedCores() // other agents of this machine use all cores
	})
	if group, err := tree.Make(id, "web", 1); err != nil || group.CPUs != fmt.Sprint(all[1]) {
		t.Errorf("%+v, %v, want core %d", group, err, all[1])
	}
}

func TestCoresWithoutCgroups(t *testing.T) {
	none := &Hierarchy{mountPoint: t.TempDir(), unavailableReason: "no cgroups here"}
	if _, err := none.Make("id", "task", 1); err == nil || !strings.Contains(err.Error(), "no cgroups here") {
		t.Error(err)
	}
}
