package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/uuid"
)

// On a machine with both cgroup versions, drivers made with package sdk add a cgroup of version 2 that the agent does not make.
func TestCgroupV2OfDriverIsRemoved(t *testing.T) {
	tree := openHierarchy(t)
	parent := filepath.Join(tree.mountPoint, "unified")
	if _, err := os.Stat(filepath.Join(parent, "cgroup.procs")); tree.version != V1 || err != nil {
		t.Skip("only a machine with both cgroup versions has such a cgroup; on others, TestEmptyCgroupsAreRemoved has all cgroups of a task")
	}
	for name, remove := range map[string]func(id string) error{
		"empty cgroups":      func(id string) error { RemoveEmptyCgroups(id, "web"); return nil },
		"killed and removed": func(id string) error { return tree.KillAndRemove(id, "web") },
	} {
		t.Run(name, func(t *testing.T) {
			id := uuid.NewString()
			dir := filepath.Join(parent, "nomad", id+".web")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := remove(id); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(dir); err == nil {
				os.Remove(dir)
				t.Errorf("%s is still there", dir)
			}
		})
	}
}

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
