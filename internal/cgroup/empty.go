package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// RemoveEmptyCgroups removes the cgroups of a task that have no process, if they are at the paths where drivers and
// agents of this user make cgroups. It is fast if the task has no cgroups.
func RemoveEmptyCgroups(allocID, task string) {
	if !isPathElement(allocID, task) {
		return
	}
	for _, parent := range taskCgroupParents() {
		g := osprocess.Cgroup(filepath.Join(parent, allocID+"."+task))
		if filepath.Ext(parent) == ".slice" {
			g += ".scope"
		}
		if unix.Access(string(g), unix.F_OK) == nil {
			removeIfEmpty(g)
		}
	}
}

// taskCgroupParents are the current parent directories of task cgroups. They need not exist.
var taskCgroupParents = sync.OnceValue(func() (parents []string) {
	var file unix.Statfs_t
	if err := unix.Statfs(mountPoint, &file); err != nil {
		return nil
	}
	if file.Type != unix.CGROUP2_SUPER_MAGIC {
		for _, parent := range append([]string{"nomad"}, osprocess.RecordedCgroupParents()...) {
			for _, hierarchy := range []string{"freezer", "memory", "cpu", "pids", "unified"} {
				parents = append(parents, filepath.Join(mountPoint, hierarchy, parent))
			}
			parents = append(parents, filepath.Join(mountPoint, "cpuset", parent, "reserve"))
		}
		return parents
	}
	below := []string{"nomad.slice"}
	if own, err := osprocess.OwnCgroup(); err == nil && own != "" && own != "/" {
		below = append(below, filepath.Join(own, "nomad.slice"))
	}
	for _, parent := range append(below, osprocess.RecordedCgroupParents()...) {
		parents = append(parents, filepath.Join(mountPoint, parent, shareSlice), filepath.Join(mountPoint, parent, reserveSlice))
	}
	return parents
})

// RemoveEmptyOfAllocs removes the cgroups without processes of the allocations for which matches returns true. It checks
// all task cgroups of this machine.
func RemoveEmptyOfAllocs(matches func(allocID string) bool) {
	parents, _ := osprocess.TaskCgroupParents() // on an error, directories may be missing; they are swept at the next start
	for _, parent := range parents {
		entries, err := os.ReadDir(parent)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if id, _, named := strings.Cut(e.Name(), "."); named && e.IsDir() && matches(id) {
				removeIfEmpty(osprocess.Cgroup(filepath.Join(parent, e.Name())))
			}
		}
	}
}

func removeIfEmpty(g osprocess.Cgroup) {
	if pids, err := g.PIDs(); err == nil && len(pids) == 0 {
		_ = g.Remove() // the removal fails if a process has entered the cgroup since it was listed
	}
}
