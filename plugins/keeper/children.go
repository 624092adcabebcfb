package keeper

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hasChildren reports whether this process has children, zombies included.
func hasChildren() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return !errors.Is(err, unix.ECHILD)
}

// children lists the children of this process.
func children() []int {
	return childrenOf(os.Getpid())
}

// childrenOf lists the children of the process parent.
func childrenOf(parent int) []int {
	var pids []int
	dir := "/proc/" + strconv.Itoa(parent) + "/task"
	tasks, _ := os.ReadDir(dir)
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			return scanChildren(parent) // a kernel without CONFIG_PROC_CHILDREN, or a thread that ended just now
		}
		for _, field := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func scanChildren(parent int) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil && st.ppid == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parents returns the keeper and the processes that it has started on request, as far as
// another process, which the keeper has not started on request, runs below them. That other
// process can be a task. Processes that have ended are not counted.
func (k *server) parents() []Process {
	k.forkMu.Lock() // a child that is being started is not recorded yet
	defer k.forkMu.Unlock()
	k.mu.Lock()
	own := append([]Process{k.self}, k.spawned...)
	own = append(own, k.managedProcs...)
	k.mu.Unlock()
	started := make(map[int]bool, len(own))
	for _, p := range own {
		started[p.PID] = p.Alive()
	}
	var parents []Process
	for _, p := range own {
		if !started[p.PID] {
			continue
		}
		if slices.ContainsFunc(childrenOf(p.PID), func(pid int) bool { return !started[pid] && runs(pid) }) {
			parents = append(parents, p)
		}
	}
	return parents
}

// runs reports whether a process has not ended. A process of another user that /proc does not
// show counts as running.
func runs(pid int) bool {
	st, err := readStat(pid)
	if err != nil {
		return !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
	}
	return st.state != 'Z' && st.state != 'X'
}

// killDescendants kills every process below this one and reaps it. The children of a killed
// process are reparented to this process, so killDescendants repeats until no child is left. A
// child of another user that this process may not kill is left alone.
func killDescendants() {
	for {
		killed := 0
		for _, pid := range children() {
			if unix.Kill(pid, unix.SIGKILL) == nil {
				killed++
				unfreezeCgroup(strconv.Itoa(pid))
			}
		}
		var word unix.WaitStatus
		flags := 0
		if killed == 0 {
			flags = unix.WNOHANG
		}
		pid, err := unix.Wait4(-1, &word, flags, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return // ECHILD
		case pid == 0 && len(children()) > 0:
			return // only children of other users are left
		}
	}
}

// killTree kills a process that is not a child of this one, and its descendants. It stops each
// process before it lists the children, so that the process cannot fork meanwhile.
func killTree(p Process) {
	if p.Signal(unix.SIGSTOP) != nil {
		return
	}
	for _, pid := range childrenOf(p.PID) {
		if child, err := ProcessOf(pid); err == nil {
			killTree(child)
		}
	}
	_ = p.Signal(unix.SIGKILL)
}
