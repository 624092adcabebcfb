package allocrunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// fakeTaskBehaviour is the config block for the fake driver's tasks. It describes how a task behaves.
type fakeTaskBehaviour struct {
	RunFor        string   `codec:"run_for"`        // duration of a run; if empty, the process runs until it is stopped
	ExitOnce      bool     `codec:"once"`           // only the first run ends by itself; later runs continue until they are stopped
	ExitCodes     []int    `codec:"exit_codes"`     // exit code of each run; the last one repeats
	ExitSignal    int      `codec:"exit_signal"`    //
	ExitError     string   `codec:"exit_error"`     //
	OOMKilled     bool     `codec:"oom_killed"`     // each run ends because of its memory limit
	StartErrors   []string `codec:"start_errors"`   // errors of the starts in their order; the last one repeats
	Recoverable   bool     `codec:"recoverable"`    // the errors in start_errors are recoverable
	Exhausted     bool     `codec:"exhausted"`      // the errors in start_errors mean that no descriptor is free
	StartFor      string   `codec:"start_for"`      // duration of a start
	IgnoreSignals bool     `codec:"ignore_signals"` // the process ends only with SIGKILL
	StopErrors    int      `codec:"stop_errors"`    // number of failing stops
	Unrecovered   bool     `codec:"unrecovered"`    // RecoverTask fails
	StartsAnyway  bool     `codec:"starts_anyway"`  // the process runs although its start fails
	Unreported    bool     `codec:"unreported"`     // WaitTask does not return when the process ends
	Args          []string `codec:"args"`           // not used by the driver; for tests of interpolation
}

var fakeTaskConfigSpec = hclspec.Object(map[string]*hclspec.Spec{
	"run_for":        hclspec.Attr("run_for", "string", false),
	"once":           hclspec.Attr("once", "bool", false),
	"exit_codes":     hclspec.Attr("exit_codes", "list(number)", false),
	"exit_signal":    hclspec.Attr("exit_signal", "number", false),
	"oom_killed":     hclspec.Attr("oom_killed", "bool", false),
	"exit_error":     hclspec.Attr("exit_error", "string", false),
	"start_errors":   hclspec.Attr("start_errors", "list(string)", false),
	"recoverable":    hclspec.Attr("recoverable", "bool", false),
	"exhausted":      hclspec.Attr("exhausted", "bool", false),
	"start_for":      hclspec.Attr("start_for", "string", false),
	"ignore_signals": hclspec.Attr("ignore_signals", "bool", false),
	"stop_errors":    hclspec.Attr("stop_errors", "number", false),
	"unrecovered":    hclspec.Attr("unrecovered", "bool", false),
	"starts_anyway":  hclspec.Attr("starts_anyway", "bool", false),
	"unreported":     hclspec.Attr("unreported", "bool", false),
	"args":           hclspec.Attr("args", "list(string)", false),
})

// fakeDrivers contains a test's fake processes, which continue when their plugin exits.
type fakeDrivers struct {
	capabilities      driver.Capabilities
	networkOverride   *driver.NetworkOverride // returned by each start
	findsUnknownTasks bool                    // this world's plugins find processes not started by them, as drivers made with package sdk do
	keepsStarts       bool                    // a start goes on after its caller has gone, as with package sdk
	diesAfterStart    bool                    // the first plugin process dies before it returns from StartTask
	returnsNoHandles  bool                    // InspectTask returns no handle, as drivers not made with package sdk do
	forgetsTasks      bool                    // this world's plugins do not know tasks started by an earlier plugin

	mu                   sync.Mutex
	recoveryInconclusive bool // RecoverTask cannot determine whether a task exists
	plugin               *fakePlugin
	pluginCount          int                           // how many plugin processes there were so far
	tasks                map[string]*fakeTask          // by id, until destroyed
	startCounts          map[string]int                // start count by task
	successfulRunCounts  map[string]int                // by task: how many runs ended successfully by themselves
	lastConfigs          map[string]*driver.TaskConfig // last config by task
	calls                []driverCall                  // calls to StopTask, DestroyTask and other methods
	startTime            time.Time

	// checkStart, if set, is called with mu held before a task starts. It returns the violated rule as text, or "".
	checkStart       func(task string, alive []string) string
	violations       []string
	recoveryDuration time.Duration                          // how long RecoverTask takes
	onExit           func(task string, r driver.ExitResult) // called when a process ends; may be nil
}

func newFakeDrivers() *fakeDrivers {
	return &fakeDrivers{
		tasks:               make(map[string]*fakeTask),
		startCounts:         make(map[string]int),
		successfulRunCounts: make(map[string]int),
		lastConfigs:         make(map[string]*driver.TaskConfig),
		startTime:           time.Now(),
	}
}

// Driver implements Drivers.
func (f *fakeDrivers) Driver(_ context.Context, name string) (driver.Driver, error) {
	if name != "fake" {
		return nil, fmt.Errorf("no driver %q", name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plugin == nil {
		f.pluginCount++
		f.plugin = &fakePlugin{drivers: f, exited: make(chan struct{}), knownTasks: make(map[string]bool), pendingStarts: make(map[string]bool)}
	}
	return f.plugin, nil
}

// DriverKnowsInterruptedStarts implements recoveryCapabilities.
func (f *fakeDrivers) DriverKnowsInterruptedStarts(string) bool { return !f.forgetsTasks }

// DriverFindsTasksByName implements recoveryCapabilities.
func (f *fakeDrivers) DriverFindsTasksByName(string) bool { return f.findsUnknownTasks }

// RestartReattachedPlugin implements recoveryCapabilities.
func (f *fakeDrivers) RestartReattachedPlugin(context.Context, string) error {
	f.killPlugin()
	return nil
}

// killPlugin simulates kill -9 for the plugin process. Unrecoverable tasks end too.
func (f *fakeDrivers) killPlugin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.tasks, func(_ string, t *fakeTask) bool { return t.Unrecovered })
	if f.plugin != nil {
		close(f.plugin.exited)
		f.plugin = nil
	}
}

func (f *fakeDrivers) recordCall(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, driverCall{time.Since(f.startTime), fmt.Sprintf(format, args...)})
}

// driverCall is a recorded call of a driver method.
type driverCall struct {
	at      time.Duration
	summary string
}

func (c driverCall) String() string {
	return fmt.Sprintf("+%v %s", c.at.Round(time.Millisecond), c.summary)
}

// recordedCalls returns the calls to one driver method. Simultaneous calls are sorted by their text.
func (f *fakeDrivers) recordedCalls(method string) (found []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := slices.Clone(f.calls)
	slices.SortStableFunc(calls, func(a, b driverCall) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.summary, b.summary))
	})
	for _, c := range calls {
		if strings.HasPrefix(c.summary, method+" ") {
			found = append(found, c.String())
		}
	}
	return found
}

func (f *fakeDrivers) lastConfig(task string) *driver.TaskConfig {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastConfigs[task]
}

func (f *fakeDrivers) aliveTasks() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id, t := range f.tasks {
		if !wait.IsClosed(t.exited) {
			ids = append(ids, id)
		}
	}
	return ids
}

// fakeTask is a process.
type fakeTask struct {
	fakeTaskBehaviour
	exited     chan struct{}
	once       sync.Once
	result     driver.ExitResult
	stopErrors int
	saw        func(driver.ExitResult) // may be nil
}

func (t *fakeTask) exit(r driver.ExitResult) {
	t.once.Do(func() {
		t.result = r
		if t.saw != nil {
			t.saw(r)
		}
		close(t.exited)
	})
}

func nth[T any](list []T, n int) (v T) {
	if len(list) > 0 {
		v = list[min(n, len(list)-1)]
	}
	return v
}

func mustParseDuration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

// fakePlugin is a fake driver's plugin process.
type fakePlugin struct {
	driver.Driver // nil: methods not needed by the tests panic
	drivers       *fakeDrivers
	exited        chan struct{}
	knownTasks    map[string]bool // guarded by world.mu
	pendingStarts map[string]bool // starts in progress; guarded by world.mu
}

func (p *fakePlugin) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	return fakeTaskConfigSpec, nil
}

func (p *fakePlugin) Capabilities(context.Context) (*driver.Capabilities, error) {
	c := p.drivers.capabilities
	return &c, nil
}

func (p *fakePlugin) StartTask(ctx context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	var b fakeTaskBehaviour
	if err := hclspec.Unmarshal(config.DriverConfig, &b); err != nil {
		return nil, nil, err
	}
	w := p.drivers
	w.mu.Lock()
	n := w.startCounts[config.Name]
	w.startCounts[config.Name]++
	w.lastConfigs[config.Name] = config
	p.pendingStarts[config.ID] = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(p.pendingStarts, config.ID)
	}()
	if w.keepsStarts {
		ctx = context.WithoutCancel(ctx)
	}
	failure := nth(b.StartErrors, n)
	if b.StartFor != "" {
		select {
		case <-time.After(mustParseDuration(b.StartFor)):
		case <-p.exited:
			return nil, nil, driver.ErrPluginDown
		case <-ctx.Done():
			if !b.StartsAnyway {
				return nil, nil, ctx.Err()
			}
			failure = ctx.Err().Error()
		}
	}
	if wait.IsClosed(p.exited) {
		return nil, nil, driver.ErrPluginDown
	}
	if failure != "" && !b.StartsAnyway {
		return nil, nil, &driver.Error{Err: errors.New(failure), Recoverable: b.Recoverable, ResourceExhausted: b.Exhausted}
	}
	t := &fakeTask{fakeTaskBehaviour: b, exited: make(chan struct{}), stopErrors: b.StopErrors}
	if w.onExit != nil {
		t.saw = func(r driver.ExitResult) { w.onExit(config.Name, r) }
	}
	if b.RunFor != "" && (n == 0 || !b.ExitOnce) {
		result := driver.ExitResult{ExitCode: nth(b.ExitCodes, n), Signal: b.ExitSignal, OOMKilled: b.OOMKilled}
		if b.ExitError != "" {
			result.Err = errors.New(b.ExitError)
		}
		time.AfterFunc(mustParseDuration(b.RunFor), func() {
			if !wait.IsClosed(t.exited) && result.Successful() {
				w.mu.Lock()
				w.successfulRunCounts[config.Name]++
				w.mu.Unlock()
			}
			t.exit(result)
		})
	}
	w.mu.Lock()
	if w.checkStart != nil {
		var aliveTasks []string
		for id, t := range w.tasks {
			if !wait.IsClosed(t.exited) {
				aliveTasks = append(aliveTasks, strings.Split(id, "/")[1])
			}
		}
		if wrong := w.checkStart(config.Name, aliveTasks); wrong != "" {
			w.violations = append(w.violations, wrong)
		}
	}
	w.tasks[config.ID] = t
	p.knownTasks[config.ID] = true
	w.mu.Unlock()
	w.recordCall("StartTask %s", config.Name)
	if w.diesAfterStart && n == 0 {
		w.killPlugin()
		return nil, nil, driver.ErrPluginDown
	}
	if failure != "" {
		return nil, nil, &driver.Error{Err: errors.New(failure), Recoverable: b.Recoverable, ResourceExhausted: b.Exhausted}
	}
	return &driver.Handle{Version: 1, Config: config, State: driver.TaskRunning}, w.networkOverride, nil
}

func (p *fakePlugin) findTask(id string) (*fakeTask, error) {
	if wait.IsClosed(p.exited) {
		return nil, driver.ErrPluginDown
	}
	p.drivers.mu.Lock()
	defer p.drivers.mu.Unlock()
	t := p.drivers.tasks[id]
	if t == nil || !p.knownTasks[id] {
		return nil, driver.ErrTaskNotFound
	}
	return t, nil
}

func (p *fakePlugin) InspectTask(_ context.Context, id string) (*driver.TaskStatus, error) {
	t, err := p.findTask(id)
	p.drivers.mu.Lock()
	defer p.drivers.mu.Unlock()
	status := &driver.TaskStatus{ID: id}
	switch {
	case errors.Is(err, driver.ErrTaskNotFound) && p.pendingStarts[id] && !p.drivers.returnsNoHandles:
		status.StartStatus = &driver.StartStatus{Phase: driver.StartPending}
	case errors.Is(err, driver.ErrTaskNotFound) && p.drivers.findsUnknownTasks:
		status.StartStatus = &driver.StartStatus{Phase: driver.StartNotFound}
	case err != nil:
		return nil, err
	default:
		status.State = driver.TaskRunning
		if wait.IsClosed(t.exited) {
			status.State = driver.TaskExited
		}
		if !p.drivers.returnsNoHandles {
			handle := &driver.Handle{Version: 1, Config: &driver.TaskConfig{ID: id}, State: driver.TaskRunning}
			status.StartStatus = &driver.StartStatus{Phase: driver.StartReturned, Handle: handle}
		}
	}
	return status, nil
}

func (p *fakePlugin) RecoverTask(_ context.Context, h *driver.Handle) error {
	if wait.IsClosed(p.exited) {
		return driver.ErrPluginDown
	}
	p.drivers.recordCall("RecoverTask %s", strings.Split(h.Config.ID, "/")[1])
	if h.Version != 0 && h.Config.Env["NOMAD_ALLOC_ID"] == "" {
		return errors.New("the handle is without its environment")
	}
	time.Sleep(p.drivers.recoveryDuration)
	p.drivers.mu.Lock()
	defer p.drivers.mu.Unlock()
	t := p.drivers.tasks[h.Config.ID]
	if p.drivers.recoveryInconclusive {
		return driver.Recoverable(errors.New("too many open files"))
	}
	if t == nil && h.Version == 0 {
		return driver.ErrTaskNotFound // the start was not executed
	}
	if t == nil || t.Unrecovered {
		return errors.New("nothing to recover")
	}
	p.knownTasks[h.Config.ID] = true
	return nil
}

func (p *fakePlugin) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	t, err := p.findTask(id)
	if err != nil {
		return nil, err
	}
	exited := t.exited
	if t.Unreported {
		exited = nil
	}
	select {
	case <-exited:
		r := t.result
		return &r, nil
	case <-p.exited:
		return nil, driver.ErrPluginDown
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *fakePlugin) StopTask(ctx context.Context, id string, timeout time.Duration, signal string) error {
	t, err := p.findTask(id)
	if err != nil {
		return err
	}
	p.drivers.recordCall("StopTask %s timeout=%v signal=%q", strings.Split(id, "/")[1], timeout, signal)
	p.drivers.mu.Lock()
	t.stopErrors--
	fails := t.stopErrors >= 0
	p.drivers.mu.Unlock()
	if fails {
		return errors.New("cannot stop")
	}
	if t.IgnoreSignals && signal != "SIGKILL" {
		select {
		case <-time.After(timeout):
		case <-t.exited:
		case <-p.exited:
			return driver.ErrPluginDown
		case <-ctx.Done():
			return ctx.Err()
		}
		signal = "SIGKILL"
	}
	if signal == "" {
		signal = "SIGINT"
	}
	n := int(unix.SignalNum(signal))
	t.exit(driver.ExitResult{ExitCode: 128 + n, Signal: n})
	return nil
}

func (p *fakePlugin) DestroyTask(_ context.Context, id string, force bool) error {
	t, err := p.findTask(id)
	if errors.Is(err, driver.ErrTaskNotFound) && p.drivers.findsUnknownTasks {
		return p.destroyAllProcesses(id)
	}
	if err != nil {
		return err
	}
	if !wait.IsClosed(t.exited) {
		if !force {
			return errors.New("task still runs")
		}
		t.exit(driver.ExitResult{ExitCode: 137, Signal: 9})
	}
	p.drivers.recordCall("DestroyTask %s", strings.Split(id, "/")[1])
	p.drivers.mu.Lock()
	defer p.drivers.mu.Unlock()
	delete(p.drivers.tasks, id)
	return nil
}

// destroyAllProcesses ends a task's processes from all starts, whatever their ids.
func (p *fakePlugin) destroyAllProcesses(id string) error {
	p.drivers.mu.Lock()
	defer p.drivers.mu.Unlock()
	err := driver.ErrTaskNotFound
	for other, t := range p.drivers.tasks {
		if strings.HasPrefix(other, id[:strings.LastIndexByte(id, '/')+1]) {
			t.exit(driver.ExitResult{ExitCode: 137, Signal: 9})
			delete(p.drivers.tasks, other)
			err = nil
		}
	}
	return err
}

func (p *fakePlugin) SignalTask(_ context.Context, id, signal string) error {
	if _, err := p.findTask(id); err != nil {
		return err
	}
	p.drivers.recordCall("SignalTask %s %s", strings.Split(id, "/")[1], signal)
	return nil
}

func (p *fakePlugin) ExecTask(_ context.Context, id string, command []string, _ time.Duration) (*driver.ExecResult, error) {
	if _, err := p.findTask(id); err != nil {
		return nil, err
	}
	return &driver.ExecResult{Stdout: []byte(strings.Join(command, " ")), Exit: driver.ExitResult{ExitCode: 3}}, nil
}

func (p *fakePlugin) ExecTaskStreaming(_ context.Context, id string, exec driver.Exec) (*driver.ExitResult, error) {
	if _, err := p.findTask(id); err != nil {
		return nil, err
	}
	fmt.Fprint(exec.Stdout, strings.Join(exec.Command, " "))
	return &driver.ExitResult{ExitCode: 4}, nil
}

func (p *fakePlugin) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	t, err := p.findTask(id)
	if err != nil {
		return nil, err
	}
	stream := make(chan *driver.TaskStats)
	go func() { // returns when the process or the plugin has ended or ctx is done
		defer close(stream)
		for n := uint64(1); ; n++ {
			s := &driver.TaskStats{Timestamp: time.Now()}
			s.Total.Memory.RSS = n
			select {
			case stream <- s:
			case <-t.exited:
				return
			case <-p.exited:
				return
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(interval):
			case <-t.exited:
				return
			case <-p.exited:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return stream, nil
}

// fakeLogs is a log collector that records its calls.
type fakeLogs struct {
	mu                sync.Mutex
	startedTasks      map[string]logs.Task
	stopCounts        map[string]int
	endedTasks        map[string]bool // by task: the last Stop call's argument
	remainingFailures int             // how many starts fail
	failingStops      bool            // Stop calls fail
	stoppedAtDestroy  []string        // tasks passed to StopUnlessStopped
}

func newFakeLogs() *fakeLogs {
	return &fakeLogs{startedTasks: make(map[string]logs.Task), stopCounts: make(map[string]int), endedTasks: make(map[string]bool)}
}

func (l *fakeLogs) Start(_ context.Context, t logs.Task) (string, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.remainingFailures > 0 {
		l.remainingFailures--
		return "", "", errors.New("no collector")
	}
	l.startedTasks[t.Name] = t
	return t.LogDir + "/." + t.Name + ".stdout.fifo", t.LogDir + "/." + t.Name + ".stderr.fifo", nil
}

func (l *fakeLogs) Stop(_ context.Context, _, task string, ended bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endedTasks[task] = ended
	l.stopCounts[task]++
	if l.failingStops {
		return errors.New("the collector does not answer")
	}
	return nil
}

func (l *fakeLogs) StopUnlessStopped(_ context.Context, _, task string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stoppedAtDestroy = append(l.stoppedAtDestroy, task)
	return nil
}

func (l *fakeLogs) StopCollectionOfEarlierAgent(ctx context.Context, t logs.Task, ended bool) error {
	return l.Stop(ctx, t.AllocID, t.Name, ended)
}

func (l *fakeLogs) snapshot() (started map[string]logs.Task, stopped map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.startedTasks), maps.Clone(l.stopCounts)
}

func (p *fakePlugin) CreateNetwork(_ context.Context, allocID, hostname string) (*driver.NetworkIsolation, bool, error) {
	if wait.IsClosed(p.exited) {
		return nil, false, driver.ErrPluginDown
	}
	p.drivers.recordCall("CreateNetwork %s", hostname)
	return &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: "/netns/" + allocID}, true, nil
}

func (p *fakePlugin) DestroyNetwork(_ context.Context, _ string, isolation *driver.NetworkIsolation) error {
	if wait.IsClosed(p.exited) {
		return driver.ErrPluginDown
	}
	p.drivers.recordCall("DestroyNetwork %s", isolation.Path)
	return nil
}
