package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
// cannot be found.
func FindLeftovers(allocID, task string) []keeper.Process {
	var found []keeper.Process
	for _, g := range Cgroups(allocID, task) {
		// The start times are read before the second look into the cgroup, so that none
		// is that of a process that has got the number since.
		processes := map[int]keeper.Process{}
		for _, pid := range g.PIDs() {
			if p, err := keeper.ProcessOf(pid); err == nil {
				processes[pid] = p
			}
		}
		for _, pid := range g.PIDs() {
			if p, ok := processes[pid]; ok && !slices.Contains(found, p) {
				found = append(found, p)
			}
		}
	}
	for _, p := range Marked(allocID, task) {
		if !slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	return found
}

// EndLeftovers kills the processes that FindLeftovers finds, and what they start
// meanwhile, until there is none, and removes the cgroups of the task. It returns
// the processes that it found; their exit statuses are unknown to it. An error
// means that processes may still run, or that cgroups are left, when ctx ended.
//
// The caller makes sure that no driver starts the task at the same time. It may
// be called for a task that has no process.
func EndLeftovers(ctx context.Context, allocID, task string) (ended []keeper.Process, err error) {
	ended = FindLeftovers(allocID, task)
	var errs []error
	groups := Cgroups(allocID, task)
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

// KillMarked kills the processes that [Marked] returns until there is none.
func KillMarked(ctx context.Context, allocID, task string) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 100*time.Millisecond) {
		marked := Marked(allocID, task)
		if len(marked) == 0 {
			return nil
		}
		var errs []error
		for _, p := range marked {
			if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
				errs = append(errs, fmt.Errorf("kill process %d: %w", p.PID, err))
			}
		}
		if len(errs) == len(marked) {
			return errors.Join(errs...) // repeating does not help
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
// does not show to this user are left out.
func Marked(allocID, task string) []keeper.Process {
	var marked []keeper.Process
	for p, mark := range allMarked() {
		if mark == (Mark{allocID, task}) && allocID != "" && task != "" {
			marked = append(marked, p)
		}
	}
	return marked
}

// Mark is what the environment of a task's process says about its task.
type Mark struct {
	AllocID, Task string
}

// AllMarks returns the tasks that at least one process of this machine names.
func AllMarks() map[Mark]bool {
	marks := map[Mark]bool{}
	for _, mark := range allMarked() {
		marks[mark] = true
	}
	return marks
}

// allMarked yields the processes that were started for any task.
func allMarked() func(yield func(keeper.Process, Mark) bool) {
	return func(yield func(keeper.Process, Mark) bool) {
		names, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, name := range names {
			pid, err := strconv.Atoi(name.Name())
			if err != nil || pid == os.Getpid() {
				continue
			}
			// The start time first: a process that gets the number later has another one.
			p, err := keeper.ProcessOf(pid)
			if err != nil {
				continue
			}
			env, err := os.ReadFile("/proc/" + name.Name() + "/environ") // empty for a zombie
			if err != nil {
				continue
			}
			if mark, ok := markOf(env); ok && !yield(p, mark) {
				return
			}
		}
	}
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
