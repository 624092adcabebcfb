//go:build linux

package osprocess

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DescriptorLimit returns the soft limit of open files of this process.
func DescriptorLimit() (uint64, error) {
	var own unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own)
	return own.Cur, err
}

// RaiseOwnDescriptorLimit raises the limits of open files of this process to the largest number that the kernel allows,
// fs.nr_open, and returns the soft limit. Without CAP_SYS_RESOURCE it changes nothing, and returns an error. Programs that
// this process starts get the former limits.
func RaiseOwnDescriptorLimit() (soft uint64, err error) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return 0, err
	}
	text, err := os.ReadFile("/proc/sys/fs/nr_open")
	if err != nil {
		return own.Cur, err
	}
	largest, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return own.Cur, fmt.Errorf("read fs.nr_open: %w", err)
	}
	if own.Max >= largest {
		return own.Cur, nil
	}
	raised := unix.Rlimit{Cur: largest, Max: largest}
	// unix.Prlimit and unix.Setrlimit would make package syscall pass the new limits to programs that this process starts.
	// Then tasks would have the new limits too, and programs that close all descriptors up to their limit would take long.
	_, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&raised)), 0, 0, 0)
	if errno != 0 {
		return own.Cur, fmt.Errorf("raise the limit of open files from %d to %d: %w", own.Max, largest, errno)
	}
	return largest, nil
}

// RaiseDescriptorLimit raises the limits of open files of another process to the limits of this process, and returns
// the soft limit that the process has afterwards. It never lowers a limit. A soft limit below the hard limit stays,
// because the process has chosen it; a Go program has no such limit. With an error, the returned limit is the
// unchanged one, or 0 if it is unknown: only a process with CAP_SYS_RESOURCE can raise a hard limit.
//
// The process must have completed its start, because Go raises the soft limit when a program starts.
func (i ID) RaiseDescriptorLimit() (soft uint64, err error) {
	var own, now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return 0, err
	}
	if !i.Alive() { // otherwise the pid can belong to a later process
		return 0, fmt.Errorf("limit of open files of process %d: the process has ended", i.PID)
	}
	if err := unix.Prlimit(i.PID, unix.RLIMIT_NOFILE, nil, &now); err != nil {
		return 0, fmt.Errorf("limit of open files of process %d: %w", i.PID, err)
	}
	raised := unix.Rlimit{Cur: now.Cur, Max: max(now.Max, own.Max)}
	if now.Cur == now.Max {
		raised.Cur = max(now.Cur, own.Cur)
	}
	if raised == now {
		return now.Cur, nil
	}
	if err := unix.Prlimit(i.PID, unix.RLIMIT_NOFILE, &raised, nil); err != nil {
		return now.Cur, fmt.Errorf("raise the limit of open files of process %d from %d to %d: %w", i.PID, now.Cur, raised.Cur, err)
	}
	return raised.Cur, nil
}
