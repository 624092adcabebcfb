package stage

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// Capabilities are those that the stage needs in the user namespace of a task: it mounts, changes the root
// directory, sets up the loopback interface, and drops capabilities.
var Capabilities = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP}

// probeMounts makes the mounts that a machine may forbid in a user namespace, and returns the error.
func probeMounts() error {
	opcount.Count(opcount.Mount)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts of the host private: %w", err)
	}
	_, err := newDetachedFileSystem("proc", restrictedAttributes)
	return err
}

// reexecStageInUserNamespace runs the stage again in the user and PID namespace of the task, and exits with
// the exit status of that process. This process itself can enter neither namespace: a process with
// several threads cannot enter a user namespace, and setns(2) with a PID namespace affects only
// children.
func reexecStageInUserNamespace() error {
	j, err := newNamespaceJoiner()
	if err != nil {
		return err
	}
	// This process ignores the signals of a terminal, which also go to the command in the same
	// process group.
	for _, sig := range terminalSignals {
		setSignalHandler(sig, sigIgnore)
	}
	helper, errno := j.forkHelper()
	if errno != 0 {
		return fmt.Errorf("fork: %w", errno)
	}
	for fd := ConfigFD; fd <= TaskFD; fd++ {
		unix.Close(fd) // the driver waits until every copy of StatusFD is closed
	}
	return exitWithCommandStatus(helper)
}

// namespaceJoiner has the arguments of the system calls of forked processes, which must not allocate memory.
type namespaceJoiner struct {
	programPath      *byte
	args, env        []*byte
	capHeader        unix.CapUserHeader
	capSets          [2]unix.CapUserData
	defaultSigaction [sigactionSize]byte // struct sigaction of the default action
}

func newNamespaceJoiner() (*namespaceJoiner, error) {
	if _, err := unix.Seek(ConfigFD, 0, 0); err != nil {
		return nil, fmt.Errorf("rewind the configuration of the stage: %w", err)
	}
	j := &namespaceJoiner{capHeader: unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}}
	for _, c := range Capabilities {
		set := &j.capSets[c/32]
		set.Permitted |= 1 << (c % 32)
		set.Effective, set.Inheritable = set.Permitted, set.Permitted
	}
	env := []string{EnvName + "=" + envJoined}
	for _, name := range []string{"NOMAD_ALLOC_ID", "NOMAD_TASK_NAME"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	var err error
	if j.programPath, err = syscall.BytePtrFromString("/proc/self/exe"); err != nil {
		return nil, err
	}
	if j.args, err = syscall.SlicePtrFromStrings(os.Args); err != nil {
		return nil, err
	}
	j.env, err = syscall.SlicePtrFromStrings(env)
	return j, err
}

// forkHelper forks a helper, which enters the namespaces of the task, forks the stage there, as a child of this
// process, and exits with 0 or an error number.
//
// The forked processes have only one thread, without Go's scheduler, so they may only make raw
// system calls.
//
//go:norace
//go:noinline
func (j *namespaceJoiner) forkHelper() (helperPID int, errno syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if pid != 0 || errno != 0 {
		return int(pid), errno
	}
	_, _, errno = syscall.RawSyscall(unix.SYS_SETNS, TaskFD, unix.CLONE_NEWUSER|unix.CLONE_NEWPID, 0)
	if errno == 0 {
		pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD)|unix.CLONE_PARENT, 0, 0, 0, 0, 0)
	}
	if pid != 0 || errno != 0 {
		for {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
		}
	}
	j.reexecStage()
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
	}
}

// reexecStage executes the stage again, with its capabilities in the user namespace. It has no check of the stack:
// where Go's scheduler has asked the forking thread to yield, such a check would yield, and never return.
//
//go:norace
//go:noinline
//go:nosplit
func (j *namespaceJoiner) reexecStage() {
	for i := 0; i < len(terminalSignals); i++ {
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(terminalSignals[i]), uintptr(unsafe.Pointer(&j.defaultSigaction)), 0, sigsetSize, 0, 0)
	}
	syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&j.capHeader)), uintptr(unsafe.Pointer(&j.capSets)), 0)
	for i := 0; i < len(Capabilities); i++ {
		syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, Capabilities[i], 0, 0, 0)
	}
	for fd := uintptr(ConfigFD); fd <= TaskFD; fd++ {
		syscall.RawSyscall(unix.SYS_FCNTL, fd, unix.F_SETFD, 0)
	}
	syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(j.programPath)), uintptr(unsafe.Pointer(&j.args[0])), uintptr(unsafe.Pointer(&j.env[0])))
}

// terminalSignals are the signals that a terminal sends.
var terminalSignals = [...]unix.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}

// Sizes and values of the kernel's struct sigaction.
const (
	sigactionSize = 32
	sigsetSize    = 8
	sigDefault    = 0
	sigIgnore     = 1
)

// setSignalHandler sets the action of a signal, without Go's runtime.
func setSignalHandler(sig unix.Signal, handler uint64) {
	var action [sigactionSize / 8]uint64
	action[0] = handler
	syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, sigsetSize, 0, 0)
}

// exitWithCommandStatus waits for all children, and exits with the exit status of the child that is not the
// helper: the stage that the helper has forked. It returns an error if the helper fails.
func exitWithCommandStatus(helperPID int) error {
	var command unix.WaitStatus
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil: // ECHILD: all children have exited
			exitOrKillSelfWithStatus(command)
		case pid != helperPID:
			command = status
		case status.Signaled():
			return fmt.Errorf("enter the namespaces of the task: killed by %s", status.Signal())
		case status.ExitStatus() != 0:
			return fmt.Errorf("enter the namespaces of the task: %w", syscall.Errno(status.ExitStatus()))
		}
	}
}

// exitOrKillSelfWithStatus exits with the exit code of the status, or kills this process with the signal of the
// status.
func exitOrKillSelfWithStatus(status unix.WaitStatus) {
	if status.Signaled() {
		setSignalHandler(status.Signal(), sigDefault)
		unix.Kill(os.Getpid(), status.Signal())
	}
	os.Exit(status.ExitStatus())
}
