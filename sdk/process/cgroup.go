package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// cgroupHierarchy describes the cgroups of this machine that the plugin can use.
type cgroupHierarchy struct {
	cgroupVersion           int    // 0 means no cgroups
	unavailableReason       string // reason why cgroupVersion is 0
	mountPath               string // /sys/fs/cgroup
	parentDirsOfTaskCgroups []string
	v1Controllers           []string // cgroup v1: the mounted controllers; parentDirsOfTaskCgroups are in the hierarchy of the first
	hybridV2Mount           string   // cgroup v1: the mount point of cgroups v2, which have no controllers; "" if they are not mounted
}

// taskCgroupV1Controllers are the cgroup v1 controllers that tasks use. The processes of a task are found by its
// cgroup in the hierarchy of the first controller that is mounted. The freezer is the first, because only the
// freezer can stop processes that fork while they are killed.
var taskCgroupV1Controllers = []string{"freezer", "memory", "pids", "cpu"}

// hostCgroupHierarchy detects the cgroups of this machine as Nomad's drivers do: a machine with both versions
// counts as v1, and cgroups v1 require root.
var hostCgroupHierarchy = sync.OnceValue(func() cgroupHierarchy { return detectCgroupHierarchy("/sys/fs/cgroup") })

func detectCgroupHierarchy(mount string) cgroupHierarchy {
	version, base, reason := osprocess.FindCgroups(mount)
	h := cgroupHierarchy{cgroupVersion: version, unavailableReason: reason, mountPath: mount}
	switch version {
	case 1:
		for _, tree := range taskCgroupV1Controllers {
			var fs unix.Statfs_t
			if unix.Statfs(filepath.Join(mount, tree), &fs) == nil && fs.Type == unix.CGROUP_SUPER_MAGIC {
				h.v1Controllers = append(h.v1Controllers, tree)
			}
		}
		if len(h.v1Controllers) == 0 {
			return cgroupHierarchy{unavailableReason: "no cgroup controller is mounted in " + mount}
		}
		for _, parent := range append([]string{"nomad"}, osprocess.RecordedCgroupParents()...) {
			h.parentDirsOfTaskCgroups = append(h.parentDirsOfTaskCgroups, filepath.Join(mount, h.v1Controllers[0], parent))
		}
		var fs unix.Statfs_t
		if unix.Statfs(filepath.Join(mount, "unified"), &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			h.hybridV2Mount = filepath.Join(mount, "unified")
		}
	case 2:
		h.parentDirsOfTaskCgroups = []string{filepath.Join(base, "nomad.slice/share.slice")}
		if base == mount {
			h.parentDirsOfTaskCgroups = append(h.parentDirsOfTaskCgroups, filepath.Join(mount, "nomad.slice/reserve.slice"))
			for _, parent := range osprocess.RecordedCgroupParents() {
				h.parentDirsOfTaskCgroups = append(h.parentDirsOfTaskCgroups, filepath.Join(mount, parent, "share.slice"), filepath.Join(mount, parent, "reserve.slice"))
			}
		}
	}
	return h
}

// UnenforcedLimits returns the limits of tasks that are not enforced on this machine, for example
// "memory", with the reason. It makes no cgroup.
func UnenforcedLimits() (limits []string, reason string) {
	h := hostCgroupHierarchy()
	switch h.cgroupVersion {
	case 0:
		return taskLimits, h.unavailableReason
	case 1:
		return limitsWithoutController(h.v1Controllers), "the cgroup controllers are not mounted"
	}
	base := filepath.Dir(filepath.Dir(h.parentDirsOfTaskCgroups[0]))
	available, err := os.ReadFile(filepath.Join(base, "cgroup.controllers"))
	if err != nil {
		return taskLimits, err.Error()
	}
	if own, _ := osprocess.OwnCgroup(); base != h.mountPath && base == filepath.Join(h.mountPath, own) {
		return taskLimits, "controllers can be enabled only below a cgroup without processes: with systemd, start the agent in a subgroup (DelegateSubgroup=)"
	}
	return limitsWithoutController(strings.Fields(string(available))), "the cgroup controllers are not available in " + base
}

// taskLimits are the limits of tasks, by the names of their controllers.
var taskLimits = []string{"memory", "cpu", "pids"}

func limitsWithoutController(availableControllers []string) []string {
	return slices.DeleteFunc(slices.Clone(taskLimits), func(c string) bool { return slices.Contains(availableControllers, c) })
}

// v1CgroupDir returns the path, in the hierarchy of a v1 controller, of a task's cgroup that has the path dir in another hierarchy.
func (h cgroupHierarchy) v1CgroupDir(controller, dir string) string {
	return filepath.Join(h.mountPath, controller, h.pathInHierarchy(dir))
}

// hybridV2Dir returns the path of a task's cgroup v2 on a machine with both versions, or "" if cgroups v2 are not mounted. dir is the
// path of the task's cgroup v1.
func (h cgroupHierarchy) hybridV2Dir(dir string) string {
	if h.hybridV2Mount == "" {
		return ""
	}
	return filepath.Join(h.hybridV2Mount, h.pathInHierarchy(dir))
}

// pathInHierarchy returns the path of a cgroup v1 without the mount point of its hierarchy.
func (h cgroupHierarchy) pathInHierarchy(dir string) string {
	_, rest, _ := strings.Cut(strings.TrimPrefix(dir, h.mountPath+"/"), "/")
	return rest
}

// v1ParentOfHostMadeDir returns the path, without the mount point, of the parent in which the host has made dir: a cgroup of the
// hierarchy cpuset that is PARENT/share or PARENT/reserve/NAME.
func (h cgroupHierarchy) v1ParentOfHostMadeDir(dir string) string {
	parent := filepath.Dir(h.pathInHierarchy(dir))
	if filepath.Base(parent) == "reserve" {
		parent = filepath.Dir(parent)
	}
	return parent
}

// possibleTaskCgroupPaths returns the paths at which the cgroup of a task can be, the path for a new cgroup first. It
// returns nil if the names cannot be those of a cgroup, or if there are no cgroups.
func possibleTaskCgroupPaths(allocID, taskName string) []string {
	h := hostCgroupHierarchy()
	name := allocID + "." + taskName
	if allocID == "" || taskName == "" || strings.Contains(name, "/") {
		return nil
	}
	if h.cgroupVersion == 2 {
		name += ".scope"
	}
	paths := make([]string, len(h.parentDirsOfTaskCgroups))
	for i, parent := range h.parentDirsOfTaskCgroups {
		paths[i] = filepath.Join(parent, name)
	}
	return paths
}

// cgroup is the cgroup of a task: it contains all processes of the task, so that they can be found, limited and
// killed.
type cgroup struct {
	path            string
	isManagedByHost bool // the host made the cgroup and removes it

	// v2Dir is the task's cgroup v2, into which its process is cloned: path, or a cgroup without controllers on a machine
	// with both versions; empty if there is none. The kernel shows it for a process that has ended, unlike a cgroup v1.
	v2Dir string

	// otherV1Dirs are the task's cgroups in the other hierarchies of v1, besides path. v1MemoryDir is
	// the task's cgroup of the v1 controller "memory", which counts OOM kills; empty if there is none.
	otherV1Dirs []string
	v1MemoryDir string

	initialOOMKills uint64 // result of oomKills before the process started

	setCPUSharesAfterFork func() // sets the CPU shares of the task; nil if the task gets none or already has them
}

func (c *cgroup) osCgroup() osprocess.Cgroup { return osprocess.Cgroup(c.path) }

// forkPlacement is the cgroups and network namespace in which a process is forked, and its
// rlimits.
type forkPlacement struct {
	cgroupDir      string        // directory of the cgroup v2 into which the process is cloned; empty means none
	cgroupRequired bool          // the user configured cgroupDir: the start fails if the process cannot enter it
	v1TasksFiles   []v1TasksFile // files of the cgroups v1 that the forking thread enters before the fork
	netnsPath      string        // network namespace that the forking thread enters; empty means that of the plugin
	rlimits        map[string]Rlimit
	beforeFork     func() error // called on the forking thread; can be nil

	beforeForkOutsideCgroup func() error // called if the process cannot enter cgroupDir; can be nil
}

// v1TasksFile is the file "tasks" of a cgroup v1: a thread that writes to it
// enters the cgroup.
type v1TasksFile struct {
	path      string
	mustEnter bool // the user configured the cgroup: the start fails if the thread cannot enter it
}

func v1TasksFileIn(dir string, mustEnter bool) v1TasksFile {
	return v1TasksFile{filepath.Join(dir, "tasks"), mustEnter}
}

// makeCgroupsForFork makes the cgroups of a process that is about to start, sets their limits, and returns where to fork
// the process.
func (p *ProcessWithoutExec) makeCgroupsForFork(ctx context.Context, c Command) (forkPlacement, error) {
	h := hostCgroupHierarchy()
	l := p.resourceLimits(c)
	pl := forkPlacement{netnsPath: netnsPath(p.startRequest), rlimits: p.rlimits}
	switch h.cgroupVersion {
	case 2:
		if c.CgroupV2 != "" {
			dir, err := userConfiguredCgroupDir(h.mountPath, c.CgroupV2)
			pl.cgroupDir, pl.cgroupRequired = dir, true
			p.recordAllLimitsUnenforced(l, errors.New("cgroup_v2_override places the task into another cgroup"))
			return pl, err
		}
		if err := p.makeCgroupAndKillLeftovers(ctx, l, nil); err != nil {
			return forkPlacement{}, err
		}
	case 1:
		for controller, path := range c.CgroupV1 {
			dir, err := userConfiguredCgroupDir(filepath.Join(h.mountPath, controller), path)
			if err != nil {
				return forkPlacement{}, err
			}
			pl.v1TasksFiles = append(pl.v1TasksFiles, v1TasksFileIn(dir, true))
		}
		if c.CgroupV1[h.v1Controllers[0]] == "" {
			if err := p.makeCgroupAndKillLeftovers(ctx, l, c.CgroupV1); err != nil {
				return forkPlacement{}, err
			}
		} else {
			p.recordAllLimitsUnenforced(l, errors.New("cgroup_v1_override places the task into another cgroup"))
		}
		pl.v1TasksFiles = append(pl.v1TasksFiles, p.v1TasksFiles()...)
		if dir := p.hostMadeCgroupDir(); dir != "" && c.CgroupV1["cpuset"] == "" {
			pl.v1TasksFiles = append(pl.v1TasksFiles, v1TasksFileIn(dir, false))
		}
	default:
		p.recordAllLimitsUnenforced(l, errors.New(h.unavailableReason))
	}
	if p.cgroup != nil {
		pl.cgroupDir = p.cgroup.v2Dir
	}
	return pl, nil
}

// v1TasksFiles returns the files "tasks" of the task's cgroups v1. The forking thread writes to them to enter the
// cgroups.
func (p *ProcessWithoutExec) v1TasksFiles() (entries []v1TasksFile) {
	if p.cgroup == nil {
		return nil
	}
	for _, dir := range append([]string{p.cgroup.path}, p.cgroup.otherV1Dirs...) {
		entries = append(entries, v1TasksFileIn(dir, false))
	}
	return entries
}

// netnsPath returns the path of the network namespace that the tasks of the group share, or "" if there is none.
func netnsPath(s *sdk.StartRequest) string {
	if s.NetworkIsolation == nil {
		return ""
	}
	return s.NetworkIsolation.Path
}

// userConfiguredCgroupDir returns the directory of an existing cgroup that the user has configured. path is relative to
// the mount.
func userConfiguredCgroupDir(mount, path string) (string, error) {
	rel := strings.TrimPrefix(path, "/")
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("cgroup %q is not a path below %s", path, mount)
	}
	dir := filepath.Join(mount, rel)
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("cgroup of the task's config: %w", err)
	}
	return dir, nil
}

// hostMadeCgroupDir returns the directory of the cgroup that the host has made for the task (on v1 in the hierarchy of the
// controller "cpuset"), or "" if it does not exist.
func (p *ProcessWithoutExec) hostMadeCgroupDir() string {
	if p.startRequest.Resources == nil {
		return ""
	}
	dir := p.startRequest.Resources.Linux.CpusetCgroup
	if dir == "" {
		return ""
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return ""
	}
	return dir
}

// makeCgroupAndKillLeftovers sets p.cgroup to the new cgroup of the task, and sets its limits. It kills processes of
// an earlier start in the cgroup. If the cgroup cannot be made, p.cgroup stays nil, and the task runs without limits.
// The keys of overriddenPathByController are the v1 controllers for which the user has configured other cgroups.
func (p *ProcessWithoutExec) makeCgroupAndKillLeftovers(ctx context.Context, l cgroupLimits, overriddenPathByController map[string]string) error {
	var g *cgroup
	hostOwned := p.hostMadeCgroupDir()
	if hostOwned != "" && hostCgroupHierarchy().cgroupVersion == 2 {
		g = &cgroup{path: hostOwned, isManagedByHost: true}
	} else {
		paths := possibleTaskCgroupPaths(p.startRequest.AllocID, p.startRequest.Name)
		if len(paths) == 0 {
			p.recordAllLimitsUnenforced(l, errors.New("the task has no names for a cgroup"))
			return nil
		}
		g = &cgroup{path: paths[0]}
		if h := hostCgroupHierarchy(); hostOwned != "" { // a cgroup v1, whose parent the operator may have chosen
			g.path = filepath.Join(h.mountPath, h.v1Controllers[0], h.v1ParentOfHostMadeDir(hostOwned), filepath.Base(g.path))
		}
	}
	existed, err := makeCgroupDir(g.path)
	if err != nil {
		p.recordAllLimitsUnenforced(l, err)
		return nil
	}
	if existed {
		remaining, err := g.osCgroup().PIDs()
		if err != nil {
			return p.killLeftoverError(err)
		}
		if len(remaining) > 0 {
			p.logger.Warn("killing what an earlier start has left running", "pids", remaining)
			if err := g.osCgroup().Kill(ctx); err != nil {
				return p.killLeftoverError(err)
			}
		}
		g.initialOOMKills = g.oomKills()
	}
	p.cgroup = g
	if h := hostCgroupHierarchy(); h.cgroupVersion == 2 {
		g.v2Dir = g.path
		g.enableMemoryController()
	} else if dir := h.hybridV2Dir(g.path); dir != "" {
		if _, err := makeCgroupDir(dir); err == nil {
			g.v2Dir = dir
		}
	}
	g.setLimits(p, l, overriddenPathByController)
	return nil
}

// openRecoveredCgroup returns the cgroup of a recovered process, with the path from its State, or nil if the cgroup no longer
// exists.
func openRecoveredCgroup(p *ProcessWithoutExec, path string) *cgroup {
	g := openExistingCgroup(path)
	if g != nil {
		g.isManagedByHost = path == p.hostMadeCgroupDir()
	}
	return g
}

// openExistingCgroup returns the existing cgroup of a task, or nil if it does not exist.
func openExistingCgroup(path string) *cgroup {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	g := &cgroup{path: path}
	h := hostCgroupHierarchy()
	if h.cgroupVersion == 2 {
		g.v2Dir = path
	} else if dir := h.hybridV2Dir(path); dir != "" {
		if _, err := os.Stat(dir); err == nil {
			g.v2Dir = dir
		}
	}
	for _, tree := range h.v1Controllers {
		dir := h.v1CgroupDir(tree, path)
		if _, err := os.Stat(dir); err != nil {
			continue // the task has no limit in this hierarchy
		}
		if dir != path {
			g.otherV1Dirs = append(g.otherV1Dirs, dir)
		}
		if tree == "memory" {
			g.v1MemoryDir = dir
		}
	}
	return g
}

// enableMemoryController enables the controller "memory" for a new cgroup v2, so that the kernel counts the memory
// of the task. Without this counter, statistics show the sum over the processes of the task.
func (c *cgroup) enableMemoryController() {
	if _, err := os.Stat(filepath.Join(c.path, "memory.current")); err != nil {
		_ = c.enableController("memory") // fails if the controller is not available
	}
}

// removeCgroups removes the cgroups of a task, except a cgroup that the host has made, and the memory reservation.
// No process may be running in the cgroups.
func (c *cgroup) removeCgroups() error {
	errs := []error{c.releaseMemoryReservation()}
	if c.isManagedByHost {
		return errs[0]
	}
	errs = append(errs, c.osCgroup().Remove())
	for _, dir := range c.otherV1Dirs {
		errs = append(errs, osprocess.Cgroup(dir).Remove())
	}
	if c.v2Dir != "" && c.v2Dir != c.path {
		errs = append(errs, osprocess.Cgroup(c.v2Dir).Remove())
	}
	return errors.Join(errs...)
}

// oomKilled reports whether the kernel has killed a process of this start because
// the memory limit was exceeded.
func (c *cgroup) oomKilled() bool { return c.oomKills() > c.initialOOMKills }

// readCounter returns the value of a key in a cgroup file with lines "KEY VALUE". It returns 0 if the file or
// the key does not exist.
func readCounter(path, key string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return parseCounter(text, key)
}

func parseCounter(text []byte, key string) uint64 {
	for line := range bytes.Lines(text) {
		if name, value, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" ")); ok && string(name) == key {
			n, _ := strconv.ParseUint(string(value), 10, 64)
			return n
		}
	}
	return 0
}

func (c *cgroup) readCounter(file, key string) uint64 {
	return readCounter(filepath.Join(c.path, file), key)
}

// readNumber reads a file of the cgroup that holds one number; ok is false if that fails.
func (c *cgroup) readNumber(file string) (n uint64, ok bool) {
	var buf [64]byte
	text, err := osprocess.ReadSmallFile(filepath.Join(c.path, file), buf[:])
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// forkIntoPlacement calls fork so that the new process is in its cgroups and network namespace
// from the start, and cannot start a process outside of them. The rlimits are set before
// its program runs. If fork succeeds and forkIntoPlacement fails, the child is killed, and the caller
// must reap it.
func (f forkPlacement) forkIntoPlacement(sys *syscall.SysProcAttr, fork func() (pid int, err error)) error {
	if len(f.v1TasksFiles) == 0 && f.netnsPath == "" && len(f.rlimits) == 0 && f.beforeFork == nil {
		return f.forkIntoCgroupWithRlimits(sys, fork)
	}
	return osprocess.RunOnNewThread(func() error { return f.enterCgroupsAndFork(sys, fork) })
}

// forkIntoCgroupWithRlimits forks a child with the placement's resource limits into its cgroup v2. If that fails, and the cgroup is
// not required, forkIntoCgroupWithRlimits forks the child without it.
func (f forkPlacement) forkIntoCgroupWithRlimits(sys *syscall.SysProcAttr, forkChild func() (pid int, err error)) error {
	fork := func() error {
		if len(f.rlimits) > 0 {
			return forkWithRlimits(sys, f.rlimits, forkChild)
		}
		_, err := forkChild()
		return err
	}
	if f.cgroupDir == "" {
		return fork()
	}
	dir, err := os.Open(f.cgroupDir)
	if err == nil {
		defer dir.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
		err = fork()
		if err == nil || f.cgroupRequired || !mayBeCgroupError(err) {
			return err
		}
		sys.UseCgroupFD = false
	} else if f.cgroupRequired {
		return err
	}
	if f.beforeForkOutsideCgroup != nil {
		if err := f.beforeForkOutsideCgroup(); err != nil {
			return err
		}
	}
	return fork()
}

// mayBeCgroupError reports whether a fork may have failed because the child could not enter its cgroup.
func mayBeCgroupError(err error) bool {
	for _, e := range []error{unix.ENOSYS, unix.EINVAL, unix.E2BIG, unix.EBUSY, unix.EOPNOTSUPP, unix.ENODEV, unix.EACCES, unix.EBADF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// enterCgroupsAndFork moves a thread into the cgroups v1 and the network namespace of the placement, and forks from
// this thread. It must run in osprocess.RunOnNewThread.
func (f forkPlacement) enterCgroupsAndFork(sys *syscall.SysProcAttr, fork func() (pid int, err error)) error {
	for _, t := range f.v1TasksFiles {
		defer osprocess.Cgroup(filepath.Dir(t.path)).Enter()()
		// "0" means the writing thread, which the kernel moves without a global lock. For a
		// thread id, even the writer's own, the kernel waits about 10 ms for all CPUs.
		if err := writeExistingFile(t.path, "0"); err != nil && t.mustEnter {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	if f.netnsPath != "" {
		if err := enterNetns(f.netnsPath); err != nil {
			return fmt.Errorf("enter the network of the task: %w", err)
		}
	}
	if f.beforeFork != nil {
		if err := f.beforeFork(); err != nil {
			return err
		}
	}
	return f.forkIntoCgroupWithRlimits(sys, fork)
}

func enterNetns(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
}
