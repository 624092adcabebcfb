package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Sweep removes the cgroups of the allocations in dir, which are named
// <alloc id>.<task> whoever has made them, and ends what may still run there: the
// ids are like no others.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	parents := allParents()
	var errs []error
	for _, e := range entries {
		for _, parent := range parents {
			groups, _ := filepath.Glob(filepath.Join(parent, e.Name()+".*"))
			for _, group := range groups {
				errs = append(errs, remove(group))
			}
		}
	}
	for _, parent := range slices.Backward(parents) {
		os.Remove(parent) // unless somebody else's are in it
	}
	return errors.Join(errs...)
}

// allParents are where the cgroups of tasks may be, those above first.
func allParents() []string {
	var parents []string
	for _, pattern := range []string{"*/nomad", "*/nomad/reserve"} {
		found, _ := filepath.Glob(filepath.Join(mountPoint, pattern))
		parents = append(parents, found...)
	}
	var file unix.Statfs_t
	if err := unix.Statfs(mountPoint, &file); err != nil || file.Type != unix.CGROUP2_SUPER_MAGIC {
		return parents
	}
	// Without root they are below what was delegated to the run, which may have been
	// another session.
	filepath.WalkDir(mountPoint, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() != "nomad.slice" {
			return nil
		}
		slices, _ := filepath.Glob(filepath.Join(path, "*.slice"))
		parents = append(append(parents, path), slices...)
		return fs.SkipDir
	})
	return parents
}

// remove ends what runs in a cgroup and those below it, and removes them.
func remove(path string) error {
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(time.Millisecond) {
		var dirs []string
		filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			os.Remove(dir)
		}
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		pids := processes(dirs)
		if time.Now().After(end) {
			return fmt.Errorf("remove cgroup %s: processes %v are in it", path, pids)
		}
		if os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0) == nil {
			continue
		}
		for _, pid := range pids { // version 1
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func processes(dirs []string) (pids []int) {
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, field := range bytes.Fields(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
