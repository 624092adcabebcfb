package sdktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	proc "github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// envDefect names the environment variable with the defect of the driver that this binary
// serves.
const envDefect = "SDKTEST_DEFECT"

// commandDriver is a driver without defects, for commands.
type commandDriver struct{}

func (*commandDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name: "command",
		TaskSchema: hclspec.Object(map[string]*hclspec.Spec{
			"command": hclspec.Attr("command", "string", true),
			"args":    hclspec.Attr("args", "list(string)", false),
		}),
		Capabilities: driver.Capabilities{SendSignals: true, Exec: true},
	}
}

func (*commandDriver) Start(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var config struct {
		Command string   `codec:"command"`
		Args    []string `codec:"args"`
	}
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	return process.Start(ctx, start, process.Command{Path: config.Command, Args: config.Args})
}

func (*commandDriver) Recover(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var state process.State
	if err := start.DecodeState(&state); err != nil {
		return nil, err
	}
	return process.Recover(ctx, start, state)
}

// serveDefectiveDriver serves commandDriver with a defect. The SDK serves on a socket of
// this process, and defectiveDriver passes the calls on.
func serveDefectiveDriver(defect string) {
	if os.Getenv(basewire.Handshake.MagicCookieKey) == "" {
		if defect == "prints nothing without a host" {
			os.Exit(1)
		}
		fmt.Fprintln(os.Stderr, "this is a plugin")
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "defect")
	if err != nil {
		panic(err)
	}
	socket := filepath.Join(dir, "socket")
	os.Unsetenv(basewire.Handshake.MagicCookieKey)
	os.Setenv(sdk.EnvDebug, "command="+socket)
	go sdk.ServeDriver(&commandDriver{})
	for {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			break
		}
		time.Sleep(time.Millisecond)
	}
	os.Setenv(basewire.Handshake.MagicCookieKey, basewire.Handshake.MagicCookieValue)
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	own, err := readCgroupsOfProcess(os.Getpid()) // later, this thread may be in the cgroups of a task, for a fork
	if err != nil {
		panic(err)
	}
	d := &defectiveDriver{Driver: driverwire.NewClient(conn, nil), Plugin: basewire.NewClient(conn, nil), defect: defect, cgroups: own, tasks: map[string]*defectiveTask{}}
	switch defect {
	case "exits on SIGINT":
		interrupts := make(chan os.Signal, 1)
		signal.Notify(interrupts, os.Interrupt)
		go func() { <-interrupts; os.Exit(2) }()
	case "leaks a descriptor to commands":
		_, _ = unix.Open(os.DevNull, unix.O_RDONLY, 0)
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName:   &basewire.GRPCPlugin{Impl: d},
			driverwire.PluginName: &driverwire.GRPCPlugin{Impl: d},
		},
		GRPCServer: basewire.NewServerWithoutSizeLimits,
	})
	if defect == "does not exit" {
		select {}
	}
	os.RemoveAll(dir)
}

// defectiveDriver passes calls on to a driver, and changes one of them.
type defectiveDriver struct {
	driver.Driver
	base.Plugin
	defect  string
	cgroups cgroupPathsByController // of the plugin

	mu          sync.Mutex
	lock        *os.File
	configCount int
	initCount   int
	streamCount int
	tasks       map[string]*defectiveTask
}

// defectiveTask is what defectiveDriver remembers of a task.
type defectiveTask struct {
	config         *driver.TaskConfig
	handle         *driver.Handle
	starting       chan struct{} // closed when StartTask has returned
	recovered      bool
	exitedBefore   bool // the task had exited when it was recovered
	recoveryFailed bool
	destroyed      bool
	startCancelled bool
	stopCancelled  bool
	waits          int
	stops          int
	streams        int
}

func (d *defectiveDriver) task(id string) *defectiveTask {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tasks[id]
	if t == nil {
		t = &defectiveTask{}
		d.tasks[id] = t
	}
	return t
}

func (d *defectiveDriver) has(defect string) bool { return d.defect == defect }

func (d *defectiveDriver) hasExited(ctx context.Context, id string) bool {
	status, err := d.Driver.InspectTask(ctx, id)
	return err == nil && status.State == driver.TaskExited
}

func (d *defectiveDriver) PluginInfo(context.Context) (*base.Info, error) {
	info := &base.Info{Type: base.TypeDriver, APIVersions: []string{driver.APIVersion}, Version: "0.1.0", Name: "command"}
	if d.has("has a malformed version") {
		info.Version = "new"
	}
	return info, nil
}

func (d *defectiveDriver) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	if d.has("has a default of another type") {
		return hclspec.Object(map[string]*hclspec.Spec{"count": hclspec.Default(hclspec.Attr("count", "number", false), hclspec.Literal(`"many"`))}), nil
	}
	return hclspec.Object(nil), nil
}

func (d *defectiveDriver) SetConfig(_ context.Context, config *base.Config) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.configCount++
	switch {
	case d.has("accepts one configuration") && d.configCount > 1:
		return errors.New("already configured")
	case d.has("needs the topology") && config.Driver != nil && config.Driver.Topology == nil:
		return errors.New("no topology")
	case d.has("locks a file until it is used") && d.lock == nil:
		f, err := os.Create(filepath.Join(os.Getenv("TMPDIR"), "lock"))
		if err != nil {
			return err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return err
		}
		d.lock = f
	}
	return nil
}

func (d *defectiveDriver) TaskConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	d.unlock()
	return d.Driver.TaskConfigSchema(ctx)
}

// unlock releases the lock of "locks a file until it is used".
func (d *defectiveDriver) unlock() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lock != nil {
		_ = unix.Flock(int(d.lock.Fd()), unix.LOCK_UN)
	}
}

func (d *defectiveDriver) Init(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.initCount++; d.has("accepts one Init") && d.initCount > 1 {
		return errors.New("already initialized")
	}
	return d.Driver.Init(ctx)
}

func (d *defectiveDriver) Shutdown(ctx context.Context) error {
	if d.has("stops tasks in Shutdown") {
		for id := range d.tasks {
			_ = d.Driver.DestroyTask(ctx, id, true)
		}
	}
	return d.Driver.Shutdown(ctx)
}

func (d *defectiveDriver) Capabilities(ctx context.Context) (*driver.Capabilities, error) {
	c, err := d.Driver.Capabilities(ctx)
	if err == nil && d.has("does not declare exec") {
		c.Exec = false
	}
	return c, err
}

func (d *defectiveDriver) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	d.unlock()
	d.mu.Lock()
	d.streamCount++
	stream := d.streamCount
	d.mu.Unlock()
	c := make(chan driver.Fingerprint, 1)
	if !d.has("fingerprints one stream") || stream == 1 {
		f := driver.Fingerprint{Health: driver.HealthHealthy}
		if d.has("is unhealthy") {
			f.Health = driver.HealthUnhealthy
		}
		c <- f
	}
	switch {
	case d.has("closes the fingerprint stream"):
		close(c)
	case d.has("fingerprints all the time"):
		go func() {
			for ctx.Err() == nil {
				c <- driver.Fingerprint{Health: driver.HealthHealthy}
				time.Sleep(20 * time.Millisecond)
			}
		}()
	}
	return c, nil
}

func (d *defectiveDriver) TaskEvents(ctx context.Context) (<-chan *driver.TaskEvent, error) {
	if !d.has("sends events without an allocation") {
		return d.Driver.TaskEvents(ctx)
	}
	c := make(chan *driver.TaskEvent)
	go func() {
		for ctx.Err() == nil {
			select {
			case c <- &driver.TaskEvent{TaskName: "task", Message: "hello", Timestamp: time.Now()}:
				time.Sleep(20 * time.Millisecond)
			case <-ctx.Done():
			}
		}
	}()
	return c, nil
}

// waitUntilCancelled returns when the call is cancelled, or after the timeout.
func waitUntilCancelled(ctx context.Context, timeout time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(timeout):
	}
}

func (d *defectiveDriver) StartTask(ctx context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	t := d.task(config.ID)
	d.mu.Lock()
	starting, handle := t.starting, t.handle
	if starting == nil {
		t.starting, t.config = make(chan struct{}), config
	}
	d.mu.Unlock()
	switch {
	case starting != nil && d.has("remembers a cancelled start") && t.startCancelled:
		return nil, nil, errors.New("the task is being started")
	case handle != nil && d.has("starts a known id"):
		return handle, nil, nil
	case handle == nil && starting != nil && d.has("starts an id that is being started"):
		<-starting
		return t.handle, nil, nil
	case starting == nil:
		defer close(t.starting)
		if d.has("starts an id that is being started") {
			time.Sleep(50 * time.Millisecond) // time for the concurrent calls
		}
		if d.has("remembers a cancelled start") {
			waitUntilCancelled(ctx, 500*time.Millisecond)
		}
	}
	sent := *config
	marker := filepath.Join(config.AllocDir, "starting")
	switch d.defect {
	case "needs the job":
		if config.JobID == "" {
			return nil, nil, errors.New("no job")
		}
	case "accepts a malformed config":
		if bytes.HasPrefix(config.DriverConfig, []byte{0xc1}) {
			sent.DriverConfig, _ = encodeMsgpack(commandSchema(), map[string]any{"command": "/bin/true"})
		}
	case "needs FIFOs":
		if config.StdoutPath == os.DevNull {
			return nil, nil, errors.New("not a FIFO")
		}
	case "adds a variable":
		sent.Env = map[string]string{"EXTRA": "1"}
		for k, v := range config.Env {
			sent.Env[k] = v
		}
	case "writes to standard error":
		if f, err := os.OpenFile(config.StderrPath, os.O_WRONLY, 0); err == nil {
			fmt.Fprintln(f, "starting")
			defer f.Close()
		}
	case "copies the output":
		if config.StdoutPath != os.DevNull {
			sent.StdoutPath = filepath.Join(config.AllocDir, "copied")
			if err := unix.Mkfifo(sent.StdoutPath, 0o600); err != nil {
				return nil, nil, err
			}
			go copyFIFO(sent.StdoutPath, config.StdoutPath)
		}
	case "ignores the memory limit":
		if config.Resources != nil && config.Resources.MemoryMaxMB == 0 {
			sent.Resources = withMemory(config, func(r *driver.Resources) { r.Linux.MemoryLimitBytes = 0 })
		}
	case "limits memory to a fixed number":
		sent.Resources = withMemory(config, func(r *driver.Resources) { r.Linux.MemoryLimitBytes = 300 << 20 })
	case "ignores memory_max":
		sent.Resources = withMemory(config, func(r *driver.Resources) { r.Linux.MemoryLimitBytes = r.MemoryMB << 20 })
	case "ignores the reservation":
		sent.Resources = withMemory(config, func(r *driver.Resources) { r.MemoryMaxMB = 0 })
	case "keeps a descriptor":
		_, _ = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case "leaves a zombie":
		_, _ = syscall.ForkExec("/bin/true", []string{"true"}, nil)
	case "marks a start with a file":
		if _, err := os.Stat(marker); err == nil {
			return nil, nil, errors.New("the task is being started")
		}
		if err := os.WriteFile(marker, nil, 0o600); err != nil {
			return nil, nil, err
		}
		time.Sleep(300 * time.Millisecond) // longer than the suite waits before it kills the plugin
		defer os.Remove(marker)
	}
	handle, network, err := d.Driver.StartTask(ctx, &sent)
	if err != nil {
		t.startCancelled = t.startCancelled || ctx.Err() != nil
		if d.has("calls every error recoverable") {
			err = driver.Recoverable(err)
		}
		return nil, nil, err
	}
	handle.Config = config
	switch d.defect {
	case "leaves tasks in its own cgroups":
		if err := moveToCgroups(config, d.cgroups); err != nil {
			return nil, nil, err
		}
	case "returns a handle in another state":
		handle.State = driver.TaskExited
	case "drops a field of the config":
		changed := *config
		changed.JobName = ""
		handle.Config = &changed
	}
	d.mu.Lock()
	t.handle = handle
	d.mu.Unlock()
	return handle, network, nil
}

// withMemory returns the resources of a task after change; nil if the task has none.
func withMemory(config *driver.TaskConfig, change func(*driver.Resources)) *driver.Resources {
	if config.Resources == nil {
		return nil
	}
	r := *config.Resources
	change(&r)
	return &r
}

// moveToCgroups moves all processes of a task to cgroups. It searches until two searches find the same number of processes,
// because a process has the variables of the task only after execve(2), and can start children before it is moved.
func moveToCgroups(config *driver.TaskConfig, to cgroupPathsByController) error {
	for moved, deadline := 0, time.Now().Add(2*time.Second); time.Now().Before(deadline); {
		found, err := proc.FindByTaskEnv(config.AllocID, config.Name)
		if err != nil || moved > 0 && len(found) == moved {
			return err
		}
		moved = 0
		for _, p := range found {
			if err := moveProcess(p.PID, to); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
			moved++
		}
	}
	return errors.New("the processes of the task cannot be moved to cgroups")
}

func moveProcess(pid int, to cgroupPathsByController) error {
	for controllers, path := range to {
		mounts := []string{strings.TrimPrefix(controllers, "name=")}
		if controllers == "" {
			mounts = []string{".", "unified"} // version 2 alone, or beside version 1
		}
		for _, mount := range mounts {
			f, err := os.OpenFile(filepath.Join(proc.CgroupMount, mount, path, "cgroup.procs"), os.O_WRONLY, 0)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(f, pid)
			f.Close()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func commandSchema() *hclspec.Spec { return (&commandDriver{}).Info().TaskSchema }

func copyFIFO(from, to string) {
	in, err := os.Open(from)
	if err != nil {
		return
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer out.Close()
	_, _ = io.Copy(out, in)
}

func (d *defectiveDriver) RecoverTask(ctx context.Context, handle *driver.Handle) error {
	t := d.task(handle.Config.ID)
	malformed := bytes.HasPrefix(handle.DriverState, []byte{0xc1})
	sent := *handle
	switch {
	case d.has("ignores the version"):
		sent.Version = 1
	case d.has("does not recover a known task") && t.handle != nil:
		return errors.New("the task is known")
	case d.has("accepts malformed state") && malformed:
		return nil
	}
	err := d.Driver.RecoverTask(ctx, &sent)
	if err != nil {
		if d.has("recovers destroyed tasks") && handle.Version == 1 && !malformed {
			t.recoveryFailed = true
			return nil
		}
		return err
	}
	t.recovered, t.exitedBefore = true, d.hasExited(ctx, handle.Config.ID)
	if d.has("kills instead of recovering") && t.handle == nil {
		return errors.Join(errors.New("cannot recover"), d.Driver.DestroyTask(ctx, handle.Config.ID, true))
	}
	return nil
}

func (d *defectiveDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	t := d.task(id)
	d.mu.Lock()
	t.waits++
	waits := t.waits
	d.mu.Unlock()
	defer func() { d.mu.Lock(); t.waits--; d.mu.Unlock() }()
	switch {
	case waits > 1 && d.has("allows one WaitTask"):
		return nil, errors.New("another call waits already")
	case t.destroyed && d.has("remembers destroyed tasks"), t.recoveryFailed:
		return &driver.ExitResult{}, nil
	}
	result, err := d.Driver.WaitTask(ctx, id)
	if ctx.Err() != nil && d.has("kills a task with its WaitTask") {
		_ = d.Driver.StopTask(context.WithoutCancel(ctx), id, 0, "SIGKILL")
	}
	d.mu.Lock()
	destroyed := t.destroyed
	d.mu.Unlock()
	if destroyed && d.has("does not release WaitTask") {
		<-ctx.Done()
	}
	if err == nil {
		d.changeResult(t, result)
	}
	return result, err
}

func (d *defectiveDriver) changeResult(t *defectiveTask, result *driver.ExitResult) {
	switch {
	case d.has("reports a failure as success") && result.ExitCode == 3:
		*result = driver.ExitResult{}
	case d.has("loses the signal") && result.Signal == int(unix.SIGTERM):
		result.Signal = 0
	}
}

func (d *defectiveDriver) StopTask(ctx context.Context, id string, timeout time.Duration, sig string) error {
	t := d.task(id)
	d.mu.Lock()
	t.stops++
	stops, stopCancelled := t.stops, t.stopCancelled
	t.stopCancelled = timeout >= time.Minute // the suite cancels such calls
	d.mu.Unlock()
	defer func() { d.mu.Lock(); t.stops--; d.mu.Unlock() }()
	switch d.defect {
	case "stops later":
		if t.config != nil && !d.hasExited(ctx, id) {
			go func() {
				time.Sleep(300 * time.Millisecond)
				_ = d.Driver.StopTask(context.WithoutCancel(ctx), id, timeout, sig)
			}()
			return nil
		}
	case "does not stop an exited task":
		if d.hasExited(ctx, id) {
			return os.ErrProcessDone
		}
	case "allows one StopTask":
		if stops > 1 {
			return errors.New("another call stops the task")
		}
		time.Sleep(20 * time.Millisecond)
	case "stops once after cancellation":
		if stopCancelled {
			return errors.New("another call stops the task")
		}
	case "marks a stop with a file":
		if t.config == nil || timeout >= time.Minute {
			marker := filepath.Join(os.Getenv("TMPDIR"), strings.ReplaceAll(id, "/", "-"))
			if _, err := os.Stat(marker); err == nil {
				return errors.Join(errors.New("another call stops the task"), d.Driver.StopTask(ctx, id, timeout, sig))
			}
			if timeout >= time.Minute {
				_ = os.WriteFile(marker, nil, 0o600)
				defer os.Remove(marker)
			}
		}
	case "does not stop a recovered task":
		if t.recovered && t.handle == nil && !t.exitedBefore {
			return errors.Join(errors.New("the task is not a child of this process"), d.Driver.StopTask(ctx, id, timeout, sig))
		}
	case "rejects unknown signals":
		if sig == "SIGFOO" {
			return errors.New("unknown signal")
		}
	case "ignores the stop signal":
		sig = ""
	case "ignores a timeout below a second":
		if timeout < time.Second {
			timeout = 0
		}
	}
	err := d.Driver.StopTask(ctx, id, timeout, sig)
	return err
}

func (d *defectiveDriver) DestroyTask(ctx context.Context, id string, force bool) error {
	t := d.task(id)
	d.mu.Lock()
	t.destroyed = t.config != nil && (force || !d.has("does not release WaitTask"))
	d.mu.Unlock()
	err := d.Driver.DestroyTask(ctx, id, force || d.has("destroys without force"))
	if err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		t.destroyed = false
	}
	return err
}

func (d *defectiveDriver) InspectTask(ctx context.Context, id string) (*driver.TaskStatus, error) {
	status, err := d.Driver.InspectTask(ctx, id)
	if err == nil && status.ExitResult != nil {
		d.changeResult(d.task(id), status.ExitResult)
		if d.has("inspects without a result") {
			status.ExitResult = nil
		}
	}
	return status, err
}

func (d *defectiveDriver) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	t := d.task(id)
	d.mu.Lock()
	t.streams++
	streams := t.streams
	d.mu.Unlock()
	switch {
	case d.has("sends one sample"):
		c := make(chan *driver.TaskStats, 1)
		c <- &driver.TaskStats{Timestamp: time.Now()}
		close(c)
		return c, nil
	case d.has("samples a task once") && streams > 1:
		return nil, errors.New("the task was sampled")
	case d.has("samples exited tasks") && d.hasExited(ctx, id):
		c := make(chan *driver.TaskStats)
		go func() {
			defer close(c)
			for {
				select {
				case c <- &driver.TaskStats{Timestamp: time.Now()}:
					time.Sleep(interval)
				case <-ctx.Done():
					return
				}
			}
		}()
		return c, nil
	}
	return d.Driver.TaskStats(ctx, id, interval)
}

func (d *defectiveDriver) SignalTask(ctx context.Context, id, sig string) error {
	err := d.Driver.SignalTask(ctx, id, sig)
	switch {
	case d.has("has another error for unknown ids") && errors.Is(err, driver.ErrTaskNotFound):
		return errors.New("no such task")
	case d.has("accepts unknown signals") && sig == "SIGFOO",
		d.has("signals exited tasks") && !errors.Is(err, driver.ErrTaskNotFound):
		if sig == "SIGFOO" && !d.has("accepts unknown signals") {
			return err
		}
		return nil
	}
	return err
}

func (d *defectiveDriver) ExecTask(ctx context.Context, id string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	exited := d.hasExited(ctx, id)
	result, err := d.Driver.ExecTask(ctx, id, command, timeout)
	switch {
	case d.has("execs in exited tasks") && exited:
		return &driver.ExecResult{}, nil
	case d.has("execs without an exit code") && err == nil:
		result.Exit = driver.ExitResult{}
	case d.has("reports an exec timeout as success") && timeout < time.Second && !exited:
		return &driver.ExecResult{}, nil
	}
	return result, err
}

func (d *defectiveDriver) ExecTaskStreaming(ctx context.Context, id string, e driver.Exec) (*driver.ExitResult, error) {
	switch {
	case d.has("execs without standard error"):
		e.Stderr = nil
	case d.has("changes line ends of terminals") && e.TTY:
		e.Stdout = lineEndWriter{e.Stdout}
	case d.has("does not cancel exec"):
		ctx = context.WithoutCancel(ctx)
	}
	return d.Driver.ExecTaskStreaming(ctx, id, e)
}

// lineEndWriter replaces the line ends of a terminal.
type lineEndWriter struct{ w io.Writer }

func (w lineEndWriter) Write(p []byte) (int, error) {
	_, err := w.w.Write(bytes.ReplaceAll(p, []byte("\r\n"), []byte("\n")))
	return len(p), err
}

// findings runs the suite, and returns the sorted ids of the cases that failed, and their
// messages.
func findings(t *testing.T, p Plugin) (ids []string, text string) {
	t.Helper()
	var out strings.Builder
	passed := 0
	var failed *failedCasesError
	err := CheckEach(t.Context(), t.Context(), p, func(r Result) {
		switch r.Verdict {
		case Fail, Differs:
			ids = append(ids, r.ID)
			r.Write(&out)
		case Pass:
			passed++
		}
	})
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	if passed == 0 {
		t.Errorf("no case has passed")
	}
	slices.Sort(ids)
	return ids, out.String()
}

func TestQuirkIsNoFailure(t *testing.T) {
	p := faultyDriverPlugin("")
	p.Env, p.OnlyCasePatterns = []string{envDefect + "=rejects unknown signals"}, "launch.info,stop.unknown-signal"
	var out strings.Builder
	if err := Check(t.Context(), &out, p); err != nil {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"QUIRK  stop.unknown-signal  (quirk, ", "      why: Hosts do not check", "1 passed, 0 failed, 0 skipped, 1 with a quirk, which is no failure"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// A driver that makes no cgroups for its tasks has a quirk, and its limits are not checked.
func TestDriverWithoutCgroups(t *testing.T) {
	p := faultyDriverPlugin("")
	p.Env, p.OnlyCasePatterns = []string{envDefect + "=leaves tasks in its own cgroups"}, "limits.*"
	got := map[string]Verdict{}
	if err := CheckEach(t.Context(), t.Context(), p, func(r Result) { got[r.ID] = r.Verdict }); err != nil {
		t.Error(err)
	}
	if got["limits.cgroup"] == Skip {
		t.Skip("no cgroups can be made here")
	}
	want := map[string]Verdict{"limits.cgroup": Differs, "limits.memory": Skip, "limits.memory-max": Skip, "limits.reservation": Skip}
	if !maps.Equal(got, want) {
		t.Errorf("verdicts %v, want %v", got, want)
	}
}

// TestDriverDefects checks that the suite reports exactly the cases that a defect concerns.
func TestDriverDefects(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the suite once per defect; TestEachCaseCanFail has other defects")
	}
	for _, test := range []struct {
		defect string
		want   []string // want: ids of the findings
		maybe  []string // maybe: ids of findings that depend on timing
		passes []string // passes: ids of cases that run, too, and must not find the defect
	}{
		{defect: "none"},
		{defect: "prints nothing without a host", want: []string{"launch.without-host"}},
		{defect: "has a malformed version", want: []string{"launch.info"}},
		{defect: "locks a file until it is used", want: []string{"launch.two-processes"}},
		{defect: "does not exit", want: []string{"launch.exit"}},
		{defect: "exits on SIGINT", want: []string{"launch.interrupt"}},
		{defect: "has a default of another type", want: []string{"config.schema"}},
		{defect: "accepts one configuration", want: []string{"config.set-twice"}},
		{defect: "drops a field of the config", want: []string{"config.round-trip"}},
		{defect: "accepts a malformed config", want: []string{"config.malformed"}},
		{defect: "is unhealthy", want: []string{"fingerprint.first"}},
		{defect: "fingerprints one stream", want: []string{"fingerprint.cadence"}},
		{defect: "fingerprints all the time", want: []string{"fingerprint.cadence"}},
		{defect: "closes the fingerprint stream", want: []string{"streams.stay-open"}},
		{defect: "sends events without an allocation", want: []string{"events.task"}},
		{defect: "returns a handle in another state", want: []string{"start.handle"}},
		{defect: "starts a known id", want: []string{"start.known-id"}, maybe: []string{"start.cancelled", "start.concurrent-id"}},
		{defect: "starts an id that is being started", want: []string{"start.concurrent-id"}, maybe: []string{"start.cancelled"}},
		{defect: "remembers a cancelled start", want: []string{"start.cancelled"}},
		{defect: "calls every error recoverable", want: []string{"start.missing-command"}},
		{defect: "allows one WaitTask", want: []string{"concurrency.tasks", "wait.repeated"}},
		{defect: "kills a task with its WaitTask", want: []string{"wait.cancelled"}},
		{defect: "reports a failure as success", want: []string{"wait.failed-task"}},
		{defect: "loses the signal", want: []string{"wait.exit-status"}},
		{defect: "inspects without a result", want: []string{"inspect.exited"}},
		{defect: "stops later", want: []string{"stop.cancelled", "stop.running", "stop.timeout", "stop.unknown-signal"}},
		{defect: "does not stop an exited task", want: []string{"stop.exited", "stop.twice"}, maybe: []string{"concurrency.tasks"}},
		{defect: "allows one StopTask", want: []string{"stop.twice"}, maybe: []string{"stop.cancelled"}}, // a cancelled call may still be running
		{defect: "stops once after cancellation", want: []string{"stop.cancelled"}},
		{defect: "marks a stop with a file", want: []string{"crash.during-stop"}},
		{defect: "rejects unknown signals", want: []string{"stop.unknown-signal"}},
		{defect: "ignores the stop signal", want: []string{"stop.signal"}},
		{defect: "ignores a timeout below a second", want: []string{"stop.timeout"}},
		{defect: "destroys without force", want: []string{"destroy.needs-force"}},
		{defect: "remembers destroyed tasks", want: []string{"destroy.removes-id"}},
		{defect: "does not release WaitTask", want: []string{"destroy.releases-wait"}},
		{defect: "has another error for unknown ids", want: []string{"task.unknown-id"}},
		{defect: "sends one sample", want: []string{"stats.samples"}},
		{defect: "samples a task once", want: []string{"stats.reopened"}},
		{defect: "samples exited tasks", want: []string{"stats.exited-task"}, passes: []string{"concurrency.tasks"}},
		{defect: "signals exited tasks", want: []string{"signal.exited-task"}},
		{defect: "accepts unknown signals", want: []string{"signal.delivery"}},
		{defect: "does not declare exec", want: []string{"exec.undeclared"}},
		{defect: "execs in exited tasks", want: []string{"exec.exited-task"}},
		{defect: "execs without an exit code", want: []string{"exec.output"}, maybe: []string{"exec.exited-task"}},
		{defect: "reports an exec timeout as success", want: []string{"exec.timeout"}},
		{defect: "execs without standard error", want: []string{"exec.streaming"}},
		{defect: "changes line ends of terminals", want: []string{"exec.terminal"}},
		{defect: "does not cancel exec", want: []string{"exec.cancelled"}},
		{defect: "ignores the memory limit", want: []string{"limits.memory"}},
		{defect: "limits memory to a fixed number", want: []string{"limits.memory", "limits.memory-max"}},
		{defect: "ignores memory_max", want: []string{"limits.memory-max"}},
		{defect: "ignores the reservation", want: []string{"limits.reservation"}},
		{defect: "keeps a descriptor", want: []string{"leaks.descriptors"}},
		{defect: "leaves a zombie", want: []string{"leaks.processes"}},
		{defect: "does not recover a known task", want: []string{"recover.known-task"}},
		{defect: "does not stop a recovered task", want: []string{"crash.during-stop", "recover.after-kill"}},
		{defect: "kills instead of recovering", want: []string{"recover.exit-status"}},
		{defect: "stops tasks in Shutdown", want: []string{"recover.after-shutdown"}},
		{defect: "recovers destroyed tasks", want: []string{"recover.destroyed-task"}},
		{defect: "accepts malformed state", want: []string{"recover.malformed-state"}},
		{defect: "ignores the version", want: []string{"recover.unknown-version"}},
		{defect: "marks a start with a file", want: []string{"crash.during-start"}},
		{defect: "needs the topology", want: []string{"host.old"}},
		{defect: "accepts one Init", want: []string{"host.init-again"}},
		{defect: "needs the job", want: []string{"host.sparse-task"}},
		{defect: "writes to standard error", want: []string{"output.streams"}},
		{defect: "needs FIFOs", want: []string{"crash.during-start", "output.null-device", "start.cancelled", "start.concurrent-id"}},
		{defect: "copies the output", want: []string{"output.after-kill"}},
		{defect: "adds a variable", want: []string{"command.environment"}},
		{defect: "leaks a descriptor to commands", want: []string{"command.descriptors"}},
	} {
		t.Run(test.defect, func(t *testing.T) {
			t.Parallel()
			if reason := cgroup.Open(cgroup.Options{}).UnavailableReason(); reason != "" && slices.ContainsFunc(test.want, func(id string) bool { return strings.HasPrefix(id, "limits.") }) {
				t.Skip(reason)
			}
			p := faultyDriverPlugin("")
			p.Env, p.CaseTimeout = []string{envDefect + "=" + test.defect}, 20*time.Second
			// With all cases, the table takes minutes: make test-defects.
			if os.Getenv("NOMAD_LITE_ALL_CASES") == "" {
				p.OnlyCasePatterns = strings.Join(slices.Concat(test.want, test.maybe, test.passes, []string{"launch.info", "start.*"}), ",")
			}
			// A case waits half a second for the late effect of a defect. On a machine with other load that can be too short.
			var ids []string
			var text string
			for range 2 {
				ids, text = findings(t, p)
				if slices.Equal(slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(test.maybe, id) }), test.want) {
					return
				}
			}
			t.Errorf("findings %q, want %q\n%s", ids, test.want, text)
		})
	}
}
