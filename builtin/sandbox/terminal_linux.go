package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// OpenTerminal opens a new terminal in /dev/pts of the task, so that programs in the task find the
// terminal by its name.
func (s *Sandbox) OpenTerminal(taskPidfd *os.File) (master, slave *os.File, err error) {
	fd, err := openPtmx(taskPidfd)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal in the task: %w", err)
	}
	slave, err = s.openSlaveForTaskUser(fd)
	if err != nil {
		unix.Close(fd)
		return nil, nil, fmt.Errorf("open a terminal in the task: %w", err)
	}
	return os.NewFile(uintptr(fd), "ptmx"), slave, nil // the runtime polls the file, because fd is in non-blocking mode
}

// openPtmx opens /dev/pts/ptmx of the task. The task can replace no part of that path by a link that
// leads outside: links are not followed.
func openPtmx(taskPidfd *os.File) (fd int, err error) {
	pid, err := pidOfPidfd(taskPidfd)
	if err != nil {
		return -1, err
	}
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return -1, err
	}
	defer root.Close()
	// If the task still runs, the pid belonged to it when its root directory was opened.
	if err := unix.PidfdSendSignal(int(taskPidfd.Fd()), 0, nil, 0); err != nil {
		return -1, err
	}
	how := unix.OpenHow{
		Flags:   unix.O_RDWR | unix.O_NOCTTY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err = unix.Openat2(int(root.Fd()), "dev/pts/ptmx", &how)
	if err != nil {
		return -1, os.NewSyscallError("openat2", err)
	}
	return fd, nil
}

// pidOfPidfd returns the pid of the process of a pidfd.
func pidOfPidfd(pidfd *os.File) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd.Fd()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil || pid <= 0 {
				return 0, os.ErrProcessDone
			}
			return pid, nil
		}
	}
	return 0, errors.New("the kernel does not report the pid of a pidfd")
}

// openSlaveForTaskUser opens the slave end of the terminal by a system call without a path, which the task
// could have replaced, and gives the terminal to the user of the task.
func (s *Sandbox) openSlaveForTaskUser(masterFD int) (*os.File, error) {
	slave, err := process.OpenTerminalSlave(masterFD)
	if err != nil {
		return nil, err
	}
	cred, err := s.taskCredential()
	if err == nil {
		err = slave.Chown(int(cred.Uid), -1)
	}
	if err != nil {
		slave.Close()
		return nil, err
	}
	return slave, nil
}
