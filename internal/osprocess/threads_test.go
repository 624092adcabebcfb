//go:build linux

package osprocess

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mainThreadExitEnv is the variable that makes the test binary a process whose first thread
// exits immediately. The process exits with mainThreadExitCode when its standard input is
// closed.
const (
	mainThreadExitEnv  = "PROCESSTEST_MAIN_THREAD_EXITS"
	mainThreadExitCode = 7
)

// printPIDEnv makes the test binary print its pid and wait for the end of its input; with mainThreadExitEnv, when its first thread has
// exited.
const printPIDEnv = "PROCESSTEST_PRINT_PID"

// init runs on the first thread of the process.
func init() {
	if os.Getenv(mainThreadExitEnv) == "" {
		if os.Getenv(printPIDEnv) != "" {
			fmt.Println(os.Getpid())
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}
		return
	}
	go func() {
		for st, err := ReadStat(os.Getpid()); err == nil && st.State != 'Z'; st, err = ReadStat(os.Getpid()) {
			time.Sleep(time.Millisecond)
		}
		if os.Getenv(printPIDEnv) != "" {
			fmt.Println(os.Getpid())
		}
		os.Stdout.WriteString("exited\n")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(mainThreadExitCode)
	}()
	unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

// A process runs until its last thread has exited. The first thread is a zombie after
// pthread_exit(3), and for a moment while another thread calls execve(2).
func TestProcessRunsAfterItsFirstThreadExited(t *testing.T) {
	t.Parallel()
	allocID := newAllocID()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(taskEnv(allocID, "task"), mainThreadExitEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // Kill fails if the test has succeeded, because the process has exited
		_ = cmd.Wait()
	}()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("the process says %q: %v", line, err)
	}
	p, err := LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() {
		t.Error("the process counts as ended")
	}
	if status, ok := p.ExitStatus(nil); ok {
		t.Errorf("the running process has an exit status: %v", status)
	}
	if found, err := FindByTaskEnv(allocID, "task"); err != nil || !slices.Equal(found, []ID{p}) {
		t.Errorf("processes with this environment: %v, %v; want %v", found, err, p)
	}

	stdin.Close()
	if !p.EndsWithin(10 * time.Second) {
		t.Fatal("the process does not end")
	}
	if p.Alive() {
		t.Error("the process counts as running")
	}
	if status, ok := p.ExitStatus(nil); !ok || status != (ExitStatus{ExitCode: mainThreadExitCode}) {
		t.Errorf("exit status: %v, %v", status, ok)
	}
	if found, err := FindByTaskEnv(allocID, "task"); err != nil || len(found) != 0 {
		t.Errorf("processes with this environment: %v, %v; want none", found, err)
	}
}
