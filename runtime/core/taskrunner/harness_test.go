package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const taskName = "web"

// world has the driver, the disk and the hook, which outlive a test's agents, and the task's description.
type world struct {
	driver *fakeDriver
	disk   *disk
	hook   *fakeHook
	gate   gate
	task   Task
}

func newWorld() *world {
	begin := time.Now()
	return &world{
		driver: &fakeDriver{callLog: callLog{begin: begin}, processes: map[string]*process{}},
		disk:   &disk{begin: begin},
		hook:   &fakeHook{callLog: callLog{begin: begin}},
		gate:   gate{},
		task:   Task{Name: taskName, Driver: "fake", KillTimeout: time.Second},
	}
}

// callLog has a fake's calls.
type callLog struct {
	mu    sync.Mutex
	begin time.Time
	calls []string
	times []time.Duration // since begin
}

// log adds a call, unless it repeats the last one. The caller holds mu.
func (l *callLog) log(format string, args ...any) {
	const again = " again and again"
	call := fmt.Sprintf(format, args...)
	switch last := len(l.calls) - 1; {
	case last >= 0 && l.calls[last] == call:
		l.calls[last] += again
	case last < 0 || l.calls[last] != call+again:
		l.calls, l.times = append(l.calls, call), append(l.times, time.Since(l.begin))
	}
}

// takeCalls returns the calls since it was last called.
func (l *callLog) takeCalls() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.calls, l.times = nil, nil }()
	return strings.Join(l.calls, ", ")
}

// takeCallsWithTimes returns the calls since the last call, each with its time, rounded to ten seconds.
func (l *callLog) takeCallsWithTimes() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.calls, l.times = nil, nil }()
	calls := make([]string, len(l.calls))
	for i, call := range l.calls {
		calls[i] = fmt.Sprintf("%v %s", l.times[i].Round(10*time.Second), call)
	}
	return strings.Join(calls, ", ")
}

// agent is one agent, which has one task.
type agent struct {
	*Runner
	shutdown context.CancelFunc
}

// newAgent returns an agent with a runner that does nothing yet. Its driver calls and its puts fail when the disk has crashed.
func (w *world) newAgent(restored *RestoredTask) *agent {
	a := &agent{}
	session := &session{fakeDriver: w.driver, disk: w.disk}
	a.Runner = New(Config{
		Alloc: Alloc{Alloc: hook.Alloc{ID: "alloc"}}, Task: w.task, StartGate: &w.gate, Store: w.disk, EncodeTaskConfig: block.EncodeConfig,
		Env: taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{}), OnTaskStateChange: func() {}, Logger: hclog.NewNullLogger(),
		DispenseDriver: func(context.Context) (driver.Driver, error) { return session.dispense() }, RestoredTask: restored,
		HookCallLimits: hooks.CallLimits{StartHookPointTimeout: time.Minute, OtherHookPointTimeout: time.Minute},
	})
	a.SetHooks([]hooks.OrderedHook{{Order: hooks.OrderPlugin, Hook: w.hook}}, nil)
	return a
}

// run runs the task in a goroutine. restored is nil for a new task.
func (w *world) run(ctx context.Context, restored *RestoredTask) *agent {
	a := w.newAgent(restored)
	ctx, a.shutdown = context.WithCancel(ctx)
	go func() {
		if restored != nil {
			a.RecoverTaskOfEarlierAgent(ctx, RecoveryFacts{DriverKnowsInterruptedStarts: true})
		} else {
			_ = a.FetchDriverDescription(ctx, false) // is fetched again
		}
		a.Run(ctx, ctx)
	}()
	return a
}

// gate opens at a time.
type gate struct{ opens time.Time }

func (g *gate) Wait(ctx context.Context) error { return wait.Sleep(ctx, time.Until(g.opens)) }

var errCrashed = errors.New("the agent is dead")

// disk stores one task's record.
type disk struct {
	mu           sync.Mutex
	puts         []put
	durable      int  // number of puts not lost in a crash
	writesAtOnce bool // each put is on the disk at once, also one without a waiting caller
	refuses      func(put) error
	begin        time.Time

	crashAt int // number of the put in place of which the agent dies; 0 for none
	crashed bool
	onCrash func()
}

type put struct {
	fields     *record.Fields // nil for a put with only the status
	status     *api.TaskState
	durability state.Durability
}

func (d *disk) PutTaskState(status *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return d.put(put{nil, status, durability})
}

func (d *disk) PutBothRecords(fields record.Fields, status *api.TaskState, durability state.Durability) state.WaitDurableFunc {
	return d.put(put{&fields, status, durability})
}

func (d *disk) TaskHandle(startID string) (*driver.Handle, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.puts {
		if p.fields == nil {
			continue
		}
		for id, h := range p.fields.Handles() {
			if id == startID {
				return h, nil
			}
		}
	}
	return nil, nil
}

func (d *disk) put(p put) state.WaitDurableFunc {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.crashAt == len(d.puts)+1 && !d.crashed {
		d.crashed = true
		go d.onCrash() // the caller holds the runner's lock
	}
	if d.refuses != nil && d.refuses(p) != nil {
		return func() error { return d.refuses(p) }
	}
	if !d.crashed {
		d.puts = append(d.puts, p)
	}
	number := len(d.puts)
	if d.writesAtOnce && !d.crashed {
		d.durable = number
	}
	return func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.crashed {
			return errCrashed
		}
		if p.durability != state.DurabilityAsync {
			d.durable = max(d.durable, number)
		}
		return nil
	}
}

// fullFor returns an error if the disk is younger than a time.
func (d *disk) fullFor(t time.Duration) error {
	if time.Since(d.begin) < t {
		return errors.New("no space left on device")
	}
	return nil
}

func (d *disk) isCrashed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.crashed
}

// restore returns the stored record for the next agent, and drops the pending puts.
func (d *disk) restore() *RestoredTask {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.puts, d.crashed, d.crashAt = d.puts[:d.durable], false, 0
	restored := &RestoredTask{}
	for _, p := range d.puts {
		restored.TaskState = p.status
		if p.fields != nil {
			restored.Fields = *p.fields
		}
	}
	if len(d.puts) == 0 {
		return nil
	}
	return restored
}

// session connects one agent with the driver.
type session struct {
	*fakeDriver
	disk *disk
}

// dispense fails for a dead agent, because its calls must have no effect.
func (s *session) dispense() (driver.Driver, error) {
	switch {
	case s.disk.isCrashed():
		return nil, &driver.UnavailableError{Plugin: "fake", Err: errCrashed}
	case time.Now().Before(s.fakeDriver.outage):
		return nil, &driver.UnavailableError{Plugin: "fake", Err: errors.New("the plugin is being launched")}
	}
	return s.fakeDriver, nil
}

// process is one process in a fakeDriver.
type process struct {
	exited   chan struct{}
	exitCode int
}

func (p *process) exit() {
	select {
	case <-p.exited:
	default:
		close(p.exited)
	}
}

// fakeDriver has processes, which run until they are stopped or destroyed, or for a time.
type fakeDriver struct {
	driver.Driver // nil: the tests call no other method
	callLog

	outage      time.Time           // no plugin process serves the driver before
	processes   map[string]*process // by start id, until they are destroyed
	runFor      time.Duration       // how long each process runs; 0 for no limit
	exitCodes   []int               // one for each start that exits itself; all further starts have the last one, or 1 if there is none
	startTakes  time.Duration       // how long StartTask blocks; its process runs also if the call is canceled meanwhile
	startErr    error               // error for each start; the process runs nevertheless
	startDies   int                 // number of starts during which the plugin process dies before it has started the process
	starts      int                 // how often a process was started
	most        int                 // how many processes have run at the same time
	destroyErr  error
	stopErr     error
	ignoresStop bool // a process does not end by StopTask

	inspectErr error
	recoverErr error
	status     *driver.TaskStatus            // for all tasks; nil for the processes' status
	statusByID map[string]*driver.TaskStatus // for a task; nil for the processes' status
}

// setErrors sets the error for all repeatable calls.
func (d *fakeDriver) setErrors(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inspectErr, d.recoverErr, d.destroyErr, d.stopErr = err, err, err, err
}

// setOutage ends the plugin process for a time.
func (d *fakeDriver) setOutage(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outage = time.Now().Add(t)
}

// addProcess starts a process that no agent in the test has started.
func (d *fakeDriver) addProcess(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.processes[id] = &process{exited: make(chan struct{})}
}

// ids returns the driver's starts.
func (d *fakeDriver) ids() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.processes))
}

func (d *fakeDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	return hclspec.Object(nil), nil
}

func (d *fakeDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	return &driver.Capabilities{}, nil
}

func (d *fakeDriver) StartTask(ctx context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	canceled := wait.Sleep(ctx, d.startTakes)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.startDies > 0 {
		d.startDies--
		d.log("StartTask, the plugin dies")
		return nil, nil, driver.ErrPluginDown
	}
	p := &process{exited: make(chan struct{}), exitCode: 1}
	if len(d.exitCodes) > 0 {
		p.exitCode = d.exitCodes[min(d.starts, len(d.exitCodes)-1)]
	}
	d.log("StartTask")
	d.starts++
	d.processes[config.ID] = p
	running := 0
	for _, other := range d.processes {
		select {
		case <-other.exited:
		default:
			running++
		}
	}
	d.most = max(d.most, running)
	if d.runFor > 0 {
		time.AfterFunc(d.runFor, p.exit)
	}
	return &driver.Handle{Config: config}, nil, errors.Join(d.startErr, canceled)
}

func (d *fakeDriver) RecoverTask(_ context.Context, handle *driver.Handle) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("RecoverTask %s", handle.Config.ID)
	switch {
	case d.recoverErr != nil:
		return d.recoverErr
	case d.processes[handle.Config.ID] == nil:
		return driver.ErrTaskNotFound
	}
	return nil
}

func (d *fakeDriver) InspectTask(_ context.Context, id string) (*driver.TaskStatus, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("InspectTask %s", id)
	switch {
	case d.statusByID[id] != nil:
		return d.statusByID[id], nil
	case d.inspectErr != nil:
		return nil, d.inspectErr
	case d.status != nil:
		return d.status, nil
	case d.processes[id] == nil:
		return &driver.TaskStatus{StartStatus: &driver.StartStatus{Phase: driver.StartNotFound}}, nil
	}
	return &driver.TaskStatus{
		State: driver.TaskRunning, StartStatus: &driver.StartStatus{Phase: driver.StartReturned, Handle: &driver.Handle{Config: &driver.TaskConfig{ID: id}}},
	}, nil
}

func (d *fakeDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	d.mu.Lock()
	p := d.processes[id]
	d.mu.Unlock()
	if p == nil {
		return nil, driver.ErrTaskNotFound
	}
	select {
	case <-p.exited:
		return &driver.ExitResult{ExitCode: p.exitCode}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *fakeDriver) StopTask(_ context.Context, id string, _ time.Duration, _ string) error {
	return d.end("StopTask", id)
}

func (d *fakeDriver) DestroyTask(_ context.Context, id string, _ bool) error {
	return d.end("DestroyTask", id)
}

func (d *fakeDriver) end(call, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log("%s %s", call, id)
	destroys := call == "DestroyTask"
	switch {
	case destroys && d.destroyErr != nil:
		return d.destroyErr
	case !destroys && d.stopErr != nil:
		return d.stopErr
	}
	found := d.processes[id] != nil
	for other, p := range d.processes {
		if other == id || id == "alloc/"+taskName+"/"+driver.WildcardStart {
			found = true
			if destroys || !d.ignoresStop {
				p.exit()
			}
			if destroys {
				delete(d.processes, other)
			}
		}
	}
	if !found {
		return driver.ErrTaskNotFound
	}
	return nil
}

// fakeHook is one of the task's hooks.
type fakeHook struct {
	hooks.BuiltinHookDefaults
	callLog
	done   bool // Prestart is called once
	failed bool // Prestart fails
}

func (h *fakeHook) Name() string { return "fake" }

func (h *fakeHook) logCall(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log("%s", call)
}

func (h *fakeHook) Prestart(_ context.Context, r hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	h.logCall("Prestart")
	if h.failed {
		return hook.TaskPrestartResponse{}, errors.New("the hook fails")
	}
	return hook.TaskPrestartResponse{State: map[string]string{"calls": r.PreviousState["calls"] + "I"}, Done: h.done}, nil
}

func (h *fakeHook) PreKilling(context.Context, hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	h.logCall("PreKilling")
	return hook.TaskPreKillingResponse{}, nil
}

func (h *fakeHook) Exited(context.Context, hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	h.logCall("Exited")
	return hook.TaskExitedResponse{}, nil
}

func (h *fakeHook) Stop(context.Context, hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	h.logCall("Stop")
	return hook.TaskStopResponse{}, nil
}
