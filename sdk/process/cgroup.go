package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/sdk"
)

// hierarchy is what this machine has of cgroups, as far as it is ours to use.
type hierarchy struct {
	version int    // 0: none
	mount   string // /sys/fs/cgroup
	parents []string
}

// cgroups is detected as the official drivers do it: a hybrid counts as v1, and v1 is
// for root only.
var cgroups = sync.OnceValue(func() hierarchy { return detect("/sys/fs/cgroup") })

func detect(mount string) hierarchy {
	var fs unix.Statfs_t
	if unix.Statfs(mount, &fs) != nil {
		return hierarchy{}
	}
	switch {
	case fs.Type == unix.CGROUP2_SUPER_MAGIC:
		h := hierarchy{version: 2, mount: mount, parents: []string{
			filepath.Join(mount, "nomad.slice/share.slice"),
			filepath.Join(mount, "nomad.slice/reserve.slice"),
		}}
		if os.Geteuid() != 0 {
			// What has been delegated to us is below where we are.
			own := ownCgroup()
			if own == "" {
				return hierarchy{}
			}
			h.parents = []string{filepath.Join(mount, own, "nomad.slice/share.slice")}
		}
		return h
	case fs.Type == unix.TMPFS_MAGIC && os.Geteuid() == 0:
		return hierarchy{version: 1, mount: mount, parents: []string{filepath.Join(mount, "freezer/nomad")}}
	}
	return hierarchy{}
}

// ownCgroup is where this process is in the unified hierarchy.
func ownCgroup() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path
		}
	}
	return ""
}

// cgroupPaths is where the cgroup of a task may be.
func cgroupPaths(allocID, taskName string) []string {
	h := cgroups()
	name := allocID + "." + taskName
	if allocID == "" || taskName == "" || strings.Contains(name, "/") {
		return nil
	}
	if h.version == 2 {
		name += ".scope"
	}
	paths := make([]string, len(h.parents))
	for i, parent := range h.parents {
		paths[i] = filepath.Join(parent, name)
	}
	return paths
}

// cgroup is the one that holds all processes of a task, to find and end them.
// It limits nothing.
type cgroup struct {
	path   string
	hosted bool // made by the host, which removes it
}

// owners are the processes whose cgroups are in use, by path. A cgroup has the
// task's name: two starts of one task share it, one after the other.
var owners = struct {
	sync.Mutex
	m map[string]*Process
}{m: map[string]*Process{}}

// place says where a process is put when it is forked.
type place struct {
	dir   string  // v2: cloned into
	must  bool    // dir was asked for by the user
	tasks []entry // v1: entered by the thread that forks
	netns string  // entered by the thread that forks; empty means the plugin's own
}

// entry is the file by which a thread enters a cgroup v1.
type entry struct {
	file string
	must bool // the user has asked for it
}

func enter(dir string, must bool) entry { return entry{filepath.Join(dir, "tasks"), must} }

// place prepares the cgroups of a process that is about to start.
func (p *Process) place(ctx context.Context, c Command) (place, error) {
	h := cgroups()
	pl := place{netns: p.netns()}
	switch h.version {
	case 2:
		if c.CgroupV2 != "" {
			dir, err := existing(h.mount, c.CgroupV2)
			pl.dir, pl.must = dir, true
			return pl, err
		}
		if err := p.makeCgroup(ctx); err != nil {
			return place{}, err
		}
		if p.cgroup != nil {
			pl.dir = p.cgroup.path
		}
	case 1:
		for controller, path := range c.CgroupV1 {
			dir, err := existing(filepath.Join(h.mount, controller), path)
			if err != nil {
				return place{}, err
			}
			pl.tasks = append(pl.tasks, enter(dir, true))
		}
		if c.CgroupV1["freezer"] == "" {
			if err := p.makeCgroup(ctx); err != nil {
				return place{}, err
			}
			if p.cgroup != nil {
				pl.tasks = append(pl.tasks, enter(p.cgroup.path, false))
			}
		}
		if dir := p.cpuset(); dir != "" && c.CgroupV1["cpuset"] == "" {
			pl.tasks = append(pl.tasks, enter(dir, false))
		}
	}
	return pl, nil
}

// netns is the network namespace that the tasks of the group share, if there is one.
func (p *Process) netns() string {
	if p.start.NetworkIsolation == nil {
		return ""
	}
	return p.start.NetworkIsolation.Path
}

// existing is the directory of a cgroup that the user has named.
func existing(mount, path string) (string, error) {
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

// cpuset is the cgroup that the host has made for the task, if it is there.
func (p *Process) cpuset() string {
	if p.start.Resources == nil {
		return ""
	}
	dir := p.start.Resources.Linux.CpusetCgroup
	if info, err := os.Stat(dir); dir == "" || err != nil || !info.IsDir() {
		return ""
	}
	return dir
}

// makeCgroup makes the cgroup of a task, empty, and leaves p.cgroup nil if that
// cannot be done.
func (p *Process) makeCgroup(ctx context.Context) error {
	var g *cgroup
	if hosted := p.cpuset(); hosted != "" && cgroups().version == 2 {
		g = &cgroup{path: hosted, hosted: true}
	} else {
		paths := cgroupPaths(p.start.AllocID, p.start.Name)
		if len(paths) == 0 {
			return nil
		}
		g = &cgroup{path: paths[0]}
	}
	if err := g.own(p); err != nil {
		return err
	}
	if err := g.make(); err != nil {
		p.logger.Debug("task without a cgroup", "error", err)
		g.disown(p)
		return nil
	}
	if left := g.pids(); len(left) > 0 {
		p.logger.Warn("killing what an earlier start has left running", "pids", left)
		if err := g.kill(ctx); err != nil {
			g.disown(p)
			return sdk.Recoverable(fmt.Errorf("end what an earlier start of task %q has left running: %w", p.start.Name, err))
		}
	}
	p.cgroup = g
	return nil
}

// own takes a cgroup for p, unless a process of the same task runs in it.
func (g *cgroup) own(p *Process) error {
	owners.Lock()
	defer owners.Unlock()
	if other := owners.m[g.path]; other != nil && other.id.Alive() {
		return fmt.Errorf("task %q of allocation %s runs already, as process %d", p.start.Name, p.start.AllocID, other.id.PID)
	}
	owners.m[g.path] = p
	return nil
}

func (g *cgroup) disown(p *Process) (owned bool) {
	owners.Lock()
	defer owners.Unlock()
	if owners.m[g.path] != p {
		return false // a later start has it
	}
	delete(owners.m, g.path)
	return true
}

func (g *cgroup) owned(p *Process) bool {
	owners.Lock()
	defer owners.Unlock()
	return owners.m[g.path] == p
}

// adoptCgroup is the cgroup of a recovered process, if it is there.
func adoptCgroup(p *Process, path string) *cgroup {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	g := &cgroup{path: path, hosted: path == p.cpuset()}
	if g.own(p) != nil {
		return nil
	}
	return g
}

func (g *cgroup) make() error {
	if g.hosted {
		return nil
	}
	// Somebody may remove an empty parent between two steps.
	var err error
	for range 3 {
		if err = os.MkdirAll(g.path, 0o755); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err == nil && cgroups().version == 2 {
		g.countMemory()
	}
	return err
}

// countMemory makes the kernel count the memory of a new cgroup v2, where it may be
// asked to: each cgroup above must allow that. Without, memory is the sum of what
// the processes use.
func (g *cgroup) countMemory() {
	if _, err := os.Stat(filepath.Join(g.path, "memory.current")); err == nil {
		return
	}
	parent := filepath.Dir(g.path) // share.slice, in nomad.slice, in the root or what is delegated to us
	for _, dir := range []string{filepath.Dir(filepath.Dir(parent)), filepath.Dir(parent), parent} {
		if os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0) != nil {
			return
		}
	}
}

// release lets go of a cgroup in which nothing runs any more.
func (g *cgroup) release(p *Process) error {
	if !g.disown(p) || g.hosted {
		return nil
	}
	return g.remove()
}

// remove also removes what the task has made in the cgroup, and the parents that
// are empty now.
func (g *cgroup) remove() error {
	for delay := 50 * time.Microsecond; ; delay *= 2 {
		err := unix.Rmdir(g.path)
		if err == nil || err == unix.ENOENT {
			break
		}
		if delay > 200*time.Millisecond {
			return &os.PathError{Op: "remove cgroup", Path: g.path, Err: err}
		}
		below := g.below()
		for _, dir := range slices.Backward(below) {
			unix.Rmdir(dir)
		}
		if len(below) == 0 {
			time.Sleep(delay) // the last process is still on its way out
		}
	}
	parent := filepath.Dir(g.path)
	if unix.Rmdir(parent) == nil && filepath.Base(filepath.Dir(parent)) == "nomad.slice" {
		unix.Rmdir(filepath.Dir(parent))
	}
	return nil
}

// below are the cgroups that the task has made in its own, those above first.
func (g *cgroup) below() []string {
	dirs := []string{g.path}
	for i := 0; i < len(dirs); i++ {
		// The kernel counts a link for each, and most have none.
		var st unix.Stat_t
		if unix.Stat(dirs[i], &st) != nil || st.Nlink <= 2 {
			continue
		}
		entries, err := os.ReadDir(dirs[i])
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				dirs = append(dirs, filepath.Join(dirs[i], e.Name()))
			}
		}
	}
	return dirs[1:]
}

// pids are the processes in the cgroup and in those below, except this one.
func (g *cgroup) pids() []int {
	var pids []int
	for _, dir := range append([]string{g.path}, g.below()...) {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
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

// kill ends all that runs in the cgroup and returns when nothing does.
func (g *cgroup) kill(ctx context.Context) error {
	for delay := 50 * time.Microsecond; ; delay = min(2*delay, 20*time.Millisecond) {
		pids := g.pids()
		if len(pids) == 0 {
			return nil
		}
		// On v2 one write does it; on v1 nothing forks in a frozen cgroup.
		if os.WriteFile(filepath.Join(g.path, "cgroup.kill"), []byte("1"), 0) != nil {
			g.freeze("FROZEN")
			for _, pid := range g.pids() {
				unix.Kill(pid, unix.SIGKILL) // in the cgroup a moment ago, and not reaped by us
			}
			g.freeze("THAWED")
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return fmt.Errorf("end processes %v in %s: %w", pids, g.path, ctx.Err())
		}
	}
}

func (g *cgroup) freeze(state string) {
	file := filepath.Join(g.path, "freezer.state")
	if os.WriteFile(file, []byte(state), 0) != nil {
		return // v2 of an old kernel: killing again and again does it too
	}
	for range 50 {
		now, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(now)) == state {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// oomKilled reports whether the kernel has killed for memory in the cgroup.
func (g *cgroup) oomKilled() bool {
	return g.counter("memory.events", "oom_kill") > 0
}

// counter reads one line of a flat keyed file; 0 if it is not there.
func (g *cgroup) counter(file, key string) uint64 {
	text, err := os.ReadFile(filepath.Join(g.path, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == key {
			n, _ := strconv.ParseUint(value, 10, 64)
			return n
		}
	}
	return 0
}

// value reads a file of one number.
func (g *cgroup) value(file string) (uint64, bool) {
	text, err := os.ReadFile(filepath.Join(g.path, file))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// run forks in the right place, so that the new process cannot start anything
// outside of it.
func (pl place) run(sys *syscall.SysProcAttr, fork func() error) error {
	if len(pl.tasks) == 0 && pl.netns == "" {
		return pl.clone(sys, fork)
	}
	done := make(chan error)
	go func() { done <- pl.forkInside(sys, fork) }()
	return <-done
}

// clone forks into a cgroup v2. One that the user has not asked for is not worth
// a failure.
func (pl place) clone(sys *syscall.SysProcAttr, fork func() error) error {
	if pl.dir == "" {
		return fork()
	}
	dir, err := os.Open(pl.dir)
	if err == nil {
		defer dir.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
		err = fork()
		if err == nil || pl.must || !noCgroup(err) {
			return err
		}
		sys.UseCgroupFD = false
	} else if pl.must {
		return err
	}
	return fork()
}

// noCgroup reports whether a fork may have failed for its cgroup.
func noCgroup(err error) bool {
	for _, e := range []error{unix.ENOSYS, unix.EINVAL, unix.E2BIG, unix.EBUSY, unix.EOPNOTSUPP, unix.ENODEV, unix.EACCES, unix.EBADF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// forkInside enters cgroups v1 and a network namespace with one thread, forks,
// and ends the thread. It must run in a goroutine of its own.
func (pl place) forkInside(sys *syscall.SysProcAttr, fork func() error) error {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	if unix.Gettid() == os.Getpid() {
		// The main thread cannot end. While it is held here, another goroutine gets
		// another thread.
		defer runtime.UnlockOSThread()
		done := make(chan error)
		go func() { done <- pl.forkInside(sys, fork) }()
		return <-done
	}
	for _, t := range pl.tasks {
		// "0" is the thread that writes, for which the kernel needs no lock. With the
		// number of any thread, also the same, it waits some 10 ms for all CPUs.
		if err := os.WriteFile(t.file, []byte("0"), 0); err != nil && t.must {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	if pl.netns != "" {
		if err := enterNetwork(pl.netns); err != nil {
			return fmt.Errorf("enter the network of the task: %w", err)
		}
	}
	return pl.clone(sys, fork)
}

func enterNetwork(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
}
