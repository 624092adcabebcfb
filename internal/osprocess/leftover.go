//go:build linux

package osprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// findLeftovers returns the processes of a task: those in its cgroups groups, and those whose environment names the task,
// which are also in foundByEnv. It omits zombies and the calling process. A process that has left the cgroup and has changed its
// environment cannot be found. With an error processes can be missing, because this process could not read the kernel's data: see
// [IsResourceExhausted].
func findLeftovers(groups []Cgroup, allocID, task string) (leftovers, foundByEnv []ID, err error) {
	var errs []error
	for _, g := range groups {
		processes, err := g.processes()
		errs = append(errs, err)
		for _, p := range processes {
			if !slices.Contains(leftovers, p) {
				leftovers = append(leftovers, p)
			}
		}
	}
	foundByEnv, err = FindByTaskEnv(allocID, task)
	errs = append(errs, err)
	for _, p := range foundByEnv {
		if !slices.Contains(leftovers, p) {
			leftovers = append(leftovers, p)
		}
	}
	return leftovers, foundByEnv, errors.Join(errs...)
}

// EndLeftovers kills the processes that findLeftovers finds, and the processes that
// they start meanwhile, until there is none. Then it removes the cgroups of the task.
// It returns the processes that it has found; their exit statuses are unknown. An error
// means that processes may still run, or that cgroups were not removed: ctx has ended, or this
// process could not find or kill all processes. The caller must then repeat the call.
//
// The caller must ensure that no driver starts the task at the same time. EndLeftovers
// may be called for a task without processes.
func EndLeftovers(ctx context.Context, allocID, task string) (ended []ID, err error) {
	groups, err := TaskCgroups(allocID, task)
	errs := []error{err}
	ended, foundByEnv, findErr := findLeftovers(groups, allocID, task)
	errs = append(errs, findErr)
	for _, g := range groups {
		errs = append(errs, g.Kill(ctx))
	}
	if len(foundByEnv) > 0 || findErr != nil { // otherwise all processes of the task were in its cgroups, and are killed
		errs = append(errs, KillByTaskEnv(ctx, allocID, task))
	}
	if err := errors.Join(errs...); err != nil {
		return ended, err
	}
	for _, g := range groups {
		errs = append(errs, g.Remove())
	}
	return ended, errors.Join(errs...)
}

// KillByTaskEnv kills the processes that [FindByTaskEnv] returns until there is none. With an
// error processes can still run.
func KillByTaskEnv(ctx context.Context, allocID, task string) error {
	if err := killUntilNone(ctx, func() ([]ID, error) { return FindByTaskEnv(allocID, task) }); err != nil {
		return fmt.Errorf("end processes of task %q: %w", task, err)
	}
	return nil
}

// KillByEnv kills the processes that were started with the variable "NAME=value" in their environment until there is none,
// except the calling process and processes whose environment this user may not read. With an error processes can still run.
func KillByEnv(ctx context.Context, variable string) error {
	return killByEnv(ctx, func(_ ID, entry string) bool { return entry == variable })
}

// KillByAllocEnv kills the processes with the id of one of the allocations in their environment, as KillByEnv does, except those whose
// environment another account can have chosen.
func KillByAllocEnv(ctx context.Context, includesAlloc func(allocID string) bool) error {
	return killByEnv(ctx, func(p ID, entry string) bool {
		allocID, ok := strings.CutPrefix(entry, allocIDVariable)
		return ok && includesAlloc(allocID) && isEnvTrusted(p.PID, isOwnParent)
	})
}

func killByEnv(ctx context.Context, matches func(p ID, entry string) bool) error {
	return killUntilNone(ctx, func() (found []ID, err error) {
		err = forEachEnv(func(p ID, env []byte) {
			for entry := range bytes.SplitSeq(env, []byte{0}) {
				if matches(p, string(entry)) {
					found = append(found, p)
					return
				}
			}
		})
		return found, err
	})
}

const allocIDVariable = "NOMAD_ALLOC_ID="

// killUntilNone kills the processes that find returns until there is none.
func killUntilNone(ctx context.Context, find func() ([]ID, error)) error {
	for delay := time.Millisecond; ; delay = min(2*delay, 100*time.Millisecond) {
		found, err := find()
		if err == nil && len(found) == 0 {
			return nil
		}
		var errs []error
		for _, p := range found {
			if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
				errs = append(errs, fmt.Errorf("kill process %d: %w", p.PID, err))
			}
		}
		if err != nil || len(errs) == len(found) {
			return errors.Join(append(errs, err)...) // a retry would fail too
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// FindByTaskEnv returns the processes, in any cgroup, whose environment contains the
// allocation id and the name of a task. It omits the calling process, and processes whose
// environment this user may not read. With an error processes can be missing. It reads the
// environments of all processes, and concurrent callers share one read.
func FindByTaskEnv(allocID, task string) ([]ID, error) {
	if allocID == "" || task == "" {
		return nil, nil
	}
	scan := taskEnvScans.scan()
	return slices.Clone(scan.processesByTask[TaskEnvID{allocID, task}]), scan.err
}

// TaskEnvID identifies a task by the variables in the environment of its processes.
type TaskEnvID struct {
	AllocID, Task string
}

// AllTaskEnvIDs returns the tasks of all processes of this machine that have a task's
// variables in their environment. With an error tasks can be missing.
func AllTaskEnvIDs() (map[TaskEnvID]bool, error) {
	scan := taskEnvScans.scan()
	ids := make(map[TaskEnvID]bool, len(scan.processesByTask))
	for id := range scan.processesByTask {
		ids[id] = true
	}
	return ids, scan.err
}

// ReadArgs reads a process's arguments, each with a zero byte at its end.
func ReadArgs(pid int) ([]byte, error) {
	return os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
}

// ReadEnv reads the environment that a process was started with, in the kernel's format: each
// variable ends with a zero byte. For a zombie it is empty, or the error is ESRCH.
func ReadEnv(pid int) ([]byte, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	env, err := os.ReadFile(dir + "/environ")
	if len(env) > 0 || err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrPermission) {
		return env, err
	}
	if err == nil {
		switch st, statErr := waitExecuted(pid); {
		case statErr != nil || st.Threads <= 1 && st.memory == 0:
			return nil, nil // the process has ended, or is a thread of the kernel
		case st.Threads <= 1:
			return os.ReadFile(dir + "/environ")
		}
	}
	// If the first thread has exited before the others, its file is empty, cannot be opened (ESRCH), or
	// belongs to root: another thread has the environment.
	threads, dirErr := os.ReadDir(dir + "/task")
	if dirErr != nil || len(threads) < 2 {
		return nil, err
	}
	for _, thread := range threads {
		if thread.Name() == strconv.Itoa(pid) {
			continue
		}
		env, err := os.ReadFile(dir + "/task/" + thread.Name() + "/environ")
		if err == nil && len(env) > 0 || errors.Is(err, fs.ErrPermission) {
			return env, err // this user may not read the environment of any thread
		}
	}
	return os.ReadFile(dir + "/environ") // the other threads have ended: the first one now executes another program
}

// waitExecuted blocks while the kernel executes a program in a process, and returns the status of the process. The process
// has no environment in these microseconds, although its parent may already know that execve(2) has succeeded. waitExecuted
// polls, because no descriptor reports the end of execve(2), and blocks for a tenth of a second at most.
func waitExecuted(pid int) (st Stat, err error) {
	for range 1000 {
		if st, err = ReadStat(pid); err != nil || st.memory == 0 || st.codeStart != 0 {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	return st, err
}

// parseTaskEnvID parses the environment of a process in the kernel's format.
func parseTaskEnvID(env []byte) (id TaskEnvID, ok bool) {
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if allocID, found := bytes.CutPrefix(entry, []byte(allocIDVariable)); found {
			id.AllocID = string(allocID)
		} else if name, found := bytes.CutPrefix(entry, []byte("NOMAD_TASK_NAME=")); found {
			id.Task = string(name)
		}
	}
	return id, id.AllocID != "" && id.Task != ""
}
