package datadirectory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// ErrNotShutDown means that an agent has not shut down within a timeout.
var ErrNotShutDown = errors.New("the agent has not shut down")

// StopOptions are the options for [Stop].
type StopOptions struct {
	KillAllProcesses     bool            // KillAllProcesses means that Stop also kills tasks, plugins, the log collector and the keeper
	AgentShutdownTimeout time.Duration   // AgentShutdownTimeout is the agent's time to shut down
	OnProcessEnd         func(Process)   // OnProcessEnd is called after each process that Stop has ended; it must not be nil
	OnKill               func(count int) // OnKill is called before Stop kills the given number of processes; it may be nil

	// IsHostProcessDriver reports whether a driver's tasks are processes of this machine, and DecodeTaskProcess decodes a task's
	// main process as agent.Config.DecodeTaskProcess does. They may be nil: then each task may be a container, and the state has no
	// task process.
	IsHostProcessDriver func(driver string) bool
	DecodeTaskProcess   func(driver string, driverState []byte) (process TaskProcess, known bool)
}

// Process is a process in a data directory.
type Process struct {
	PID     int
	Name    string // Name is for users: "agent", "keeper", "log collector", "plugin raw_exec", "task web of allocation 8a1b2c3d: nginx"
	AllocID string // AllocID is a task's allocation, and empty for other processes
	Killed  bool   // Killed means that the process was killed with SIGKILL
}

// RemainingAfterStop has a data directory's running processes and allocations after [Stop].
type RemainingAfterStop struct {
	Processes []Process
	// AllocIDsWithoutProcess are the ids of allocations that run according to the state, with a task that is not a process of
	// this machine, or has an unknown driver. Stop has killed none of their processes, and Processes has none.
	AllocIDsWithoutProcess []string
	// TasksOwnerDir is the path of the directory that owns the state's tasks, if this directory is a copy of it. Then Stop has
	// killed no task, and Processes and AllocIDsWithoutProcess name none.
	TasksOwnerDir string
}

// Stop shuts down a data directory's agent, and returns the processes and allocations that continue to run. With
// StopOptions.KillAllProcesses it then kills all other processes in the data directory, also unresponsive ones. Then it removes
// the allocations' empty cgroups, and unmounts everything below the directories of allocations with no running tasks. When no
// task can still be running, it also unmounts the allocation directory root, like an agent that shuts down. Stop does not change
// the state: the next agent finds that the tasks have ended while no agent ran. When ctx ends, Stop returns an error with the
// cause, and the processes it has not killed continue.
//
// A process belongs to the data directory if it holds one of the directory's locks, is recorded in its state as a plugin, belongs
// to a task in one of its allocations ([osprocess.FindTaskProcesses]), or is a descendant of such a process. A process below
// another data directory's keeper does not belong to this one. A process in a container does not either, unless a task has
// started the container. If the directory is a copy, the tasks and plugins in its state belong to the original. Stop does not
// kill a later process with an earlier one's pid. It returns ErrNotShutDown only without KillAllProcesses.
//
// If the data directory was removed or unmounted, or lost its files, while its keeper continues, the processes below this keeper
// still belong to it. An agent that runs without its data directory is not found.
func Stop(ctx context.Context, dataDir string, o StopOptions) (*RemainingAfterStop, error) {
	path, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, err
	}
	s := &dataDirStopper{dataDir: path, options: o, allocsWithFoundProcess: make(map[string]bool), tasksWithKilledProcess: make(map[osprocess.TaskEnvID]bool)}
	if err := checkDataDirBelongsToUser(path); errors.Is(err, fs.ErrNotExist) && len(keeper.FindWithLostDir(path)) > 0 {
		s.processSearch = &processSearch{dataDir: path, dataDirAllocIDs: make(map[string]bool), unknownTasksMayRun: true}
		return s.killAndFindRemaining(ctx)
	} else if err != nil {
		return nil, err
	}
	dir, err := keeper.OpenOrCreateDataDir(path)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	defer dir.Close()
	s.dataDirHandle = dir
	if err := s.stopAgent(ctx); err != nil {
		return nil, err
	}
	// The lock prevents the next agent's start. A temporary directory's keeper also holds the lock.
	lock, err := dir.LockFile(LockFile, unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		defer lock.Close()
	case !errors.Is(err, filelock.ErrLocked):
		return nil, err
	default:
		p, running, err := dir.LockOwner(LockFile)
		if err != nil {
			return nil, err
		}
		if running {
			return nil, fmt.Errorf("another agent has started in %s (pid %d): stop the service that starts it", path, p.PID)
		}
	}
	if s.processSearch, err = newProcessSearch(path, dir, o); err != nil {
		return nil, err
	}
	remaining, err := s.killAndFindRemaining(ctx)
	if err != nil {
		return nil, err
	}
	if o.KillAllProcesses && lock != nil && s.processSearch.tasksOwner == nil {
		if err := s.unmountAllocDirs(remaining); err != nil {
			return nil, err
		}
	}
	return remaining, nil
}

// unmountAllocDirs unmounts everything below the directories of allocations with no running tasks, and the allocation directory
// root's mount if no task may run.
func (s *dataDirStopper) unmountAllocDirs(remaining *RemainingAfterStop) error {
	d := Directory{Path: s.dataDir}
	withTasks, err := allocdir.FindAllocsMountedElsewhere(slices.Collect(maps.Keys(s.processSearch.dataDirAllocIDs)))
	if err != nil {
		return err
	}
	if len(withTasks) == 0 && len(remaining.Processes) == 0 && !s.containersMayRun() {
		return d.unmountNosuidAllocDirsIfUnused(true)
	}
	for _, p := range remaining.Processes {
		withTasks[p.AllocID] = true
	}
	for _, id := range remaining.AllocIDsWithoutProcess {
		withTasks[id] = true
	}
	return d.unmountAllocDirsOfEndedTasks(withTasks)
}

// killAndFindRemaining kills the data directory's processes if StopOptions.KillAllProcesses is set, and removes their cgroups. It
// returns the processes and allocations that still run.
func (s *dataDirStopper) killAndFindRemaining(ctx context.Context) (*RemainingAfterStop, error) {
	if s.options.KillAllProcesses {
		if err := s.killAllAndRemoveSockets(ctx); err != nil {
			return nil, err
		}
	}
	remaining, err := s.findRemaining()
	if err == nil && s.options.KillAllProcesses {
		cgroup.RemoveEmptyOfAllocs(func(allocID string) bool { return s.processSearch.dataDirAllocIDs[allocID] })
	}
	return remaining, err
}

// checkDataDirBelongsToUser returns an error if path is not a data directory of this user.
func checkDataDirBelongsToUser(path string) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	name := filepath.Join(path, LockFile)
	var stat unix.Stat_t
	if err := unix.Lstat(name, &stat); err != nil {
		return fmt.Errorf("%s is not a data directory: %w", path, &fs.PathError{Op: "stat", Path: name, Err: err})
	}
	if int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("data directory %s belongs to user %d: run the command as this user", path, stat.Uid)
	}
	return nil
}

// dataDirStopper ends a data directory's processes.
type dataDirStopper struct {
	dataDir                string
	dataDirHandle          *keeper.DataDir // nil if the directory was removed
	options                StopOptions
	processSearch          *processSearch  // nil until the agent has shut down
	allocsWithFoundProcess map[string]bool // keys are allocation ids
	tasksWithKilledProcess map[osprocess.TaskEnvID]bool
}

// containersMayRun reports whether a task may run in a container or virtual machine, after all processes were killed: a task's
// process is in a container, or a task that is not a process of this machine may run according to the state, and none of its
// processes was killed.
func (s *dataDirStopper) containersMayRun() bool {
	return s.processSearch.unknownTasksMayRun || s.processSearch.leftOut > 0 ||
		slices.ContainsFunc(s.processSearch.containersThatMayRun, func(t osprocess.TaskEnvID) bool { return !s.tasksWithKilledProcess[t] })
}

// stopAgent shuts down the agent if one runs.
func (s *dataDirStopper) stopAgent(ctx context.Context) error {
	p, running, err := s.dataDirHandle.LockOwner(LockFile)
	if err != nil || !running {
		return err
	}
	if err := p.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop agent with pid %d: %w", p.PID, err)
	}
	agent := Process{PID: p.PID, Name: "agent"}
	waiting, cancel := context.WithTimeoutCause(ctx, s.options.AgentShutdownTimeout, ErrNotShutDown)
	defer cancel()
	switch err := p.WaitEnd(waiting); {
	case err == nil:
	case !errors.Is(err, ErrNotShutDown):
		return fmt.Errorf("wait for the agent with pid %d, which is shutting down: %w", p.PID, err)
	case !s.options.KillAllProcesses:
		return fmt.Errorf("%w within %v: pid %d", err, s.options.AgentShutdownTimeout, p.PID)
	default:
		if err := p.KillAndWait(ctx); err != nil {
			return err
		}
		agent.Killed = true
	}
	s.options.OnProcessEnd(agent)
	return nil
}

// maxKillRounds limits the searches in killAllAndRemoveSockets. Usually the second search finds no process: a process can only
// appear between two searches if a process outside of the data directory has started it.
const maxKillRounds = 10

// killAllAndRemoveSockets kills all processes in the data directory, and removes its sockets.
func (s *dataDirStopper) killAllAndRemoveSockets(ctx context.Context) error {
	for range maxKillRounds {
		killed, err := s.freezeAndKill(ctx)
		// OnProcessEnd can block, or end this program by SIGPIPE. It is therefore called while no process is stopped by SIGSTOP.
		for _, p := range killed {
			s.allocsWithFoundProcess[p.allocID] = true
			s.tasksWithKilledProcess[osprocess.TaskEnvID{AllocID: p.allocID, Task: p.task}] = true
			end := p.toDataDirProcess()
			end.Killed = true
			s.options.OnProcessEnd(end)
		}
		if err != nil {
			return err
		}
		if len(killed) == 0 {
			return removeSockets(s.dataDir)
		}
	}
	return fmt.Errorf("processes of the data directory appear again, although they were killed %d times", maxKillRounds)
}

// freezeAndKill stops the data directory's processes with SIGSTOP, kills them, children before their parents, and returns those
// that have ended. After an error, or when ctx ends, the others continue.
func (s *dataDirStopper) freezeAndKill(ctx context.Context) (killed []foundProcess, err error) {
	found, err := s.processSearch.findProcesses(true)
	defer func() {
		for _, p := range found {
			_ = p.Signal(unix.SIGCONT) // fails if the process was killed
		}
	}()
	if err != nil {
		return nil, err
	}
	if s.options.OnKill != nil && len(found) > 0 {
		s.options.OnKill(len(found))
	}
	var errs []error
	var signaled []foundProcess
	for _, p := range slices.Backward(found) {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("processes of the data directory continue: %w", context.Cause(ctx)))
			break
		}
		if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("%s: kill process %d: %w", p.displayName, p.PID, err))
			continue
		}
		osprocess.UnfreezeCgroupV1Of(strconv.Itoa(p.PID))
		signaled = append(signaled, p)
	}
	// All processes share one timeout: those that do not end do so together, for example because they wait for the same disk.
	waiting, cancel := context.WithTimeoutCause(ctx, killTimeout, osprocess.ErrStillRunning)
	defer cancel()
	for _, p := range signaled {
		if err := p.WaitEnd(waiting); err != nil {
			errs = append(errs, fmt.Errorf("%s: process %d: %w", p.displayName, p.PID, err))
			continue
		}
		killed = append(killed, p)
	}
	return killed, errors.Join(errs...)
}

// findRemaining returns the processes and allocations that still run.
func (s *dataDirStopper) findRemaining() (*RemainingAfterStop, error) {
	found, err := s.processSearch.findProcesses(false)
	if err != nil {
		return nil, err
	}
	r := new(RemainingAfterStop)
	if owner := s.processSearch.tasksOwner; owner != nil {
		r.TasksOwnerDir = owner.Path
	}
	for _, p := range found {
		s.allocsWithFoundProcess[p.allocID] = true
		r.Processes = append(r.Processes, p.toDataDirProcess())
	}
	for _, id := range s.processSearch.allocIDsWithContainers {
		if !s.allocsWithFoundProcess[id] {
			r.AllocIDsWithoutProcess = append(r.AllocIDsWithoutProcess, id)
		}
	}
	return r, nil
}
