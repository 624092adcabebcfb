package process

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperserver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// TestMain also serves as the keeper, and as a plugin that starts a task and can
// be killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			if err := keeperserver.Serve(context.Background(), keeperwire.ProtocolVersion); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "plugin":
			runTestPlugin(os.Args[2])
		}
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	code := m.Run()
	for _, pattern := range []string{"/sys/fs/cgroup/*/nomad/*.task", "/sys/fs/cgroup/unified/nomad.slice/*/*"} {
		remaining, _ := filepath.Glob(pattern)
		for _, dir := range remaining {
			if procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")); isOwnCgroup(dir) {
				fmt.Fprintf(os.Stderr, "left behind: %s with processes %q\n", dir, procs)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// isOwnCgroup reports whether a cgroup belongs to this test process: other processes of
// the machine also have cgroups.
func isOwnCgroup(dir string) bool {
	return strings.HasPrefix(filepath.Base(dir), fmt.Sprintf("process-test-%d-", os.Getpid()))
}

// testPluginIO is the input and the output of runTestPlugin.
type testPluginIO struct {
	Config      driver.TaskConfig
	Command     Command
	WaitForExit bool // wait for the exit of the task before the output is written
	State       State
	Error       string
}

// runTestPlugin starts a task, writes the result to a file, and runs until it is
// killed.
func runTestPlugin(file string) {
	var p testPluginIO
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if mount := os.Getenv(cgroupMountEnv); mount != "" {
		hostCgroupHierarchy = func() cgroupHierarchy { return detectCgroupHierarchy(mount) }
	}
	if os.Getenv(noCgroupsEnv) != "" {
		hostCgroupHierarchy = func() cgroupHierarchy { return cgroupHierarchy{unavailableReason: "none here"} }
	}
	var task *Process
	if err == nil {
		task, err = Start(context.Background(), &sdk.StartRequest{TaskConfig: p.Config}, p.Command)
	}
	if err != nil {
		p.Error = err.Error()
	} else {
		if p.WaitForExit {
			task.Wait(context.Background())
		}
		p.State = task.Snapshot()
	}
	text, _ = json.Marshal(p)
	os.WriteFile(file+".new", text, 0o600)
	os.Rename(file+".new", file+".answer")
	for {
		time.Sleep(time.Hour) // a select{} without other goroutines would end the program as a deadlock
	}
}

// newStartRequest makes the directories of a task and returns its request.
func newStartRequest(t *testing.T) *sdk.StartRequest {
	t.Helper()
	id := fmt.Sprintf("process-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	dir := filepath.Join(t.TempDir(), id)
	for _, sub := range []string{"alloc/logs", "task/local"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &sdk.StartRequest{TaskConfig: driver.TaskConfig{
		ID:       id + "/task/00000000",
		Name:     "task",
		AllocID:  id,
		AllocDir: dir,
		Env:      map[string]string{"PATH": "/usr/bin:/bin", "NOMAD_ALLOC_ID": id, "NOMAD_TASK_NAME": "task"},
	}}
}

// shellCommand returns the command of a script, whose output goes to files of the
// task's directory.
func shellCommand(script string) Command {
	return Command{Path: "/bin/sh", Args: []string{"-c", script}}
}

func startProcess(t *testing.T, s *sdk.StartRequest, c Command) *Process {
	t.Helper()
	p, err := Start(t.Context(), s, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destroyProcess(t, p) })
	return p
}

func destroyProcess(t *testing.T, p *Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Kill(ctx); err != nil {
		t.Errorf("kill: %v", err)
	}
	if _, err := p.Wait(ctx); ctx.Err() != nil {
		t.Errorf("wait: %v", err)
	}
	if err := p.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

func waitExit(t *testing.T, p *Process) driver.ExitResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result, err := p.Wait(ctx)
	if ctx.Err() != nil {
		t.Fatalf("wait: %v", err)
	}
	if result.Err != nil {
		t.Errorf("the result has the error %v, which Wait must return", result.Err)
	}
	result.Err = err
	return result
}

// waitForFile waits until a task has written a file in its directory, and returns
// the content.
func waitForFile(t *testing.T, s *sdk.StartRequest, name string) string {
	t.Helper()
	var fileContent string
	waitUntil(t, "the task writes "+name, func() bool {
		b, err := os.ReadFile(filepath.Join(s.TaskDir(), name))
		fileContent = strings.TrimSpace(string(b))
		return err == nil && bytes.HasSuffix(b, []byte("\n"))
	})
	return fileContent
}

func parseNumber(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func hasProcessEnded(pid int) bool {
	st, err := osprocess.ReadStat(pid)
	return err != nil || st.Ended()
}

// resetLeftoverProcessSearch resets taskOwners.tasksWithLeftovers, as in a plugin process that has started no
// task yet.
func resetLeftoverProcessSearch(t *testing.T) {
	t.Helper()
	taskOwners.Lock()
	defer taskOwners.Unlock()
	taskOwners.tasksWithLeftovers = nil
}

func useCgroupHierarchy(t *testing.T, h cgroupHierarchy) {
	old := hostCgroupHierarchy
	hostCgroupHierarchy = func() cgroupHierarchy { return h }
	t.Cleanup(func() { hostCgroupHierarchy = old })
}

// startKeeper starts a keeper for this test and configures the package to use
// it.
func startKeeper(t *testing.T) *keeper.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "keeper") // short, because socket paths have a maximum length
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, err := keeper.ConnectOrStart(t.Context(), keeper.Config{DataDir: dir, KeeperArgv: []string{"nomad-lite", "keeper"}, Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv(keeper.EnvSocket, c.SocketPath())
	t.Cleanup(func() {
		keeperClient.mu.Lock()
		defer keeperClient.mu.Unlock()
		if keeperClient.client != nil {
			keeperClient.client.Close()
			keeperClient.client = nil
		}
	})
	return c
}

// startOrphan starts a task in another process, and kills that process. Without a
// keeper, init adopts the task.
func startOrphan(t *testing.T, k *keeper.Client, p testPluginIO) State {
	t.Helper()
	pid, file := spawnTestPlugin(t, k, p)
	var text []byte
	waitUntil(t, "the plugin has answered", func() (ok bool) {
		var err error
		text, err = os.ReadFile(file + ".answer")
		return err == nil
	})
	killTestPlugin(t, pid)
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	if p.Error != "" {
		t.Fatal(p.Error)
	}
	return p.State
}

// spawnTestPlugin starts a process that runs runTestPlugin with a file. Without a keeper it is a child of this process.
func spawnTestPlugin(t *testing.T, k *keeper.Client, p testPluginIO) (pid int, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "plugin")
	text, err := json.Marshal(p)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if k != nil {
		child, err := k.Spawn(t.Context(), keeper.Command{Name: "plugin", Path: "/proc/self/exe", Args: []string{"nomad-lite", "plugin", file}, Env: os.Environ()})
		if err != nil {
			t.Fatal(err)
		}
		pid = child.PID
	} else {
		cmd := exec.Command("/proc/self/exe", "plugin", file)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid = cmd.Process.Pid
		t.Cleanup(func() { cmd.Wait() })
	}
	return pid, file
}

func killTestPlugin(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the plugin has gone", func() bool { return hasProcessEnded(pid) })
}
