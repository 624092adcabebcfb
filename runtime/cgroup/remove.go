package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/process"
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
	parents, err := process.CgroupParents()
	errs := []error{err}
	for _, parent := range parents {
		groups, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			for _, group := range groups {
				if strings.HasPrefix(group.Name(), e.Name()+".") {
					errs = append(errs, remove(filepath.Join(parent, group.Name())))
				}
			}
		}
	}
	for _, parent := range slices.Backward(parents) {
		os.Remove(parent) // unless somebody else's are in it
	}
	return errors.Join(errs...)
}

// removeTimeout limits how long the processes of one cgroup may take to end.
const removeTimeout = 2 * time.Second

// remove ends what runs in a cgroup and those below it, and removes them.
func remove(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	if err := process.Cgroup(path).Kill(ctx); err != nil {
		return err
	}
	return process.Cgroup(path).Remove()
}
