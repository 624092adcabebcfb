package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// RemoveAllocCgroups removes the cgroups of the allocations in dir, which all programs name <alloc id>.<task>,
// and kills the processes in them. The allocation ids are unique, so no other cgroups match. It keeps the parents of the
// cgroups, as Hierarchy.KillAndRemove does.
func RemoveAllocCgroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	parents, err := osprocess.TaskCgroupParents()
	errs := []error{err}
	pathsByAlloc := map[string][]string{}
	for _, parent := range parents {
		groups, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			for _, group := range groups {
				if strings.HasPrefix(group.Name(), e.Name()+".") {
					pathsByAlloc[e.Name()] = append(pathsByAlloc[e.Name()], filepath.Join(parent, group.Name()))
				}
			}
		}
	}
	for _, paths := range pathsByAlloc {
		errs = append(errs, killAndRemoveCgroups(paths))
	}
	return errors.Join(errs...)
}

// removeTimeout limits how long the processes of a task or allocation may take to exit after they were killed.
const removeTimeout = 2 * time.Second

// killAndRemoveCgroups kills the processes in cgroups and their descendants, and removes the cgroups. It returns as soon
// as the last process has exited. All cgroups share one removeTimeout, because in version 1 a process that does not exit
// is in several of them.
func killAndRemoveCgroups(paths []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	var errs []error
	for _, path := range paths {
		err := osprocess.Cgroup(path).Kill(ctx)
		if err == nil {
			err = osprocess.Cgroup(path).Remove()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
