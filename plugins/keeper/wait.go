package keeper

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// waiter is a wait request without a response.
type waiter struct {
	conn *serverConn
	id   uint64
}

// waitLocked returns the response to a wait request, or nil if it has registered the request:
// then the response is sent later.
func (k *server) waitLocked(c *serverConn, id uint64, p Process) *response {
	if len(c.waits) >= maxWaiting {
		return &response{Error: fmt.Sprintf("more than %d waits on one connection", maxWaiting)}
	}
	if status, ok := k.known.get(p); ok {
		return &response{Status: status}
	}
	fd, err := p.open()
	if errors.Is(err, os.ErrProcessDone) {
		return &response{Code: codeUnknown}
	}
	if err != nil {
		// Without a pidfd, only the end of a child is certain to be noticed.
		if st, err := readStat(p.PID); err != nil || st.start != p.StartTime || st.ppid != os.Getpid() {
			return &response{Code: codeUnknown}
		}
	}
	k.waiters[p] = append(k.waiters[p], waiter{c, id})
	c.waits[id] = p
	switch {
	case fd < 0:
	case k.watches[p] == nil:
		f := os.NewFile(uintptr(fd), "pidfd")
		k.watches[p] = f
		k.wg.Go(func() { k.watch(p, f) })
	default:
		unix.Close(fd)
	}
	return nil
}

// reap reaps every child that has ended and records its exit status.
func (k *server) reap() {
	for {
		k.forkMu.Lock()
		pid, err := nextZombie()
		if err != nil || pid == 0 {
			k.forkMu.Unlock()
			return
		}
		st, statErr := readStat(pid)
		var word unix.WaitStatus
		_, err = unix.Wait4(pid, &word, 0, nil)
		if err == nil && statErr == nil {
			k.ended(Process{PID: pid, StartTime: st.start}, statusOf(int(word)), st.session == pid)
		}
		k.forkMu.Unlock()
	}
}

// nextZombie returns the pid of a child that has ended, 0 if there is none. It does not reap
// the child.
func nextZombie() (int, error) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return siginfoPID(&info), err
		}
	}
}

// ended records the status of p and answers the waiters of p.
func (k *server) ended(p Process, status Status, leader bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spawned = slices.DeleteFunc(k.spawned, func(s Process) bool { return s == p })
	k.known.add(p, status, leader)
	k.answerWaitsLocked(p, response{Status: status})
}

// answerWaitsLocked sends the same response to all waiters of p.
func (k *server) answerWaitsLocked(p Process, resp response) {
	for _, w := range k.waiters[p] {
		own := resp // copied: each waiter's response has its own id and stays queued
		own.ID = w.id
		w.conn.answer(&own, nil)
		delete(w.conn.waits, w.id)
	}
	k.forgetWaitsLocked(p)
}

// forgetWaitsLocked removes the waiters of p and closes its pidfd.
func (k *server) forgetWaitsLocked(p Process) {
	delete(k.waiters, p)
	if f := k.watches[p]; f != nil {
		f.Close()
		delete(k.watches, p)
	}
}

// watch waits for the end of a process that may not be a child of the keeper: the child of a
// living driver, or a process that an earlier keeper has started. It returns early when the
// last waiter is removed.
func (k *server) watch(p Process, f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	if err != nil {
		return // forgetWaitsLocked has closed the pidfd
	}

	k.forkMu.Lock() // a child is either still in /proc or its status is recorded
	defer k.forkMu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.waiters[p]) == 0 {
		return
	}
	if st, err := readStat(p.PID); err == nil && st.start == p.StartTime && st.ppid == os.Getpid() {
		return // reap sends the response
	}
	var status Status
	ok := false
	if err := raw.Control(func(fd uintptr) { status, ok = exited(p, int(fd)) }); err != nil || !ok {
		k.answerWaitsLocked(p, response{Code: codeUnknown})
		return
	}
	k.known.add(p, status, true)
	k.answerWaitsLocked(p, response{Status: status})
}

// unwaitLocked removes one waiter.
func (k *server) unwaitLocked(c *serverConn, id uint64, p Process) {
	delete(c.waits, id)
	k.waiters[p] = slices.DeleteFunc(k.waiters[p], func(w waiter) bool { return w == waiter{c, id} })
	if len(k.waiters[p]) == 0 {
		k.forgetWaitsLocked(p)
	}
}

// siginfoPID returns si_pid, which follows three 32-bit numbers, aligned like a pointer.
func siginfoPID(info *unix.Siginfo) int {
	const offset = (12 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}
