package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/uuid"
)

// A cgroup that has a process, or that belongs to another allocation, is not removed.
func TestEmptyCgroupsAreRemoved(t *testing.T) {
	for name, sweep := range map[string]func(id string){
		"of one task":    func(id string) { RemoveEmptyCgroups(id, "web") },
		"of allocations": func(id string) { RemoveEmptyOfAllocs(func(allocID string) bool { return allocID == id }) },
	} {
		t.Run(name, func(t *testing.T) {
			tree := openHierarchy(t)
			id, other := uuid.NewString(), uuid.NewString()
			for _, alloc := range []string{id, other} {
				if _, err := tree.Make(alloc, "web", 0); err != nil {
					t.Fatal(err)
				}
				defer tree.KillAndRemove(alloc, "web")
			}
			below := filepath.Join(tree.taskDirs(id, "web")[0], "below")
			if err := os.Mkdir(below, 0o755); err != nil {
				t.Fatal(err)
			}
			task := exec.Command("sleep", "3600")
			if err := task.Start(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(strconv.Itoa(task.Process.Pid)), 0); err != nil {
				t.Error(err)
			}
			sweep(id)
			if _, err := os.Stat(below); err != nil {
				t.Errorf("with a process in it: %v", err)
			}
			task.Process.Kill()
			task.Wait()
			sweep(id)
			for _, dir := range tree.taskDirs(id, "web") {
				if _, err := os.Stat(dir); err == nil {
					t.Errorf("%s is still there", dir)
				}
			}
			for _, dir := range tree.taskDirs(other, "web") {
				if _, err := os.Stat(dir); err != nil {
					t.Errorf("of another allocation: %v", err)
				}
			}
		})
	}
}
