package stage

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	forksEnvVar = "NOMAD_LITE_TEST_FORKS" // set in the process of the test that forks
	forkCount   = 100
)

// Go's scheduler asks the forking thread to yield while it forks. The forked process must execute the stage
// nevertheless: it has no thread to which it could yield.
func TestForkWhilePreempted(t *testing.T) {
	if os.Getenv(forksEnvVar) != "" {
		forkStages(t)
		return
	}
	task := exec.Command("sleep", "1000")
	var pidfd int
	task.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		PidFD:       &pidfd,
	}
	if err := task.Start(); err != nil {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("this machine forbids user namespaces: %v", err)
	}
	taskFile := os.NewFile(uintptr(pidfd), "pidfd")
	defer taskFile.Close()
	defer func() {
		_ = task.Process.Kill() // it can have exited
		_ = task.Wait()         // killed
	}()
	noConfig, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer noConfig.Close()
	statusReader, statusWriter, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer statusReader.Close()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestForkWhilePreempted$")
	cmd.Env = append(os.Environ(), forksEnvVar+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles = []*os.File{noConfig, statusWriter, taskFile} // from ConfigFD on
	// A forked process that hangs has the output open.
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	statusWriter.Close()
	statuses := make(chan []byte, 1)
	go func() {
		text, _ := io.ReadAll(statusReader) // the text is asserted
		statuses <- text
	}()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out.Bytes())
	}
	_ = task.Process.Kill() // with it, each process of its PID namespace is killed
	if n := strings.Count(string(<-statuses), "read the configuration of the stage"); n != forkCount {
		t.Errorf("%d stages were executed, want %d", n, forkCount)
	}
}

func forkStages(t *testing.T) {
	go func() {
		for {
			runtime.GC() // stops all goroutines
		}
	}()
	j, err := newNamespaceJoiner()
	if err != nil {
		t.Fatal(err)
	}
	for range forkCount {
		if _, errno := j.forkHelper(); errno != 0 {
			t.Fatal(errno)
		}
		for err := error(nil); err != unix.ECHILD; {
			_, err = unix.Wait4(-1, nil, 0, nil)
		}
	}
}
