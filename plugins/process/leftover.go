package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// FindLeftovers returns the processes that belong to a task: those in a cgroup
// with its name, and those that were started with the allocation's id and the
// task's name in their environment. A zombie is not among them, nor the calling
// process. A process that has left the cgroup and has changed its environment
// cannot be found. With an error processes can be missing, because this process
// could not read what the kernel knows: see [keeper.Exhausted].
func FindLeftovers(allocID, task string) ([]keeper.Process, error) {
	groups, err := Cgroups(allocID, task)
	errs := []error{err}
	var found []keeper.Process
	for _, g := range groups {
		// The start times are read before the second look into the cgroup, so that none
		// is that of a process that has got the number since.
		processes := map[int]keeper.Process{}
		pids, err := g.PIDs()
		errs = append(errs, err)
		for _, pid := range pids {
			p, err := keeper.ProcessOf(pid)
			errs = append(errs, unlessGone(err))
			if err == nil {
				processes[pid] = p
			}
		}
		pids, err = g.PIDs()
		errs = append(errs, err)
		for _, pid := range pids {
			if p, ok := processes[pid]; ok && !slices.Contains(found, p) {
				found = append(found, p)
			}
		}
	}
	marked, err := Marked(allocID, task)
	errs = append(errs, err)
	for _, p := range marked {
		if !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	return found, errors.Join(errs...)
}

// EndLeftovers kills the processes that FindLeftovers finds, and what they start
// meanwhile, until there is none, and removes the cgroups of the task. It returns
// the processes that it found; their exit statuses are unknown to it. An error
// means that processes may still run, or that cgroups are left: ctx has ended, or
// this process could not find or kill them. The caller repeats the call then.
//
// The caller makes sure that no driver starts the task at the same time. It may
// be called for a task that has no process.
func EndLeftovers(ctx context.Context, allocID, task string) (ended []keeper.Process, err error) {
	ended, err = FindLeftovers(allocID, task)
	errs := []error{err}
	groups, err := Cgroups(allocID, task)
	errs = append(errs, err)
	for _, g := range groups {
		errs = append(errs, g.Kill(ctx))
	}
	errs = append(errs, KillMarked(ctx, allocID, task))
	if err := errors.Join(errs...); err != nil {
		return ended, err
	}
	for _, g := range groups {
		errs = append(errs, g.Remove())
	}
	return ended, errors.Join(errs...)
}

// KillMarked kills the processes that [Marked] returns until there is none. With an
// error processes can still run.
func KillMarked(ctx context.Context, allocID, task string) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 100*time.Millisecond) {
		marked, err := Marked(allocID, task)
		if err == nil && len(marked) == 0 {
			return nil
		}
		var errs []error
		for _, p := range marked {
			if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
				errs = append(errs, fmt.Errorf("kill process %d: %w", p.PID, err))
			}
		}
		if err != nil || len(errs) == len(marked) {
			return errors.Join(append(errs, err)...) // repeating does not help
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return fmt.Errorf("end processes of task %q: %w", task, ctx.Err())
		}
	}
}

// Marked returns the processes whose environment names a task, whatever cgroup
// they are in, except the calling process. Processes whose environment the kernel
// does not show to this user are left out. With an error processes can be missing.
func Marked(allocID, task string) ([]keeper.Process, error) {
	if allocID == "" || task == "" {
		return nil, nil
	}
	var marked []keeper.Process
	err := eachMarked(func(p keeper.Process, mark Mark) {
		if mark == (Mark{allocID, task}) {
			marked = append(marked, p)
		}
	})
	return marked, err
}

// Mark is what the environment of a task's process says about its task.
type Mark struct {
	AllocID, Task string
}

// AllMarks returns the tasks that at least one process of this machine names. With an
// error tasks can be missing.
func AllMarks() (map[Mark]bool, error) {
	marks := map[Mark]bool{}
	err := eachMarked(func(_ keeper.Process, mark Mark) { marks[mark] = true })
	return marks, err
}

// eachMarked calls f with the processes that were started for any task. With an
// error it was not called with all of them.
func eachMarked(f func(keeper.Process, Mark)) error {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("find processes: %w", err)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The start time first: a process that gets the number later has another one.
		p, err := keeper.ProcessOf(pid)
		var env []byte
		if err == nil {
			env, err = os.ReadFile("/proc/" + name.Name() + "/environ") // empty for a zombie
		}
		if err != nil {
			if err := unlessGone(err); err != nil && !errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("find processes: %w", err)
			}
			continue
		}
		if mark, ok := markOf(env); ok {
			f(p, mark)
		}
	}
	return nil
}

// markOf reads the environment of a process in the kernel's form.
func markOf(env []byte) (mark Mark, ok bool) {
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if id, found := bytes.CutPrefix(entry, []byte("NOMAD_ALLOC_ID=")); found {
			mark.AllocID = string(id)
		} else if name, found := bytes.CutPrefix(entry, []byte("NOMAD_TASK_NAME=")); found {
			mark.Task = string(name)
		}
	}
	return mark, mark.AllocID != "" && mark.Task != ""
}
