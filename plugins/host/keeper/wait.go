package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// exitWaiter is a wait request that has no response yet.
type exitWaiter struct {
	conn *serverConn
	id   uint64
}

// handleWaitLocked returns the response to a wait request, or nil if the process still runs. Then
// it registers the request, and the response is sent when the process has ended.
func (k *server) handleWaitLocked(c *serverConn, id uint64, p osprocess.ID) *response {
	if len(c.waitRequests) >= maxWaitsPerConn {
		return &response{Error: fmt.Sprintf("more than %d waits on one connection", maxWaitsPerConn)}
	}
	if status, ok := k.exitStatuses.get(p); ok {
		return &response{Status: status}
	}
	fd, err := p.Open()
	if errors.Is(err, os.ErrProcessDone) {
		return &response{Code: codeExitStatusUnknown}
	}
	if err != nil {
		// Without a pidfd, the keeper can only wait for its own children.
		if st, err := osprocess.ReadStat(p.PID); err != nil || st.StartTime != p.StartTime || st.PPID != os.Getpid() {
			return &response{Code: codeExitStatusUnknown}
		}
	}
	k.exitWaiters[p] = append(k.exitWaiters[p], exitWaiter{c, id})
	c.waitRequests[id] = p
	switch {
	case fd == nil:
	case k.watchedPidfds[p] == nil:
		k.watchedPidfds[p] = fd
		k.wg.Go(func() { k.watchProcess(p, fd) })
	default:
		fd.Close()
	}
	return nil
}

// reapChildren reaps every child that has ended and records its exit status.
func (k *server) reapChildren() {
	for {
		k.forkMu.Lock()
		pid, err := nextZombie()
		if err != nil || pid == 0 {
			k.forkMu.Unlock()
			return
		}
		st, statErr := osprocess.ReadStat(pid)
		var waitStatus unix.WaitStatus
		_, err = unix.Wait4(pid, &waitStatus, 0, nil)
		if err == nil && statErr == nil {
			k.recordExit(osprocess.ID{PID: pid, StartTime: st.StartTime}, osprocess.ParseWaitStatus(int(waitStatus)), st.Session == pid)
		}
		k.forkMu.Unlock()
	}
}

// nextZombie returns the pid of a child that has ended, 0 if there is none. It does not reap
// the child.
func nextZombie() (int, error) {
	pid, _, err := osprocess.Waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return pid, err
}

// recordExit records the exit status of a process, and sends it to the waiters.
func (k *server) recordExit(p osprocess.ID, status osprocess.ExitStatus, leader bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spawnedProcs = slices.DeleteFunc(k.spawnedProcs, func(s osprocess.ID) bool { return s == p })
	if fd, found := k.programs[p]; found {
		unix.Close(fd)
		delete(k.programs, p)
	}
	k.exitStatuses.add(p, status, leader)
	k.respondToWaitersLocked(p, response{Status: status})
}

// respondToWaitersLocked sends a response to all waiters of a process.
func (k *server) respondToWaitersLocked(p osprocess.ID, resp response) {
	for _, w := range k.exitWaiters[p] {
		own := resp // a copy for each waiter, because the queued responses have different ids
		own.ID = w.id
		w.conn.queueResponse(&own, nil)
		delete(w.conn.waitRequests, w.id)
	}
	k.removeWaitersLocked(p)
}

// removeWaitersLocked removes all waiters of a process, and closes its pidfd.
func (k *server) removeWaitersLocked(p osprocess.ID) {
	delete(k.exitWaiters, p)
	if fd := k.watchedPidfds[p]; fd != nil {
		fd.Close()
		delete(k.watchedPidfds, p)
	}
}

// watchProcess waits for the end of a process that may not be a child of the keeper: the child of a
// living driver, or a process that an earlier keeper has started. It returns early when the
// last waiter is removed.
func (k *server) watchProcess(p osprocess.ID, fd *osprocess.Pidfd) {
	if err := fd.Wait(context.Background()); err != nil {
		return // Wait has failed because removeWaitersLocked has closed the pidfd
	}

	k.forkMu.Lock() // forkMu: a child that has ended is a zombie in /proc, or its status is recorded
	defer k.forkMu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.exitWaiters[p]) == 0 {
		return
	}
	if st, err := osprocess.ReadStat(p.PID); err == nil && st.StartTime == p.StartTime && st.PPID == os.Getpid() {
		return // the process is a child: reapChildren sends the response
	}
	status, ok := p.ExitStatus(fd)
	if !ok {
		k.respondToWaitersLocked(p, response{Code: codeExitStatusUnknown})
		return
	}
	k.exitStatuses.add(p, status, true)
	k.respondToWaitersLocked(p, response{Status: status})
}

// removeWaiterLocked removes one waiter.
func (k *server) removeWaiterLocked(c *serverConn, id uint64, p osprocess.ID) {
	delete(c.waitRequests, id)
	k.exitWaiters[p] = slices.DeleteFunc(k.exitWaiters[p], func(w exitWaiter) bool { return w == exitWaiter{c, id} })
	if len(k.exitWaiters[p]) == 0 {
		k.removeWaitersLocked(p)
	}
}
