package sdktest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
)

// envDriverFault names the environment variable with the fault of the driver that this
// binary serves.
const envDriverFault = "SDKTEST_FAULT"

func TestMain(m *testing.M) {
	// The tests of defects mainly wait: for processes, and for events that never occur. A plugin without a defect needs
	// some milliseconds for these events, also on a busy machine far less than the timeout.
	const eventTimeout = 4 * time.Second
	childKillTimeout, cancelledStartTimeout, streamValueTimeout = eventTimeout, eventTimeout, eventTimeout
	if err := flag.Set("test.parallel", "16"); err != nil { // the flag of the command line replaces it
		panic(err)
	}
	Main(m, func() {
		if defect, ok := os.LookupEnv(envDefect); ok {
			serveDefectiveDriver(defect)
			return
		}
		if defect, ok := os.LookupEnv(envDeviceDefect); ok {
			serveDefectiveDevice(defect)
			return
		}
		if fault, ok := os.LookupEnv(envHookFault); ok {
			serveFaultyHook(fault)
			return
		}
		if os.Getenv(basewire.Handshake.MagicCookieKey) == "" {
			fmt.Fprintln(os.Stderr, "this is a plugin")
			os.Exit(1)
		}
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // an ignored SIGHUP (nohup) would be inherited by tasks
		n := &faultyDriver{fault: os.Getenv(envDriverFault), tasks: map[string]*faultyDriverTask{}}
		if n.fault == "talks before the handshake" {
			fmt.Println("welcome")
		}
		if n.fault == "panics" {
			panic("at the start")
		}
		if n.fault != "leaks a descriptor" {
			// Tasks must not inherit the descriptors that this test has
			// inherited.
			unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
		}
		plugin.Serve(&plugin.ServeConfig{
			HandshakeConfig: basewire.Handshake,
			Plugins: plugin.PluginSet{
				basewire.PluginName:   &basewire.GRPCPlugin{Impl: n},
				driverwire.PluginName: &driverwire.GRPCPlugin{Impl: n},
			},
			GRPCServer: basewire.NewServerWithoutSizeLimits,
		})
	})
}

// faultyDriver is a simple driver without the SDK, with a configurable fault.
type faultyDriver struct {
	fault string

	mu          sync.Mutex
	configCount int
	tasks       map[string]*faultyDriverTask
}

type faultyDriverTask struct {
	config     *driver.TaskConfig
	cmd        *exec.Cmd
	startedAt  time.Time
	done       chan struct{}
	exitResult driver.ExitResult
	endedAt    time.Time
	waitCount  int
}

func (f *faultyDriver) PluginInfo(context.Context) (*base.Info, error) {
	info := &base.Info{Type: base.TypeDriver, APIVersions: []string{"v0.1.0"}, Version: "0.1.0", Name: "naive"}
	switch f.fault {
	case "has an odd version":
		info.Version = "new"
	case "speaks another version":
		info.APIVersions = []string{"v9.0.0"}
	}
	return info, nil
}

func (f *faultyDriver) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	return hclspec.Object(nil), nil
}

func (f *faultyDriver) SetConfig(context.Context, *base.Config) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.configCount++
	if f.fault == "takes its configuration once" && f.configCount > 1 {
		return errors.New("configured already")
	}
	return nil
}

func (f *faultyDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	name := "command"
	if f.fault == "has another schema" {
		name = "program"
	}
	return hclspec.Object(map[string]*hclspec.Spec{name: hclspec.Attr(name, "string", true), "args": hclspec.Attr("args", "list(string)", false)}), nil
}

func (f *faultyDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	return &driver.Capabilities{SendSignals: true}, nil
}

func (f *faultyDriver) Init(context.Context) error { return nil }

func (f *faultyDriver) Shutdown(context.Context) error {
	if f.fault == "stops its tasks when it is shut down" {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, t := range f.tasks {
			t.cmd.Process.Kill()
			<-t.done
		}
	}
	return nil
}

func (f *faultyDriver) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	c := make(chan driver.Fingerprint, 1)
	c <- driver.Fingerprint{Health: driver.HealthHealthy}
	if f.fault == "ends its fingerprints" {
		close(c)
	}
	return c, nil
}

func (f *faultyDriver) TaskEvents(ctx context.Context) (<-chan *driver.TaskEvent, error) {
	return make(chan *driver.TaskEvent), nil
}

func (f *faultyDriver) StartTask(_ context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tasks[c.ID] != nil && f.fault != "starts twice" {
		return nil, nil, errors.New("already started")
	}
	var config struct {
		Command string   `codec:"command"`
		Args    []string `codec:"args"`
	}
	if err := hclspec.Unmarshal(c.DriverConfig, &config); err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(config.Command, config.Args...)
	cmd.Dir = c.AllocDir + "/" + c.Name
	for k, v := range c.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := os.OpenFile(c.StdoutPath, os.O_WRONLY, 0)
	if err != nil {
		return nil, nil, err
	}
	stderr, err := os.OpenFile(c.StderrPath, os.O_WRONLY, 0)
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	switch f.fault {
	case "starts elsewhere":
		cmd.Dir = "/"
	case "passes its environment on":
		cmd.Env = append(os.Environ(), cmd.Env...)
	case "leaks a descriptor":
		cmd.ExtraFiles = []*os.File{os.Stdin}
	case "shares its session":
		cmd.SysProcAttr = nil
	case "says that another try helps":
		if _, err := exec.LookPath(config.Command); err != nil {
			return nil, nil, driver.Recoverable(err)
		}
	case "lets its tasks die with it":
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	if f.fault != "holds the output" {
		stdout.Close()
		stderr.Close()
	}
	t := &faultyDriverTask{config: c, cmd: cmd, startedAt: time.Now(), done: make(chan struct{})}
	f.tasks[c.ID] = t
	go func() {
		cmd.Wait()
		ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
		t.exitResult = driver.ExitResult{ExitCode: ws.ExitStatus()}
		if ws.Signaled() {
			t.exitResult = driver.ExitResult{ExitCode: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
		}
		if f.fault == "forgets the exit code" {
			t.exitResult = driver.ExitResult{}
		}
		t.endedAt = time.Now()
		close(t.done)
	}()
	handle := &driver.Handle{Version: 1, Config: c, State: driver.TaskRunning}
	if f.fault == "returns another handle" {
		handle.Config = &driver.TaskConfig{ID: "other"}
	}
	return handle, nil, nil
}

func (f *faultyDriver) findTask(id string) (*faultyDriverTask, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.tasks[id]; t != nil {
		return t, nil
	}
	if f.fault == "has its own words" {
		return nil, errors.New("never heard of it")
	}
	return nil, driver.ErrTaskNotFound
}

func (f *faultyDriver) RecoverTask(_ context.Context, handle *driver.Handle) error {
	if _, err := f.findTask(handle.Config.ID); err == nil || f.fault != "recovers what is gone" {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &faultyDriverTask{config: handle.Config, done: make(chan struct{}), startedAt: time.Now(), endedAt: time.Now()}
	close(t.done)
	f.tasks[handle.Config.ID] = t
	return nil
}

func (f *faultyDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	t, err := f.findTask(id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	t.waitCount++
	waits := t.waitCount
	f.mu.Unlock()
	if f.fault == "is waited for once" && waits > 1 {
		return nil, errors.New("another call waits already")
	}
	select {
	case <-t.done:
		return &t.exitResult, nil
	case <-ctx.Done():
		if f.fault == "ends with its waiter" {
			t.cmd.Process.Kill()
		}
		return nil, ctx.Err()
	}
}

func (f *faultyDriver) StopTask(_ context.Context, id string, timeout time.Duration, signal string) error {
	t, err := f.findTask(id)
	if err != nil {
		return err
	}
	select {
	case <-t.done:
		if f.fault == "cannot stop what has ended" {
			return os.ErrProcessDone
		}
		return nil
	default:
	}
	sig := syscall.SIGINT
	if signal == "SIGUSR1" && f.fault != "stops by its own signal" {
		sig = syscall.SIGUSR1
	}
	t.cmd.Process.Signal(sig)
	if f.fault == "stops early" {
		return nil
	}
	if f.fault == "has no patience" {
		timeout = 0
	}
	select {
	case <-t.done:
	case <-time.After(timeout):
		t.cmd.Process.Kill()
		<-t.done
	}
	return nil
}

func (f *faultyDriver) DestroyTask(_ context.Context, id string, force bool) error {
	t, err := f.findTask(id)
	if err != nil {
		return err
	}
	select {
	case <-t.done:
	default:
		if !force && f.fault != "destroys without force" {
			return errors.New("it runs")
		}
		if f.fault == "leaves children" {
			t.cmd.Process.Kill()
		} else {
			syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL)
			t.cmd.Process.Kill()
		}
		<-t.done
	}
	if f.fault != "remembers what was destroyed" {
		f.mu.Lock()
		delete(f.tasks, id)
		f.mu.Unlock()
	}
	return nil
}

func (f *faultyDriver) InspectTask(_ context.Context, id string) (*driver.TaskStatus, error) {
	t, err := f.findTask(id)
	if err != nil {
		return nil, err
	}
	s := &driver.TaskStatus{ID: id, Name: t.config.Name, State: driver.TaskRunning, StartedAt: t.startedAt}
	select {
	case <-t.done:
		if f.fault != "does not see the end" {
			s.State, s.CompletedAt, s.ExitResult = driver.TaskExited, t.endedAt, &t.exitResult
		}
	default:
	}
	return s, nil
}

func (f *faultyDriver) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	t, err := f.findTask(id)
	if err != nil {
		return nil, err
	}
	c := make(chan *driver.TaskStats)
	go func() {
		defer close(c)
		for i := 0; ; i++ {
			if f.fault == "is measured once" && i == 1 {
				return
			}
			select {
			case c <- &driver.TaskStats{Timestamp: time.Now()}:
			case <-t.done:
				return
			}
			time.Sleep(interval)
		}
	}()
	return c, nil
}

func (f *faultyDriver) SignalTask(_ context.Context, id, signal string) error {
	t, err := f.findTask(id)
	if err != nil {
		return err
	}
	switch {
	case signal == "SIGHUP":
		return t.cmd.Process.Signal(syscall.SIGHUP)
	case f.fault == "knows every signal":
		return t.cmd.Process.Signal(syscall.SIGINT)
	}
	return errors.New("unknown signal")
}

func (f *faultyDriver) ExecTask(context.Context, string, []string, time.Duration) (*driver.ExecResult, error) {
	return nil, errors.New("ExecTask is not supported by this driver")
}

func (f *faultyDriver) ExecTaskStreaming(context.Context, string, driver.Exec) (*driver.ExitResult, error) {
	return nil, errors.New("driver does not support exec")
}

func (f *faultyDriver) CreateNetwork(context.Context, string, string) (*driver.NetworkIsolation, bool, error) {
	return nil, false, errors.New("CreateNetwork RPC not supported by driver")
}

func (f *faultyDriver) DestroyNetwork(context.Context, string, *driver.NetworkIsolation) error {
	return errors.New("DestroyNetwork RPC not supported by driver")
}

func faultyDriverPlugin(fault string) Plugin {
	return Plugin{
		Path: os.Args[0],
		Env:  []string{envDriverFault + "=" + fault},
		Tasks: Tasks{Shell: func(script string) map[string]any {
			return map[string]any{"command": "/bin/sh", "args": []any{"-c", script}}
		}},
	}
}

// TestEachCaseCanFail runs the suite against drivers with one fault each, and
// checks that the matching case finds it.
func TestEachCaseCanFail(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fault string
		run   func(tb, *testHost)
		says  string
	}{
		{"talks before the handshake", newPluginInfoCase(base.TypeDriver, driver.APIVersion), "welcome"},
		{"panics", newPluginInfoCase(base.TypeDriver, driver.APIVersion), "at the start"},
		{"has an odd version", newPluginInfoCase(base.TypeDriver, driver.APIVersion), "version"},
		{"speaks another version", newPluginInfoCase(base.TypeDriver, driver.APIVersion), "v9.0.0"},
		{"takes its configuration once", testSetConfigSucceedsTwice, "configured already"},
		{"has another schema", testTasksFitConfigSchema, "program"},
		{"ends its fingerprints", testDriverStreamsStayOpen, "closed a stream of fingerprints"},
		{"returns another handle", testHandleKeepsTaskConfig, "other"},
		{"starts twice", testStartWithKnownIDFails, "succeeded"},
		{"is waited for once", testRepeatedWaitsReturnSameResult, "another call waits already"},
		{"ends with its waiter", testCancelledWaitKeepsTaskRunning, "is no longer running"},
		{"forgets the exit code", testFailedTaskIsNoSuccess, "want a failure"},
		{"stops early", testKillAfterStopTimeout, "before its timeout"},
		{"does not see the end", testStopTaskEndsTaskAndWait, "want state exited"},
		{"cannot stop what has ended", testStopOfExitedTaskKeepsResult, "StopTask"},
		{"destroys without force", testDestroyRunningTaskNeedsForce, "without force succeeded"},
		{"remembers what was destroyed", testDestroyedTaskIsUnknown, "want task not found"},
		{"has its own words", testUnknownIDGivesTaskNotFound, "never heard of it"},
		{"does not see the end", testInspectExitedTask, "state"},
		{"is measured once", testStatsArriveUntilTaskExits, "ended while the task ran"},
		{"starts twice", testStartWithKnownIDFails, "succeeded"},
		{"stops its tasks when it is shut down", testShutdownStopsNoTask, "after Shutdown"},
		{"recovers what is gone", testRecoverOfDestroyedIsNoSuccess, "RecoverTask succeeded"},
		{"starts elsewhere", testTaskStartsInTaskDir, "the directory is /,"},
		{"passes its environment on", testTaskEnvironmentIsExact, "is not in the task config"},
		{"leaks a descriptor", testTaskInheritsNoDescriptors, "descriptor 3"},
		{"shares its session", testTaskHasOwnSession, "session of the plugin"},
		{"forgets the exit code", testExitStatusIsReported, "exit 7"},
		{"stops by its own signal", testStopSendsJobSignal, "exit code 9"},
		{"has no patience", testKillAfterStopTimeout, "before its timeout"},
		{"says that another try helps", testMissingCommandFailsStart, "is recoverable"},
		{"knows every signal", testSignalsAreDelivered, "SIGFOO succeeded"},
		{"lets its tasks die with it", testTaskOutlivesPlugin, "exited with the plugin"},
	} {
		t.Run(test.fault, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && slices.Contains([]string{"leaks a descriptor", "ends its fingerprints"}, test.fault) {
				t.Skip("waits some seconds for the end of the fault")
			}
			h := newTestHost(faultyDriverPlugin(test.fault))
			defer h.closeHostAndPlugins()
			r := runCase(t.Context(), testCase{id: test.fault, run: test.run}, h)
			if got := strings.Join(r.logLines, "\n"); !r.failed || !strings.Contains(got, test.says) {
				t.Errorf("failed: %v, it says:\n%s\nwant a failure that says %q", r.failed, got, test.says)
			}
		})
	}
}

// TestCheckReport tests the output of Check.
func TestCheckReport(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the suite for drivers as a whole")
	}
	var out bytes.Buffer
	p := faultyDriverPlugin("")
	p.Tasks = Tasks{} // detected from the schema
	err := Check(t.Context(), &out, p)
	text := out.String()
	for _, want := range []string{
		"PASS  concurrency.tasks  ",
		"SKIP  recover.after-kill  ",
		"FAIL  command.children  (must, ",
		"PASS  wait.exit-status  ",
		" passed, 1 failed, ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "1 of ") {
		t.Errorf("error %v", err)
	}
	if t.Failed() {
		t.Logf("%s", text)
	}
}

func TestCheckStopsHangingCase(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	var out bytes.Buffer
	if err := Check(ctx, &out, faultyDriverPlugin("")); !errors.Is(err, why) || out.Len() > 0 {
		t.Errorf("%v, %q", err, out.String())
	}
}
