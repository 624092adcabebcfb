package sdktest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	proc "github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// The memory of the tasks of these cases, in MB. The numbers are unusual, so that a driver with a fixed limit fails, and at
// least 128 MB, which a virtual machine of the driver qemu needs.
const (
	smallMemoryMB = 131
	largeMemoryMB = 193
)

func testTaskHasOwnCgroup(t tb, h *testHost) {
	if !h.startTaskAndReadMemoryLimits(t, smallMemoryMB, 0).hasOwnCgroup {
		t.Errorf("the processes of a task are in the cgroups of the plugin")
	}
}

// testKernelLimitsTaskMemory compares two tasks, because a driver can add the memory that it needs itself for each
// task, such as that of an emulator.
func testKernelLimitsTaskMemory(t tb, h *testHost) {
	small := h.startTaskAndReadMemoryLimits(t, smallMemoryMB, 0)
	small.skipUnlessOwnCgroup(t)
	if small.limitBytes < smallMemoryMB<<20 {
		t.Errorf("%s of %s is %s, want at least %d bytes: %s", small.limitFile, small.taskDescription, formatMemoryLimit(small.limitBytes), smallMemoryMB<<20, small.cgroupDir)
	}
	large := h.startTaskAndReadMemoryLimits(t, largeMemoryMB, 0)
	large.checkLimit(t, largeMemoryMB, small.limitOverheadBytes())
}

func testKernelLimitsToMemoryMax(t tb, h *testHost) {
	small := h.startTaskAndReadMemoryLimits(t, smallMemoryMB, 0)
	small.skipUnlessOwnCgroup(t)
	h.startTaskAndReadMemoryLimits(t, smallMemoryMB, largeMemoryMB).checkLimit(t, largeMemoryMB, small.limitOverheadBytes())
}

func testKernelReservesTaskMemory(t tb, h *testHost) {
	m := h.startTaskAndReadMemoryLimits(t, smallMemoryMB, largeMemoryMB)
	m.skipUnlessOwnCgroup(t)
	if m.reservationBytes != smallMemoryMB<<20 {
		t.Errorf("%s of %s is %s, want %d bytes: %s", m.reservationFile, m.taskDescription, formatMemoryLimit(m.reservationBytes), smallMemoryMB<<20, m.cgroupDir)
	}
}

// taskMemory has the memory limit and the memory reservation of a task, as the kernel has them. 0 means that none is set.
type taskMemory struct {
	taskDescription string // names the task by its memory resources, for messages
	requestedMB     int64  // memory in the resources of the task
	hasOwnCgroup    bool   // the task is not in the cgroups of the plugin

	cgroupDir                    string // directory of the cgroup that has the limit, or of the task's cgroup if there is no limit
	limitFile, reservationFile   string
	limitBytes, reservationBytes int64
}

// startTaskAndReadMemoryLimits starts a task with the given memory and memory_max, and reads the limits of its
// processes from the kernel. It skips the case if they cannot be read.
func (h *testHost) startTaskAndReadMemoryLimits(t tb, memoryMB, maxMB int64) (m taskMemory) {
	t.Helper()
	config, s := h.prepareTaskDirsAndConfig(t, h.testedPlugin.Tasks.LongRunning)
	if h.taskCgroups.skipLimitsReason != "" {
		t.Skipf("the limits of a task cannot be read: %s", h.taskCgroups.skipLimitsReason)
	}
	config.Resources.MemoryMB, config.Resources.MemoryMaxMB = memoryMB, maxMB
	config.Resources.Linux.MemoryLimitBytes = max(memoryMB, maxMB) << 20
	s.start(config)
	plugin, err := readCgroupsOfProcess(h.launchOrGetSharedProcess(t).pid)
	if err != nil {
		t.Fatalf("read the cgroups of the plugin: %v", err)
	}
	task := fmt.Sprintf("a task with memory %d MB", memoryMB)
	if maxMB > 0 {
		task += fmt.Sprintf(" and memory_max %d MB", maxMB)
	}
	first := 0
	for _, pid := range h.taskCgroups.findTaskPIDsOrSkip(t, config) {
		read := taskMemory{taskDescription: task, requestedMB: memoryMB}
		err := read.readLimits(pid, plugin)
		if !isProcessAlive(pid) {
			continue // a command that the task ran has exited
		}
		if err != nil {
			t.Skipf("the limits of a task cannot be read: %v", err)
		}
		if first != 0 && (read.limitBytes != m.limitBytes || read.reservationBytes != m.reservationBytes || read.hasOwnCgroup != m.hasOwnCgroup) {
			t.Errorf("process %d and process %d of %s have different limits: %s in %s, %s in %s",
				first, pid, task, formatMemoryLimit(m.limitBytes), m.cgroupDir, formatMemoryLimit(read.limitBytes), read.cgroupDir)
		}
		first, m = pid, read
	}
	if first == 0 {
		t.Fatalf("all processes of the task have exited")
	}
	return m
}

// taskCgroups makes the cgroups of tasks, as a host does.
type taskCgroups struct {
	hierarchy        *cgroup.Hierarchy
	skipLimitsReason string // reason why the cases for limits are skipped; "" if they are not skipped
}

func openTaskCgroups() taskCgroups {
	hierarchy := cgroup.Open(cgroup.Options{})
	return taskCgroups{hierarchy: hierarchy, skipLimitsReason: hierarchy.UnavailableReason()}
}

// makeForTask makes the cgroups of a task, and removes them at the end of the case. If they cannot be made, the task runs
// without them.
func (c *taskCgroups) makeForTask(t tb, config *driver.TaskConfig) {
	group, err := c.hierarchy.Make(config.AllocID, config.Name, 0)
	if err != nil {
		c.skipLimitsReason = err.Error()
	}
	config.Resources.Linux.CpusetCgroup = group.Path
	t.Cleanup(func() {
		if err := c.hierarchy.KillAndRemove(config.AllocID, config.Name); err != nil {
			t.Errorf("remove the cgroups of a task: %v", err)
		}
	})
}

// findTaskPIDsOrSkip returns the pids of a running task. If it finds none, it skips this case and all others for
// limits: the task is not a process, or has another environment, or runs on another machine.
func (c *taskCgroups) findTaskPIDsOrSkip(t tb, config *driver.TaskConfig) (pids []int) {
	t.Helper()
	const startTimeout = 2 * time.Second // for a task to get its environment after StartTask has returned
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		found, err := proc.FindByTaskEnv(config.AllocID, config.Name)
		if err != nil {
			t.Fatalf("find the processes of the task: %v", err)
		}
		for _, p := range found {
			pids = append(pids, p.PID)
		}
		if len(pids) > 0 {
			return pids
		}
		if time.Now().After(deadline) {
			c.skipLimitsReason = "no process of this machine has the NOMAD_ALLOC_ID of the task"
			t.Skipf("the limits of a task cannot be read: %s", c.skipLimitsReason)
		}
	}
}

// cgroupPathsByController has the paths of the cgroups of a process. The keys are controllers, such as "memory" or
// "cpu,cpuacct", or "" for cgroup version 2.
type cgroupPathsByController map[string]string

func readCgroupsOfProcess(pid int) (cgroupPathsByController, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil, err
	}
	paths := cgroupPathsByController{}
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		paths[controllers] = path
	}
	return paths, nil
}

// readLimits reads the limits of a process of the task. It also reads the cgroups above that of the process,
// because a container can have cgroups of its own, but not those that contain the plugin, whose limits are not
// those of the task.
func (m *taskMemory) readLimits(pid int, pluginCgroups cgroupPathsByController) error {
	of, err := readCgroupsOfProcess(pid)
	if err != nil {
		return err
	}
	m.hasOwnCgroup = !maps.Equal(of, pluginCgroups)
	key, mount := "", proc.CgroupMount
	m.limitFile, m.reservationFile = "memory.max", "memory.low"
	if _, ok := of["memory"]; ok {
		key, mount = "memory", filepath.Join(proc.CgroupMount, "memory")
		m.limitFile, m.reservationFile = "memory.limit_in_bytes", "memory.soft_limit_in_bytes"
	}
	if _, err := os.Stat(filepath.Join(mount, of[key])); err != nil {
		return err
	}
	m.cgroupDir = filepath.Join(mount, of[key])
	for path := of[key]; !strings.HasPrefix(pluginCgroups[key]+"/", strings.TrimSuffix(path, "/")+"/"); path = filepath.Dir(path) {
		dir := filepath.Join(mount, path)
		limit, err := readCgroupMemoryFile(dir, m.limitFile)
		if err != nil {
			return err
		}
		reservation, err := readCgroupMemoryFile(dir, m.reservationFile)
		if err != nil {
			return err
		}
		if path == of[key] || limit > 0 {
			m.cgroupDir, m.limitBytes, m.reservationBytes = dir, limit, reservation
		}
		if limit > 0 {
			break
		}
	}
	return nil
}

// readCgroupMemoryFile returns the number of bytes in a memory limit file. It returns 0 for no limit, and if the file does not
// exist, because the controller is not enabled in the cgroup.
func readCgroupMemoryFile(dir, name string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	value := strings.TrimSpace(string(text))
	if value == "max" {
		return 0, nil
	}
	bytes, err := strconv.ParseInt(value, 10, 64)
	const v1None = 1 << 62 // cgroup v1 writes no limit as the highest number, rounded down to a page
	if bytes >= v1None {
		bytes = 0
	}
	return bytes, err
}

// limitOverheadBytes returns by how many bytes the limit exceeds the memory in the task's resources.
func (m taskMemory) limitOverheadBytes() int64 { return max(0, m.limitBytes-m.requestedMB<<20) }

func (m taskMemory) skipUnlessOwnCgroup(t tb) {
	t.Helper()
	if !m.hasOwnCgroup {
		t.Skipf("the driver makes no cgroups for its tasks: see limits.cgroup")
	}
}

func (m taskMemory) checkLimit(t tb, memoryMB, overheadBytes int64) {
	t.Helper()
	want := memoryMB<<20 + overheadBytes
	if m.limitBytes == want {
		return
	}
	text := fmt.Sprintf("%d bytes", want)
	if overheadBytes > 0 {
		text += fmt.Sprintf(", with the %d bytes by which the limit of a task with memory %d MB exceeds its memory", overheadBytes, smallMemoryMB)
	}
	t.Errorf("%s of %s is %s, want %s: %s", m.limitFile, m.taskDescription, formatMemoryLimit(m.limitBytes), text, m.cgroupDir)
}

func formatMemoryLimit(bytes int64) string {
	if bytes == 0 {
		return "not set"
	}
	return fmt.Sprintf("%d bytes", bytes)
}
