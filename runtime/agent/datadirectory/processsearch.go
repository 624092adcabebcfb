package datadirectory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// foundProcess is a living process in a data directory.
type foundProcess struct {
	osprocess.ID
	displayName string // name for the user, for example "keeper", or "task web of allocation 8a1b2c3d: nginx"
	allocID     string // allocation of a task's process; "" for another process
	task        string // name of a process's task; "" for another process
}

// toDataDirProcess returns the process in the form in which Stop reports it.
func (p foundProcess) toDataDirProcess() Process {
	return Process{PID: p.PID, Name: p.displayName, AllocID: p.allocID}
}

// processSearch finds a data directory's processes after its agent has shut down.
type processSearch struct {
	dataDir         string
	dataDirHandle   *keeper.DataDir // nil if the directory was removed
	tasksOwner      *dataDirRecord  // directory that owns the tasks, if this directory is a copy of it; nil if this directory owns them
	recordedPlugins []foundProcess  // plugins recorded in the state
	dataDirAllocIDs map[string]bool // allocations in the state, allocations with a directory, and those with a process below a lost keeper

	allocIDsWithContainers []string // sorted allocations in containersThatMayRun running according to the state
	// recordedMainProcesses are the tasks' main processes recorded in the state.
	recordedMainProcesses map[osprocess.ID]osprocess.TaskEnvID
	// containersThatMayRun are the tasks that may have a container or virtual machine according to the state: their driver is
	// unknown, or its tasks are not processes of this machine.
	containersThatMayRun []osprocess.TaskEnvID
	// unknownTasksMayRun means that a part of the state could not be read, or an allocation has a directory but is not in the
	// state.
	unknownTasksMayRun bool
	// leftOut is the number of processes left out by the last findProcesses, because they are in a container or belong to another
	// keeper.
	leftOut int
}

// newProcessSearch reads the state in the data directory at path. It ignores an unreadable state.
func newProcessSearch(path string, dir *keeper.DataDir, o StopOptions) (*processSearch, error) {
	s := &processSearch{
		dataDir: path, dataDirHandle: dir, dataDirAllocIDs: make(map[string]bool), recordedMainProcesses: make(map[osprocess.ID]osprocess.TaskEnvID),
	}
	contents, err := store.InspectFile(filepath.Join(path, store.FileName))
	if err != nil {
		contents = nil
	}
	if s.tasksOwner, err = findOtherOwnerOfTasks(path, contents); err != nil || s.tasksOwner != nil {
		return s, err
	}
	entries, err := os.ReadDir(filepath.Join(path, allocDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		s.dataDirAllocIDs[e.Name()] = true
	}
	if contents == nil {
		s.unknownTasksMayRun = true
		return s, nil
	}
	inState, running := make(map[string]bool), make(map[string]bool)
	for _, alloc := range contents.Allocations() {
		inState[alloc.ID] = true
		s.dataDirAllocIDs[alloc.ID] = true
		if alloc.ClientStatus == api.AllocClientStatusRunning {
			running[alloc.ID] = true
		}
	}
	isFromThisBoot, err := isStateFromThisBoot(contents)
	if err != nil {
		return nil, err
	}
	for _, recorded := range contents.TasksThatMayRun() {
		task := osprocess.TaskEnvID{AllocID: recorded.AllocID, Task: recorded.Name}
		if o.IsHostProcessDriver == nil || !o.IsHostProcessDriver(recorded.Driver) {
			s.containersThatMayRun = append(s.containersThatMayRun, task)
			if running[task.AllocID] {
				s.allocIDsWithContainers = append(s.allocIDsWithContainers, task.AllocID)
			}
		}
		if o.DecodeTaskProcess != nil && isFromThisBoot {
			if main, known := o.DecodeTaskProcess(recorded.Driver, recorded.DriverState); known {
				s.recordedMainProcesses[main.ID] = task
			}
		}
	}
	slices.Sort(s.allocIDsWithContainers)
	s.allocIDsWithContainers = slices.Compact(s.allocIDsWithContainers)
	s.unknownTasksMayRun = len(contents.Damage) > 0 || len(contents.Quarantine) > 0 ||
		slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !inState[e.Name()] })
	s.recordedPlugins, err = recordedPluginProcesses(contents)
	return s, err
}

// isStateFromThisBoot reports whether the last agent with the state has run since the machine's boot, so recorded processes may
// be those running now.
func isStateFromThisBoot(contents *store.FileContents) (bool, error) {
	now, err := osprocess.BootID()
	if err != nil {
		return false, err
	}
	var recorded string
	r := contents.AgentRecordsByNameSuffix(state.BootIDName)[""]
	return r != nil && r.DecodeUnencryptedPart(&recorded) == nil && recorded == now, nil
}

// recordedPluginProcesses returns a state's plugin processes started since the machine's boot.
func recordedPluginProcesses(contents *store.FileContents) (found []foundProcess, err error) {
	for key, record := range contents.AgentRecordsByNameSuffix(state.PluginProcessPrefix) {
		var stored state.PluginProcess
		if record.DecodeUnencryptedPart(&stored) != nil {
			continue // findProcesses finds the process as the keeper's child
		}
		r := launch.ReattachConfig{Pid: stored.PID, StartTimeTicks: stored.StartTimeTicks, BootID: stored.BootID}
		current, err := r.IsFromThisBoot()
		if err != nil {
			return nil, err
		}
		if current {
			name := strings.TrimPrefix(filepath.Base(key), "builtin ")
			found = append(found, foundProcess{ID: osprocess.ID{PID: r.Pid, StartTime: r.StartTimeTicks}, displayName: "plugin " + name})
		}
	}
	return found, nil
}

// findProcesses returns the data directory's living processes, each after its parent. If freeze is true, it sends SIGSTOP to each
// process before it lists the children, so that the process cannot start another one. After an error the result has the stopped
// processes.
func (s *processSearch) findProcesses(freeze bool) ([]foundProcess, error) {
	var roots []foundProcess
	var keeperPIDs []int
	var lostKeeperPIDs []int
	addKeeper := func(p osprocess.ID) {
		roots = append(roots, foundProcess{ID: p, displayName: keeperDisplayName})
		keeperPIDs = append(keeperPIDs, p.PID)
	}
	if s.dataDirHandle != nil {
		keeperID, running, err := s.dataDirHandle.Keeper()
		if err != nil {
			return nil, err
		}
		if running {
			addKeeper(keeperID)
		}
		collector, running, err := logs.FindCollector(s.dataDirHandle)
		if err != nil {
			return nil, err
		}
		if running {
			roots = append(roots, foundProcess{ID: collector, displayName: "log collector"})
		}
	}
	for _, p := range keeper.FindWithLostDir(s.dataDir) {
		addKeeper(p)
		lostKeeperPIDs = append(lostKeeperPIDs, p.PID)
	}
	tasks, err := s.findTaskProcesses(keeperPIDs, lostKeeperPIDs)
	if err != nil {
		return nil, err
	}
	s.leftOut = 0
	for _, p := range slices.Concat(s.recordedPlugins, tasks) {
		if belongsToOtherKeeperOrContainer(p.PID, keeperPIDs) {
			s.leftOut++
		} else {
			roots = append(roots, p)
		}
	}
	return withDescendants(roots, freeze)
}

// findTaskProcesses returns the processes of the data directory's allocations. It adds the allocations with tasks below a lost
// keeper to dataDirAllocIDs.
func (s *processSearch) findTaskProcesses(keeperPIDs, lostKeeperPIDs []int) (found []foundProcess, err error) {
	search := osprocess.TaskSearch{
		AllocDirRoot: filepath.Join(s.dataDir, allocDir), MainProcesses: s.recordedMainProcesses,
		IsTrustedParent: TrustedParents(keeperPIDs),
	}
	if len(lostKeeperPIDs) == 0 {
		search.IncludesAlloc = func(allocID string) bool { return s.dataDirAllocIDs[allocID] }
	}
	tasks, err := findTaskProcesses(search)
	if err != nil {
		return nil, err
	}
	for task, processes := range tasks {
		for _, p := range processes {
			for ancestor := range ancestors(p.PID) {
				if slices.Contains(lostKeeperPIDs, ancestor) {
					s.dataDirAllocIDs[task.AllocID] = true
				}
			}
		}
	}
	for task, processes := range tasks {
		if !s.dataDirAllocIDs[task.AllocID] {
			continue
		}
		for _, p := range processes {
			found = append(found, foundProcess{ID: p, displayName: taskProcessName(task, p.PID), allocID: task.AllocID, task: task.Task})
		}
	}
	return found, nil
}

// findTaskProcesses is a variable for tests, which count the passes over all processes on the machine.
var findTaskProcesses = osprocess.FindTaskProcesses

// TrustedParents returns a function that reports whether a process gives its descendants a task's environment: the process is a
// keeper of the data directory, or this user's container runtime.
func TrustedParents(keeperPIDs []int) func(pid int) bool {
	return func(pid int) bool {
		if slices.Contains(keeperPIDs, pid) {
			return true
		}
		return slices.Contains(containerMonitors, processName(pid)) && osprocess.HasUserOfThisProcess(pid)
	}
}

// withDescendants returns the living processes among roots and their descendants, each once and after its parent.
func withDescendants(roots []foundProcess, freeze bool) (all []foundProcess, err error) {
	known := make(map[osprocess.ID]bool)
	for len(roots) > 0 {
		var children []foundProcess
		for _, p := range roots {
			if known[p.ID] || !p.Alive() {
				continue
			}
			if p.PID == os.Getpid() {
				return all, errors.New("this command runs in a task of the data directory: run it outside")
			}
			known[p.ID] = true
			if freeze {
				if err := p.Signal(unix.SIGSTOP); errors.Is(err, os.ErrProcessDone) {
					continue
				} else if err != nil {
					return all, fmt.Errorf("stop process %d: %w", p.PID, err)
				}
			}
			all = append(all, p)
			pids, err := osprocess.Children(p.PID)
			if err != nil {
				return all, fmt.Errorf("children of process %d: %w", p.PID, err)
			}
			for _, pid := range pids {
				id, err := osprocess.LookupID(pid)
				if err != nil {
					continue // the child has exited
				}
				children = append(children, foundProcess{ID: id, displayName: cmp.Or(taskDescendantName(p, pid), keeperChildName(p, pid), "process "+processName(pid)), allocID: p.allocID, task: p.task})
			}
		}
		roots = children
	}
	return all, nil
}

// taskProcessName returns the name of a task's process.
func taskProcessName(task osprocess.TaskEnvID, pid int) string {
	return fmt.Sprintf("task %s of allocation %.8s: %s", task.Task, task.AllocID, processName(pid))
}

// taskDescendantName returns the display name of the process pid, which has no task in its environment, if its parent belongs to
// a task, and "" otherwise.
func taskDescendantName(parent foundProcess, pid int) string {
	role, _, isTask := strings.Cut(parent.displayName, ": ")
	if !isTask || parent.allocID == "" {
		return ""
	}
	return role + ": " + processName(pid)
}

const keeperDisplayName = "keeper"

// keeperChildName returns the display name of the process pid, a plugin or the log collector, if its parent is a keeper, and ""
// otherwise.
func keeperChildName(parent foundProcess, pid int) string {
	if parent.displayName != keeperDisplayName {
		return ""
	}
	line, err := osprocess.ReadArgs(pid)
	if err != nil || len(line) == 0 {
		return ""
	}
	return "process " + strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
}

// processName returns a process's name from /proc, or the pid if the process has exited.
func processName(pid int) string {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return strconv.Itoa(pid)
	}
	return strings.TrimSpace(string(name))
}

// containerMonitors are the programs that container runtimes run as containers' parents. The kernel stores only a name's first 15
// bytes.
var containerMonitors = []string{"containerd-shim", "conmon", "conmonrs", "systemd-nspawn"}

// belongsToOtherKeeperOrContainer reports whether a process does not belong to the data directory, because another data
// directory's keeper or a container runtime is among its ancestors. Two container runtimes do not count: one below a keeper in
// ownKeepers, because a task has started it, and the runtime of the container in which this command runs.
func belongsToOtherKeeperOrContainer(pid int, ownKeepers []int) bool {
	inContainer := false
	for ancestor := range ancestors(pid) {
		switch {
		case slices.Contains(ownKeepers, ancestor):
			return false
		case isKeeperProcess(ancestor):
			return true
		case slices.Contains(containerMonitors, processName(ancestor)) && !slices.Contains(slices.Collect(ancestors(os.Getpid())), ancestor):
			inContainer = true
		}
	}
	return inContainer
}

// isKeeperProcess reports whether a process is a data directory's keeper.
func isKeeperProcess(pid int) bool {
	args, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && string(args) == strings.Join(KeeperArgs, "\x00")+"\x00"
}

// ancestors returns the pids of a process's parent, the parent's parent and so on, without the init process (pid 1).
func ancestors(pid int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for {
			stat, err := osprocess.ReadStat(pid)
			if err != nil || stat.PPID <= 1 || !yield(stat.PPID) {
				return
			}
			pid = stat.PPID
		}
	}
}
