package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CgroupMount is where Linux has its cgroups.
const CgroupMount = "/sys/fs/cgroup"

// Cgroup is the directory of a cgroup of version 1 or 2.
type Cgroup string

// Cgroups returns the cgroups of a task that exist, in all hierarchies, whichever
// driver or agent made them.
func Cgroups(allocID, task string) []Cgroup {
	name := allocID + "." + task
	if allocID == "" || task == "" || strings.Contains(name, "/") {
		return nil
	}
	var groups []Cgroup
	for _, parent := range CgroupParents() {
		for _, suffix := range []string{"", ".scope"} {
			path := filepath.Join(parent, name+suffix)
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				groups = append(groups, Cgroup(path))
			}
		}
	}
	return groups
}

// CgroupParents returns the directories in which cgroups of tasks are made, a
// parent before its children.
func CgroupParents() []string {
	var parents []string
	for _, pattern := range []string{"*/nomad", "*/nomad/reserve"} { // version 1
		found, _ := filepath.Glob(filepath.Join(CgroupMount, pattern))
		parents = append(parents, found...)
	}
	var file unix.Statfs_t
	if err := unix.Statfs(CgroupMount, &file); err != nil || file.Type != unix.CGROUP2_SUPER_MAGIC {
		return parents
	}
	// Without root, the cgroups of tasks are below the cgroup that was delegated to
	// the agent. An earlier agent can have had another one.
	top := CgroupMount
	if os.Geteuid() == 0 {
		top = filepath.Join(CgroupMount, "nomad.slice")
	}
	filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() != "nomad.slice" {
			return nil
		}
		slices, _ := filepath.Glob(filepath.Join(path, "*.slice"))
		parents = append(append(parents, path), slices...)
		return fs.SkipDir
	})
	return parents
}

// PIDs returns the processes in the cgroup and in its descendants, except the
// calling process.
func (g Cgroup) PIDs() []int {
	var pids []int
	for _, dir := range g.Tree() {
		text, err := os.ReadFile(filepath.Join(string(dir), "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, field := range bytes.Fields(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Tree returns the cgroup and its descendants, a parent before its children.
func (g Cgroup) Tree() []Cgroup {
	dirs := []Cgroup{g}
	for i := 0; i < len(dirs); i++ {
		// The kernel counts a link for each child, and most cgroups have no child.
		var st unix.Stat_t
		if unix.Stat(string(dirs[i]), &st) != nil || st.Nlink <= 2 {
			continue
		}
		entries, err := os.ReadDir(string(dirs[i]))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				dirs = append(dirs, Cgroup(filepath.Join(string(dirs[i]), e.Name())))
			}
		}
	}
	return dirs
}

// Kill kills all processes in the cgroup and in its descendants, and returns when
// there are none. A cgroup that does not exist has none.
func (g Cgroup) Kill(ctx context.Context) error {
	for delay := 50 * time.Microsecond; ; delay = min(2*delay, 20*time.Millisecond) {
		pids := g.PIDs()
		if len(pids) == 0 {
			return nil
		}
		if os.WriteFile(filepath.Join(string(g), "cgroup.kill"), []byte("1"), 0) != nil {
			g.killEach()
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return fmt.Errorf("end processes %v in %s: %w", pids, g, ctx.Err())
		}
	}
}

// killEach kills without cgroup.kill, which version 1 and old kernels lack. A
// frozen process cannot fork; where there is no freezer, Kill repeats.
func (g Cgroup) killEach() {
	g.freeze("FROZEN")
	defer g.freeze("THAWED")
	fds := map[int]int{}
	for _, pid := range g.PIDs() {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			fd = -1 // a kernel without pidfds
		} else if err != nil {
			continue
		}
		fds[pid] = fd
	}
	// A pid that is in the cgroup now and was open before is the same process: its
	// pidfd cannot mean a process of another task that has got the number.
	for _, pid := range g.PIDs() {
		fd, open := fds[pid]
		switch {
		case open && fd >= 0:
			unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		case open:
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (g Cgroup) freeze(state string) {
	file := filepath.Join(string(g), "freezer.state")
	if os.WriteFile(file, []byte(state), 0) != nil {
		return // another hierarchy, or version 2
	}
	for range 50 {
		now, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(now)) == state {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// Remove removes the cgroup, its descendants, and its parent if that is empty
// now. No process may be left in it.
func (g Cgroup) Remove() error {
	for delay := 50 * time.Microsecond; ; delay *= 2 {
		err := unix.Rmdir(string(g))
		if err == nil || err == unix.ENOENT {
			break
		}
		if delay > 200*time.Millisecond {
			return &os.PathError{Op: "remove cgroup", Path: string(g), Err: err}
		}
		descendants := g.Tree()[1:]
		for _, dir := range slices.Backward(descendants) {
			unix.Rmdir(string(dir))
		}
		if len(descendants) == 0 {
			time.Sleep(delay) // the last process has not left the kernel yet
		}
	}
	parent := filepath.Dir(string(g))
	if unix.Rmdir(parent) == nil && filepath.Base(filepath.Dir(parent)) == "nomad.slice" {
		unix.Rmdir(filepath.Dir(parent))
	}
	return nil
}
