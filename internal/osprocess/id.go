//go:build linux

package osprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// ID identifies one process uniquely until the next boot: the kernel reuses pids, but not a
// pid with the same start time.
type ID struct {
	PID       int
	StartTime uint64 // field 22 of /proc/<pid>/stat
}

// LookupID returns the process that has this pid now, which may be a zombie. The error is
// os.ErrProcessDone if there is none.
func LookupID(pid int) (ID, error) {
	st, err := ReadStat(pid)
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, StartTime: st.StartTime}, nil
}

// Alive reports whether the process exists and is not a zombie. A process whose state cannot
// be read counts as alive: see [IsResourceExhausted].
func (i ID) Alive() bool {
	st, err := ReadStat(i.PID)
	if err != nil {
		return !errors.Is(err, os.ErrProcessDone)
	}
	return st.StartTime == i.StartTime && !st.Ended()
}

// userHz is the number of units of StartTime in a second. It is the same on all kernels.
const userHz = 100

// StartedAt returns the time at which the process started, with a precision of 10 ms. If the clock of the machine was
// set since then, the time is that of the clock as it is set now. If the clock since boot cannot be read, it returns the
// zero time.
func (i ID) StartedAt() time.Time {
	var sinceBoot unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot) != nil {
		return time.Time{}
	}
	age := time.Duration(sinceBoot.Nano()) - time.Duration(i.StartTime)*time.Second/userHz
	return time.Now().Add(-age).Truncate(time.Second / userHz)
}

// StartTimeNow returns the StartTime of a process that starts now; 0 if the machine's clocks cannot be read.
func StartTimeNow() uint64 {
	var sinceBoot unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot) != nil {
		return 0
	}
	return uint64(time.Duration(sinceBoot.Nano()) / (time.Second / userHz))
}

// LastPID returns the pid that the kernel has given to the latest process or thread in the pid namespace of this process;
// 0 if the kernel does not show it (CONFIG_CHECKPOINT_RESTORE).
func LastPID() int {
	// os.ReadFile takes three times as long, and each start of a task calls LastPID.
	fd, err := unix.Open("/proc/sys/kernel/ns_last_pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	buffer := make([]byte, 32)
	n, err := unix.Read(fd, buffer)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(string(bytes.TrimSpace(buffer[:n]))) // 0 if the text is no number
	return pid
}

// maxPIDDistance is less than half of the smallest number of pids that the kernel is configured with (PID_MAX_DEFAULT).
const maxPIDDistance = 1 << 14

// IsEarlierPID reports whether the kernel gave the pid a before the pid b, if it gave both within a tick of
// ID.StartTime. It gives pids in ascending order, and continues with low ones after the highest.
func IsEarlierPID(a, b int) bool { return (a < b) == (max(a, b)-min(a, b) < maxPIDDistance) }

// SameExecutable reports whether the process executes this file, or a file with the same
// content. It compares open files, so their paths may have been removed or replaced. The
// error is os.ErrProcessDone if the process no longer exists, and fs.ErrPermission if the process is
// not dumpable, or belongs to another user, and this process lacks CAP_SYS_PTRACE.
func (i ID) SameExecutable(file *os.File) (bool, error) {
	running, err := os.Open("/proc/" + strconv.Itoa(i.PID) + "/exe")
	if err != nil {
		if !i.Alive() {
			return false, os.ErrProcessDone
		}
		return false, fmt.Errorf("program of process %d: %w", i.PID, err)
	}
	defer running.Close()
	// Alive is checked after the open: otherwise the file could belong to a later process
	// with the same pid.
	if !i.Alive() {
		return false, os.ErrProcessDone
	}
	return SameContent(running, file)
}

// SameContent reports whether two open files are one file, or have the same content.
func SameContent(a, b *os.File) (bool, error) {
	infoA, err := a.Stat()
	if err != nil {
		return false, err
	}
	infoB, err := b.Stat()
	if err != nil {
		return false, err
	}
	if os.SameFile(infoA, infoB) {
		return true, nil
	}
	if infoA.Size() != infoB.Size() {
		return false, nil
	}
	return filesEqual(a, b)
}

func filesEqual(a, b *os.File) (bool, error) {
	const compareBufferSize = 256 << 10
	bufA, bufB := make([]byte, compareBufferSize), make([]byte, compareBufferSize)
	for offset := int64(0); ; offset += compareBufferSize {
		n, errA := a.ReadAt(bufA, offset)
		m, errB := b.ReadAt(bufB, offset)
		if n != m || !bytes.Equal(bufA[:n], bufB[:m]) {
			return false, nil
		}
		if errA == io.EOF && errB == io.EOF {
			return true, nil
		}
		if err := errors.Join(errA, errB); err != nil {
			return false, err
		}
	}
}

// Signal sends a signal to this process, and never to a later process with the same pid.
// The error is os.ErrProcessDone if the process no longer exists.
func (i ID) Signal(sig unix.Signal) error {
	f, err := i.Open()
	if err == nil {
		defer f.Close()
		return f.Signal(sig)
	}
	if errors.Is(err, os.ErrProcessDone) {
		return err
	}
	// The kernel has no pidfds, or a seccomp filter denies them. The start time is then compared before
	// the kill, and in the short time between both the kernel could reuse the pid.
	if err := i.checkAlive(); err != nil {
		return err
	}
	if err := unix.Kill(i.PID, sig); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return os.ErrProcessDone
}

// ErrStillRunning means that a process has not ended ten seconds after it was killed, for example because it waits for a
// disk.
var ErrStillRunning = errors.New("does not end although it was killed")

// KillAndWait kills a process and blocks until it has ended, at most ten seconds: then it returns ErrStillRunning. If ctx
// ends before, it returns the cause.
func (i ID) KillAndWait(ctx context.Context) error {
	if err := i.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", i.PID, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("process %d %w", i.PID, ErrStillRunning))
	defer cancel()
	return i.WaitEnd(ctx)
}

// WaitEnd blocks until the process has ended, or until ctx ends: then it returns context.Cause(ctx). A zombie has ended.
func (i ID) WaitEnd(ctx context.Context) error {
	f, err := i.Open()
	if err == nil {
		defer f.Close()
		err = f.Wait(ctx)
	}
	for err != nil && i.Alive() { // the wait was cancelled, or this process can open no pidfd
		if err := wait.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// KillSession kills a process that was started in a session of its own, and the other processes in the session, also if the
// process has ended. If the process has ended long ago, the kernel may have reused the id of its session: then KillSession
// must not be called.
func (i ID) KillSession() {
	_ = i.Signal(unix.SIGKILL) // Signal fails only if the process has ended
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	// The kernel does not reuse a session id while the session has a member.
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == i.PID {
			continue
		}
		st, err := ReadStat(pid)
		if err == nil && st.Session == i.PID && st.StartTime >= i.StartTime {
			_ = ID{PID: pid, StartTime: st.StartTime}.Signal(unix.SIGKILL)
		}
	}
}

// EndsWithin blocks until the process has ended, or until the timeout has passed. It reports
// whether the process has ended; a zombie has ended.
func (i ID) EndsWithin(timeout time.Duration) bool {
	f, err := i.Open()
	if err != nil {
		return !i.Alive()
	}
	defer f.Close()
	over := false
	_ = f.withFD(func(fd int) error { // withFD fails only for a closed descriptor
		over = pidfdHasExited(fd, timeout)
		return nil
	})
	return over
}
