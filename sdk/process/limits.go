package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// cgroupLimits are the limits of the resources that all processes of a task use together. 0 means
// no limit.
type cgroupLimits struct {
	memoryBytes int64 // swap included

	// reservedMemoryBytes is the memory that the kernel reclaims from the task only if it finds no other
	// memory to reclaim (memory.low).
	reservedMemoryBytes int64

	cpuShares int64 // share of the CPU time when tasks compete for it
	maxPIDs   int64 // processes and threads
}

func (p *ProcessWithoutExec) resourceLimits(c Command) cgroupLimits {
	l := cgroupLimits{maxPIDs: c.PidsLimit}
	if r := p.startRequest.Resources; r != nil {
		l.memoryBytes, l.cpuShares = r.Linux.MemoryLimitBytes, r.Linux.CPUShares
		if r.MemoryMaxMB == driver.NoMemoryLimit {
			l.memoryBytes = 0
		}
		if r.MemoryMaxMB != 0 {
			l.reservedMemoryBytes = r.MemoryMB << 20
		}
	}
	if c.MemoryLimitBytes > 0 {
		l.memoryBytes = c.MemoryLimitBytes
	}
	return l
}

// limitSetting is one limit of a task, as the cgroup files to write and their values.
type limitSetting struct {
	limitName   string // shown to the user
	controller  string
	cgroupFiles []cgroupFile
}

type cgroupFile struct {
	name, value  string
	mayBeMissing bool // the file does not exist on every kernel
}

// limitSettings returns the cgroup files to write for the limits that are not 0, for cgroup version 1 or 2.
func (l cgroupLimits) limitSettings(cgroupVersion int) (settings []limitSetting) {
	memory := limitSetting{limitName: "memory", controller: "memory", cgroupFiles: l.memoryLimitFiles(cgroupVersion)}
	cpu := limitSetting{limitName: "cpu", controller: "cpu"}
	pids := limitSetting{limitName: "pids", controller: "pids", cgroupFiles: []cgroupFile{{name: "pids.max", value: strconv.FormatInt(l.maxPIDs, 10)}}}
	shares := min(max(l.cpuShares, minCPUShares), maxCPUShares)
	if cgroupVersion == 2 {
		weight := minCPUWeight + (shares-minCPUShares)*(maxCPUWeight-minCPUWeight)/(maxCPUShares-minCPUShares)
		cpu.cgroupFiles = []cgroupFile{{name: "cpu.weight", value: strconv.FormatInt(weight, 10)}}
	} else {
		cpu.cgroupFiles = []cgroupFile{{name: "cpu.shares", value: strconv.FormatInt(shares, 10)}}
	}
	for _, s := range []struct {
		limit int64
		limitSetting
	}{{max(l.memoryBytes, l.reservedMemoryBytes), memory}, {l.cpuShares, cpu}, {l.maxPIDs, pids}} {
		if s.limit > 0 {
			settings = append(settings, s.limitSetting)
		}
	}
	return settings
}

// memoryLimitFiles returns the cgroup files for the memory limit and the memory reservation, for cgroup version 1 or 2.
func (l cgroupLimits) memoryLimitFiles(cgroupVersion int) (files []cgroupFile) {
	bytes, reserved := strconv.FormatInt(l.memoryBytes, 10), strconv.FormatInt(l.reservedMemoryBytes, 10)
	if l.memoryBytes > 0 && cgroupVersion == 2 {
		files = append(files, cgroupFile{name: "memory.max", value: bytes}, cgroupFile{name: "memory.swap.max", value: "0", mayBeMissing: true})
	} else if l.memoryBytes > 0 {
		// The limit of memory and swap together cannot be below the limit of memory.
		files = append(files, cgroupFile{name: "memory.limit_in_bytes", value: bytes}, cgroupFile{name: "memory.memsw.limit_in_bytes", value: bytes, mayBeMissing: true})
	}
	if l.reservedMemoryBytes > 0 && cgroupVersion == 2 {
		files = append(files, cgroupFile{name: memoryLow, value: reserved})
	} else if l.reservedMemoryBytes > 0 {
		files = append(files, cgroupFile{name: "memory.soft_limit_in_bytes", value: reserved, mayBeMissing: true})
	}
	return files
}

// The ranges of cpu.shares and cpu.weight in the kernel.
const (
	minCPUShares, maxCPUShares = 2, 262144
	minCPUWeight, maxCPUWeight = 1, 10000
)

// setLimits sets the limits of a cgroup that has no process yet, except the CPU
// shares, which applyDelayedCPUShares sets when the task runs. The keys of overriddenPathByController
// are the v1 controllers for which the user has configured other cgroups.
func (c *cgroup) setLimits(p *ProcessWithoutExec, l cgroupLimits, overriddenPathByController map[string]string) {
	for _, s := range l.limitSettings(hostCgroupHierarchy().cgroupVersion) {
		write := func() error { return c.setLimitV2(s) }
		var err error
		switch {
		case overriddenPathByController[s.controller] != "":
			err = errors.New("cgroup_v1_override places the task into another cgroup")
		case hostCgroupHierarchy().cgroupVersion == 1:
			var dir string
			dir, err = c.makeV1Cgroup(s.controller)
			write = func() error { return s.writeCgroupFiles(dir) }
		}
		enforce := func() {
			if err == nil {
				err = write()
			}
			if err != nil {
				p.recordUnenforcedLimit(s, err)
			}
		}
		if s.controller == "cpu" {
			c.setCPUSharesAfterFork = enforce
		} else {
			enforce()
		}
	}
}

// applyDelayedCPUShares gives the running task its CPU shares. They are not set before
// the fork, because the forking thread is in the task's cgroup and holds Go's
// fork lock: with few shares on a busy machine, this thread would delay the starts of
// other tasks.
func (c *cgroup) applyDelayedCPUShares() {
	if c == nil || c.setCPUSharesAfterFork == nil {
		return
	}
	c.setCPUSharesAfterFork()
	c.setCPUSharesAfterFork = nil
}

func (c *cgroup) setLimitV2(s limitSetting) error {
	err := s.writeCgroupFiles(c.path)
	if errors.Is(err, os.ErrNotExist) { // the files exist only if the cgroups above enable the controller
		if err := c.enableController(s.controller); err != nil {
			return err
		}
		err = s.writeCgroupFiles(c.path)
	}
	if err == nil && slices.ContainsFunc(s.cgroupFiles, func(f cgroupFile) bool { return f.name == memoryLow }) {
		err = c.updateParentMemoryReservations()
	}
	return err
}

// makeV1Cgroup makes the task's cgroup in the hierarchy of a v1 controller, and returns its directory.
func (c *cgroup) makeV1Cgroup(controller string) (dir string, err error) {
	h := hostCgroupHierarchy()
	if !slices.Contains(h.v1Controllers, controller) {
		return "", fmt.Errorf("the cgroup controller %q is not mounted", controller)
	}
	dir = h.v1CgroupDir(controller, c.path)
	existed, err := makeCgroupDir(dir)
	if err != nil {
		return "", err
	}
	if controller == "memory" {
		c.v1MemoryDir = dir
	}
	if existed {
		c.initialOOMKills = c.oomKills()
		// The kernel rejects a limit of memory above an earlier limit of memory
		// and swap.
		writeExistingFile(filepath.Join(dir, "memory.memsw.limit_in_bytes"), "-1")
	}
	if dir != c.path {
		c.otherV1Dirs = append(c.otherV1Dirs, dir)
	}
	return dir, nil
}

func (s limitSetting) writeCgroupFiles(dir string) error {
	for _, f := range s.cgroupFiles {
		err := writeExistingFile(filepath.Join(dir, f.name), f.value)
		if err != nil && !(f.mayBeMissing && errors.Is(err, os.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// writeExistingFile writes to a file of a cgroup, without creating it.
func writeExistingFile(path, value string) error {
	// unix.Open is faster: os.OpenFile would register the descriptor with the poller and
	// deregister it again.
	opcount.Count(opcount.Cgroup)
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

// makeCgroupDir makes a cgroup and its parents. It tries repeatedly, because an ephemeral agent that shuts down
// may remove an empty parent before the cgroup is made in it.
func makeCgroupDir(path string) (existed bool, err error) {
	for range 3 {
		opcount.Count(opcount.Cgroup)
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

// enableController makes a v2 controller available in the cgroup, by enabling the controller in the
// cgroup.subtree_control of each cgroup above.
func (c *cgroup) enableController(controller string) error {
	parent := filepath.Dir(c.path) // nomad.slice/share.slice, below the root or the cgroup that is delegated to the plugin
	for _, dir := range []string{filepath.Dir(filepath.Dir(parent)), filepath.Dir(parent), parent} {
		if err := writeExistingFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+controller); err != nil {
			return fmt.Errorf("the cgroup controller %q is not available: %w", controller, err)
		}
	}
	return nil
}

// recordUnenforcedLimit adds a message to unenforcedLimitMessages. CPU shares are only logged: without them, tasks
// share the CPU time equally.
func (p *ProcessWithoutExec) recordUnenforcedLimit(s limitSetting, reason error) {
	if s.controller == "cpu" {
		p.logger.Debug("task without CPU shares", "error", reason)
		return
	}
	p.unenforcedLimitMessages = append(p.unenforcedLimitMessages, fmt.Sprintf("%s limit not enforced here: %v", s.limitName, reason))
}

// recordAllLimitsUnenforced is recordUnenforcedLimit for each limit of l that is not 0.
func (p *ProcessWithoutExec) recordAllLimitsUnenforced(l cgroupLimits, reason error) {
	for _, s := range l.limitSettings(2) {
		p.recordUnenforcedLimit(s, reason)
	}
}

// emitUnenforcedLimits emits an event for each limit that is not enforced.
func (p *ProcessWithoutExec) emitUnenforcedLimits() {
	for _, message := range p.unenforcedLimitMessages {
		p.startRequest.EventOnce(message)
	}
}

// oomKills returns how many processes in the cgroup the kernel has killed because
// the memory limit was exceeded.
func (c *cgroup) oomKills() (kills uint64) {
	if hostCgroupHierarchy().cgroupVersion == 2 {
		return readCounter(filepath.Join(c.path, "memory.events"), "oom_kill") // memory.events includes the cgroups below
	}
	if c.v1MemoryDir == "" {
		return 0
	}
	dirs, _ := osprocess.Cgroup(c.v1MemoryDir).Tree() // Tree fails only without free descriptors, and then the counters cannot be read either
	for _, dir := range dirs {
		kills += readCounter(filepath.Join(string(dir), "memory.oom_control"), "oom_kill")
	}
	return kills
}
