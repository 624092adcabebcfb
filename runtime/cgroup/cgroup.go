package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const mountPoint = "/sys/fs/cgroup"

// Version is the cgroup version of a machine.
type Version int

const (
	NoCgroups Version = iota
	V1                // also a hybrid hierarchy
	V2
)

// v2Controllers are the required controllers of version 2, which are enabled for each task.
var v2Controllers = []string{"cpuset", "cpu", "io", "memory", "pids"}

// v1Controllers are the controllers of version 1 whose hierarchies have a cgroup for each task.
var v1Controllers = []string{"freezer", "cpu", "memory"}

// Hierarchy is the cgroup hierarchy of tasks. Its methods may be called concurrently.
type Hierarchy struct {
	version    Version
	mountPoint string

	mu sync.Mutex // mu is held while parents are created and removed
}

// Open detects the cgroups of this machine.
func Open() *Hierarchy {
	return &Hierarchy{version: detectVersion(mountPoint), mountPoint: mountPoint}
}

// detectVersion applies the rules of the official drivers: without root, or without one of the
// controllers, it returns None.
func detectVersion(mount string) Version {
	var fs unix.Statfs_t
	if os.Geteuid() != 0 || unix.Statfs(mount, &fs) != nil {
		return NoCgroups
	}
	switch fs.Type {
	case unix.TMPFS_MAGIC:
		return V1
	case unix.CGROUP2_SUPER_MAGIC:
		text, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
		available := strings.Fields(string(text))
		if err != nil || slices.ContainsFunc(v2Controllers, func(c string) bool { return !slices.Contains(available, c) }) {
			return NoCgroups
		}
		return V2
	}
	return NoCgroups
}

// Make makes the cgroups of a task, unless they exist, and returns the cgroup for the task's
// driver: empty if the machine has none.
func (t *Hierarchy) Make(allocID, task string) (string, error) {
	if t.version == NoCgroups || !isPathElement(allocID, task) {
		return "", nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.version == V2 {
		path := t.scopePath(allocID, task)
		return path, t.makeScope(path)
	}
	for _, tree := range v1Controllers {
		if t.isMounted(tree) {
			if err := makeDirs(filepath.Join(t.mountPoint, tree, "nomad", allocID+"."+task)); err != nil {
				return "", err
			}
		}
	}
	if !t.isMounted("cpuset") {
		return "", nil
	}
	share := filepath.Join(t.mountPoint, "cpuset/nomad/share")
	return share, makeCPUSet(share)
}

// Remove removes the cgroups of a task, and kills the processes in them. It may block for some
// seconds. It does nothing if the task has no cgroups. It keeps the cpuset that all tasks share
// with version 1: it is empty while a driver of another agent is about to enter it.
func (t *Hierarchy) Remove(allocID, task string) error {
	if t.version == NoCgroups || !isPathElement(allocID, task) {
		return nil
	}
	var errs []error
	var parentDirs []string // children before parents
	if t.version == V2 {
		path := t.scopePath(allocID, task)
		errs = append(errs, killAndRemove(path))
		parentDirs = []string{filepath.Dir(path), filepath.Dir(filepath.Dir(path))}
	} else {
		for _, tree := range v1Controllers {
			if t.isMounted(tree) {
				path := filepath.Join(t.mountPoint, tree, "nomad", allocID+"."+task)
				errs = append(errs, killAndRemove(path))
				parentDirs = append(parentDirs, filepath.Dir(path))
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, parent := range parentDirs {
		os.Remove(parent) // the removal fails if the parent has other cgroups
	}
	return errors.Join(errs...)
}

// isPathElement reports whether the names make a single path element.
func isPathElement(allocID, task string) bool {
	return allocID != "" && task != "" && !strings.Contains(allocID+task, "/")
}

func (t *Hierarchy) scopePath(allocID, task string) string {
	return filepath.Join(t.mountPoint, "nomad.slice/share.slice", allocID+"."+task+".scope")
}

// isMounted reports whether a hierarchy of version 1 is mounted.
func (t *Hierarchy) isMounted(tree string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(filepath.Join(t.mountPoint, tree), &fs) == nil && fs.Type == unix.CGROUP_SUPER_MAGIC
}

// makeScope makes a cgroup of version 2 with the controllers.
func (t *Hierarchy) makeScope(path string) error {
	share := filepath.Dir(path)
	wanted := []byte("+" + strings.Join(v2Controllers, " +"))
	return retryStep(func() error {
		if err := os.MkdirAll(share, 0o755); err != nil {
			return err
		}
		for _, parent := range []string{t.mountPoint, filepath.Dir(share), share} {
			if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), wanted, 0); err != nil {
				return fmt.Errorf("hand on controllers: %w", err)
			}
		}
		// A driver may remove the parents before this call. MkdirAll would recreate them
		// without controllers.
		if err := os.Mkdir(path, 0o755); !errors.Is(err, os.ErrExist) {
			return err
		}
		return nil
	})
}

func makeDirs(path string) error {
	return retryStep(func() error { return os.MkdirAll(path, 0o755) })
}

// makeCPUSet makes a cgroup of the hierarchy cpuset and its parent, which accept no process before
// their processors and memory nodes are set.
func makeCPUSet(share string) error {
	return retryStep(func() error {
		for _, dir := range []string{filepath.Dir(share), share} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				own, err := os.ReadFile(filepath.Join(dir, file))
				if err != nil {
					return err
				}
				if strings.TrimSpace(string(own)) != "" {
					continue
				}
				above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, file), above, 0); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// retryStep retries a step: a driver in another process may remove an empty parent between two steps.
func retryStep(step func() error) (err error) {
	for range 5 {
		// ENODEV is the error for a file of a parent that was removed while the file was open.
		if err = step(); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}
