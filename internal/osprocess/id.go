//go:build linux

package osprocess

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
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

// KillAndWait kills a process and blocks until it has ended, at most ten seconds.
func (i ID) KillAndWait() error {
	if err := i.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", i.PID, err)
	}
	if !i.EndsWithin(10 * time.Second) {
		return fmt.Errorf("process %d does not end although it was killed", i.PID)
	}
	return nil
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
