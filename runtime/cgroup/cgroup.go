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

// Version says how a machine has its cgroups, as drivers tell it.
type Version int

const (
	None Version = iota
	V1           // a hybrid too
	V2
)

// controllers are those that must be there, and that a task gets, with version 2.
var controllers = []string{"cpuset", "cpu", "io", "memory", "pids"}

// v1Trees are the hierarchies of version 1 in which a task has a cgroup of its own.
var v1Trees = []string{"freezer", "cpu", "memory"}

// Tree is where the cgroups of tasks are. Its methods may be called concurrently.
type Tree struct {
	version Version
	mount   string

	mu sync.Mutex // held while parents come and go
}

// Open looks at this machine.
func Open() *Tree {
	return &Tree{version: detect(mountPoint), mount: mountPoint}
}

// detect finds what the official drivers find: without root, and without one of
// the controllers, nothing.
func detect(mount string) Version {
	var fs unix.Statfs_t
	if os.Geteuid() != 0 || unix.Statfs(mount, &fs) != nil {
		return None
	}
	switch fs.Type {
	case unix.TMPFS_MAGIC:
		return V1
	case unix.CGROUP2_SUPER_MAGIC:
		text, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
		there := strings.Fields(string(text))
		if err != nil || slices.ContainsFunc(controllers, func(c string) bool { return !slices.Contains(there, c) }) {
			return None
		}
		return V2
	}
	return None
}

// Make makes the cgroups of a task, unless they are there, and returns the one
// that its driver is told about: empty where there are none.
func (t *Tree) Make(allocID, task string) (string, error) {
	if t.version == None || !named(allocID, task) {
		return "", nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.version == V2 {
		path := t.scope(allocID, task)
		return path, t.makeScope(path)
	}
	for _, tree := range v1Trees {
		if t.has(tree) {
			if err := makeBelow(filepath.Join(t.mount, tree, "nomad", allocID+"."+task)); err != nil {
				return "", err
			}
		}
	}
	if !t.has("cpuset") {
		return "", nil
	}
	share := filepath.Join(t.mount, "cpuset/nomad/share")
	return share, makeCPUSet(share)
}

// Remove removes the cgroups of a task, and ends what still runs in them. It may
// take some seconds. Without cgroups of the task it does nothing. The cpuset that
// all tasks have in common with version 1 stays: it is empty while a driver of
// another agent is about to enter it.
func (t *Tree) Remove(allocID, task string) error {
	if t.version == None || !named(allocID, task) {
		return nil
	}
	var errs []error
	var parents []string // those below first
	if t.version == V2 {
		path := t.scope(allocID, task)
		errs = append(errs, remove(path))
		parents = []string{filepath.Dir(path), filepath.Dir(filepath.Dir(path))}
	} else {
		for _, tree := range v1Trees {
			if t.has(tree) {
				path := filepath.Join(t.mount, tree, "nomad", allocID+"."+task)
				errs = append(errs, remove(path))
				parents = append(parents, filepath.Dir(path))
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, parent := range parents {
		os.Remove(parent) // unless others are in it
	}
	return errors.Join(errs...)
}

// named reports whether the names make one element of a path.
func named(allocID, task string) bool {
	return allocID != "" && task != "" && !strings.Contains(allocID+task, "/")
}

func (t *Tree) scope(allocID, task string) string {
	return filepath.Join(t.mount, "nomad.slice/share.slice", allocID+"."+task+".scope")
}

// has reports whether a hierarchy of version 1 is mounted.
func (t *Tree) has(tree string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(filepath.Join(t.mount, tree), &fs) == nil && fs.Type == unix.CGROUP_SUPER_MAGIC
}

// makeScope makes a cgroup of version 2 that has the controllers.
func (t *Tree) makeScope(path string) error {
	share := filepath.Dir(path)
	wanted := []byte("+" + strings.Join(controllers, " +"))
	return again(func() error {
		if err := os.MkdirAll(share, 0o755); err != nil {
			return err
		}
		for _, parent := range []string{t.mount, filepath.Dir(share), share} {
			if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), wanted, 0); err != nil {
				return fmt.Errorf("hand on controllers: %w", err)
			}
		}
		// Parents that have gone meanwhile would come back without controllers.
		if err := os.Mkdir(path, 0o755); !errors.Is(err, os.ErrExist) {
			return err
		}
		return nil
	})
}

func makeBelow(path string) error {
	return again(func() error { return os.MkdirAll(path, 0o755) })
}

// makeCPUSet makes a cgroup of the hierarchy cpuset and its parent, which take no
// process before they have processors and memory.
func makeCPUSet(share string) error {
	return again(func() error {
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

// again tries some times: a driver in another process may remove an empty parent
// between two steps.
func again(step func() error) (err error) {
	for range 5 {
		// A file of a parent that was removed while it is open: ENODEV.
		if err = step(); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}
