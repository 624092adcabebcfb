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

// The memory of the tasks of these cases, in MB. No driver has them as fixed limits, and a virtual machine of the driver qemu has
// at least 128 MB.
const (
	smallMemoryMB = 131
	largeMemoryMB = 193
)

func testTaskCgroup(t tb, h *testHost) {
	if !h.startWithMemory(t, smallMemoryMB, 0).hasOwnCgroup {
		t.Errorf("the processes of a task are in the cgroups of the plugin")
	}
}

// testMemoryLimit compares two tasks, because a driver can add the memory that it needs itself for each task,
// such as that of an emulator.
func testMemoryLimit(t tb, h *testHost) {
	small := h.startWithMemory(t, smallMemoryMB, 0)
	small.skipUnlessOwnCgroup(t)
	if small.limit < smallMemoryMB<<20 {
		t.Errorf("%s of %s is %s, want at least %d bytes: %s", small.limitFile, small.task, formatMemory(small.limit), smallMemoryMB<<20, small.dir)
	}
	large := h.startWithMemory(t, largeMemoryMB, 0)
	large.wantLimit(t, largeMemoryMB, small.overhead())
}

func testMaximumMemoryLimit(t tb, h *testHost) {
	small := h.startWithMemory(t, smallMemoryMB, 0)
	small.skipUnlessOwnCgroup(t)
	h.startWithMemory(t, smallMemoryMB, largeMemoryMB).wantLimit(t, largeMemoryMB, small.overhead())
}

func testMemoryReservation(t tb, h *testHost) {
	m := h.startWithMemory(t, smallMemoryMB, largeMemoryMB)
	m.skipUnlessOwnCgroup(t)
	if m.reservation != smallMemoryMB<<20 {
		t.Errorf("%s of %s is %s, want %d bytes: %s", m.reservationFile, m.task, formatMemory(m.reservation), smallMemoryMB<<20, m.dir)
	}
}

// taskMemory has the limits of the kernel for the memory of a task, in bytes. 0 means that nothing is set.
type taskMemory struct {
	task         string // resources of the task, for messages
	sentMB       int64  // memory of the task
	hasOwnCgroup bool   // the task is not in the cgroups of the plugin

	dir                        string // cgroup that has the limit, or of the task if there is no limit
	limitFile, reservationFile string
	limit, reservation         int64
}

// startWithMemory starts a task, and reads from the kernel the limits of its processes. It skips the case
// if there are none to be read.
func (h *testHost) startWithMemory(t tb, memoryMB, maxMB int64) (m taskMemory) {
	t.Helper()
	config, s := h.newConfig(t, h.plugin.Tasks.Runs)
	if h.cgroups.noLimits != "" {
		t.Skipf("the limits of a task cannot be read: %s", h.cgroups.noLimits)
	}
	config.Resources.MemoryMB, config.Resources.MemoryMaxMB = memoryMB, maxMB
	config.Resources.Linux.MemoryLimitBytes = max(memoryMB, maxMB) << 20
	s.start(config)
	plugin, err := readCgroups(h.ensureSharedProcess(t).pid)
	if err != nil {
		t.Fatalf("read the cgroups of the plugin: %v", err)
	}
	task := fmt.Sprintf("a task with memory %d MB", memoryMB)
	if maxMB > 0 {
		task += fmt.Sprintf(" and memory_max %d MB", maxMB)
	}
	first := 0
	for _, pid := range h.cgroups.findTaskProcesses(t, config) {
		read := taskMemory{task: task, sentMB: memoryMB}
		err := read.readLimits(pid, plugin)
		if !processAlive(pid) {
			continue // a task may run commands that exit at once
		}
		if err != nil {
			t.Skipf("the limits of a task cannot be read: %v", err)
		}
		if first != 0 && (read.limit != m.limit || read.reservation != m.reservation || read.hasOwnCgroup != m.hasOwnCgroup) {
			t.Errorf("process %d and process %d of %s have different limits: %s in %s, %s in %s",
				first, pid, task, formatMemory(m.limit), m.dir, formatMemory(read.limit), read.dir)
		}
		first, m = pid, read
	}
	if first == 0 {
		t.Fatalf("all processes of the task have exited")
	}
	return m
}

// taskCgroups makes the cgroups of tasks.
type taskCgroups struct {
	hierarchy *cgroup.Hierarchy
	noLimits  string // reason why the cases for limits are skipped; "" if they are not
}

func openTaskCgroups() taskCgroups {
	hierarchy := cgroup.Open(nil)
	return taskCgroups{hierarchy: hierarchy, noLimits: hierarchy.UnavailableReason()}
}

// make makes the cgroups of a task until the end of the case. If it cannot make them, the task has none.
func (c *taskCgroups) make(t tb, config *driver.TaskConfig) {
	group, err := c.hierarchy.Make(config.AllocID, config.Name, 0)
	if err != nil {
		c.noLimits = err.Error()
	}
	config.Resources.Linux.CpusetCgroup = group.Path
	t.Cleanup(func() {
		if err := c.hierarchy.Remove(config.AllocID, config.Name); err != nil {
			t.Errorf("remove the cgroups of a task: %v", err)
		}
	})
}

// findTaskProcesses returns the processes of a task that runs. It skips this case and the others for limits if
// there are none: the task is no process, or has another environment, or runs on another machine.
func (c *taskCgroups) findTaskProcesses(t tb, config *driver.TaskConfig) (pids []int) {
	t.Helper()
	const startTimeout = 2 * time.Second // from the return of StartTask to the environment of the task
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
			c.noLimits = "no process of this machine has the NOMAD_ALLOC_ID of the task"
			t.Skipf("the limits of a task cannot be read: %s", c.noLimits)
		}
	}
}

// cgroups are the paths of the cgroups of a process, by controllers: "memory", "cpu,cpuacct", or "" for version 2.
type cgroups map[string]string

func readCgroups(pid int) (cgroups, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil, err
	}
	paths := cgroups{}
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		paths[controllers] = path
	}
	return paths, nil
}

// readLimits reads the limits of a process of the task. A limit of a cgroup above that of the process counts, too,
// because a container can have cgroups of its own. The cgroups that contain the plugin have limits of other origin.
func (m *taskMemory) readLimits(pid int, plugin cgroups) error {
	of, err := readCgroups(pid)
	if err != nil {
		return err
	}
	m.hasOwnCgroup = !maps.Equal(of, plugin)
	key, mount := "", proc.CgroupMount
	m.limitFile, m.reservationFile = "memory.max", "memory.low"
	if _, ok := of["memory"]; ok {
		key, mount = "memory", filepath.Join(proc.CgroupMount, "memory")
		m.limitFile, m.reservationFile = "memory.limit_in_bytes", "memory.soft_limit_in_bytes"
	}
	if _, err := os.Stat(filepath.Join(mount, of[key])); err != nil {
		return err
	}
	m.dir = filepath.Join(mount, of[key])
	for path := of[key]; !strings.HasPrefix(plugin[key]+"/", strings.TrimSuffix(path, "/")+"/"); path = filepath.Dir(path) {
		dir := filepath.Join(mount, path)
		limit, err := readMemoryFile(dir, m.limitFile)
		if err != nil {
			return err
		}
		reservation, err := readMemoryFile(dir, m.reservationFile)
		if err != nil {
			return err
		}
		if path == of[key] || limit > 0 {
			m.dir, m.limit, m.reservation = dir, limit, reservation
		}
		if limit > 0 {
			break
		}
	}
	return nil
}

// readMemoryFile returns 0 if the file does not exist, because the controller is not enabled in the cgroup, and
// if it has the highest number, which means that nothing is set.
func readMemoryFile(dir, name string) (int64, error) {
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
	const v1None = 1 << 62 // version 1 has no word for "no limit": its file has the highest number, rounded down to a page
	if bytes >= v1None {
		bytes = 0
	}
	return bytes, err
}

// overhead returns by how much the limit exceeds the memory of the task.
func (m taskMemory) overhead() int64 { return max(0, m.limit-m.sentMB<<20) }

func (m taskMemory) skipUnlessOwnCgroup(t tb) {
	t.Helper()
	if !m.hasOwnCgroup {
		t.Skipf("the driver makes no cgroups for its tasks: see limits.cgroup")
	}
}

func (m taskMemory) wantLimit(t tb, memoryMB, overhead int64) {
	t.Helper()
	want := memoryMB<<20 + overhead
	if m.limit == want {
		return
	}
	text := fmt.Sprintf("%d bytes", want)
	if overhead > 0 {
		text += fmt.Sprintf(", with the %d bytes by which the limit of a task with memory %d MB exceeds its memory", overhead, smallMemoryMB)
	}
	t.Errorf("%s of %s is %s, want %s: %s", m.limitFile, m.task, formatMemory(m.limit), text, m.dir)
}

func formatMemory(bytes int64) string {
	if bytes == 0 {
		return "not set"
	}
	return fmt.Sprintf("%d bytes", bytes)
}
