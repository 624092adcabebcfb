package exec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox"
	hostprocess "github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// envStart is set in a copy of this program that starts a task. Its value is a file with an interruptedStart.
const envStart = "NOMAD_LITE_TEST_START"

type interruptedStart struct {
	Config  driver.TaskConfig
	Stage   string // program of the stage
	Program string
}

// stageLauncher starts another file as the stage.
type stageLauncher struct {
	process.Launcher
	stage string
}

func (l stageLauncher) PrepareLaunch(p process.Program) (*process.Launch, error) {
	launch, err := l.Launcher.PrepareLaunch(p)
	if err == nil {
		launch.Path = l.stage
	}
	return launch, err
}

// startTask starts the task of a file. It does not return.
func startTask(file string) {
	var s interruptedStart
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil {
		start := &sdk.StartRequest{TaskConfig: s.Config}
		box := sandbox.New(start, sandbox.Options{NoPivotRoot: isInitramfs(), DefaultUser: "root"})
		_, err = process.StartWithoutExec(context.Background(), start, process.Command{
			Path: "/bin/sh", Args: []string{"-c", s.Program}, Launcher: stageLauncher{box, s.Stage},
		})
	}
	fmt.Fprintln(os.Stderr, "the start was not interrupted:", err)
	os.Exit(1)
}

// The driver is killed when it has forked the stage and has not released it. The stage exits without executing the program, and the
// next driver process knows it. A lease on the file of the stage blocks the stage in execve(2), and its driver with it.
func TestStageOfAKilledDriverExecutesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("isolation needs root")
	}
	t.Setenv("NOMAD_LITE_KEEPER", "/nonexistent") // starts leave a mark only if there is a keeper
	start := newStartRequest(t, map[string]any{"command": "/bin/sh"})
	start.ID = start.AllocID + "/task/00000000"
	start.Env = map[string]string{"PATH": "/usr/bin:/bin", "NOMAD_ALLOC_ID": start.AllocID, "NOMAD_TASK_NAME": start.Name}
	stage := filepath.Join(t.TempDir(), "stage")
	copyExecutable(t, stage)
	lease, err := os.Open(stage)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	if _, err := unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("this file system has no leases: %v", err)
	}

	file := filepath.Join(t.TempDir(), "start")
	text, err := json.Marshal(interruptedStart{start.TaskConfig, stage, "echo ran >/local/ran"})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	plugin := osexec.Command("/proc/self/exe")
	plugin.Env = append(os.Environ(), envStart+"="+file)
	plugin.Stderr = os.Stderr
	if err := plugin.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		plugin.Wait()
	}()
	waitUntil(t, "the stage is to be executed", func() bool {
		held, err := unix.FcntlInt(lease.Fd(), unix.F_GETLEASE, 0)
		select {
		case <-exited:
			t.Fatal("the driver has exited")
		default:
		}
		return err != nil || held != unix.F_WRLCK
	})
	forked := childOf(t, plugin.Process.Pid)
	openPipesOf(t, plugin.Process.Pid) // otherwise the stage would also exit because nothing reads its status
	if err := plugin.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-exited
	if !forked.Alive() {
		t.Error("the stage has ended with the driver, before its execution")
	}
	if _, err := unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the stage has exited", func() bool {
		stat, err := hostprocess.ReadStat(forked.PID)
		return err != nil || stat.StartTime != forked.StartTime || stat.Ended()
	})
	if _, err := os.Stat(filepath.Join(start.TaskDir(), "local/ran")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program was executed: %v", err)
	}
	if p, err := process.AdoptWithoutExec(t.Context(), start); !errors.Is(err, sdk.ErrNotExecuted) {
		t.Errorf("AdoptCore returns %v, %v, want %v", p, err, sdk.ErrNotExecuted)
	}
}

// openPipesOf opens the pipes of a process for reading until the test ends.
func openPipesOf(t *testing.T, pid int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		path := filepath.Join(dir, fd.Name())
		if target, _ := os.Readlink(path); !strings.HasPrefix(target, "pipe:") {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
}

// childOf returns the child of a process that has one.
func childOf(t *testing.T, pid int) hostprocess.ID {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		var child int
		text, _ := os.ReadFile(file)
		if _, scanErr := fmt.Sscan(string(text), &child); scanErr != nil {
			continue
		}
		var id hostprocess.ID
		if id, err = hostprocess.LookupID(child); err == nil {
			return id
		}
	}
	t.Fatalf("no child of process %d in %q: %v", pid, files, err)
	return hostprocess.ID{}
}

func copyExecutable(t *testing.T, file string) {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
