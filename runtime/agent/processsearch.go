package agent

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
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// foundProcess is a living process of the data directory.
type foundProcess struct {
	osprocess.ID
	name    string // name of its role; "" for a descendant without one
	allocID string
}

// describe returns the process as it is reported.
func (p foundProcess) describe() DataDirProcess {
	return DataDirProcess{PID: p.PID, Name: p.name, AllocID: p.allocID}
}

// processSearch finds the processes of a data directory whose agent has shut down.
type processSearch struct {
	dir           *keeper.Directory
	owner         *directoryOwner // directory that owns the tasks, and of which this one is a copy; nil if this one owns them
	plugins       []foundProcess  // plugins that the state records
	allocIDs      map[string]bool // allocations in the state, and allocations that have a directory
	runningAllocs []string        // allocations that run according to the state
}

// newProcessSearch reads the state of a data directory. A state that cannot be read is ignored.
func newProcessSearch(path string, dir *keeper.Directory) (*processSearch, error) {
	s := &processSearch{dir: dir, allocIDs: make(map[string]bool)}
	contents, err := store.Inspect(filepath.Join(path, store.FileName))
	if err != nil {
		contents = nil
	}
	if s.owner, err = findOwnerOfTasks(path, contents); err != nil || s.owner != nil {
		return s, err
	}
	entries, err := os.ReadDir(filepath.Join(path, allocDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		s.allocIDs[e.Name()] = true
	}
	if contents == nil {
		return s, nil
	}
	for _, alloc := range contents.Allocations() {
		s.allocIDs[alloc.ID] = true
		if alloc.ClientStatus == api.AllocClientStatusRunning {
			s.runningAllocs = append(s.runningAllocs, alloc.ID)
		}
	}
	s.plugins, err = pluginsOfState(contents)
	return s, err
}

// pluginsOfState returns the plugins of this boot that a state records.
func pluginsOfState(contents *store.Contents) (found []foundProcess, err error) {
	for key, record := range contents.Meta(state.PluginProcessPrefix) {
		var stored state.PluginProcess
		if record.Decode(&stored) != nil {
			continue // the process is found as a child of the keeper
		}
		r := supervisorRecord(stored)
		current, err := r.IsFromThisBoot()
		if err != nil {
			return nil, err
		}
		if current {
			name := strings.TrimPrefix(filepath.Base(key), "builtin ")
			found = append(found, foundProcess{ID: osprocess.ID{PID: r.Pid, StartTime: r.StartTime}, name: "plugin " + name})
		}
	}
	return found, nil
}

// find returns the living processes of the data directory, each after its parent. With freeze it stops each process
// before it lists the children, so that the process cannot start another one. After an error the result has the
// processes that were stopped.
func (s *processSearch) find(freeze bool) ([]foundProcess, error) {
	var roots []foundProcess
	keeperID, running, err := s.dir.Keeper()
	if err != nil {
		return nil, err
	}
	if running {
		roots = append(roots, foundProcess{ID: keeperID, name: "keeper"})
	}
	collector, running, err := logs.FindCollector(s.dir)
	if err != nil {
		return nil, err
	}
	if running {
		roots = append(roots, foundProcess{ID: collector, name: "log collector"})
	}
	tasks, err := s.processesOfTasks()
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Concat(s.plugins, tasks) {
		if !belongsToOther(p.PID, keeperID.PID) {
			roots = append(roots, p)
		}
	}
	return addDescendants(roots, freeze)
}

// processesOfTasks returns the processes of the allocations of the data directory.
func (s *processSearch) processesOfTasks() (found []foundProcess, err error) {
	tasks, err := osprocess.AllTaskEnvIDs()
	if err != nil {
		return nil, err
	}
	for task := range tasks {
		if !s.allocIDs[task.AllocID] {
			continue
		}
		leftovers, err := osprocess.FindLeftovers(task.AllocID, task.Task)
		if err != nil {
			return nil, err
		}
		for _, p := range leftovers {
			found = append(found, foundProcess{ID: p, name: taskProcessName(task, p.PID), allocID: task.AllocID})
		}
	}
	return found, nil
}

// addDescendants returns the living processes among roots and their descendants, each once and after its parent.
func addDescendants(roots []foundProcess, freeze bool) (all []foundProcess, err error) {
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
			for _, pid := range osprocess.Children(p.PID) {
				id, err := osprocess.LookupID(pid)
				if err != nil {
					continue // the child has exited
				}
				children = append(children, foundProcess{ID: id, name: cmp.Or(descendantName(p, pid), "process "+processName(pid)), allocID: p.allocID})
			}
		}
		roots = children
	}
	return all, nil
}

// taskProcessName returns the name of a process of a task.
func taskProcessName(task osprocess.TaskEnvID, pid int) string {
	return fmt.Sprintf("task %s of allocation %.8s: %s", task.Task, task.AllocID, processName(pid))
}

// descendantName returns the name of a child of a task's process that has no task in its environment, and "" for
// a child of another process.
func descendantName(parent foundProcess, pid int) string {
	role, _, isTask := strings.Cut(parent.name, ": ")
	if !isTask || parent.allocID == "" {
		return ""
	}
	return role + ": " + processName(pid)
}

// processName returns the name that the kernel has for a process.
func processName(pid int) string {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return strconv.Itoa(pid)
	}
	return strings.TrimSpace(string(name))
}

// containerMonitors are the names of the programs that container runtimes run as the parents of containers. The kernel has the
// first 15 bytes of a name.
var containerMonitors = []string{"containerd-shim", "conmon", "conmonrs", "systemd-nspawn"}

// belongsToOther reports whether a process belongs to another program than this data directory, whose keeper is own: a keeper is
// among its ancestors, or a container runtime. A runtime below own belongs to a task, and so does one of a container in which
// this command runs.
func belongsToOther(pid, own int) bool {
	inContainer := false
	for ancestor := range ancestors(pid) {
		switch {
		case ancestor == own:
			return false
		case isKeeper(ancestor):
			return true
		case slices.Contains(containerMonitors, processName(ancestor)) && !slices.Contains(slices.Collect(ancestors(os.Getpid())), ancestor):
			inContainer = true
		}
	}
	return inContainer
}

// isKeeper reports whether a process is the keeper of a data directory.
func isKeeper(pid int) bool {
	args, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && string(args) == strings.Join(keeperArgs, "\x00")+"\x00"
}

// ancestors returns the parent of a process, the parent of the parent and so on, without the first process of the machine.
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
