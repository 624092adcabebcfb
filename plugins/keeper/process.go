package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process identifies one process uniquely until the next boot: the kernel reuses pids, but not
// a pid with the same start time.
type Process struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start"` // field 22 of /proc/<pid>/stat
}

// ProcessOf returns the process that has this pid now, which may be a zombie. The error is
// os.ErrProcessDone if there is none.
func ProcessOf(pid int) (Process, error) {
	st, err := readStat(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, StartTime: st.start}, nil
}

// Alive reports whether the process exists and is not a zombie. A process whose state cannot
// be read counts as alive: see [Exhausted].
func (p Process) Alive() bool {
	st, err := readStat(p.PID)
	if err != nil {
		return !errors.Is(err, os.ErrProcessDone)
	}
	return st.start == p.StartTime && st.state != 'Z' && st.state != 'X'
}

// SameExecutable reports whether the process executes this file, or a file with the same
// content. It compares open files, so the paths may have been removed or replaced. The error
// is os.ErrProcessDone if the process is gone.
func (p Process) SameExecutable(file *os.File) (bool, error) {
	running, err := os.Open("/proc/" + strconv.Itoa(p.PID) + "/exe")
	if err != nil {
		if !p.Alive() {
			return false, os.ErrProcessDone
		}
		return false, fmt.Errorf("program of process %d: %w", p.PID, err)
	}
	defer running.Close()
	if !p.Alive() { // checked after the open, so that the file was this process's
		return false, os.ErrProcessDone
	}
	a, err := running.Stat()
	if err != nil {
		return false, err
	}
	b, err := file.Stat()
	if err != nil {
		return false, err
	}
	if os.SameFile(a, b) {
		return true, nil
	}
	if a.Size() != b.Size() {
		return false, nil
	}
	return sameContent(running, file)
}

func sameContent(a, b *os.File) (bool, error) {
	const block = 256 << 10
	bufA, bufB := make([]byte, block), make([]byte, block)
	for offset := int64(0); ; offset += block {
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

// Signal sends a signal to this process, and to no other process that reuses its pid. The
// error is os.ErrProcessDone if the process is gone.
func (p Process) Signal(sig unix.Signal) error {
	fd, err := p.open()
	if err == nil {
		defer unix.Close(fd)
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	} else if !errors.Is(err, os.ErrProcessDone) {
		// No pidfd (an old kernel, a seccomp filter): compare the start time before the kill,
		// which leaves a short race.
		now, statErr := ProcessOf(p.PID)
		switch {
		case statErr != nil:
			return statErr
		case now != p:
			return os.ErrProcessDone
		}
		err = unix.Kill(p.PID, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// open returns a pidfd that is verified to refer to the process.
func (p Process) open() (int, error) {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return -1, os.ErrProcessDone
		}
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	// The pidfd was opened before the start time was read, so a match cannot be a later
	// process with the same pid.
	st, err := readStat(p.PID)
	if err == nil && st.start != p.StartTime {
		err = os.ErrProcessDone
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// EndsWithin blocks until the process has ended, or until the timeout has passed. It reports
// whether the process has ended; a zombie has ended.
func (p Process) EndsWithin(timeout time.Duration) bool {
	fd, err := p.open()
	if err != nil {
		return !p.Alive()
	}
	defer unix.Close(fd)
	for end := time.Now().Add(timeout); ; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(max(0, time.Until(end).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0
	}
}

// stat is the part of /proc/<pid>/stat that this package uses.
type stat struct {
	state   byte
	ppid    int
	session int
	start   uint64
	exit    int // wait status; valid only for a zombie, and only if [readable]
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return stat{}, os.ErrProcessDone
		}
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat parses the line of /proc/<pid>/stat. The program name is in parentheses and may
// contain parentheses, so the last closing parenthesis ends it.
func parseStat(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, errors.New("read process status: no name")
	}
	const first, state, ppid, session, start, exit = 3, 3, 4, 6, 22, 52
	fields := bytes.Fields(b[i+1:])
	if len(fields) <= start-first || len(fields[0]) != 1 {
		return stat{}, errors.New("read process status: too few fields")
	}
	st := stat{state: fields[state-first][0]}
	var errs [4]error
	st.ppid, errs[0] = strconv.Atoi(string(fields[ppid-first]))
	st.session, errs[1] = strconv.Atoi(string(fields[session-first]))
	st.start, errs[2] = strconv.ParseUint(string(fields[start-first]), 10, 64)
	if len(fields) > exit-first {
		st.exit, errs[3] = strconv.Atoi(string(fields[exit-first]))
	}
	if err := errors.Join(errs[:]...); err != nil {
		return stat{}, fmt.Errorf("read process status: %w", err)
	}
	return st, nil
}

// exited returns the status of a process that has ended and is not a child of this one. Until
// the process is reaped, /proc has the status (for root and for the process's user);
// afterwards a pidfd that was opened before has it (kernel 6.15).
func exited(p Process, pidfd int) (Status, bool) {
	if st, err := readStat(p.PID); err == nil && st.start == p.StartTime && st.state == 'Z' && readable(p.PID) {
		return statusOf(st.exit), true
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pidfd), unix.PIDFD_GET_INFO, uintptr(unsafe.Pointer(&info)))
	if errno == 0 && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
		return statusOf(int(info.Exit_code)), true
	}
	return Status{}, false
}

// readable reports whether the kernel shows this process all fields of /proc/<pid>/stat. To
// other users the kernel shows zeros in some fields, which would look like exit code 0.
func readable(pid int) bool {
	if os.Geteuid() == 0 {
		return true
	}
	var st unix.Stat_t
	return unix.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && int(st.Uid) == os.Geteuid()
}
