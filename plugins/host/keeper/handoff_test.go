package keeper

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// startedProcesses are the processes that run after an agent of another build was killed.
type startedProcesses struct {
	Keeper, Task, Ended osprocess.ID
}

// oldBuildAgentMain starts a keeper, whose protocol has the version in args, with a running task, the exit status of another task,
// a stored pipe and a drained pipe, prints the processes, and waits to be killed.
func oldBuildAgentMain(dir string, args []string) int {
	err := func() error {
		ctx := context.Background()
		c, err := ConnectOrStart(ctx, Config{DataDir: dir, KeeperArgv: append([]string{"nomad-lite", "keeper"}, args...), testProtocolVersion: versionOf(args)})
		if err != nil {
			return err
		}
		held, task, err := os.Pipe()
		if err != nil {
			return err
		}
		sink, plugin, err := os.Pipe()
		if err != nil {
			return err
		}
		l := startedProcesses{Keeper: c.Status().KeeperProcess}
		if err := c.StoreFD(ctx, "fifo", held); err != nil {
			return err
		}
		if err := c.StoreFDDrainedWithoutAgent(ctx, "sink", sink); err != nil {
			return err
		}
		long := sh("echo before; exec sleep 1000")
		long.Stdout, long.Stderr = task, plugin
		if long.Executable, err = os.Open(long.Path); err != nil {
			return err
		}
		if l.Task, err = c.Spawn(ctx, long); err != nil {
			return err
		}
		if l.Ended, err = c.Spawn(ctx, sh("exit 7")); err != nil {
			return err
		}
		if _, err := c.Wait(ctx, l.Ended); err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(l)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// copyBinaryAsOtherBuild returns the path of a copy of the test binary with different
// content.
func copyBinaryAsOtherBuild(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "another")
	// ForkLock prevents forks of other tests while the file is open for writing: a forked
	// process would inherit the open file, and executing the file would fail with ETXTBSY
	// until that process calls exec.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, append(b, "another build"...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOtherKeeperIsReplacedInPlace(t *testing.T) {
	t.Parallel()
	t.Run("of another build", func(t *testing.T) {
		t.Parallel()
		testReplacement(t, copyBinaryAsOtherBuild(t))
	})
	// The program is the same, so that the version is the only reason to replace the keeper.
	t.Run("of the version before", func(t *testing.T) {
		t.Parallel()
		testReplacement(t, "/proc/self/exe", strconv.Itoa(keeperwire.ProtocolVersion-1))
	})
	t.Run("of the version after", func(t *testing.T) {
		t.Parallel()
		testReplacement(t, "/proc/self/exe", strconv.Itoa(keeperwire.ProtocolVersion+1))
	})
}

// testReplacement lets an agent of another program or version start a keeper, and checks that the
// keeper is replaced with its children, statuses and descriptors.
func testReplacement(t *testing.T, program string, version ...string) {
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(program, append([]string{"old-agent", dir}, version...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var l startedProcesses
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &l)
	}
	_ = cmd.Process.Kill() // the process can have exited
	_ = cmd.Wait()         // the status of a killed process is an error
	if err != nil {
		t.Fatal(err)
	}

	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if same, err := l.Keeper.SameExecutable(self); same != (len(version) > 0) || err != nil {
		t.Fatalf("the old keeper runs this build: %v, %v", same, err)
	}
	begin := time.Now()
	c := startClient(t, Config{DataDir: dir})
	t.Logf("joined and replaced in %v", time.Since(begin))
	if c.Status().KeeperProcess != l.Keeper {
		t.Errorf("keeper is %v, was %v", c.Status().KeeperProcess, l.Keeper)
	}
	if same, err := l.Keeper.SameExecutable(self); !same || err != nil {
		t.Errorf("the keeper runs this build: %v, %v", same, err)
	}
	if conn := c.conns.CurrentConn(); conn == nil || conn.keeperHello.Version != keeperwire.ProtocolVersion {
		t.Errorf("the keeper has another version: %+v", conn)
	}
	if status, err := c.Wait(t.Context(), l.Ended); err != nil || status.ExitCode != 7 {
		t.Errorf("status from before: %v, %v", status, err)
	}
	own, err := osprocess.OwnCgroup()
	if err != nil {
		t.Fatal(err)
	}
	if ended, _, err := c.EndedSessionLeaders(t.Context(), l.Ended.StartTime); err != nil || !slices.Contains(ended, EndedProcess{Process: l.Ended, Cgroup: own}) {
		t.Errorf("ended session leaders %v, %v; want %v in cgroup %q", ended, err, l.Ended, own)
	}
	if keys, err := c.FetchStoredFDKeys(t.Context()); err != nil || !slices.Equal(keys, []string{"fifo", "sink"}) {
		t.Errorf("held: %v, %v", keys, err)
	}
	held, err := c.DuplicateStoredFD("fifo")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	b := make([]byte, 6)
	if _, err := io.ReadFull(held, b); err != nil || string(b) != "before" {
		t.Errorf("read %q, %v", b, err)
	}
	expectHeldProgram(t, c, l.Task, "/bin/sh")
	expectHeldProgram(t, c, l.Keeper, "/proc/self/exe")
	if !l.Task.Alive() {
		t.Error("the task is gone")
	}
	if parents, err := c.ListProcessesThatMayHaveTasks(t.Context()); err != nil || len(parents) > 0 {
		t.Errorf("what the keeper has started before it was replaced counts as a task: %v, %v", parents, err)
	}
	// The task must still be a child of the keeper.
	if err := l.Task.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if status, err := c.Wait(t.Context(), l.Task); err != nil || status.Signal != int(unix.SIGTERM) {
		t.Errorf("status of the task: %v, %v", status, err)
	}
	// Children of the keeper must not inherit stored descriptors.
	r, w := newPipe(t)
	look := sh("ls -l /proc/self/fd")
	look.Stdout = w
	p, err := c.Spawn(t.Context(), look)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(t.Context(), p); err != nil {
		t.Error(err)
	}
	w.Close()
	if text, _ := io.ReadAll(r); strings.Count(string(text), " -> ") > 4 {
		t.Errorf("a child has\n%s", text)
	}
	if canLowerOOMScore(t) {
		expectOOMProtection(t, c)
	}
}

func TestKeeperThatCannotBeReplacedContinues(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	l, err := c.conns.WaitForConn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	resp, _, err := l.call(t.Context(), &keeperwire.Request{Op: keeperwire.OpReplaceProgram, Args: []string{"x"}}, int(f.Fd()))
	if err != nil || !strings.Contains(resp.Error, "replace keeper: execute") {
		t.Fatalf("answer %+v, %v", resp, err)
	}
	plugin, err := ConnectFromPlugin(t.Context(), c.SocketPath())
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Close()
	p, err := c.Spawn(t.Context(), sh("exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if status, err := c.Wait(t.Context(), p); err != nil || status.ExitCode != 3 {
		t.Errorf("afterwards: %v, %v", status, err)
	}
}
