package confine

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

var (
	unixSocketSyscall = Syscall{Number: unix.SYS_SOCKET, CheckFirstArgument: true, FirstArgument: unix.AF_UNIX}
	execveSyscall     = Syscall{Number: unix.SYS_EXECVE}
)

// TestMain runs the test binary as a process that denies system calls to itself, if an
// argument requests it.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "deny" {
		go func() { select {} }() // a second thread, at times
		DenyProcessSyscalls(execveSyscall, unixSocketSyscall)
		os.Exit(tryDeniedSyscalls())
	}
	if len(os.Args) == 2 && os.Args[1] == "keep" {
		os.Exit(keepChownAndPrintCaps())
	}
	os.Exit(m.Run())
}

// tryDeniedSyscalls returns a bit for each operation that works: a unix socket, an internet socket,
// a program, another call.
func tryDeniedSyscalls() (worked int) {
	for i, family := range []int{unix.AF_UNIX, unix.AF_INET} {
		fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
		if err == nil {
			worked |= 1 << i
			unix.Close(fd)
		} else if !errors.Is(err, unix.EACCES) {
			worked |= 1 << 7
		}
	}
	for range 4 { // on any thread
		if exec.Command("/bin/true").Run() == nil {
			worked |= 4
		}
	}
	if unix.Getpid() > 0 {
		worked |= 8
	}
	return worked
}

func TestDenyProcessSyscalls(t *testing.T) {
	if _, ok := auditArchByGOARCH[runtime.GOARCH]; !ok {
		t.Skip("the calls of this machine have other numbers")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "deny")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	var exitErr *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exitErr) || exitErr.ExitCode() != 2|8 {
		t.Errorf("got %v, want only a socket of the internet and the number of the process to be left", err)
	}
}

// A thread and its children lose the calls; the rest of the process keeps them.
func TestDenyThreadSyscalls(t *testing.T) {
	if _, ok := auditArchByGOARCH[runtime.GOARCH]; !ok {
		t.Skip("the calls of this machine have other numbers")
	}
	inside := make(chan int)
	go func() {
		runtime.LockOSThread() // the locked thread exits with the goroutine
		DenyThreadSyscalls(unixSocketSyscall)
		inside <- tryDeniedSyscalls()
	}()
	if got := <-inside; got != 2|4|8 {
		t.Errorf("on the thread %b works", got)
	}
	if got := tryDeniedSyscalls(); got != 1|2|4|8 {
		t.Errorf("elsewhere %b works", got)
	}
}
