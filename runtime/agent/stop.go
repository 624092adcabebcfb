package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/filelock"
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// ErrNotShutDown means that an agent has not shut down within a timeout.
var ErrNotShutDown = errors.New("the agent has not shut down")

// StopOptions are the options of [Stop].
type StopOptions struct {
	All     bool                 // All means that Stop also ends what does not end with the agent: tasks, plugins, log collector and keeper
	Timeout time.Duration        // Timeout is the time that the agent has to shut down
	OnEnd   func(DataDirProcess) // OnEnd is called after the end of each process
}

// DataDirProcess is a process that belongs to a data directory.
type DataDirProcess struct {
	PID     int
	Name    string // "agent", "keeper", "log collector", "plugin raw_exec", "task web of allocation 8a1b2c3d: nginx"
	AllocID string // AllocID is the allocation of a task, and empty for other processes
	Killed  bool   // Killed means that the process was killed with SIGKILL
}

// Remaining describes what Stop has not ended.
type Remaining struct {
	Processes []DataDirProcess
	// Allocations are the ids of allocations that run according to the state, and of which neither a process was
	// ended nor one is among Processes. Their tasks can be containers or virtual machines.
	Allocations []string
}

// Stop shuts down the agent of a data directory, and returns what remains. With StopOptions.All it then kills all
// other processes of the data directory, also those that do not respond. It does not change the state: for the next
// agent the tasks are tasks that have ended while no agent ran.
//
// A process belongs to the data directory if the process holds one of its locks, is recorded in its state as a plugin,
// has the id of one of its allocations in its environment, or is a descendant of such a process. A process below
// the keeper of another data directory does not belong to this one, which can be a copy. A later process that has the
// pid of an earlier one is not touched. The error is ErrNotShutDown only without All.
func Stop(dataDir string, o StopOptions) (*Remaining, error) {
	path, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, err
	}
	if err := checkHasLockFile(path); err != nil {
		return nil, err
	}
	dir, err := keeper.OpenDirectory(path)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	defer dir.Close()
	s := &stopper{dataDirectory: dataDirectory{path: path}, dir: dir, options: o, ended: make(map[string]bool)}
	if err := s.stopAgent(); err != nil {
		return nil, err
	}
	// The lock keeps the next agent out. The keeper of a temporary directory holds the lock, too.
	lock, err := dir.Lock(lockFile, unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		defer lock.Close()
	case !errors.Is(err, filelock.ErrLocked):
		return nil, err
	default:
		p, running, err := dir.LockedBy(lockFile)
		if err != nil {
			return nil, err
		}
		if running {
			return nil, fmt.Errorf("another agent has started in %s (pid %d): stop the service that starts it", path, p.PID)
		}
	}
	if o.All {
		if err := s.killAll(); err != nil {
			return nil, err
		}
	}
	return s.remaining()
}

// checkHasLockFile returns an error if path is not a data directory of this user.
func checkHasLockFile(path string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	name := filepath.Join(path, lockFile)
	var stat unix.Stat_t
	if err := unix.Lstat(name, &stat); err != nil {
		return fmt.Errorf("%s is not a data directory: %w", path, &fs.PathError{Op: "stat", Path: name, Err: err})
	}
	if int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("data directory %s belongs to user %d: run the command as this user", path, stat.Uid)
	}
	return nil
}

// stopper ends the processes of a data directory.
type stopper struct {
	dataDirectory
	dir     *keeper.Directory
	options StopOptions
	ended   map[string]bool // ids of allocations of which a process was killed
}

// foundProcess is a living process of the data directory.
type foundProcess struct {
	process.ID
	name    string // name of its role; "" for a descendant without one
	allocID string
}

// describe returns the process as it is reported.
func (p foundProcess) describe() DataDirProcess {
	return DataDirProcess{PID: p.PID, Name: p.name, AllocID: p.allocID}
}

// stopAgent shuts down the agent if one runs.
func (s *stopper) stopAgent() error {
	p, running, err := s.dir.LockedBy(lockFile)
	if err != nil || !running {
		return err
	}
	if err := p.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop agent with pid %d: %w", p.PID, err)
	}
	agent := DataDirProcess{PID: p.PID, Name: "agent"}
	if !p.EndsWithin(s.options.Timeout) {
		if !s.options.All {
			return fmt.Errorf("%w within %v: pid %d", ErrNotShutDown, s.options.Timeout, p.PID)
		}
		if err := p.KillAndWait(); err != nil {
			return err
		}
		agent.Killed = true
	}
	s.options.OnEnd(agent)
	return nil
}

// maxKillRounds limits the number of searches of killAll. The second search finds nothing, unless a process that no
// other process of the data directory has started appears meanwhile.
const maxKillRounds = 10

// killAll kills all processes of the data directory, and removes its sockets.
func (s *stopper) killAll() error {
	for range maxKillRounds {
		found, err := s.find(true)
		if err == nil && len(found) == 0 {
			return removeSockets(s.path)
		}
		if err == nil {
			err = s.kill(found)
		}
		if err != nil {
			for _, p := range found {
				_ = p.Signal(unix.SIGCONT) // a killed process is gone
			}
			return err
		}
	}
	return fmt.Errorf("processes of the data directory appear again, although they were killed %d times", maxKillRounds)
}

// kill kills processes that are stopped, children before their parents.
func (s *stopper) kill(found []foundProcess) error {
	var errs []error
	for _, p := range slices.Backward(found) {
		_ = p.Signal(unix.SIGKILL) // KillAndWait returns the error
		keeper.UnfreezeCgroup(strconv.Itoa(p.PID))
		if err := p.KillAndWait(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
			continue
		}
		s.ended[p.allocID] = true
		end := p.describe()
		end.Killed = true
		s.options.OnEnd(end)
	}
	return errors.Join(errs...)
}

// remaining returns the processes and allocations that run.
func (s *stopper) remaining() (*Remaining, error) {
	found, err := s.find(false)
	if err != nil {
		return nil, err
	}
	r := new(Remaining)
	for _, p := range found {
		s.ended[p.allocID] = true
		r.Processes = append(r.Processes, p.describe())
	}
	if contents := s.readState(); contents != nil {
		for _, alloc := range contents.Allocations() {
			if alloc.ClientStatus == api.AllocClientStatusRunning && !s.ended[alloc.ID] {
				r.Allocations = append(r.Allocations, alloc.ID)
			}
		}
	}
	return r, nil
}

// find returns the living processes of the data directory, each after its parent. With freeze it stops each process
// before it lists the children, so that the process cannot start another one. After an error the result has the
// processes that were stopped.
func (s *stopper) find(freeze bool) ([]foundProcess, error) {
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
	recorded, err := s.recordedProcesses()
	if err != nil {
		return nil, err
	}
	for _, p := range recorded {
		if !isBelowOtherKeeper(p.PID, keeperID.PID) {
			roots = append(roots, p)
		}
	}
	return addDescendants(roots, freeze)
}

// recordedProcesses returns the plugins that the state records, and the processes of the allocations of the data
// directory.
func (s *stopper) recordedProcesses() ([]foundProcess, error) {
	entries, err := os.ReadDir(s.allocDirs())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	allocIDs := make(map[string]bool)
	for _, e := range entries {
		allocIDs[e.Name()] = true
	}
	var found []foundProcess
	if contents := s.readState(); contents != nil {
		for _, alloc := range contents.Allocations() {
			allocIDs[alloc.ID] = true
		}
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
				found = append(found, foundProcess{ID: process.ID{PID: r.Pid, StartTime: r.StartTime}, name: "plugin " + name})
			}
		}
	}
	tasks, err := process.AllTaskEnvIDs()
	if err != nil {
		return nil, err
	}
	for task := range tasks {
		if !allocIDs[task.AllocID] {
			continue
		}
		leftovers, err := process.FindLeftovers(task.AllocID, task.Task)
		if err != nil {
			return nil, err
		}
		for _, p := range leftovers {
			found = append(found, foundProcess{ID: p, name: taskProcessName(task, p.PID), allocID: task.AllocID})
		}
	}
	return found, nil
}

// readState reads the state of the data directory. It returns nil if there is none or if it cannot be read.
func (s *stopper) readState() *store.Contents {
	contents, err := store.Inspect(s.statePath())
	if err != nil {
		return nil
	}
	return contents
}

// addDescendants returns the living processes among roots and their descendants, each once and after its parent.
func addDescendants(roots []foundProcess, freeze bool) (all []foundProcess, err error) {
	known := make(map[process.ID]bool)
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
			for _, pid := range process.Children(p.PID) {
				id, err := process.LookupID(pid)
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
func taskProcessName(task process.TaskEnvID, pid int) string {
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

// isBelowOtherKeeper reports whether a process has a keeper among its ancestors that is not the process own.
func isBelowOtherKeeper(pid, own int) bool {
	for pid > 1 {
		stat, err := process.ReadStat(pid)
		if err != nil {
			return false
		}
		pid = stat.PPID
		if pid == own {
			return false
		}
		args, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err == nil && string(args) == strings.Join(keeperArgs, "\x00")+"\x00" {
			return true
		}
	}
	return false
}
