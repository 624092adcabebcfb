package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// ErrNotShutDown means that an agent has not shut down within a timeout.
var ErrNotShutDown = errors.New("the agent has not shut down")

// StopOptions are the options of [Stop].
type StopOptions struct {
	All     bool                 // All means that Stop also kills tasks, plugins, the log collector and the keeper
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

// Remaining has the processes and allocations that still run.
type Remaining struct {
	Processes []DataDirProcess
	// Allocations are the ids of allocations that run according to the state. Stop has killed no process of them, and
	// Processes has none. Their tasks can be containers or virtual machines.
	Allocations []string
	// Owner is the path of the directory that owns the tasks of the state, if the directory is a copy of it. Then Stop has
	// killed no task, and neither field names one.
	Owner string
}

// Stop shuts down the agent of a data directory, and returns what remains. With StopOptions.All it then kills all
// other processes of the data directory, also those that do not respond. It does not change the state: for the next
// agent the tasks are tasks that have ended while no agent ran.
//
// A process belongs to the data directory if the process holds one of its locks, is recorded in its state as a plugin,
// has the id of one of its allocations in its environment, or is a descendant of such a process. A process below the
// keeper of another data directory does not belong to this one. A process in a container does not either, unless a task
// has started the container. If the directory is a copy, the tasks and plugins in its state belong to the original. A later
// process that has the pid of an earlier one is not touched. The error is ErrNotShutDown only without All.
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
	s := &stopper{path: path, dir: dir, options: o, ended: make(map[string]bool)}
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
	if s.search, err = newProcessSearch(path, dir); err != nil {
		return nil, err
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
	path    string
	dir     *keeper.Directory
	options StopOptions
	search  *processSearch  // nil until the agent has shut down
	ended   map[string]bool // ids of allocations of which a process was killed
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
		found, err := s.search.find(true)
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
	found, err := s.search.find(false)
	if err != nil {
		return nil, err
	}
	r := new(Remaining)
	if owner := s.search.owner; owner != nil {
		r.Owner = owner.Path
	}
	for _, p := range found {
		s.ended[p.allocID] = true
		r.Processes = append(r.Processes, p.describe())
	}
	for _, id := range s.search.runningAllocs {
		if !s.ended[id] {
			r.Allocations = append(r.Allocations, id)
		}
	}
	return r, nil
}
