package keeper

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperserver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// TestMain also runs the test binary as the helper programs of the tests: the keeper, an
// agent that is killed, and a driver that dies while its task runs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			if err := keeperserver.Serve(context.Background(), versionOf(os.Args[2:])); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "agent":
			os.Exit(agentMain(os.Args[2:]))
		case "old-agent":
			os.Exit(oldBuildAgentMain(os.Args[2], os.Args[3:]))
		case "foreign-keeper":
			os.Exit(foreignKeeperMain(os.Args[2], os.Args[3]))
		case "short-lived-keeper":
			os.Exit(shortLivedKeeperMain(os.Args[2], os.Args[3]))
		case "undumpable":
			os.Exit(undumpableMain())
		case "driver":
			os.Exit(driverMain(os.Args[2:]))
		}
	}
	// Without this option a binary with the race detector sleeps for a second when it
	// exits.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	// The test is a subreaper, so that it detects processes that a keeper has left behind.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// The Go runtime opens its epoll descriptor with the first pipe, before the open files
	// are counted.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := countOpenFiles()
	// Most tests wait for processes and use no CPU time.
	_ = flag.Set("test.parallel", "8")
	code := m.Run()
	reapZombies()
	if left, err := osprocess.Children(os.Getpid()); err != nil || len(left) > 0 {
		fmt.Fprintln(os.Stderr, "processes left behind:", describeProcesses(left), err)
		code = 1
	}
	after := countOpenFiles()
	for deadline := time.Now().Add(10 * time.Second); after > before && time.Now().Before(deadline); after = countOpenFiles() {
		runtime.GC() // closes the pidfds of unreferenced os.Process values
		time.Sleep(10 * time.Millisecond)
	}
	if after > before {
		fmt.Fprintf(os.Stderr, "%d descriptors at the start, %d at the end\n", before, after)
		for fd := range 64 {
			if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
				fmt.Fprintln(os.Stderr, fd, to)
			}
		}
		code = 1
	}
	os.Exit(code)
}

// versionOf returns the version of the protocol in the arguments of a helper program, or the
// version of this program.
func versionOf(args []string) int {
	if len(args) == 0 {
		return keeperwire.ProtocolVersion
	}
	version, err := strconv.Atoi(args[0])
	if err != nil {
		panic(err)
	}
	return version
}

// reapZombies reaps the processes that have exited after their keeper.
func reapZombies() {
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil && err != unix.EINTR || pid == 0 {
			return
		}
	}
}

func countOpenFiles() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	return len(entries)
}

func describeProcesses(pids []int) string {
	var b strings.Builder
	for _, pid := range pids {
		line, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		st, _ := osprocess.ReadStat(pid)
		fmt.Fprintf(&b, "%d %c %s; ", pid, st.State, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
	}
	return b.String()
}

// driverMain starts a task in its own session, writes its pid, and kills itself when its stdin
// ends.
func driverMain(args []string) int {
	cmd := exec.Command("/bin/sh", "-c", args[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(cmd.Process.Pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	return 1
}

// agentMain starts a keeper and a long task, and waits to be killed.
func agentMain(args []string) int {
	c, err := ConnectOrStart(context.Background(), Config{DataDir: args[0], KeeperArgv: []string{"nomad-lite", "keeper"}, Ephemeral: args[1] == "ephemeral"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p, err := c.Spawn(context.Background(), Command{Name: "sh", Path: "/bin/sh", Args: []string{"sh", "-c", "setsid sleep 1000 & sleep 1000"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(p.PID, c.Status().KeeperProcess.PID)
	select {}
}

func startClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.DataDir == "" {
		cfg.DataDir = filepath.Join(t.TempDir(), "run")
	}
	cfg.KeeperArgv = []string{"nomad-lite", "keeper"}
	c, err := ConnectOrStart(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, c) })
	return c
}

// end closes a client, and checks that its keeper and all processes below the keeper have
// exited.
func end(t *testing.T, c *Client) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	keeper := c.Status().KeeperProcess
	_ = keeper.Signal(unix.SIGTERM) // the keeper can have exited
	if !keeper.EndsWithin(10 * time.Second) {
		t.Errorf("keeper %d does not end", keeper.PID)
		_ = keeper.Signal(unix.SIGKILL)
	}
	_, _ = unix.Wait4(keeper.PID, nil, 0, nil)
}

func sh(script string) Command {
	return Command{Name: "test", Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}}
}

func newPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestSpawnAndWait(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	tests := []struct {
		name   string
		script string
		want   osprocess.ExitStatus
	}{
		{"an exit code is remembered", "exit 7", osprocess.ExitStatus{ExitCode: 7}},
		{"success is remembered", "exit 0", osprocess.ExitStatus{}},
		{"a signal is remembered", "kill -TERM $$", osprocess.ExitStatus{Signal: 15}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := c.Spawn(t.Context(), sh(tt.script))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first Wait is before or at the exit, the second after the process was reaped
				got, err := c.Wait(t.Context(), p)
				if err != nil || got != tt.want {
					t.Errorf("Wait = %v, %v; want %v", got, err, tt.want)
				}
			}
		})
	}
}

func TestChildInheritsOnlyFieldsOfCommand(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	inR, inW := newPipe(t)
	outR, outW := newPipe(t)
	dir := t.TempDir()
	cmd := sh(`cat; pwd; echo "$A"; env | wc -l; ls /proc/self/fd | wc -l; ps -o sid= -p $$ | tr -d ' '; echo $$`)
	cmd.Env = append(cmd.Env, "A=b c")
	cmd.Dir, cmd.Stdin, cmd.Stdout = dir, inR, outW
	p, err := c.Spawn(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	outW.Close()
	inR.Close()
	fmt.Fprintln(inW, "hello")
	inW.Close()
	b, err := io.ReadAll(outR)
	if err != nil {
		t.Fatal(err)
	}
	// The child's environment is PATH, A and PWD; ls lists the three standard descriptors
	// and the directory that it has opened.
	want := fmt.Sprintf("hello\n%s\nb c\n3\n4\n%d\n%d\n", dir, p.PID, p.PID)
	if string(b) != want {
		t.Errorf("child wrote %q, want %q", b, want)
	}
}

func TestSpawnThroughHandleAndOwnProgram(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	exe, err := os.Open("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	p, err := c.Spawn(t.Context(), Command{Name: "true", Executable: exe, Args: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := c.Wait(t.Context(), p); err != nil || st != (osprocess.ExitStatus{}) {
		t.Errorf("Wait = %v, %v", st, err)
	}

	r, w := newPipe(t)
	p, err = c.Spawn(t.Context(), Command{Name: "self", Path: "/proc/self/exe", Args: []string{"x", "-test.run=^$"}, Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	b, _ := io.ReadAll(r)
	if st, err := c.Wait(t.Context(), p); err != nil || st != (osprocess.ExitStatus{}) || !bytes.Contains(b, []byte("PASS")) {
		t.Errorf("Wait = %v, %v; output %q", st, err, b)
	}
}

func TestSpawnFailures(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	tests := []struct {
		name string
		cmd  Command
		want error
	}{
		{"a missing program is named as such", Command{Name: "x", Path: "/no/such/file"}, os.ErrNotExist},
		{"a directory cannot be executed", Command{Name: "x", Path: "/tmp"}, os.ErrPermission},
		{"a missing directory is named as such", Command{Name: "x", Path: "/bin/true", Dir: "/no/such/dir"}, os.ErrNotExist},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := c.Spawn(t.Context(), tt.cmd); !errors.Is(err, tt.want) {
				t.Errorf("Spawn error %v, want %v", err, tt.want)
			}
		})
	}
}

func TestOrphanStatusIsRemembered(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"ends after the driver", "has ended before the driver"} {
		t.Run("a task that "+when, func(t *testing.T) {
			t.Parallel()
			c := startClient(t, Config{Ephemeral: true})
			taskIn, taskOut := filepath.Join(t.TempDir(), "go"), 9
			if err := unix.Mkfifo(taskIn, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // the task gets a later start time, which is in ticks of 10 ms, than the keeper's records
			inR, inW := newPipe(t)
			outR, outW := newPipe(t)
			driver, err := c.Spawn(t.Context(), Command{
				Name: "driver", Path: "/proc/self/exe", Args: []string{"x", "driver", fmt.Sprintf("read x < %s; exit %d", taskIn, taskOut)},
				Stdin: inR, Stdout: outW,
			})
			if err != nil {
				t.Fatal(err)
			}
			inR.Close()
			outW.Close()
			var pid int
			if _, err := fmt.Fscan(outR, &pid); err != nil {
				t.Fatal(err)
			}
			task, err := osprocess.LookupID(pid)
			if err != nil {
				t.Fatal(err)
			}
			release := func() {
				if err := os.WriteFile(taskIn, []byte("\n"), 0); err != nil {
					t.Fatal(err)
				}
			}
			kill := func() {
				inW.Close()
				if st, err := c.Wait(t.Context(), driver); err != nil || st.Signal != 9 {
					t.Fatalf("driver: %v, %v", st, err)
				}
			}

			// plugin is the client of the driver process that replaces the killed one.
			plugin, err := ConnectFromPlugin(t.Context(), c.SocketPath())
			if err != nil {
				t.Fatal(err)
			}
			defer plugin.Close()
			if when == "ends after the driver" {
				kill()
				time.AfterFunc(50*time.Millisecond, release)
			} else {
				release()
				for task.Alive() {
					time.Sleep(time.Millisecond)
				}
				// The task is a zombie whose parent has not reaped it: Wait returns its
				// status.
				if got, err := plugin.Wait(t.Context(), task); err != nil || got.ExitCode != 9 {
					t.Errorf("Wait for a zombie of another parent = %v, %v", got, err)
				}
				kill()
			}
			if got, err := plugin.Wait(t.Context(), task); err != nil || got != (osprocess.ExitStatus{ExitCode: 9}) {
				t.Errorf("Wait = %v, %v; want exit code 9", got, err)
			}
			for startTime, want := range map[uint64]bool{1: true, task.StartTime: true, task.StartTime + 1: false} {
				ended, parent, err := plugin.EndedSessionLeaders(t.Context(), startTime)
				if complete := startTime >= task.StartTime; complete && parent != c.Status().KeeperProcess.PID || !complete && parent != 0 {
					t.Errorf("EndedSessionLeaders(%d) is complete for children of process %d, the keeper is %v", startTime, parent, c.Status().KeeperProcess)
				}
				if found := slices.ContainsFunc(ended, func(e EndedProcess) bool { return e.Process == task }); found != want || err != nil {
					t.Errorf("EndedSessionLeaders(%d) = %v, %v; want the task: %v", startTime, ended, err, want)
				}
			}
		})
	}
}

func TestWaitForUnknownExitStatus(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	self, err := osprocess.LookupID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		p    osprocess.ID
	}{
		{"for a pid that is not in use", osprocess.ID{PID: 1 << 22, StartTime: 5}},
		{"for a pid that another process has now", osprocess.ID{PID: self.PID, StartTime: self.StartTime + 1}},
		{"for nonsense", osprocess.ID{PID: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := c.Wait(t.Context(), tt.p); !errors.Is(err, ErrExitStatusUnknown) {
				t.Errorf("Wait error %v, want ErrExitStatusUnknown", err)
			}
		})
	}
	t.Run("not while the process lives", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.Wait(ctx, self); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait error %v, want a deadline", err)
		}
	})
}

// The keeper records the exit status of a process that is not its child, also after the only client that has waited for
// the process is gone: the next driver waits when the process has already been reaped.
func TestExitStatusIsRecordedWithoutWaiter(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	cmd := exec.Command("/bin/sh", "-c", "read x; exit 7")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := osprocess.LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := p.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()

	socket, err := c.dialKeeper()
	if err != nil {
		t.Fatal(err)
	}
	introduce(t, socket)
	first := framing.NewConn(socket, keeperwire.MessageLimits)
	defer first.Close()
	for _, req := range []*keeperwire.Request{{ID: 1, Op: keeperwire.OpWait, Process: p}, {ID: 1, Op: keeperwire.OpCancelWait}, {ID: 2, Op: keeperwire.OpListFDs}} {
		if err := first.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	// The keeper handles the requests of a connection one after the other.
	var resp keeperwire.Response
	if _, err := first.Receive(&resp); err != nil || resp.ID != 2 {
		t.Fatalf("response %d, %v; want response 2", resp.ID, err)
	}

	stdin.Close()
	_ = cmd.Wait() // returns the exit code as an error
	if _, known := p.ExitStatus(fd); !known {
		t.Skip("the kernel has no exit status of a process that was reaped")
	}
	if got, err := c.Wait(t.Context(), p); err != nil || got.ExitCode != 7 {
		t.Errorf("Wait = %v, %v; want exit code 7", got, err)
	}
}

func TestStoreGetRemoveFD(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	r, w := newPipe(t)
	if err := c.StoreFD(t.Context(), "a/b", r); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if _, err := w.WriteString("kept"); err != nil {
		t.Fatal(err)
	}
	if keys, err := c.FetchStoredFDKeys(t.Context()); err != nil || len(keys) != 1 || keys[0] != "a/b" {
		t.Errorf("Keys = %v, %v", keys, err)
	}
	f, err := c.DuplicateStoredFD("a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 10)
	if n, err := f.Read(buf); err != nil || string(buf[:n]) != "kept" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if err := c.RemoveFD(t.Context(), "a/b"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DuplicateStoredFD("a/b"); !errors.Is(err, ErrFDNotStored) {
		t.Errorf("Take error %v, want ErrFDNotStored", err)
	}
	f.Close()
	// The write succeeds as long as a process that another test forks has a copy of the
	// read end, which its exec closes.
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := w.WriteString("x")
		if errors.Is(err, unix.EPIPE) {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("write after drop: %v, want a broken pipe", err)
		}
	}
}

// A keeper without free descriptors rejects requests with an error, and continues to run.
func TestKeeperWithoutDescriptors(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	r, _ := newPipe(t)
	keeper := c.Status().KeeperProcess
	var was unix.Rlimit
	if err := unix.Prlimit(keeper.PID, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(keeper.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.StoreFD(t.Context(), "a", r); err == nil || !strings.Contains(err.Error(), "no free file descriptors") {
		t.Errorf("hold: %v", err)
	}
	if _, err := c.DuplicateStoredFD("a"); !errors.Is(err, ErrFDNotStored) {
		t.Errorf("take: %v", err)
	}
	self, err := osprocess.LookupID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(t.Context(), self); !osprocess.IsResourceExhausted(err) {
		t.Errorf("wait for a living process: %v, want an error of the descriptors", err)
	}
	if parents, err := c.ListProcessesThatMayHaveTasks(t.Context()); !osprocess.IsResourceExhausted(err) {
		t.Errorf("processes with living children: %v, %v; want an error of the descriptors", parents, err)
	}
	if _, err := c.retryIdempotentCall(t.Context(), &keeperwire.Request{Op: keeperwire.OpGetProgram, Process: keeper}); !osprocess.IsResourceExhausted(err) {
		t.Errorf("program: %v, want an error of the descriptors", err)
	}
	if _, err := c.Spawn(t.Context(), sh("exit 0")); !osprocess.IsResourceExhausted(err) {
		t.Errorf("spawn: %v, want an error of the descriptors", err)
	}
	if err := unix.Prlimit(keeper.PID, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.StoreFD(t.Context(), "a", r); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if c.Status().KeeperProcess != keeper {
		t.Error("it is another keeper")
	}
}

func TestStoredFDIsDrainedOnlyWithoutAgent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	c := startClient(t, Config{DataDir: dir})
	r, w := newPipe(t)
	if err := c.StoreFDDrainedWithoutAgent(t.Context(), "stderr", r); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if _, err := w.WriteString("for the agent"); err != nil {
		t.Fatal(err)
	}
	f, err := c.DuplicateStoredFD("stderr")
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	if n, err := f.Read(buf); err != nil || string(buf[:n]) != "for the agent" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	f.Close()
	c.Close()

	// The data exceeds the capacity of a pipe, so the write ends only if the keeper reads.
	done := make(chan error, 1)
	go func() {
		_, err := w.Write(make([]byte, 1<<20))
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a plugin that logs waits for an agent that is gone")
	}

	// Output that the keeper has not drained may fill the pipe: the next agent reads it.
	c = startClient(t, Config{DataDir: dir})
	f, err = c.DuplicateStoredFD("stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	go func() {
		_, err := w.WriteString("next")
		done <- err
	}()
	got := ""
	for !strings.HasSuffix(got, "next") {
		n, err := f.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got += strings.Trim(string(buf[:n]), "\x00")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestKeeperDeathIsRepaired(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	r, w := newPipe(t)
	if err := c.StoreFD(t.Context(), "fifo", r); err != nil {
		t.Fatal(err)
	}
	r.Close()
	finished, err := c.Spawn(t.Context(), sh("exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(t.Context(), finished); err != nil {
		t.Fatal(err)
	}
	inR, inW := newPipe(t)
	cmd := sh("read x; exit 5")
	cmd.Stdin = inR
	running, err := c.Spawn(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	inR.Close()
	type waitResult struct {
		status osprocess.ExitStatus
		err    error
	}
	waited := make(chan waitResult, 1)
	go func() {
		st, err := c.Wait(context.Background(), running)
		waited <- waitResult{st, err}
	}()

	first := c.Status().KeeperProcess
	for range 3 {
		old := c.Status().KeeperProcess
		if err := old.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for c.Status().KeeperProcess == old || !c.Status().KeeperProcess.Alive() {
			time.Sleep(time.Millisecond)
		}
		// While the keeper is replaced, the agent's copy is a reader of the pipe: a write
		// neither fails nor loses data.
		if _, err := w.WriteString("x"); err != nil {
			t.Fatal(err)
		}
	}
	if c.Status().KeeperProcess == first {
		t.Fatal("the keeper is still the first one")
	}
	if status := c.Status(); status.KeeperStarts != 4 || status.StoredFDs != 1 || !status.Connected || status.KeeperProcess != c.Status().KeeperProcess {
		t.Errorf("status %+v after three kills", status)
	}
	f, err := c.DuplicateStoredFD("fifo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 10)
	if n, err := f.Read(buf); err != nil || string(buf[:n]) != "xxx" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if _, err := c.Wait(t.Context(), finished); !errors.Is(err, ErrExitStatusUnknown) {
		t.Errorf("Wait for what only the dead keeper knew: %v, want ErrExitStatusUnknown", err)
	}

	// The child of the dead keeper continues; the new keeper watches it.
	select {
	case a := <-waited:
		t.Fatalf("Wait answered %v while the process lives", a)
	default:
	}
	inW.Close()
	_, _ = unix.Wait4(running.PID, nil, unix.WNOHANG, nil)
	// Reaps the process, because the test is the subreaper of the dead keeper.
	go func() { _, _ = unix.Wait4(running.PID, nil, 0, nil) }()
	a := <-waited
	if !errors.Is(a.err, ErrExitStatusUnknown) && a != (waitResult{status: osprocess.ExitStatus{ExitCode: 5}}) {
		t.Errorf("Wait = %v; want the truth or ErrExitStatusUnknown", a)
	}
	t.Logf("the status of a child of a dead keeper: %v, %v", a.status, a.err)
}

// shortLivedKeeperMain exits before it has accepted its first client, or before or after it has introduced itself to that client.
// It is the keeper if the file deaths already has three bytes.
func shortLivedKeeperMain(when, deaths string) int {
	err := func() error {
		file, err := os.OpenFile(deaths, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		if info, err := file.Stat(); err != nil || info.Size() >= 3 {
			return errors.Join(err, keeperserver.Serve(context.Background(), keeperwire.ProtocolVersion))
		}
		if _, err := file.WriteString("x"); err != nil {
			return err
		}
		listener, err := net.FileListener(os.NewFile(keeperwire.ListenerFD, "listener"))
		if err != nil || when == "before the first connection" {
			return err
		}
		socket, err := listener.Accept()
		if err != nil || when == "before the hello message" {
			return err
		}
		_, err = framing.NewConn(socket.(*net.UnixConn), keeperwire.MessageLimits).ExchangeHello(context.Background(), framing.NewHello(framing.RoleKeeper, keeperwire.ProtocolVersion))
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestStartSurvivesDeathsOfItsKeeper(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before the first connection", "before the hello message", "after the hello message"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			deaths := filepath.Join(t.TempDir(), "deaths")
			c, err := ConnectOrStart(t.Context(), Config{
				DataDir: filepath.Join(t.TempDir(), "run"), KeeperArgv: []string{"nomad-lite", "short-lived-keeper", when, deaths},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer end(t, c)
			if died, err := os.ReadFile(deaths); string(died) != "xxx" {
				t.Errorf("%q keepers have died, want three: %v", died, err)
			}
			spawned, err := c.Spawn(t.Context(), sh("exit 3"))
			if err != nil {
				t.Fatal(err)
			}
			if status, err := c.Wait(t.Context(), spawned); err != nil || status.ExitCode != 3 {
				t.Errorf("got %+v, %v", status, err)
			}
		})
	}
}

func TestKeeperOutlivesAgent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	task, keeper := startAndKillAgent(t, dir, "persistent")
	if !task.Alive() || !keeper.Alive() {
		t.Fatalf("task alive: %v, keeper alive: %v", task.Alive(), keeper.Alive())
	}
	c := startClient(t, Config{DataDir: dir})
	if c.Status().KeeperProcess != keeper {
		t.Errorf("the next agent has keeper %v, want %v", c.Status().KeeperProcess, keeper)
	}
	if err := unix.Kill(-task.PID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if st, err := c.Wait(t.Context(), task); err != nil || st.Signal != 15 {
		t.Errorf("Wait = %v, %v", st, err)
	}
	for _, pid := range descendants(keeper.PID) {
		if p, err := osprocess.LookupID(pid); err == nil && p.Signal(unix.SIGKILL) == nil {
			_, _ = c.Wait(t.Context(), p)
		}
	}
}

// When an ephemeral keeper was killed, its replacement also kills the processes that the
// first keeper has started.
func TestEphemeralKeeperEndsWhatAnotherOneStarted(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	p, err := c.Spawn(t.Context(), sh("setsid sleep 1000 & echo; wait"))
	if err != nil {
		t.Fatal(err)
	}
	var children []int
	for len(children) == 0 {
		children = descendants(p.PID)
	}
	old := c.Status().KeeperProcess
	if err := old.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for c.Status().KeeperProcess == old {
		time.Sleep(time.Millisecond)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range append(children, p.PID) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			// Reaps the process, because the test is the subreaper of the dead keeper.
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			if _, err := osprocess.LookupID(pid); err != nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("process %d is still there", pid)
			}
		}
	}
}

func TestEphemeralKeeperEndsEverything(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	task, keeper := startAndKillAgent(t, dir, "ephemeral")
	if !keeper.EndsWithin(10 * time.Second) {
		t.Fatal("the keeper is still there")
	}
	if task.Alive() {
		t.Error("its child is still there")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	_, _ = unix.Wait4(keeper.PID, nil, 0, nil)
}

func TestConcurrentWaitsForOneProcess(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	p, err := c.Spawn(t.Context(), Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var waiters sync.WaitGroup
	for range 20 {
		waiters.Go(func() {
			if status, err := c.Wait(ctx, p); err != nil || status.Signal != int(unix.SIGKILL) {
				t.Errorf("got %v, %v", status, err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // most callers wait by now
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waiters.Wait()
}

func TestKeeperMadeEphemeralEndsWithItsAgent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	c := startClient(t, Config{DataDir: dir})
	task, err := c.Spawn(t.Context(), Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetEphemeral(t.Context()); err != nil {
		t.Fatal(err)
	}
	keeper := c.Status().KeeperProcess
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if keeper.Alive() || task.Alive() {
		t.Errorf("after Close, keeper alive: %v, its child: %v", keeper.Alive(), task.Alive())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// After RequestExitWhenNoTasks and Close, the keeper exits with the last process that can be a task, unless another
// agent has connected.
func TestKeeperEndsWithoutTasks(t *testing.T) {
	if testing.Short() {
		t.Skip("waits 300 ms three times for a keeper that must not end")
	}
	t.Parallel()
	for _, anotherAgent := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "run")
		c := startClient(t, Config{DataDir: dir})
		keeper := c.Status().KeeperProcess
		plugin, task := spawnPluginWithTask(t, c, false)
		collector, err := c.Spawn(t.Context(), Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = collector.Signal(unix.SIGKILL) }) // the keeper can have killed it
		if err := plugin.KillAndWait(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = c.RequestExitWhenNoTasks(t.Context())
		if err := errors.Join(err, c.Close()); err != nil {
			t.Fatal(err)
		}
		if keeper.EndsWithin(300 * time.Millisecond) {
			t.Error("the keeper has ended although a task runs")
		}
		if anotherAgent {
			if err := startClient(t, Config{DataDir: dir}).Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := task.KillAndWait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if anotherAgent {
			if keeper.EndsWithin(300 * time.Millisecond) {
				t.Error("the keeper has ended by the request of an earlier agent")
			}
			continue
		}
		if !keeper.EndsWithin(10*time.Second) || collector.Alive() {
			t.Errorf("after the end of the task, the keeper is alive: %v, its child: %v", keeper.Alive(), collector.Alive())
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// A keeper whose agent is dead and whose data directory was removed ends, with its plugins, when no task runs. A task that has ended
// and that its plugin does not reap is no running task.
func TestKeeperOfRemovedDirectoryEndsWithoutTasks(t *testing.T) {
	if testing.Short() {
		t.Skip("waits 300 ms twice for a keeper that must not end")
	}
	t.Parallel()
	const timeout = 50 * time.Millisecond // as short as this test needs it
	for name, remove := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"renamed": func(dir string) error { return os.Rename(dir, dir+".renamed") },
	} {
		dir := filepath.Join(t.TempDir(), "run")
		c := startClient(t, Config{DataDir: dir, IdleTimeout: timeout})
		keeper := c.Status().KeeperProcess
		r, w := newPipe(t)
		cmd := sh(`trap '' TERM INT HUP; setsid sleep 1000 >&- 2>&- & echo $!; exec sleep 1000`) // after exec nothing reaps the task
		cmd.Stdout = w
		plugin, err := c.Spawn(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Fscan(r, &pid); err != nil {
			t.Fatal(err)
		}
		task, err := osprocess.LookupID(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Close(), remove(dir)); err != nil {
			t.Fatal(err)
		}
		if keeper.EndsWithin(300 * time.Millisecond) {
			t.Fatalf("%s: the keeper has ended although a task runs", name)
		}
		if err := task.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if name == "renamed" {
			if keeper.EndsWithin(300 * time.Millisecond) {
				t.Error("the keeper of a renamed directory has ended, and its plugin with it")
			}
			if err := plugin.Signal(unix.SIGKILL); err != nil {
				t.Error(err)
			}
			continue
		}
		if !keeper.EndsWithin(10*time.Second) || plugin.Alive() {
			st, err := osprocess.ReadStat(task.PID)
			t.Errorf("after the end of the task, the keeper is alive: %v, the plugin: %v; task: %+v, %v", keeper.Alive(), plugin.Alive(), st, err)
		}
	}
}

// startAndKillAgent starts an agent that starts a keeper and a task, and kills the agent.
// The task has a child in another session.
func startAndKillAgent(t *testing.T, dir, mode string) (task, keeper osprocess.ID) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "agent", dir, mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, scanErr := fmt.Fscan(out, &task.PID, &keeper.PID)
	if scanErr == nil {
		task, err = osprocess.LookupID(task.PID)
		if err == nil {
			keeper, err = osprocess.LookupID(keeper.PID)
		}
	}
	_ = cmd.Process.Kill() // the process can have exited
	_ = cmd.Wait()         // the status of a killed process is an error
	if err := errors.Join(scanErr, err); err != nil {
		t.Fatal(err)
	}
	return task, keeper
}

// killTree kills a process and its descendants, and waits for those that are children of this process then. It stops each process
// before it lists the children, because a task may just have started, and forks.
func killTree(p osprocess.ID) {
	stopped := make(map[int]bool)
	for {
		before := len(stopped)
		for _, pid := range append(descendants(p.PID), p.PID) {
			if stopped[pid] {
				continue
			}
			stopped[pid] = true
			_ = unix.Kill(pid, unix.SIGSTOP) // the process may have exited
			for st, err := osprocess.ReadStat(pid); err == nil && st.State != 'T' && st.State != 'Z'; st, err = osprocess.ReadStat(pid) {
				time.Sleep(time.Millisecond)
			}
		}
		if len(stopped) == before {
			break
		}
	}
	for pid := range stopped {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for pid := range stopped {
		_, _ = unix.Wait4(pid, nil, 0, nil) // an error if its parent lives
	}
}

// descendants lists the descendants of a process.
func descendants(pid int) []int {
	var all []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := osprocess.ReadStat(child); err == nil && st.PPID == pid {
			all = append(append(all, child), descendants(child)...)
		}
	}
	return all
}

func TestIdleKeeperEnds(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{IdleTimeout: 100 * time.Millisecond})
	r, w := newPipe(t)
	if err := c.StoreFD(t.Context(), "fifo", r); err != nil {
		t.Fatal(err)
	}
	r.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	held, err := listener.(*net.TCPListener).File()
	if err == nil {
		err = errors.Join(c.StoreFD(t.Context(), "listener", held), held.Close(), listener.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	keeper := c.Status().KeeperProcess
	c.Close()
	if keeper.EndsWithin(400 * time.Millisecond) {
		t.Fatal("the keeper ended although a writer holds the other end of its descriptor")
	}
	w.Close()
	if !keeper.EndsWithin(10 * time.Second) {
		t.Fatal("an idle keeper does not end")
	}
	if _, err := os.Stat(c.SocketPath()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its socket is left behind: %v", err)
	}
}

func TestConcurrentStartsShareOneKeeper(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	const n = 8
	type startResult struct {
		c   *Client
		err error
	}
	ch := make(chan startResult, n)
	for range n {
		go func() {
			c, err := ConnectOrStart(t.Context(), Config{DataDir: dir, KeeperArgv: []string{"nomad-lite", "keeper"}})
			ch <- startResult{c, err}
		}()
	}
	seen := map[osprocess.ID]bool{}
	var clients []*Client
	for range n {
		s := <-ch
		if s.err != nil {
			t.Error(s.err)
			continue
		}
		seen[s.c.Status().KeeperProcess] = true
		clients = append(clients, s.c)
	}
	for _, c := range clients[1:] {
		c.Close()
	}
	end(t, clients[0])
	if len(seen) != 1 {
		t.Errorf("%d keepers for one directory", len(seen))
	}
}

func TestSocketDirThatOthersCanEnterIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sockets := helperdir.SocketDir(dir)
	if err := os.Mkdir(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ConnectOrStart(t.Context(), Config{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "chmod it to 0700") {
		t.Errorf("Start error %v, want one that names the remedy", err)
	}
	if err := errors.Join(os.Remove(sockets), os.Symlink(t.TempDir(), sockets)); err != nil {
		t.Fatal(err)
	}
	if _, err := ConnectOrStart(t.Context(), Config{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("Start error %v: a link is taken for a directory", err)
	}
}

func TestLongDirectoryName(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{DataDir: filepath.Join(t.TempDir(), strings.Repeat("d", 120), "run"), Ephemeral: true})
	plugin, err := ConnectFromPlugin(t.Context(), c.SocketPath())
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Close()
	if _, err := plugin.Spawn(t.Context(), sh("true")); err == nil {
		t.Error("a plugin may start processes through the keeper")
	}
}

func TestServeWithoutSetupFails(t *testing.T) {
	if err := keeperserver.Serve(t.Context(), keeperwire.ProtocolVersion); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("Serve error %v", err)
	}
}

// spawnPluginWithTask spawns a process that starts another in a new session, as a driver plugin
// starts a task.
func spawnPluginWithTask(t *testing.T, c *Client, provisional bool) (plugin, task osprocess.ID) {
	t.Helper()
	r, w := newPipe(t)
	cmd := sh("setsid sleep 1000 >&- 2>&- & echo $!; wait")
	cmd.Stdout, cmd.KillOnDisconnect = w, provisional
	plugin, err := c.Spawn(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(r, &pid); err != nil {
		t.Fatal(err)
	}
	if task, err = osprocess.LookupID(pid); err != nil {
		t.Fatal(err)
	}
	return plugin, task
}

// If an agent is killed before it has stored the record of a plugin, the keeper kills the
// plugin. Confirmed plugins and the processes that plugins have started continue.
func TestProvisionalChildEndsWithItsClient(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	c := startClient(t, Config{DataDir: dir})
	leaving, err := ConnectOrStart(t.Context(), Config{DataDir: dir, KeeperArgv: []string{"nomad-lite", "keeper"}})
	if err != nil {
		t.Fatal(err)
	}
	var all []osprocess.ID
	spawn := func(c *Client, provisional bool) osprocess.ID {
		t.Helper()
		plugin, task := spawnPluginWithTask(t, c, provisional)
		all = append(all, plugin, task)
		return plugin
	}
	lost, confirmed := spawn(leaving, true), spawn(leaving, true)
	spawn(leaving, false)
	spawn(c, true)
	for range 2 { // KeepProcessAfterDisconnect may be repeated
		if err := leaving.KeepProcessAfterDisconnect(t.Context(), confirmed); err != nil {
			t.Fatal(err)
		}
	}
	if err := leaving.Close(); err != nil {
		t.Fatal(err)
	}
	if !lost.EndsWithin(10 * time.Second) {
		t.Error("a provisional child has outlived its client")
	}
	for _, p := range all {
		if p != lost && !p.Alive() {
			t.Errorf("process %d of %v has ended, and not only the provisional child %d", p.PID, all, lost.PID)
		}
		_ = p.Signal(unix.SIGKILL) // the error is ignored because the unconfirmed child has already ended
	}
	for _, p := range all {
		if !p.EndsWithin(10 * time.Second) {
			t.Errorf("process %d does not end", p.PID)
		}
	}
}

// A plugin can be a script. If its agent is killed before it has confirmed the plugin, the program that the script has
// started ends with the script.
func TestProvisionalScriptEndsWithItsProgram(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{DataDir: filepath.Join(t.TempDir(), "run")})
	r, w := newPipe(t)
	cmd := sh("sleep 1000 & echo $!; wait")
	cmd.Stdout, cmd.KillOnDisconnect = w, true
	script, err := c.Spawn(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(r, &pid); err != nil {
		t.Fatal(err)
	}
	program, err := osprocess.LookupID(pid)
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	for _, p := range []osprocess.ID{script, program} {
		if !p.EndsWithin(10 * time.Second) {
			t.Errorf("process %d of script %d has outlived the client", p.PID, script.PID)
			_ = p.Signal(unix.SIGKILL) // an error means that the process has ended meanwhile
		}
	}
}

// TestListParentProcesses checks that a process counts as a task only if the keeper has not
// spawned it, and that the parents of such processes are listed.
func TestListParentProcesses(t *testing.T) {
	t.Parallel()
	c := startClient(t, Config{Ephemeral: true})
	expect := func(want ...osprocess.ID) {
		t.Helper()
		if got, err := c.ListProcessesThatMayHaveTasks(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("parents %v, %v; want %v", got, err, want)
		}
	}
	expect()
	alone, err := c.Spawn(t.Context(), Command{Path: "/bin/sleep", Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	expect()
	plugin, task := spawnPluginWithTask(t, c, false)
	expect(plugin)
	for _, p := range []osprocess.ID{plugin, alone} {
		if err := p.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Wait(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	expect(c.Status().KeeperProcess) // the task has become a child of the keeper
	if err := task.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	expect()
}
