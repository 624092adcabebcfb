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
	conn      *serverConn
	requestID uint64
}

// handleWaitLocked returns the response to a wait request. If the process still runs, it registers the request and
// returns nil; the keeper sends the response when the process has ended.
func (se *server) handleWaitLocked(c *serverConn, id uint64, p osprocess.ID) *response {
	if len(c.procByWaitRequestID) >= maxWaitsPerConn {
		return &response{Error: fmt.Sprintf("more than %d waits on one connection", maxWaitsPerConn)}
	}
	if status, ok := se.exitStatuses.get(p); ok {
		return &response{Status: status}
	}
	fd, err := p.Open()
	if errors.Is(err, os.ErrProcessDone) {
		return &response{Code: codeExitStatusUnknown}
	}
	if err != nil {
		// The keeper has no pidfd of the process, and can then only wait for its own children.
		if st, err := osprocess.ReadStat(p.PID); err != nil || st.StartTime != p.StartTime || st.PPID != os.Getpid() {
			return &response{Code: codeExitStatusUnknown}
		}
	}
	se.exitWaiters[p] = append(se.exitWaiters[p], exitWaiter{c, id})
	c.procByWaitRequestID[id] = p
	switch {
	case fd == nil:
	case se.watchedPidfds[p] == nil:
		se.watchedPidfds[p] = fd
		se.wg.Go(func() { se.watchProcess(p, fd) })
	default:
		fd.Close()
	}
	return nil
}

// reapChildren reaps every child that has ended and records its exit status.
func (se *server) reapChildren() {
	for {
		se.forkMu.Lock()
		pid, err := findZombieChild()
		if err != nil || pid == 0 {
			se.forkMu.Unlock()
			return
		}
		st, statErr := osprocess.ReadStat(pid)
		var waitStatus unix.WaitStatus
		_, err = unix.Wait4(pid, &waitStatus, 0, nil)
		if err == nil && statErr == nil {
			se.recordExit(osprocess.ID{PID: pid, StartTime: st.StartTime}, osprocess.ParseWaitStatus(int(waitStatus)), st.Session == pid)
		}
		se.forkMu.Unlock()
	}
}

// findZombieChild returns the pid of a child that has ended and was not reaped, or 0 if there is none. It does not
// reap the child.
func findZombieChild() (int, error) {
	pid, _, err := osprocess.Waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return pid, err
}

// recordExit records the exit status of a process, and sends it to the waiters.
func (se *server) recordExit(p osprocess.ID, status osprocess.ExitStatus, isSessionLeader bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.spawnedProcs = slices.DeleteFunc(se.spawnedProcs, func(s osprocess.ID) bool { return s == p })
	if fd, found := se.executableFDs[p]; found {
		unix.Close(fd)
		delete(se.executableFDs, p)
	}
	se.exitStatuses.add(p, status, isSessionLeader)
	se.respondToWaitersLocked(p, response{Status: status})
}

// respondToWaitersLocked sends a response to all wait requests for a process, and removes the requests.
func (se *server) respondToWaitersLocked(p osprocess.ID, resp response) {
	for _, w := range se.exitWaiters[p] {
		own := resp // a copy for each waiter, because the queued responses have different ids
		own.ID = w.requestID
		w.conn.queueResponse(&own, nil)
		delete(w.conn.procByWaitRequestID, w.requestID)
	}
	se.removeWaitersLocked(p)
}

// removeWaitersLocked removes all wait requests for a process, and closes the pidfd of the process.
func (se *server) removeWaitersLocked(p osprocess.ID) {
	delete(se.exitWaiters, p)
	if fd := se.watchedPidfds[p]; fd != nil {
		fd.Close()
		delete(se.watchedPidfds, p)
	}
}

// watchProcess waits until a process has ended, and sends the responses to the wait requests for it. The process
// need not be a child of the keeper: it can be the child of a living driver, or a process that an earlier keeper has
// started. watchProcess returns early when the last wait request for the process is removed.
func (se *server) watchProcess(p osprocess.ID, fd *osprocess.Pidfd) {
	if err := fd.Wait(context.Background()); err != nil {
		return // Wait has failed because removeWaitersLocked has closed the pidfd
	}

	// While forkMu is locked, an ended child of the keeper either is a zombie in /proc, or has a recorded status.
	se.forkMu.Lock()
	defer se.forkMu.Unlock()
	se.mu.Lock()
	defer se.mu.Unlock()
	if len(se.exitWaiters[p]) == 0 {
		return
	}
	if st, err := osprocess.ReadStat(p.PID); err == nil && st.StartTime == p.StartTime && st.PPID == os.Getpid() {
		return // the process is a child: reapChildren sends the response
	}
	status, ok := p.ExitStatus(fd)
	if !ok {
		se.respondToWaitersLocked(p, response{Code: codeExitStatusUnknown})
		return
	}
	se.exitStatuses.add(p, status, true)
	se.respondToWaitersLocked(p, response{Status: status})
}

// removeWaiterLocked removes the wait request of a connection with the given request ID.
func (se *server) removeWaiterLocked(c *serverConn, id uint64, p osprocess.ID) {
	delete(c.procByWaitRequestID, id)
	se.exitWaiters[p] = slices.DeleteFunc(se.exitWaiters[p], func(w exitWaiter) bool { return w == exitWaiter{c, id} })
	if len(se.exitWaiters[p]) == 0 {
		se.removeWaitersLocked(p)
	}
}
