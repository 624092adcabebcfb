package sdktest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"

	proc "github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/device/devicewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// waitTimeout limits how long the suite waits for an event that normally occurs
// at once. Tests change it.
var waitTimeout = 20 * time.Second

// testHost acts as an agent for the tested plugin. Cases run sequentially and share
// sharedProcess, which is started on demand. It is large because it has the calls of an agent to each kind of plugin.
type testHost struct {
	testedPlugin         Plugin
	socketDir            string     // directory for the sockets of plugins, which a killed plugin does not remove; "" until it is made
	sharedProcessStartMu sync.Mutex // serializes starts of the shared process
	sharedProcess        *pluginProcess
	watchedStreams       *watchedStreams // nil until a case opens the streams

	processEnvEntry string // KEY=VALUE in the environment of all plugin processes of this host, and of no other process

	mu                sync.Mutex
	launchedProcesses []*pluginProcess // plugin processes that this case started, or that are still running
	allocIDsOfCase    []string         // ids of the allocations of tasks that this case has made
	allocIDsOfSuite   map[string]bool  // ids of the allocations of tasks that any case has made
	caseAborted       bool             // the case was aborted, and its processes were killed
	launchesRefused   bool             // no further process may be started, because the suite was killed

	taskCgroups taskCgroups

	skipDevicesReason   string // reason why the cases that need devices are skipped; "" if they are not skipped
	hasReserveOneFailed bool   // Reserve of one device has failed, so that all cases for Reserve are skipped

	hookHost       suiteHost // host service for hooks
	hookHostSocket string    // socket of hookHost; "" if it does not listen
	stopHookHost   func()
}

func newTestHost(p Plugin) *testHost {
	p.Tasks.addShellTasks()
	return &testHost{testedPlugin: p, taskCgroups: openTaskCgroups(), allocIDsOfSuite: map[string]bool{}, processEnvEntry: envProcessMarker + "=" + newUUID()}
}

// envProcessMarker is the environment variable by which a testHost finds its plugin processes.
const envProcessMarker = "NOMAD_LITE_SDKTEST"

// addShellTasks sets LongRunning, Succeeds and Fails, if they are nil, to tasks that run shell scripts, if t.Shell
// is set.
func (t *Tasks) addShellTasks() {
	if t.Shell == nil {
		return
	}
	for body, script := range map[*map[string]any]string{
		&t.LongRunning: "exec sleep 3600",
		&t.Succeeds:    "exit 0",
		&t.Fails:       "exit 3",
	} {
		if *body == nil {
			*body = t.Shell(script)
		}
	}
}

// detectTypeAndAddShellTasks determines the type of the plugin. For a driver without configured tasks it also calls
// addShellTasksIfSupported. It ignores errors of the driver's calls, because a case of the suite
// reports them.
func (h *testHost) detectTypeAndAddShellTasks(ctx context.Context) (kind base.Type, err error) {
	p, err := h.launchUnconfiguredPlugin()
	if err != nil {
		return base.TypeUnknown, err
	}
	defer p.kill()
	ctx, cancel := context.WithTimeout(ctx, min(waitTimeout, h.caseTimeout()))
	defer cancel()
	switch kind := pluginType(ctx, p); kind {
	case base.TypeHook, base.TypeDevice:
		return kind, nil
	}
	h.addShellTasksIfSupported(ctx, p)
	return base.TypeDriver, nil
}

func (h *testHost) addShellTasksIfSupported(ctx context.Context, p *pluginProcess) {
	t := &h.testedPlugin.Tasks
	if t.LongRunning != nil || t.Succeeds != nil || t.Fails != nil || t.Shell != nil {
		return
	}
	schema, err := p.driverClient.TaskConfigSchema(ctx)
	if err != nil || schema == nil {
		return
	}
	shell := func(script string) map[string]any {
		return map[string]any{"command": "/bin/sh", "args": []any{"-c", script}}
	}
	if _, err := h.testedPlugin.configEncoder().Msgpack(schema, shell("exit 0")); err == nil {
		t.Shell = shell
		t.addShellTasks()
	}
}

func (h *testHost) closeHostAndPlugins() {
	h.stopSharedProcess()
	if h.watchedStreams != nil {
		h.watchedStreams.cancel()
		h.watchedStreams.pluginProcess.shutDownOrKill()
	}
	h.closeHookHost()
	if h.socketDir != "" {
		os.RemoveAll(h.socketDir)
	}
}

// stopSharedProcess shuts down the shared plugin process.
func (h *testHost) stopSharedProcess() {
	if h.sharedProcess != nil {
		h.sharedProcess.shutDownOrKill()
		h.sharedProcess = nil
	}
}

// pluginProcess is one plugin process.
type pluginProcess struct {
	baseClient     base.Plugin
	driverClient   driver.Driver // usable only for a driver, as hook is only for a hook, and device only for a device plugin
	hookClient     *hookwire.Client
	deviceClient   device.Plugin
	pid            int
	cmd            *exec.Cmd
	goPluginClient *plugin.Client
	stderr         *lockedBuffer

	isKilledBySuite    atomic.Bool // the suite has killed the process, because it aborted a case
	stderrBytesChecked int         // number of bytes of stderr that were searched for panics
}

// launchUnconfiguredPlugin starts a plugin process as Nomad does, and does not configure it.
func (h *testHost) launchUnconfiguredPlugin() (*pluginProcess, error) {
	if h.isSuiteKilled() {
		return nil, errSuiteKilled
	}
	path, err := filepath.Abs(h.testedPlugin.Path)
	if err != nil {
		return nil, err
	}
	if h.socketDir == "" {
		if h.socketDir, err = os.MkdirTemp("", "sdktest"); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(path, h.testedPlugin.Args...)
	cmd.Env = append(append(append(os.Environ(), "TMPDIR="+h.socketDir), h.testedPlugin.Env...), h.processEnvEntry)
	stderr := &lockedBuffer{}
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName:   &basewire.GRPCPlugin{},
			driverwire.PluginName: &driverwire.GRPCPlugin{},
			hookwire.PluginName:   &hookwire.GRPCPlugin{},
			devicewire.PluginName: &devicewire.GRPCPlugin{Name: filepath.Base(path)},
		},
		Cmd:              cmd,
		SkipHostEnv:      true, // cmd.Env includes the host's environment already
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
		Stderr:           stderr,
		StartTimeout:     waitTimeout,
	})
	p := &pluginProcess{cmd: cmd, goPluginClient: client, stderr: stderr}
	rpc, err := client.Client()
	if err != nil {
		client.Kill()
		why := shortenHandshakeError(err)
		if text := strings.TrimSpace(stderr.String()); text != "" {
			return nil, fmt.Errorf("launch %s: %w; standard error:\n%s", path, why, text)
		}
		return nil, fmt.Errorf("launch %s: %w", path, why)
	}
	b, err := rpc.Dispense(basewire.PluginName)
	if err == nil {
		p.baseClient = b.(base.Plugin)
		b, err = rpc.Dispense(driverwire.PluginName)
	}
	if err == nil {
		p.driverClient = b.(driver.Driver)
		b, err = rpc.Dispense(hookwire.PluginName)
	}
	if err == nil {
		p.hookClient = b.(*hookwire.Client)
		b, err = rpc.Dispense(devicewire.PluginName)
	}
	if err != nil {
		client.Kill()
		return nil, err
	}
	p.deviceClient = b.(device.Plugin)
	p.pid = client.ReattachConfig().Pid
	h.mu.Lock()
	h.launchedProcesses = append(h.launchedProcesses, p)
	h.mu.Unlock()
	return p, nil
}

// shortenHandshakeError returns err, the error of go-plugin for a plugin that could not be started. It replaces the
// long error about an invalid handshake line by a short one.
func shortenHandshakeError(err error) error {
	text, strange := strings.CutPrefix(err.Error(), "Unrecognized remote plugin message: ")
	line, _, _ := strings.Cut(text, "\n")
	switch {
	case !strange:
		return err
	case line == "":
		return errors.New("the process exited without the handshake line")
	}
	return fmt.Errorf("the plugin wrote %q to standard output, which is for the handshake line only; log to standard error", line)
}

// configurePlugin makes the calls that a host makes before it uses a plugin: SetConfig, and Configure of a hook or
// Init of a driver.
func (h *testHost) configurePlugin(ctx context.Context, p *pluginProcess) error {
	config, err := h.encodePluginConfig(ctx, p)
	if err != nil {
		return err
	}
	kind := pluginType(ctx, p)
	if kind != base.TypeHook && kind != base.TypeDevice {
		config.Driver = newDriverHostConfig()
	}
	if err := p.baseClient.SetConfig(ctx, config); err != nil {
		return fmt.Errorf("configure the plugin: %w", err)
	}
	switch kind {
	case base.TypeHook:
		return h.configureHook(ctx, p)
	case base.TypeDevice:
		return nil
	}
	if err := p.driverClient.Init(ctx); err != nil {
		return fmt.Errorf("call Init: %w", err)
	}
	return nil
}

// newDriverHostConfig returns the port range and the topology of the machine, which a host sends to a driver with its
// configuration.
func newDriverHostConfig() *base.ClientDriverConfig {
	return &base.ClientDriverConfig{ClientMinPort: 14000, ClientMaxPort: 14512, Topology: &base.Topology{
		NodeIDs: []uint32{0}, Distances: [][]uint32{{10}}, Cores: []base.Core{{GuessSpeed: 1000}},
	}}
}

// pluginType returns the type of a plugin, or base.TypeUnknown if PluginInfo fails.
func pluginType(ctx context.Context, p *pluginProcess) base.Type {
	info, err := p.baseClient.PluginInfo(ctx)
	if err != nil {
		return base.TypeUnknown
	}
	return info.Type
}

// configureHook sends the socket of the host service to a hook. It starts the host service if that is not running.
func (h *testHost) configureHook(ctx context.Context, p *pluginProcess) (err error) {
	if h.hookHostSocket == "" {
		if h.hookHostSocket, h.stopHookHost, err = h.hookHost.serveOnSocket(h.socketDir); err != nil {
			return err
		}
	}
	return p.hookClient.Configure(ctx, hook.Config{
		HostSocket: h.hookHostSocket,
		Node:       hook.Node{ID: newUUID(), Name: "node", Datacenter: "dc1", Region: "global", Pool: "default"},
	})
}

// closeHookHost stops the host service for hooks. After the next start it has another socket.
func (h *testHost) closeHookHost() {
	if h.hookHostSocket != "" {
		h.stopHookHost()
		h.hookHostSocket = ""
	}
}

func (h *testHost) encodePluginConfig(ctx context.Context, p *pluginProcess) (*base.Config, error) {
	info, err := p.baseClient.PluginInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("PluginInfo: %w", err)
	}
	schema, err := p.baseClient.ConfigSchema(ctx)
	if err != nil {
		return nil, fmt.Errorf("ConfigSchema: %w", err)
	}
	c := &base.Config{APIVersion: driver.APIVersion}
	if len(info.APIVersions) > 0 {
		c.APIVersion = info.APIVersions[0]
	}
	if schema == nil {
		if len(h.testedPlugin.Config) > 0 {
			return nil, errors.New("the plugin has no schema for a configuration")
		}
		return c, nil
	}
	if c.MsgpackConfig, err = h.testedPlugin.configEncoder().Msgpack(schema, h.testedPlugin.Config); err != nil {
		return nil, fmt.Errorf("the configuration of the plugin: %w", err)
	}
	return c, nil
}

// launchOrGetSharedProcess returns the plugin process that cases share. It launches and configures one if none is running.
func (h *testHost) launchOrGetSharedProcess(t tb) *pluginProcess {
	t.Helper()
	h.sharedProcessStartMu.Lock()
	defer h.sharedProcessStartMu.Unlock()
	if h.sharedProcess != nil {
		if !h.sharedProcess.goPluginClient.Exited() {
			return h.sharedProcess
		}
		died := h.sharedProcess
		h.stopSharedProcess()
		if !died.isKilledBySuite.Load() {
			t.Errorf("%s", died.crashReport())
		}
	}
	p, err := h.launchUnconfiguredPlugin()
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := h.configurePlugin(ctx, p); err != nil {
		if errors.Is(err, base.ErrPluginDown) {
			err = fmt.Errorf("%w: %s", err, p.crashReport())
		}
		p.kill()
		t.Fatalf("%v", err)
	}
	h.sharedProcess = p
	return p
}

// killSharedProcess kills the shared plugin process with SIGKILL, and waits until its client has detected the exit.
func (h *testHost) killSharedProcess(t tb) {
	t.Helper()
	p := h.sharedProcess
	h.sharedProcess = nil
	if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
		t.Fatalf("kill the plugin: %v", err)
	}
	waitUntil(t, "the host detects the exit of the plugin (a task could hold its standard output or error)", p.goPluginClient.Exited)
	p.goPluginClient.Kill()
}

// crashReport describes an unexpected exit of the plugin process, for messages.
func (p *pluginProcess) crashReport() string {
	died := "the plugin exited by itself"
	// The client may see the end of the connection before the exit of the process.
	for deadline := time.Now().Add(time.Second); !p.goPluginClient.Exited() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if p.goPluginClient.Exited() {
		died += ", " + p.cmd.ProcessState.String()
	}
	words := p.stderrTailOrPanic()
	if words == "" {
		return died + ", and its standard error is empty"
	}
	return died + "; the end of its standard error:\n" + words
}

// stderrTailOrPanic returns the start of the panic message if the process panicked, else
// the end of its standard error.
func (p *pluginProcess) stderrTailOrPanic() string {
	const maxLines = 40
	text := strings.TrimSpace(p.stderr.String())
	if i := findPanicIndex(text); i >= 0 {
		lines := strings.Split(text[i:], "\n")
		return strings.Join(lines[:min(maxLines, len(lines))], "\n")
	}
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-maxLines):], "\n")
}

// testTask is one start of a task.
type testTask struct {
	t                    tb
	host                 *testHost
	config               *driver.TaskConfig
	handle               *driver.Handle
	stdout               *lockedBuffer
	stderr               *lockedBuffer
	outputFIFOWriters    []*os.File     // writing ends of the FIFOs of stdout and stderr
	outputReadGoroutines sync.WaitGroup // goroutines that copy the FIFOs to stdout and stderr

	isDestroyed bool
}

// prepareTaskDirsAndConfig makes the directories, the FIFOs and the config of a task, as a host does before StartTask.
func (h *testHost) prepareTaskDirsAndConfig(t tb, configBlock map[string]any) (*driver.TaskConfig, *testTask) {
	t.Helper()
	if configBlock == nil {
		t.Skipf("no such task is configured: set Plugin.Tasks, or runs, ends and fails in plugin_test.hcl")
	}
	p := h.launchOrGetSharedProcess(t)
	schema, err := p.driverClient.TaskConfigSchema(t.Context())
	if err != nil {
		t.Fatalf("TaskConfigSchema: %v", err)
	}
	encoded, err := h.testedPlugin.configEncoder().Msgpack(schema, configBlock)
	if err != nil {
		t.Fatalf("the config of a task does not fit the driver's schema: %v", err)
	}
	allocID := newUUID()
	h.mu.Lock()
	h.allocIDsOfCase = append(h.allocIDsOfCase, allocID)
	h.allocIDsOfSuite[allocID] = true
	h.mu.Unlock()
	config := newTaskDirsAndConfig(t, allocID, "task", encoded)
	if h.capabilities(t).FSIsolation == driver.FSIsolationChroot {
		buildChroot(t, config)
	}
	h.taskCgroups.makeForTask(t, config)
	s := &testTask{t: t, host: h, config: config, stdout: &lockedBuffer{}, stderr: &lockedBuffer{}}
	s.makeOutputFIFOs()
	return config, s
}

// newTaskDirsAndConfig makes the directories of a task, without the FIFOs of its output, and returns its config.
func newTaskDirsAndConfig(t tb, allocID, taskName string, encodedConfig []byte) *driver.TaskConfig {
	t.Helper()
	dir := filepath.Join(t.TempDir(), allocID)
	for _, sub := range []string{"alloc/data", "alloc/logs", "alloc/tmp", taskName + "/local", taskName + "/secrets", taskName + "/tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatalf("%v", err)
		}
	}
	return &driver.TaskConfig{
		ID:            allocID + "/" + taskName + "/" + newUUID()[:8],
		Name:          taskName,
		JobName:       "suite",
		JobID:         "suite",
		TaskGroupName: "group",
		Namespace:     "default",
		NodeName:      "node",
		NodeID:        newUUID(),
		AllocID:       allocID,
		DriverConfig:  encodedConfig,
		Env: map[string]string{
			"PATH":              "/usr/local/bin:/usr/bin:/bin",
			"NOMAD_ALLOC_ID":    allocID,
			"NOMAD_TASK_NAME":   taskName,
			"NOMAD_ALLOC_DIR":   filepath.Join(dir, "alloc"),
			"NOMAD_TASK_DIR":    filepath.Join(dir, taskName, "local"),
			"NOMAD_SECRETS_DIR": filepath.Join(dir, taskName, "secrets"),
			"ODD":               "two\nlines and $signs",
		},
		AllocDir:   dir,
		StdoutPath: filepath.Join(dir, "alloc/logs", "."+taskName+".stdout.fifo"),
		StderrPath: filepath.Join(dir, "alloc/logs", "."+taskName+".stderr.fifo"),
		Resources: &driver.Resources{
			CPUShares: 100,
			MemoryMB:  128, // the minimum memory of a virtual machine of the driver qemu
			Linux:     driver.LinuxResources{CPUShares: 100, MemoryLimitBytes: 128 << 20},
		},
	}
}

// makeOutputFIFOs makes the FIFOs of the outputs, and starts to copy them to stdout and stderr.
func (s *testTask) makeOutputFIFOs() {
	s.t.Helper()
	s.t.Cleanup(s.closeOutputFIFOWriters)
	for path, to := range map[string]*lockedBuffer{s.config.StdoutPath: s.stdout, s.config.StderrPath: s.stderr} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			s.t.Fatalf("make FIFO: %v", err)
		}
		s.startReadingFIFO(path, to)
	}
}

// startReadingFIFO starts a goroutine that copies a FIFO until all writers have closed it. The suite also has the FIFO
// open for writing, until closeOutputFIFOWriters, so that the FIFO still has a reader when another plugin process
// recovers the task.
func (s *testTask) startReadingFIFO(path string, to io.Writer) {
	s.t.Helper()
	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		reader.Close()
		s.t.Fatalf("%v", err)
	}
	s.outputFIFOWriters = append(s.outputFIFOWriters, writer)
	s.outputReadGoroutines.Go(func() {
		defer reader.Close()
		io.Copy(to, reader)
	})
}

// closeOutputFIFOWriters closes the FIFOs of the outputs for writing. The output ends when no other process has them
// open. It can be called twice.
func (s *testTask) closeOutputFIFOWriters() {
	for _, w := range s.outputFIFOWriters {
		w.Close()
	}
}

// startTask starts a task with the given config block, and destroys the task at the end of the case.
func (h *testHost) startTask(t tb, configBlock map[string]any) *testTask {
	t.Helper()
	config, s := h.prepareTaskDirsAndConfig(t, configBlock)
	s.start(config)
	return s
}

func (s *testTask) start(config *driver.TaskConfig) {
	s.t.Helper()
	s.t.Cleanup(s.cleanUp)
	handle, _, err := s.host.launchOrGetSharedProcess(s.t).driverClient.StartTask(s.t.Context(), config)
	if err != nil {
		s.t.Fatalf("StartTask: %v", err)
	}
	s.handle = handle
}

// cleanUp destroys a task that the case has not destroyed, if necessary after a recovery by the current
// plugin process, and kills the processes that a faulty driver has left running.
func (s *testTask) cleanUp() {
	defer killProcessesByEnv("NOMAD_ALLOC_ID=" + s.config.AllocID)
	if s.handle == nil || s.isDestroyed || s.host.isCaseAborted() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	d := s.host.launchOrGetSharedProcess(&tbWithContext{s.t, ctx}).driverClient
	err := d.DestroyTask(ctx, s.config.ID, true)
	if errors.Is(err, driver.ErrTaskNotFound) && d.RecoverTask(ctx, s.handle) == nil {
		err = d.DestroyTask(ctx, s.config.ID, true) // RecoverTask is needed for a task that an earlier plugin process has started
	}
	if err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		s.t.Errorf("DestroyTask at the end of the case: %v", err)
	}
}

// killProcessesByEnv kills every process that has the entry in its environment.
func killProcessesByEnv(entry string) {
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return
	}
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		fd, err := proc.OpenPidfd(pid) // opened before the environment is read, so that both refer to the same process
		if err != nil {
			continue
		}
		env, err := os.ReadFile(path)
		if err == nil && slices.Contains(strings.Split(string(env), "\x00"), entry) {
			_ = fd.Signal(unix.SIGKILL) // fails if the process has ended
		}
		fd.Close()
	}
}

// tbWithContext is a tb with another context, for example for cleanups, which run after the context of
// the case has ended.
type tbWithContext struct {
	tb
	ctx context.Context
}

func (c *tbWithContext) Context() context.Context { return c.ctx }

// isAllocOfSuite reports whether a case of the suite has made the allocation.
func (h *testHost) isAllocOfSuite(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.allocIDsOfSuite[id]
}

func (s *testTask) currentDriver() driver.Driver {
	s.t.Helper()
	return s.host.launchOrGetSharedProcess(s.t).driverClient
}

// waitForExit waits for the task and returns its exit result.
func (s *testTask) waitForExit() *driver.ExitResult {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	exit, err := s.currentDriver().WaitTask(ctx, s.config.ID)
	if err != nil {
		s.t.Fatalf("WaitTask: %v", err)
	}
	return exit
}

func (s *testTask) destroy() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	if err := s.currentDriver().DestroyTask(ctx, s.config.ID, true); err != nil {
		s.t.Fatalf("DestroyTask: %v", err)
	}
	s.isDestroyed = true
}

// waitForLineWithPrefix waits until the task has written a line with the prefix, and returns the
// rest of the line.
func (s *testTask) waitForLineWithPrefix(prefix string) string {
	s.t.Helper()
	var restOfLine string
	waitUntil(s.t, fmt.Sprintf("the task writes %q; it has written %q", prefix, s.stdout.String()), func() bool {
		for line := range strings.Lines(s.stdout.String()) {
			if text, ok := strings.CutPrefix(line, prefix); ok && strings.HasSuffix(line, "\n") {
				restOfLine = strings.TrimSpace(text)
				return true
			}
		}
		return false
	})
	return restOfLine
}

// callRecoverTask calls RecoverTask of the current plugin process with the stored handle, as a
// restarted host does: without the config block, which a host does not store.
func (s *testTask) callRecoverTask() error {
	handle := *s.handle
	config := *handle.Config
	config.DriverConfig = nil
	handle.Config = &config
	return s.currentDriver().RecoverTask(s.t.Context(), &handle)
}

// waitUntil waits until condition returns true, and fails the case after waitTimeout.
func waitUntil(t tb, awaitedState string, condition func() bool) {
	t.Helper()
	waitUntilWithin(t, waitTimeout, awaitedState, condition)
}

func waitUntilWithin(t tb, limit time.Duration, awaitedState string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, awaitedState)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// isProcessAlive reports whether a process is running, which a zombie is not.
func isProcessAlive(pid int) bool {
	stat, err := proc.ReadStat(pid)
	return err == nil && !stat.Ended()
}

// newUUID returns an id in the form of a UUID.
func newUUID() string {
	b := make([]byte, 16)
	rand.Read(b)
	text := hex.EncodeToString(b)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// lockedBuffer is a bytes.Buffer for concurrent use.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// runPluginWithoutHost runs the plugin without a host, as a user in a shell would.
func (h *testHost) runPluginWithoutHost(ctx context.Context) (stdout, stderr string, exitCode int, err error) {
	cmd := exec.CommandContext(ctx, h.testedPlugin.Path, h.testedPlugin.Args...)
	cmd.Env = append(os.Environ(), envServeWithoutHandshake+"=1")
	cmd.Env = append(append(cmd.Env, h.testedPlugin.Env...), h.processEnvEntry)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var stdoutBuffer, stderrBuffer bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdoutBuffer, &stderrBuffer
	err = cmd.Run()
	var exitErr *exec.ExitError
	if errors.As(err, &exitErr) {
		err = nil
	}
	return stdoutBuffer.String(), stderrBuffer.String(), cmd.ProcessState.ExitCode(), err
}
