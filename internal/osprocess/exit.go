//go:build linux

package osprocess

import (
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ParseWaitStatus converts a wait status word of wait(2). Field 52 of /proc/<pid>/stat and the exit code in a pidfd's
// info have the same format.
func ParseWaitStatus(word int) ExitStatus {
	w := unix.WaitStatus(word)
	if w.Signaled() {
		return ExitStatus{Signal: int(w.Signal())}
	}
	return ExitStatus{ExitCode: w.ExitStatus()}
}

// ExitStatus returns the exit status of a process that has ended and is not a child of this process, and whether the
// status is known. Until the process is reaped, root and the process's user can read the status in /proc;
// afterwards a pidfd that was opened before has the status (kernel 6.15). The pidfd can be nil.
func (i ID) ExitStatus(f *Pidfd) (ExitStatus, bool) {
	if st, err := ReadStat(i.PID); err == nil && st.StartTime == i.StartTime && st.Ended() && exitStatusReadable(i.PID) {
		return ParseWaitStatus(st.waitStatusWord), true
	}
	if f == nil {
		return ExitStatus{}, false
	}
	return f.exitStatus()
}

// exitStatusReadable reports whether this process may read all fields of /proc/<pid>/stat.
// To other users the kernel shows zeros in some fields, which would look like exit code 0.
func exitStatusReadable(pid int) bool {
	if os.Geteuid() == 0 {
		return true
	}
	var st unix.Stat_t
	return unix.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && int(st.Uid) == os.Geteuid()
}

// siginfo contains the fields of siginfo_t that waitid(2) sets.
type siginfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0))/4 - 1]int32
	pid                int32
	uid                uint32
	status             int32
	_                  [128]byte
}

const cldExited = 1

// Waitid waits for children of this process, as waitid(2) does. The pid is 0 if the options
// contain WNOHANG and no child has ended. With WNOWAIT the child stays a zombie, so that
// another process can read its status if this process dies.
func Waitid(idType, id, options int) (pid int, status ExitStatus, err error) {
	var info siginfo
	for {
		err = unix.Waitid(idType, id, (*unix.Siginfo)(unsafe.Pointer(&info)), options, nil)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case err != nil || info.pid == 0:
		return 0, ExitStatus{}, err
	case info.code == cldExited:
		status.ExitCode = int(info.status)
	default:
		status.Signal = int(info.status)
	}
	return int(info.pid), status, nil
}
