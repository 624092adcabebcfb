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
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
)

// behaviour is the config block of tasks of the fake driver. It describes how a task behaves.
type behaviour struct {
	RunFor        string   `codec:"run_for"`        // duration of a run; if empty, the process runs until it is stopped
	ExitOnce      bool     `codec:"once"`           // only the first run ends by itself; later runs continue until they are stopped
	ExitCodes     []int    `codec:"exit_codes"`     // exit code of each run; the last one repeats
	ExitSignal    int      `codec:"exit_signal"`    //
	ExitError     string   `codec:"exit_error"`     //
	StartErrors   []string `codec:"start_errors"`   // errors of the starts in their order; the last one repeats
	Recoverable   bool     `codec:"recoverable"`    // the errors in start_errors are recoverable
	StartFor      string   `codec:"start_for"`      // duration of a start
	IgnoreSignals bool     `codec:"ignore_signals"` // the process ends only with SIGKILL
	StopErrors    int      `codec:"stop_errors"`    // number of failing stops
	Unrecovered   bool     `codec:"unrecovered"`    // RecoverTask fails
	Args          []string `codec:"args"`           // not used by the driver; for tests of interpolation
}

var behaviourSpec = hclspec.Object(map[string]*hclspec.Spec{
	"run_for":        hclspec.Attr("run_for", "string", false),
	"once":           hclspec.Attr("once", "bool", false),
	"exit_codes":     hclspec.Attr("exit_codes", "list(number)", false),
	"exit_signal":    hclspec.Attr("exit_signal", "number", false),
	"exit_error":     hclspec.Attr("exit_error", "string", false),
	"start_errors":   hclspec.Attr("start_errors", "list(string)", false),
	"recoverable":    hclspec.Attr("recoverable", "bool", false),
	"start_for":      hclspec.Attr("start_for", "string", false),
	"ignore_signals": hclspec.Attr("ignore_signals", "bool", false),
	"stop_errors":    hclspec.Attr("stop_errors", "number", false),
	"unrecovered":    hclspec.Attr("unrecovered", "bool", false),
	"args":           hclspec.Attr("args", "list(string)", false),
})

// world contains the fake processes of a test, which continue when their plugin exits.
type world struct {
	capabilities      driver.Capabilities
	findsUnknownTasks bool // plugins of this world find processes that they have not started
	forgetsTasks      bool // plugins of this world do not know tasks that an earlier plugin has started

	mu                sync.Mutex
	recoveryUndecided bool // RecoverTask cannot determine whether a task exists
	plugin            *plugin
	plugins           int                           // number of plugin processes so far
	tasks             map[string]*fakeTask          // by id, until destroyed
	starts            map[string]int                // number of starts by task
	successCounts     map[string]int                // by task: number of runs that ended successfully by themselves
	configs           map[string]*driver.TaskConfig // last config of each task
	calls             []call                        // calls of StopTask, DestroyTask and other methods
	begin             time.Time

	// checkStart, if set, is called with mu held before a task starts. It returns the text of a rule
	// violation, or "".
	checkStart   func(task string, alive []string) string
	violations   []string
	recoveryTime time.Duration                          // duration of RecoverTask
	sawExit      func(task string, r driver.ExitResult) // called at the end of each process; may be nil
}

func newWorld() *world {
	return &world{
		tasks:         make(map[string]*fakeTask),
		starts:        make(map[string]int),
		successCounts: make(map[string]int),
		configs:       make(map[string]*driver.TaskConfig),
		begin:         time.Now(),
	}
}

// Driver implements Drivers.
func (w *world) Driver(_ context.Context, name string) (driver.Driver, error) {
	if name != "fake" {
		return nil, fmt.Errorf("no driver %q", name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.plugin == nil {
		w.plugins++
		w.plugin = &plugin{world: w, down: make(chan struct{}), knownTasks: make(map[string]bool)}
	}
	return w.plugin, nil
}

// KnowsTasks implements recoveryCapabilities.
func (w *world) KnowsTasks(string) bool { return !w.forgetsTasks }

// FindsTasks implements recoveryCapabilities.
func (w *world) FindsTasks(string) bool { return w.findsUnknownTasks }

// killPlugin simulates kill -9 of the plugin process. Tasks that cannot be recovered end too.
func (w *world) killPlugin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.tasks, func(_ string, t *fakeTask) bool { return t.Unrecovered })
	if w.plugin != nil {
		close(w.plugin.down)
		w.plugin = nil
	}
}

func (w *world) recordCall(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call{time.Since(w.begin), fmt.Sprintf(format, args...)})
}

// call is a recorded call of a driver method.
type call struct {
	at      time.Duration
	summary string
}

func (c call) String() string { return fmt.Sprintf("+%v %s", c.at.Round(time.Millisecond), c.summary) }

// recordedCalls returns the calls of one driver method. Calls at the same time are sorted by their
// text.
func (w *world) recordedCalls(method string) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := slices.Clone(w.calls)
	slices.SortStableFunc(calls, func(a, b call) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.summary, b.summary))
	})
	for _, c := range calls {
		if strings.HasPrefix(c.summary, method+" ") {
			found = append(found, c.String())
		}
	}
	return found
}

func (w *world) config(task string) *driver.TaskConfig {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.configs[task]
}

func (w *world) alive() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []string
	for id, t := range w.tasks {
		if !isClosed(t.exited) {
			ids = append(ids, id)
		}
	}
	return ids
}

// fakeTask is a process.
type fakeTask struct {
	behaviour
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

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

// plugin is a process of the fake driver's plugin.
type plugin struct {
	driver.Driver // nil: methods that the tests do not need panic
	world         *world
	down          chan struct{}
	knownTasks    map[string]bool // guarded by world.mu
}

func (p *plugin) TaskConfigSchema(context.Context) (*hclspec.Spec, error) { return behaviourSpec, nil }

func (p *plugin) Capabilities(context.Context) (*driver.Capabilities, error) {
	c := p.world.capabilities
	return &c, nil
}

func (p *plugin) StartTask(ctx context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	var b behaviour
	if err := hclspec.Unmarshal(config.DriverConfig, &b); err != nil {
		return nil, nil, err
	}
	w := p.world
	w.mu.Lock()
	n := w.starts[config.Name]
	w.starts[config.Name]++
	w.configs[config.Name] = config
	w.mu.Unlock()
	if b.StartFor != "" {
		select {
		case <-time.After(duration(b.StartFor)):
		case <-p.down:
			return nil, nil, driver.ErrPluginDown
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	if isClosed(p.down) {
		return nil, nil, driver.ErrPluginDown
	}
	if text := nth(b.StartErrors, n); text != "" {
		return nil, nil, &driver.Error{Err: errors.New(text), Recoverable: b.Recoverable}
	}
	t := &fakeTask{behaviour: b, exited: make(chan struct{}), stopErrors: b.StopErrors}
	if w.sawExit != nil {
		t.saw = func(r driver.ExitResult) { w.sawExit(config.Name, r) }
	}
	if b.RunFor != "" && (n == 0 || !b.ExitOnce) {
		result := driver.ExitResult{ExitCode: nth(b.ExitCodes, n), Signal: b.ExitSignal}
		if b.ExitError != "" {
			result.Err = errors.New(b.ExitError)
		}
		time.AfterFunc(duration(b.RunFor), func() {
			if !isClosed(t.exited) && result.Successful() {
				w.mu.Lock()
				w.successCounts[config.Name]++
				w.mu.Unlock()
			}
			t.exit(result)
		})
	}
	w.mu.Lock()
	if w.checkStart != nil {
		var alive []string
		for id, t := range w.tasks {
			if !isClosed(t.exited) {
				alive = append(alive, strings.Split(id, "/")[1])
			}
		}
		if wrong := w.checkStart(config.Name, alive); wrong != "" {
			w.violations = append(w.violations, wrong)
		}
	}
	w.tasks[config.ID] = t
	p.knownTasks[config.ID] = true
	w.mu.Unlock()
	w.recordCall("StartTask %s", config.Name)
	return &driver.Handle{Version: 1, Config: config, State: driver.TaskRunning}, nil, nil
}

func (p *plugin) find(id string) (*fakeTask, error) {
	if isClosed(p.down) {
		return nil, driver.ErrPluginDown
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	t := p.world.tasks[id]
	if t == nil || !p.knownTasks[id] {
		return nil, driver.ErrTaskNotFound
	}
	return t, nil
}

func (p *plugin) RecoverTask(_ context.Context, h *driver.Handle) error {
	if isClosed(p.down) {
		return driver.ErrPluginDown
	}
	p.world.recordCall("RecoverTask %s", strings.Split(h.Config.ID, "/")[1])
	time.Sleep(p.world.recoveryTime)
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	t := p.world.tasks[h.Config.ID]
	if p.world.recoveryUndecided {
		return driver.Recoverable(errors.New("too many open files"))
	}
	if t == nil || t.Unrecovered {
		return errors.New("nothing to recover")
	}
	p.knownTasks[h.Config.ID] = true
	return nil
}

func (p *plugin) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	t, err := p.find(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.exited:
		r := t.result
		return &r, nil
	case <-p.down:
		return nil, driver.ErrPluginDown
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *plugin) StopTask(ctx context.Context, id string, timeout time.Duration, signal string) error {
	t, err := p.find(id)
	if err != nil {
		return err
	}
	p.world.recordCall("StopTask %s timeout=%v signal=%q", strings.Split(id, "/")[1], timeout, signal)
	p.world.mu.Lock()
	t.stopErrors--
	fails := t.stopErrors >= 0
	p.world.mu.Unlock()
	if fails {
		return errors.New("cannot stop")
	}
	if t.IgnoreSignals && signal != "SIGKILL" {
		select {
		case <-time.After(timeout):
		case <-t.exited:
		case <-p.down:
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

func (p *plugin) DestroyTask(_ context.Context, id string, force bool) error {
	t, err := p.find(id)
	if errors.Is(err, driver.ErrTaskNotFound) && p.world.findsUnknownTasks {
		return p.destroyAllStarts(id)
	}
	if err != nil {
		return err
	}
	if !isClosed(t.exited) {
		if !force {
			return errors.New("task still runs")
		}
		t.exit(driver.ExitResult{ExitCode: 137, Signal: 9})
	}
	p.world.recordCall("DestroyTask %s", strings.Split(id, "/")[1])
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	delete(p.world.tasks, id)
	return nil
}

// destroyAllStarts ends the processes of all starts of a task, whatever their ids.
func (p *plugin) destroyAllStarts(id string) error {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	err := driver.ErrTaskNotFound
	for other, t := range p.world.tasks {
		if strings.HasPrefix(other, id[:strings.LastIndexByte(id, '/')+1]) {
			t.exit(driver.ExitResult{ExitCode: 137, Signal: 9})
			delete(p.world.tasks, other)
			err = nil
		}
	}
	return err
}

func (p *plugin) SignalTask(_ context.Context, id, signal string) error {
	if _, err := p.find(id); err != nil {
		return err
	}
	p.world.recordCall("SignalTask %s %s", strings.Split(id, "/")[1], signal)
	return nil
}

func (p *plugin) ExecTask(_ context.Context, id string, command []string, _ time.Duration) (*driver.ExecResult, error) {
	if _, err := p.find(id); err != nil {
		return nil, err
	}
	return &driver.ExecResult{Stdout: []byte(strings.Join(command, " ")), Exit: driver.ExitResult{ExitCode: 3}}, nil
}

func (p *plugin) ExecTaskStreaming(_ context.Context, id string, exec driver.Exec) (*driver.ExitResult, error) {
	if _, err := p.find(id); err != nil {
		return nil, err
	}
	fmt.Fprint(exec.Stdout, strings.Join(exec.Command, " "))
	return &driver.ExitResult{ExitCode: 4}, nil
}

func (p *plugin) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	t, err := p.find(id)
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
			case <-p.down:
				return
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(interval):
			case <-t.exited:
				return
			case <-p.down:
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
	mu      sync.Mutex
	started map[string]logs.Task
	stopped map[string]int
	ended   map[string]bool // by task: the argument of the last call of Stop
	fail    int             // number of failing starts
}

func newFakeLogs() *fakeLogs {
	return &fakeLogs{started: make(map[string]logs.Task), stopped: make(map[string]int), ended: make(map[string]bool)}
}

func (l *fakeLogs) Start(_ context.Context, t logs.Task) (string, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail > 0 {
		l.fail--
		return "", "", errors.New("no collector")
	}
	l.started[t.Name] = t
	return t.Dir + "/." + t.Name + ".stdout.fifo", t.Dir + "/." + t.Name + ".stderr.fifo", nil
}

func (l *fakeLogs) Stop(_ context.Context, _, task string, ended bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended[task] = ended
	l.stopped[task]++
	return nil
}

func (l *fakeLogs) Finish(ctx context.Context, t logs.Task, ended bool) error {
	return l.Stop(ctx, t.AllocID, t.Name, ended)
}

func (l *fakeLogs) snapshot() (started map[string]logs.Task, stopped map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.started), maps.Clone(l.stopped)
}
