package launch

import (
	"context"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// processHandle refers to a process that need not be a child of this process. It never refers to
// a later process with the same pid.
type processHandle struct {
	osprocess.ID
	pidfd *osprocess.Pidfd // nil if the process had exited before the pidfd could be opened
	done  chan struct{}    // closed by waitAndCloseDone when the process has exited
}

// openProcessHandle opens a process, which may be a zombie. The error is os.ErrProcessDone if the
// process no longer exists.
func openProcessHandle(id osprocess.ID) (*processHandle, error) {
	pidfd, err := id.Open()
	if err != nil {
		return nil, err
	}
	return &processHandle{ID: id, pidfd: pidfd, done: make(chan struct{})}, nil
}

// newEndedProcessHandle returns a handle of a process that ended before it could be opened.
func newEndedProcessHandle(id osprocess.ID) *processHandle {
	return &processHandle{ID: id, done: make(chan struct{})}
}

// waitAndCloseDone blocks until the process has exited, closes done and returns true. It returns false, and does not
// close done, if close is called before the process has exited.
func (h *processHandle) waitAndCloseDone() bool {
	if h.pidfd != nil && h.pidfd.Wait(context.Background()) != nil {
		return false
	}
	close(h.done)
	return true
}

func (h *processHandle) kill() {
	if h.pidfd != nil {
		_ = h.pidfd.Signal(unix.SIGKILL) // Signal fails only if the process has ended
	}
}

// killSession kills the process and the processes in its session. It is only for a failed
// launch, when no task can be running.
func (h *processHandle) killSession() {
	h.kill()
	all, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	// The kernel does not reuse a session id while the session has a member, so all members
	// belong to the plugin, even if the session leader has ended.
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == h.PID || !inSession(pid, h.PID) {
			continue
		}
		member, err := osprocess.LookupID(pid)
		if err == nil && member.StartTime >= h.StartTime && inSession(pid, h.PID) {
			_ = member.Signal(unix.SIGKILL) // Signal fails only if the process has ended
		}
	}
}

func inSession(pid, session int) bool {
	sid, err := unix.Getsid(pid)
	return err == nil && sid == session
}

func (h *processHandle) close() {
	if h.pidfd != nil {
		h.pidfd.Close()
	}
}
