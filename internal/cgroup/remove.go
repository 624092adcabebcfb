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
// cgroups, as Hierarchy.Remove does.
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
	for _, parent := range parents {
		groups, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			for _, group := range groups {
				if strings.HasPrefix(group.Name(), e.Name()+".") {
					errs = append(errs, killAndRemoveCgroup(filepath.Join(parent, group.Name())))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// removeTimeout limits how long the processes of one cgroup may take to exit.
const removeTimeout = 2 * time.Second

// killAndRemoveCgroup kills the processes in a cgroup and its descendants, and removes the cgroups.
func killAndRemoveCgroup(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	if err := osprocess.Cgroup(path).Kill(ctx); err != nil {
		return err
	}
	return osprocess.Cgroup(path).Remove()
}
