package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// The file cpuset.cpus of each cgroup is the only record of reserved cores, so that the next agent, or another agent of
// the machine, does not reserve the same cores.

// reserveCores reserves cores for the task whose cgroup is dir, and returns them. If the cgroup has
// that number of cores already, it keeps them. The caller holds h.mu.
func (h *Hierarchy) reserveCores(dir string, count int) (string, error) {
	taken, own, err := h.reservedCores(dir)
	if err != nil {
		return "", err
	}
	all, err := h.usableCores()
	if err != nil {
		return "", err
	}
	free := slices.DeleteFunc(slices.Clone(all), func(core int) bool {
		return slices.Contains(taken, core) || h.options.ReservableCores != nil && !slices.Contains(h.options.ReservableCores, core)
	})
	if len(own) != count || slices.ContainsFunc(own, func(core int) bool { return !slices.Contains(free, core) }) {
		if len(free) < count {
			return "", fmt.Errorf("%d cores cannot be reserved: of the cores %s, %s are reserved for other tasks, and %s are free", count, formatCores(all), formatCores(taken), formatCores(free))
		}
		own = free[:count]
		opcount.Count(opcount.Cgroup)
		if err := os.WriteFile(filepath.Join(dir, "cpuset.cpus"), []byte(formatCores(own)), 0); err != nil {
			return "", fmt.Errorf("reserve cores: %w", err)
		}
	}
	return formatCores(own), nil
}

// reservedCores returns the cores that are reserved for the task whose cgroup is dir, and for all
// other tasks.
func (h *Hierarchy) reservedCores(dir string) (others, own []int, err error) {
	entries, err := os.ReadDir(h.reservedCoresPath())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		group := filepath.Join(h.reservedCoresPath(), e.Name())
		cores, err := readCores(group, "cpuset.cpus")
		switch {
		case errors.Is(err, os.ErrNotExist): // the task has just ended, or the cgroup has no cpuset
		case err != nil:
			return nil, nil, err
		case group == dir:
			own = cores
		default:
			others = append(others, cores...)
		}
	}
	slices.Sort(others)
	return slices.Compact(others), own, nil
}

// usableCores returns the cores that tasks can use.
func (h *Hierarchy) usableCores() ([]int, error) {
	file := "cpuset.cpus"
	if h.version == V2 {
		file = "cpuset.cpus.effective"
	}
	cores, err := readCores(filepath.Dir(h.reservedCoresPath()), file)
	if err != nil {
		return nil, err
	}
	if h.options.TaskCores != nil {
		cores = slices.DeleteFunc(cores, func(core int) bool { return !slices.Contains(h.options.TaskCores, core) })
	}
	return cores, nil
}

// updateSharedCores limits the tasks that share cores to the cores that are not reserved. If all cores are
// reserved, the tasks can still use the same cores, because a cpuset cannot be empty. The caller holds h.mu.
func (h *Hierarchy) updateSharedCores() error {
	current, err := readCores(h.sharedCoresPath(), "cpuset.cpus")
	if errors.Is(err, os.ErrNotExist) {
		return nil // no task shares cores, or the cgroup has no cpuset
	}
	if err != nil {
		return err
	}
	taken, _, err := h.reservedCores("")
	if err != nil {
		return err
	}
	if h.version == V2 && len(current) == 0 && len(taken) == 0 && h.options.TaskCores == nil {
		return nil // an empty list means all cores
	}
	free, err := h.usableCores()
	if errors.Is(err, os.ErrNotExist) {
		return nil // the parent was removed together with the last task
	}
	if err != nil {
		return err
	}
	free = slices.DeleteFunc(free, func(core int) bool { return slices.Contains(taken, core) })
	if len(free) == 0 || slices.Equal(free, current) {
		return nil
	}
	opcount.Count(opcount.Cgroup)
	err = os.WriteFile(filepath.Join(h.sharedCoresPath(), "cpuset.cpus"), []byte(formatCores(free)), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("keep tasks off reserved cores: %w", err)
	}
	return nil
}

// readCores returns the cores in a file of the cgroup dir, such as cpuset.cpus. The error is os.ErrNotExist also if the
// cgroup is removed while the file is read.
func readCores(dir, file string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, unix.ENODEV) {
		return nil, os.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return ParseCPUList(strings.TrimSpace(string(text))), nil
}

// ParseCPUList returns the ids of the cores in a list such as "0-3,8", or nil for an invalid list.
func ParseCPUList(list string) (members []int) {
	const maxCPUNumber = 1 << 16
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(first)
		if err != nil || a < 0 {
			return nil
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil || b < a {
				return nil
			}
		}
		if b-a >= maxCPUNumber || len(members)+b-a >= maxCPUNumber {
			return nil
		}
		for n := a; n <= b; n++ {
			members = append(members, n)
		}
	}
	return members
}

// formatCores returns a list like "0,2,3".
func formatCores(cores []int) string {
	texts := make([]string, len(cores))
	for i, core := range cores {
		texts[i] = strconv.Itoa(core)
	}
	return strings.Join(texts, ",")
}
