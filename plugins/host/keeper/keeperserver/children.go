package keeperserver

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// hasChildren reports whether this process has children, zombies included.
func hasChildren() bool {
	_, _, err := osprocess.Waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return !errors.Is(err, unix.ECHILD)
}

// processesThatMayHaveTasks returns the keeper's own processes (itself, spawned, adopted) with a living child that is not an own
// process: the child may be a task. Each error satisfies [osprocess.IsResourceExhausted].
func (se *server) processesThatMayHaveTasks() ([]osprocess.ID, error) {
	se.forkMu.Lock() // without forkMu, spawnedProcs could lack a child that has just been forked
	defer se.forkMu.Unlock()
	se.mu.Lock()
	// The keeper is the last, because it becomes the parent of the children of a process that exits meanwhile.
	own := slices.Concat(se.spawnedProcs, se.adoptedProcs, []osprocess.ID{se.hello.Process})
	se.mu.Unlock()
	started := make(map[int]bool, len(own))
	for _, p := range own {
		started[p.PID] = p.Alive()
	}
	var parents []osprocess.ID
	for _, p := range own {
		if !started[p.PID] {
			continue
		}
		children, err := osprocess.Children(p.PID)
		if err != nil {
			return nil, fmt.Errorf("children of process %d: %w", p.PID, err)
		}
		if slices.ContainsFunc(children, func(pid int) bool { return !started[pid] && isAlive(pid) }) {
			parents = append(parents, p)
		}
	}
	return parents, nil
}

// isAlive reports whether a process has not ended. A process of another user that /proc does not
// show counts as running.
func isAlive(pid int) bool {
	st, err := osprocess.ReadStat(pid)
	if err != nil {
		return !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
	}
	return !st.Ended()
}

// childrenWithRetry returns the pids of the children of a process. It blocks as long as the keeper has no resources to read them.
func childrenWithRetry(pid int) []int {
	for {
		children, err := osprocess.Children(pid)
		if err == nil {
			return children
		}
		time.Sleep(exhaustedRetryDelay)
	}
}

// killAndReapDescendants kills every process below this one and reaps it. The children of a killed
// process are reparented to this process, so killAndReapDescendants repeats until no child is left. A
// child of another user that this process may not kill is left alone.
func killAndReapDescendants() {
	for {
		killed := 0
		for _, pid := range childrenWithRetry(os.Getpid()) {
			if unix.Kill(pid, unix.SIGKILL) == nil {
				killed++
				osprocess.UnfreezeCgroupV1Of(strconv.Itoa(pid))
			}
		}
		var waitStatus unix.WaitStatus
		flags := 0
		if killed == 0 {
			flags = unix.WNOHANG
		}
		pid, err := unix.Wait4(-1, &waitStatus, flags, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return // ECHILD
		case pid == 0 && len(childrenWithRetry(os.Getpid())) > 0:
			return // the remaining children belong to other users, and cannot be killed
		}
	}
}

// killProcessTree kills a process that is not a child of this process, and the descendants of that process. It sends
// SIGSTOP to each process before it lists the children, so that the process cannot fork meanwhile.
func killProcessTree(p osprocess.ID) {
	if p.Signal(unix.SIGSTOP) != nil {
		return
	}
	for _, pid := range childrenWithRetry(p.PID) {
		if child, err := osprocess.LookupID(pid); err == nil {
			killProcessTree(child)
		}
	}
	_ = p.Signal(unix.SIGKILL) // the process can have exited
}
