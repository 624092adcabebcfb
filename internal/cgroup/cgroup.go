package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

const mountPoint = "/sys/fs/cgroup"

// Version is the cgroup version of a machine.
type Version int

const (
	NoCgroups Version = iota
	V1                // also a machine with both versions (hybrid)
	V2
)

// v2Controllers are the required controllers of version 2, which are enabled for each task.
var v2Controllers = []string{"cpuset", "cpu", "io", "memory", "pids"}

// v1Controllers are the controllers of version 1 whose hierarchies have a cgroup for each task.
var v1Controllers = []string{"freezer", "cpu", "memory"}

// Hierarchy is the cgroup hierarchy of tasks. Its methods may be called concurrently.
type Hierarchy struct {
	version           Version
	unavailableReason string // why tasks cannot have cgroups; "" unless the version is NoCgroups
	mountPoint        string
	basePath          string   // cgroup of version 2 that has the parent of tasks: the mount point, or a delegated cgroup
	parent            string   // cgroup below basePath, or in each hierarchy of version 1, with the cgroups of tasks
	hasCustomParent   bool     // parent is not the default
	formerParents     []string // parents in which earlier agents may have made cgroups
	options           Options

	mu sync.Mutex // locked while parents of task cgroups are created or removed, and while cores are reserved
}

// Options are the operator's settings for the cgroups of tasks. The zero value is valid.
type Options struct {
	TaskCores       []int // cores that tasks can use; nil means all
	ReservableCores []int // cores that can be reserved for a task; nil means all that tasks can use
}

// CheckParent returns an error if a path cannot be the parent of the cgroups of tasks.
func CheckParent(parent string) error {
	if !fs.ValidPath(parent) || parent == "." {
		return fmt.Errorf("%q is not the path of a cgroup below %s, such as apps.slice/nomad.slice", parent, mountPoint)
	}
	return nil
}

// Open detects the cgroups of this machine.
func Open(o Options) *Hierarchy {
	h := detectHierarchy(mountPoint)
	h.options = o
	if h.parent = "nomad"; h.version == V2 {
		h.parent = "nomad.slice"
	}
	if os.Geteuid() == 0 {
		h.formerParents = osprocess.RecordedCgroupParents()
	}
	return h
}

// UseParent makes the cgroups of tasks in another cgroup than "nomad" or, with version 2, "nomad.slice", and records it for the
// drivers and for later agents. parent is relative to the mount point, see [CheckParent]; empty means the default. UseParent has no
// effect without root. It must be called before the other methods. After an error the default is used.
func (h *Hierarchy) UseParent(parent string) error {
	if parent == "" || parent == h.parent || h.version == NoCgroups || os.Geteuid() != 0 {
		return nil
	}
	if err := osprocess.RecordCgroupParent(parent); err != nil {
		return err
	}
	h.formerParents = slices.DeleteFunc(append(h.formerParents, h.parent), func(former string) bool { return former == parent })
	h.parent, h.hasCustomParent = parent, true
	return nil
}

// HasCustomParent reports whether the parent of the cgroups is not the default. A driver knows this parent only from the cgroup that
// the agent makes for a task.
func (h *Hierarchy) HasCustomParent() bool { return h.hasCustomParent }

// HasFormerParents reports whether earlier agents may have made cgroups in other parents, which only KillAndRemove removes.
func (h *Hierarchy) HasFormerParents() bool { return len(h.formerParents) > 0 }

// detectHierarchy detects the cgroups that are mounted at mount, by the rules of [osprocess.FindCgroups]. An agent of root
// also needs the controllers of version 2.
func detectHierarchy(mount string) *Hierarchy {
	none := func(reason string) *Hierarchy {
		return &Hierarchy{unavailableReason: reason, mountPoint: mount}
	}
	version, base, reason := osprocess.FindCgroups(mount)
	switch version {
	case 1:
		return &Hierarchy{version: V1, mountPoint: mount}
	case 2:
		if os.Geteuid() != 0 {
			return &Hierarchy{version: V2, mountPoint: mount, basePath: base}
		}
		available, err := readControllers(mount)
		if err != nil {
			return none(err.Error())
		}
		for _, c := range v2Controllers {
			if !slices.Contains(available, c) {
				return none(fmt.Sprintf("the controller %q is not available in %s", c, mount))
			}
		}
		return &Hierarchy{version: V2, mountPoint: mount, basePath: mount}
	}
	return none(reason)
}

func readControllers(dir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	return strings.Fields(string(text)), err
}

// UnavailableReason returns the reason why tasks have no cgroups on this machine, or "" if tasks have cgroups.
func (h *Hierarchy) UnavailableReason() string { return h.unavailableReason }

// Group is the cgroup of a task.
type Group struct {
	Path string // directory for the task's driver; empty if the machine has no cgroups
	CPUs string // cores that are reserved for the task, like "0,2"; empty if none are
}

// Make makes the cgroups of a task, unless they exist. If cores is not 0, that number of cores is
// reserved for the task until Remove, and no other task with a cgroup can use them; a later call
// returns the same cores. With an error, Path may be set: a delegated cgroup that lacks controllers.
func (h *Hierarchy) Make(allocID, task string, cores int) (Group, error) {
	if !isPathElement(allocID, task) {
		return Group{}, nil
	}
	if h.version == NoCgroups {
		if cores > 0 {
			return Group{}, fmt.Errorf("cores cannot be reserved: %s", h.unavailableReason)
		}
		return Group{}, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version == V2 {
		return h.makeV2(allocID, task, cores)
	}
	return h.makeV1(allocID, task, cores)
}

func (h *Hierarchy) makeV2(allocID, task string, cores int) (Group, error) {
	slice := shareSlice
	if cores > 0 {
		slice = reserveSlice
	}
	g := Group{Path: h.taskScopePath(h.parent, slice, allocID, task)}
	made, err := h.makeScope(g.Path)
	if !made {
		return Group{}, err
	}
	if cores > 0 {
		if err != nil {
			return Group{}, fmt.Errorf("cores cannot be reserved: %w", err)
		}
		g.CPUs, err = h.reserveCores(g.Path, cores)
	}
	return g, errors.Join(err, h.updateSharedCores())
}

func (h *Hierarchy) makeV1(allocID, task string, cores int) (g Group, err error) {
	for _, tree := range v1Controllers {
		if h.isV1Mounted(tree) {
			if err := makeDirs(filepath.Join(h.mountPoint, tree, h.parent, allocID+"."+task)); err != nil {
				return Group{}, err
			}
		}
	}
	if !h.isV1Mounted("cpuset") {
		if cores > 0 {
			return Group{}, errors.New("cores cannot be reserved: the cgroup controller cpuset is not mounted")
		}
		return Group{}, nil
	}
	g.Path = h.sharedCoresPath()
	if err := h.makeCPUSet(g.Path); err != nil {
		return Group{}, err
	}
	if cores > 0 {
		g.Path = filepath.Join(h.reservedCoresPath(), allocID+"."+task)
		if err := h.makeReservedCPUSet(g.Path); err != nil {
			return Group{}, err
		}
		if g.CPUs, err = h.reserveCores(g.Path, cores); err != nil {
			return Group{}, err
		}
	}
	return g, h.updateSharedCores()
}

// KillAndRemove removes the cgroups of a task, and kills the processes in them. It blocks until they have exited, for
// removeTimeout at most. It does nothing if the task has no cgroups. The cgroups may be in a parent that an earlier agent used. It
// keeps their parents, except in a delegated cgroup: a Nomad agent on the same machine makes them when it starts, and only then.
func (h *Hierarchy) KillAndRemove(allocID, task string) error {
	if h.version == NoCgroups || !isPathElement(allocID, task) {
		return nil
	}
	paths := h.taskPaths(h.parent, allocID, task)
	for _, parent := range h.formerParents {
		paths = append(paths, h.taskPaths(parent, allocID, task)...)
	}
	err := killAndRemoveCgroups(paths)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version == V2 && h.basePath != h.mountPoint {
		for _, parent := range []string{h.reservedCoresPath(), h.sharedCoresPath(), filepath.Dir(h.sharedCoresPath())} {
			os.Remove(parent) // the removal fails if the parent has other cgroups
		}
	}
	return errors.Join(err, h.updateSharedCores())
}

// taskPaths returns all paths below a parent that a task's cgroups can have.
func (h *Hierarchy) taskPaths(parent, allocID, task string) (paths []string) {
	if h.version == V2 {
		for _, slice := range []string{reserveSlice, shareSlice} {
			paths = append(paths, h.taskScopePath(parent, slice, allocID, task))
		}
		return paths
	}
	name := allocID + "." + task
	// Drivers made with package sdk add a cgroup of version 2 without controllers.
	paths = []string{filepath.Join(h.mountPoint, "cpuset", parent, "reserve", name), filepath.Join(h.mountPoint, "unified", parent, name)}
	for _, tree := range v1Controllers {
		if h.isV1Mounted(tree) {
			paths = append(paths, filepath.Join(h.mountPoint, tree, parent, name))
		}
	}
	return paths
}

// isPathElement reports whether the id and the name are not empty and have no slash, so that a name of a cgroup can be
// made from them.
func isPathElement(allocID, task string) bool {
	return allocID != "" && task != "" && !strings.Contains(allocID+task, "/")
}

// The slices of version 2, below the parent, for tasks that share cores and for tasks with
// reserved cores.
const (
	shareSlice   = "share.slice"
	reserveSlice = "reserve.slice"
)

func (h *Hierarchy) taskScopePath(parent, slice, allocID, task string) string {
	return filepath.Join(h.basePath, parent, slice, allocID+"."+task+".scope")
}

// sharedCoresPath returns the cgroup whose cpuset limits the tasks that share cores.
func (h *Hierarchy) sharedCoresPath() string {
	if h.version == V2 {
		return filepath.Join(h.basePath, h.parent, shareSlice)
	}
	return filepath.Join(h.mountPoint, "cpuset", h.parent, "share")
}

// reservedCoresPath returns the parent of the cgroups with reserved cores.
func (h *Hierarchy) reservedCoresPath() string {
	if h.version == V2 {
		return filepath.Join(h.basePath, h.parent, reserveSlice)
	}
	return filepath.Join(h.mountPoint, "cpuset", h.parent, "reserve")
}

// isV1Mounted reports whether the hierarchy of a controller of version 1 is mounted. tree is the name of the controller.
func (h *Hierarchy) isV1Mounted(tree string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(filepath.Join(h.mountPoint, tree), &fs) == nil && fs.Type == unix.CGROUP_SUPER_MAGIC
}

// makeScope makes a cgroup of version 2 with the controllers. In a delegated cgroup, the error may
// mean that only the controllers are missing: then made is true.
func (h *Hierarchy) makeScope(path string) (made bool, err error) {
	slice := filepath.Dir(path)
	var enableErr error
	err = retryStep(func() error {
		if err := os.MkdirAll(slice, 0o755); err != nil {
			return err
		}
		enableErr = h.enableControllers(dirsFromTo(h.basePath, slice)...)
		if enableErr != nil && h.basePath == h.mountPoint {
			return enableErr
		}
		// A driver may remove the parents before this call. MkdirAll would recreate them
		// without controllers.
		if err := os.Mkdir(path, 0o755); !errors.Is(err, os.ErrExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	return true, enableErr
}

// enableControllers enables the controllers for the children of each parent.
func (h *Hierarchy) enableControllers(parents ...string) error {
	wanted := v2Controllers
	if h.basePath != h.mountPoint {
		available, err := readControllers(h.basePath)
		if err != nil {
			return err
		}
		wanted = slices.DeleteFunc(slices.Clone(wanted), func(c string) bool { return !slices.Contains(available, c) })
	}
	for _, parent := range parents {
		opcount.Count(opcount.Cgroup)
		err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+strings.Join(wanted, " +")), 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("enable controllers: %s has processes of its own: with systemd, start the agent in a subgroup (DelegateSubgroup=): %w", parent, err)
		}
		if err != nil {
			return fmt.Errorf("enable controllers: %w", err)
		}
	}
	if missing := len(v2Controllers) - len(wanted); missing > 0 {
		return fmt.Errorf("only the controllers %q are delegated to %s", wanted, h.basePath)
	}
	return nil
}

func makeDirs(path string) error {
	return retryStep(func() error { return os.MkdirAll(path, 0o755) })
}

// dirsFromTo returns the directories from top to path, which is below top, a parent before its child.
func dirsFromTo(top, path string) []string {
	dirs := []string{path}
	for path != top {
		path = filepath.Dir(path)
		dirs = append(dirs, path)
	}
	slices.Reverse(dirs)
	return dirs
}

// makeCPUSet makes a cgroup of the hierarchy cpuset and its parents, which accept no process before
// their processors and memory nodes are set.
func (h *Hierarchy) makeCPUSet(path string) error {
	return retryStep(func() error {
		for _, dir := range dirsFromTo(filepath.Join(h.mountPoint, "cpuset"), path)[1:] {
			if err := makeCgroupLikeParent(dir, "cpuset.cpus", "cpuset.mems"); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeReservedCPUSet makes a cgroup of the hierarchy cpuset for a task with reserved cores, which
// are set later.
func (h *Hierarchy) makeReservedCPUSet(path string) error {
	if err := h.makeCPUSet(filepath.Dir(path)); err != nil {
		return err
	}
	return retryStep(func() error { return makeCgroupLikeParent(path, "cpuset.mems") })
}

// makeCgroupLikeParent makes a cgroup, and sets each of the files that is empty to the value in the parent.
func makeCgroupLikeParent(dir string, files ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range files {
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
		opcount.Count(opcount.Cgroup)
		if err := os.WriteFile(filepath.Join(dir, file), above, 0); err != nil {
			return err
		}
	}
	return nil
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
