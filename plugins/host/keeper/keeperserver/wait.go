package keeperserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// exitWaiter is a wait request that has no response yet.
type exitWaiter struct {
	conn      *serverConn
	requestID uint64
}

const maxWaitsPerConn = 8192 // maximum number of wait requests without a response per connection

// handleWaitLocked returns the response to a wait request. If the process still runs, it registers the request and
// returns nil; the keeper sends the response when the process has ended.
func (se *server) handleWaitLocked(c *serverConn, requestID uint64, p osprocess.ID) *keeperwire.Response {
	if len(c.procByWaitRequestID) >= maxWaitsPerConn {
		return &keeperwire.Response{Error: fmt.Sprintf("more than %d waits on one connection", maxWaitsPerConn)}
	}
	if status, ok := se.exitStatuses.get(p); ok {
		return &keeperwire.Response{Status: status}
	}
	if se.watchedPidfdByProc[p] == nil {
		if resp := se.startExitWatchLocked(p); resp != nil {
			return resp
		}
	}
	se.exitWaitersByProc[p] = append(se.exitWaitersByProc[p], exitWaiter{c, requestID})
	c.procByWaitRequestID[requestID] = p
	return nil
}

// startExitWatchLocked starts the goroutine that waits until a process has ended. It returns a response if no status of
// the process can become known, or if the keeper lacks descriptors or memory. The caller holds forkMu and mu.
func (se *server) startExitWatchLocked(p osprocess.ID) *keeperwire.Response {
	if se.conns == nil {
		return nil // shutDown has closed the connection: the client sends the request to the next keeper
	}
	fd, err := p.Open()
	if errors.Is(err, os.ErrProcessDone) {
		return &keeperwire.Response{Code: keeperwire.CodeExitStatusUnknown}
	}
	if err == nil {
		se.watchedPidfdByProc[p] = fd
		se.wg.Go(func() { se.waitAndRecordProcessExit(p, fd) })
		return nil
	}
	// The keeper has no pidfd of the process, and can then only wait for its own children.
	st, statErr := osprocess.ReadStat(p.PID)
	switch {
	case statErr == nil && st.StartTime == p.StartTime && st.PPID == os.Getpid():
		return nil
	case osprocess.IsResourceExhausted(err):
		return responseFromErrorOrNil(fmt.Errorf("wait for process %d: %w", p.PID, err))
	}
	return &keeperwire.Response{Code: keeperwire.CodeExitStatusUnknown}
}

// reapChildren reaps every child that has ended and records its exit status. With an error a child stays a zombie,
// because the keeper lacks descriptors or memory to identify it. The caller must then repeat the call. Each error
// satisfies [osprocess.IsResourceExhausted].
func (se *server) reapChildren() error {
	for {
		reaped, err := se.reapChild()
		if err != nil || !reaped {
			return err
		}
	}
}

// reapChild reaps one child that has ended, if there is one, and records its exit status. Each error satisfies
// [osprocess.IsResourceExhausted].
func (se *server) reapChild() (reaped bool, err error) {
	se.forkMu.Lock()
	defer se.forkMu.Unlock()
	pid, err := findZombieChildPID()
	if err != nil || pid == 0 {
		return false, nil
	}
	st, statErr := osprocess.ReadStat(pid)
	if osprocess.IsResourceExhausted(statErr) {
		return false, statErr
	}
	isSessionLeader := st.Session == pid && st.Executed // a fork whose execve(2) has failed is no process of a task
	var cgroup string
	if isSessionLeader {
		cgroup, err = osprocess.CgroupV2Of(pid)
		if osprocess.IsResourceExhausted(err) {
			return false, err
		}
	}
	var waitStatus unix.WaitStatus
	_, err = unix.Wait4(pid, &waitStatus, 0, nil)
	if err == nil && statErr == nil {
		exit := recordedExit{osprocess.ParseWaitStatus(int(waitStatus)), strings.Clone(cgroup)} // a clone, because cgroup is a part of a longer text
		se.recordExitAndNotifyWaiters(osprocess.ID{PID: pid, StartTime: st.StartTime}, exit, isSessionLeader)
	}
	return true, nil
}

// endedSessionLeaders returns the response with the session leaders whose exit the keeper has recorded, and that were not
// started before startTime.
func (se *server) endedSessionLeaders(startTime uint64) *keeperwire.Response {
	if err := se.reapChildren(); err != nil {
		return responseFromErrorOrNil(err)
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	leaders := &se.exitStatuses.sessionLeaders
	resp := &keeperwire.Response{CompleteSince: leaders.completeSince, KeeperPID: os.Getpid()}
	for p, exit := range leaders.exitByProc {
		if p.StartTime >= startTime {
			resp.EndedProcesses = append(resp.EndedProcesses, keeperwire.EndedProcess{Process: p, Cgroup: exit.cgroup})
		}
	}
	return resp
}

// findZombieChildPID returns the pid of a child that has ended and was not reaped, or 0 if there is none. It does not
// reap the child.
func findZombieChildPID() (int, error) {
	pid, _, err := osprocess.Waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return pid, err
}

// recordExitAndNotifyWaiters records the exit status of a process, and sends it to the waiters.
func (se *server) recordExitAndNotifyWaiters(p osprocess.ID, exit recordedExit, isSessionLeader bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.spawnedProcs = slices.DeleteFunc(se.spawnedProcs, func(s osprocess.ID) bool { return s == p })
	if fd, found := se.executableFDByProc[p]; found {
		unix.Close(fd)
		delete(se.executableFDByProc, p)
	}
	se.exitStatuses.add(p, exit, isSessionLeader)
	se.respondToWaitersAndUnwatchLocked(p, keeperwire.Response{Status: exit.status})
}

// respondToWaitersAndUnwatchLocked sends a response to all wait requests for a process that has ended, removes the
// requests, and closes the pidfd of the process.
func (se *server) respondToWaitersAndUnwatchLocked(p osprocess.ID, resp keeperwire.Response) {
	for _, w := range se.exitWaitersByProc[p] {
		own := resp // a copy for each waiter, because the queued responses have different ids
		own.ID = w.requestID
		w.conn.queueResponse(&own, nil)
		delete(w.conn.procByWaitRequestID, w.requestID)
	}
	delete(se.exitWaitersByProc, p)
	if fd := se.watchedPidfdByProc[p]; fd != nil {
		fd.Close()
		delete(se.watchedPidfdByProc, p)
	}
}

// waitAndRecordProcessExit waits until a process has ended, records its exit status, and sends the responses to the
// wait requests for it. The process need not be a child of the keeper: it can be the child of a living driver, or a
// process that an earlier keeper has started. waitAndRecordProcessExit continues when no client waits any longer: if a
// driver is killed before the process ends, the next driver waits for the same process, perhaps after its end.
func (se *server) waitAndRecordProcessExit(p osprocess.ID, fd *osprocess.Pidfd) {
	if err := fd.Wait(context.Background()); err != nil {
		return // Wait has failed because recordExitAndNotifyWaiters or shutDown has closed the pidfd
	}
	for !se.tryRecordWatchedExit(p, fd) {
		time.Sleep(exhaustedRetryDelay)
	}
}

// tryRecordWatchedExit records the exit status of a watched process that has ended, and sends the responses to the wait
// requests for it. It returns false if it must be called again, because the keeper lacks descriptors or memory.
func (se *server) tryRecordWatchedExit(p osprocess.ID, fd *osprocess.Pidfd) bool {
	// While forkMu is locked, an ended child of the keeper either is a zombie in /proc, or has a recorded status.
	se.forkMu.Lock()
	defer se.forkMu.Unlock()
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.watchedPidfdByProc[p] != fd || se.conns == nil {
		return true // recordExitAndNotifyWaiters has sent the response, or shutDown has closed the connections
	}
	st, err := osprocess.ReadStat(p.PID)
	switch {
	case osprocess.IsResourceExhausted(err):
		return false
	case err == nil && st.StartTime == p.StartTime && st.PPID == os.Getpid():
		return true // the process is a child: reapChildren sends the response
	}
	resp := keeperwire.Response{}
	var known bool
	if resp.Status, known = p.ExitStatus(fd); known {
		se.exitStatuses.add(p, recordedExit{status: resp.Status}, true)
	} else {
		resp.Code = keeperwire.CodeExitStatusUnknown
	}
	se.respondToWaitersAndUnwatchLocked(p, resp)
	return true
}

// removeWaiterLocked removes the wait request of a connection with the given request ID.
func (se *server) removeWaiterLocked(c *serverConn, requestID uint64, p osprocess.ID) {
	delete(c.procByWaitRequestID, requestID)
	se.exitWaitersByProc[p] = slices.DeleteFunc(se.exitWaitersByProc[p], func(w exitWaiter) bool { return w == exitWaiter{c, requestID} })
	if len(se.exitWaitersByProc[p]) == 0 {
		delete(se.exitWaitersByProc, p)
	}
}
