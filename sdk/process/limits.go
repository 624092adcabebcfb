package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// limits bounds the resources that all processes of a task use together. 0 means
// no limit.
type limits struct {
	memory int64 // bytes, swap included
	cpu    int64 // CPU shares, which count while tasks compete for CPU time
	pids   int64 // processes and threads
}

func (p *Process) limitsOf(c Command) limits {
	l := limits{pids: c.PidsLimit}
	if r := p.start.Resources; r != nil {
		l.memory, l.cpu = r.Linux.MemoryLimitBytes, r.Linux.CPUShares
	}
	return l
}

// setting is one limit in the files of a controller.
type setting struct {
	name       string // shown to the user
	controller string
	files      []file
}

type file struct {
	name, value string
	optional    bool // the file does not exist on every kernel
}

// settings returns the limits that are set, as files of cgroup version 1 or 2.
func (l limits) settings(version int) (settings []setting) {
	memory := setting{name: "memory", controller: "memory"}
	cpu := setting{name: "cpu", controller: "cpu"}
	pids := setting{name: "pids", controller: "pids", files: []file{{name: "pids.max", value: strconv.FormatInt(l.pids, 10)}}}
	bytes := strconv.FormatInt(l.memory, 10)
	shares := min(max(l.cpu, minShares), maxShares)
	if version == 2 {
		weight := minWeight + (shares-minShares)*(maxWeight-minWeight)/(maxShares-minShares)
		memory.files = []file{{name: "memory.max", value: bytes}, {name: "memory.swap.max", value: "0", optional: true}}
		cpu.files = []file{{name: "cpu.weight", value: strconv.FormatInt(weight, 10)}}
	} else {
		// The limit of memory and swap together cannot be below the limit of
		// memory.
		memory.files = []file{{name: "memory.limit_in_bytes", value: bytes}, {name: "memory.memsw.limit_in_bytes", value: bytes, optional: true}}
		cpu.files = []file{{name: "cpu.shares", value: strconv.FormatInt(shares, 10)}}
	}
	for _, s := range []struct {
		limit int64
		setting
	}{{l.memory, memory}, {l.cpu, cpu}, {l.pids, pids}} {
		if s.limit > 0 {
			settings = append(settings, s.setting)
		}
	}
	return settings
}

// The ranges of cpu.shares and cpu.weight in the kernel.
const (
	minShares, maxShares = 2, 262144
	minWeight, maxWeight = 1, 10000
)

// setLimits sets the limits of a cgroup that has no process yet, except the CPU
// shares, which applyCPUShares sets when the task runs. The keys of overridden
// are the controllers of cgroup v1 for which the job has named another cgroup.
func (g *cgroup) setLimits(p *Process, l limits, overridden map[string]string) {
	for _, s := range l.settings(cgroups().version) {
		write := func() error { return g.limitV2(s) }
		var err error
		switch {
		case overridden[s.controller] != "":
			err = errors.New("cgroup_v1_override places the task into another cgroup")
		case cgroups().version == 1:
			var dir string
			dir, err = g.treeV1(s.controller)
			write = func() error { return s.write(dir) }
		}
		enforce := func() {
			if err == nil {
				err = write()
			}
			if err != nil {
				p.reportUnenforced(s, err)
			}
		}
		if s.controller == "cpu" {
			g.setShares = enforce
		} else {
			enforce()
		}
	}
}

// applyCPUShares gives the running task its CPU shares. They are not set before
// the fork, because the forking thread is in the task's cgroup and holds Go's
// fork lock: with few shares on a busy machine it would delay the starts of other
// tasks.
func (p *Process) applyCPUShares() {
	if p.cgroup == nil || p.cgroup.setShares == nil {
		return
	}
	p.cgroup.setShares()
	p.cgroup.setShares = nil
}

func (g *cgroup) limitV2(s setting) error {
	if err := s.write(g.path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := g.enable(s.controller); err != nil {
		return err
	}
	return s.write(g.path)
}

// treeV1 makes the task's cgroup in the hierarchy of a controller.
func (g *cgroup) treeV1(controller string) (dir string, err error) {
	h := cgroups()
	if !slices.Contains(h.trees, controller) {
		return "", fmt.Errorf("the cgroup controller %q is not mounted", controller)
	}
	dir = h.treePath(controller, filepath.Base(g.path))
	existed, err := mkdir(dir)
	if err != nil {
		return "", err
	}
	if controller == "memory" {
		g.memory = dir
	}
	if existed {
		g.oomBefore = g.oomKills()
		// The kernel rejects a limit of memory above an earlier limit of memory
		// and swap.
		writeExisting(filepath.Join(dir, "memory.memsw.limit_in_bytes"), "-1")
	}
	if dir != g.path {
		g.trees = append(g.trees, dir)
	}
	return dir, nil
}

func (s setting) write(dir string) error {
	for _, f := range s.files {
		err := writeExisting(filepath.Join(dir, f.name), f.value)
		if err != nil && !(f.optional && errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// writeExisting writes a file that the kernel has made; it creates no file.
func writeExisting(path, value string) error {
	// os.OpenFile would register the descriptor with the poller and deregister
	// it again.
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(value))
		unix.Close(fd)
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// mkdir makes a cgroup and its parents. A temporary agent that shuts down may
// remove an empty parent between two steps.
func mkdir(path string) (existed bool, err error) {
	for range 3 {
		switch err = unix.Mkdir(path, 0o755); err {
		case nil:
			return false, nil
		case unix.EEXIST:
			return true, nil
		case unix.ENOENT:
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err == nil {
		err = unix.ENOENT
	}
	return false, fmt.Errorf("make cgroup %s: %w", path, err)
}

// enable makes a controller of version 2 available in the cgroup: each cgroup
// above it must pass the controller on.
func (g *cgroup) enable(controller string) error {
	parent := filepath.Dir(g.path) // share.slice, in nomad.slice, in the root or in the cgroup delegated to the plugin
	for _, dir := range []string{filepath.Dir(filepath.Dir(parent)), filepath.Dir(parent), parent} {
		if err := writeExisting(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller); err != nil {
			return fmt.Errorf("the cgroup controller %q is not available: %w", controller, err)
		}
	}
	return nil
}

// reportUnenforced records that a limit is not enforced. CPU shares are not
// recorded: without them, tasks share the CPU time equally.
func (p *Process) reportUnenforced(s setting, reason error) {
	if s.controller == "cpu" {
		p.logger.Debug("task without CPU shares", "error", reason)
		return
	}
	p.unenforced = append(p.unenforced, fmt.Sprintf("%s limit not enforced here: %v", s.name, reason))
}

// unlimitedAll records that no limit is enforced.
func (p *Process) unlimitedAll(l limits, reason error) {
	for _, s := range l.settings(2) {
		p.reportUnenforced(s, reason)
	}
}

// reportLimits emits an event for each limit that is not enforced.
func (p *Process) reportLimits() {
	for _, message := range p.unenforced {
		p.start.EventOnce(message)
	}
}

// oomKills returns how many processes in the cgroup the kernel has killed because
// the memory limit was exceeded.
func (g *cgroup) oomKills() (kills uint64) {
	if cgroups().version == 2 {
		return counter(filepath.Join(g.path, "memory.events"), "oom_kill") // memory.events includes the cgroups below
	}
	if g.memory == "" {
		return 0
	}
	dirs, _ := process.Cgroup(g.memory).Tree() // an error means that there are no descriptors, and then no counter can be read either
	for _, dir := range dirs {
		kills += counter(filepath.Join(string(dir), "memory.oom_control"), "oom_kill")
	}
	return kills
}
