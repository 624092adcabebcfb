package agent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// simulatedHost has the simulated task processes, which continue when agents and plugins end.
type simulatedHost struct {
	mu         sync.Mutex
	plugin     *simPlugin
	processes  map[string]*taskProcess // the processes by start id, until they are destroyed
	newest     map[string]*taskProcess // each task's last process, by allocation and task; it may be destroyed
	violations []error

	// onStart is called for each start, and onStop for each stop of a living process, before the driver executes them. They may
	// be nil.
	onStart func(*driver.TaskConfig)
	onStop  func(*taskProcess)
}

// taskProcess is the process of one task start. The task's environment controls the process: "start", "run" and "stop" are
// durations in seconds, and "code" is its exit code.
type taskProcess struct {
	id, alloc, task string
	stopDuration    time.Duration
	isKnown         bool // an agent has got StartTask's response, has recovered the task, or waits for its exit; guarded by world.mu
	isAbandoned     bool // destroyed while no agent knew it, so no agent has reported its exit; guarded by world.mu
	mu              sync.Mutex
	exited          chan struct{}
	result          driver.ExitResult
}

func (p *taskProcess) alive() bool {
	return !wait.IsClosed(p.exited)
}

func (p *taskProcess) exit(r driver.ExitResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive() {
		p.result = r
		close(p.exited)
	}
}

func newSimulatedHost() *simulatedHost {
	return &simulatedHost{processes: make(map[string]*taskProcess), newest: make(map[string]*taskProcess)}
}

func (s *simulatedHost) addViolation(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addViolationLocked(format, args...)
}

func (s *simulatedHost) addViolationLocked(format string, args ...any) {
	if len(s.violations) < 5 {
		s.violations = append(s.violations, fmt.Errorf(format, args...))
	}
}

// runningProcesses returns the living processes.
func (s *simulatedHost) runningProcesses() (list []*taskProcess) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if p.alive() {
			list = append(list, p)
		}
	}
	return list
}

// tasksWithProcess returns the tasks, by allocation and task, with a process that was not destroyed.
func (s *simulatedHost) tasksWithProcess() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		keys = append(keys, p.alloc+"/"+p.task)
	}
	return keys
}

// newestProcess returns a task's last process, nil if there was none.
func (s *simulatedHost) newestProcess(key string) *taskProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest[key]
}

// killPlugin simulates kill -9 for the plugin. Its tasks' processes continue.
func (s *simulatedHost) killPlugin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plugin != nil {
		close(s.plugin.exited)
		s.plugin = nil
	}
}

// addProcess creates a start's process. No other process of the task may be alive.
func (s *simulatedHost) addProcess(c *driver.TaskConfig) {
	seconds := func(name string) time.Duration {
		n, _ := strconv.ParseFloat(c.Env[name], 64)
		return time.Duration(n * float64(time.Second))
	}
	p := &taskProcess{id: c.ID, alloc: c.AllocID, task: c.Name, stopDuration: seconds("stop"), exited: make(chan struct{})}
	s.mu.Lock()
	for _, other := range s.processes {
		if other.alive() && other.alloc == p.alloc && other.task == p.task {
			s.addViolationLocked("I1: %s runs already when %s starts", other.id, p.id)
		}
	}
	s.processes[p.id], s.newest[p.alloc+"/"+p.task] = p, p
	s.mu.Unlock()
	if run := seconds("run"); run > 0 {
		code, _ := strconv.Atoi(c.Env["code"])
		time.AfterFunc(run, func() { p.exit(driver.ExitResult{ExitCode: code}) })
	}
}

// simAgentDrivers gives one agent access to the world. Its methods fail when the agent is dead.
type simAgentDrivers struct {
	*simulatedHost
	agentDied <-chan struct{}
	driver    *simDriver // current plugin's driver; guarded by world.mu
}

var errAgentDead = errors.New("the agent is dead")

func (s *simAgentDrivers) isDead() bool {
	return wait.IsClosed(s.agentDied)
}

// WaitBrieflyForFirstReports implements package orphans' drivers.
func (s *simAgentDrivers) WaitBrieflyForFirstReports(context.Context) error { return nil }

// DriverInfoByName implements package orphans' drivers.
func (s *simAgentDrivers) DriverInfoByName() map[string]supervisor.DriverInfo {
	return map[string]supervisor.DriverInfo{"sim": {Detected: true, Healthy: true}}
}

// Driver implements package orphans' drivers and allocrunner.Drivers.
func (s *simAgentDrivers) Driver(context.Context, string) (driver.Driver, error) {
	if s.isDead() {
		return nil, errAgentDead
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plugin == nil {
		s.plugin = &simPlugin{exited: make(chan struct{}), knownTasks: make(map[string]bool), pendingStarts: make(map[string]bool)}
	}
	if s.driver == nil || s.driver.plugin != s.plugin {
		s.driver = &simDriver{simAgentDrivers: s, plugin: s.plugin}
	}
	return s.driver, nil
}

// DriverKnowsInterruptedStarts and DriverFindsTasksByName return true, as for builtin drivers.
func (s *simAgentDrivers) DriverKnowsInterruptedStarts(string) bool { return true }
func (s *simAgentDrivers) DriverFindsTasksByName(string) bool       { return true }

// RestartReattachedPlugin does nothing, as for builtin drivers.
func (s *simAgentDrivers) RestartReattachedPlugin(context.Context, string) error { return nil }

// nopLogCollector is a log collector that does nothing.
type nopLogCollector struct{}

func (nopLogCollector) Start(context.Context, logs.Task) (string, string, error) { return "", "", nil }
func (nopLogCollector) Stop(context.Context, string, string, bool) error         { return nil }
func (nopLogCollector) StopCollectionOfEarlierAgent(context.Context, logs.Task, bool) error {
	return nil
}
func (nopLogCollector) StopUnlessStopped(context.Context, string, string) error { return nil }

// simPlugin is the driver plugin's simulated process.
type simPlugin struct {
	exited        chan struct{}
	knownTasks    map[string]bool // ids of tasks started or recovered by this plugin; guarded by world.mu
	pendingStarts map[string]bool // ids of starts in progress; guarded by world.mu
}

// simDriver is the driver as one agent uses it.
type simDriver struct {
	driver.Driver // nil: methods not used by the tests panic
	*simAgentDrivers
	plugin *simPlugin
}

// err returns an error if the agent or the plugin is dead.
func (d *simDriver) err() error {
	if d.isDead() {
		return errAgentDead
	}
	select {
	case <-d.plugin.exited:
		return driver.ErrPluginDown
	default:
		return nil
	}
}

// sleepUnlessDown sleeps for a duration. It returns an error if the agent or the plugin dies or ctx ends.
func (d *simDriver) sleepUnlessDown(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.agentDied:
	case <-d.plugin.exited:
	case <-ctx.Done():
		return ctx.Err()
	}
	return d.err()
}

func (d *simDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	return hclspec.Object(nil), d.err()
}

func (d *simDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	return &driver.Capabilities{}, d.err()
}

func (d *simDriver) TaskStats(context.Context, string, time.Duration) (<-chan *driver.TaskStats, error) {
	return nil, driver.ErrStatsNotImplemented
}

func (d *simDriver) StartTask(ctx context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	if err := d.err(); err != nil {
		return nil, nil, err
	}
	if d.onStart != nil {
		d.onStart(c)
	}
	n, _ := strconv.ParseFloat(c.Env["start"], 64)
	d.mu.Lock()
	d.plugin.pendingStarts[c.ID] = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.plugin.pendingStarts, c.ID)
	}()
	pause := d.sleepUnlessDown(ctx, time.Duration(n*float64(time.Second)))
	if errors.Is(pause, errAgentDead) && c.Env["listens"] == "" || pause == nil {
		// The plugin starts the task even if the agent is killed during the call.
		d.addProcess(c)
		d.mu.Lock()
		d.plugin.knownTasks[c.ID] = true
		if p := d.processes[c.ID]; p != nil { // not destroyed meanwhile
			p.isKnown = pause == nil
		}
		d.mu.Unlock()
	}
	if pause != nil {
		return nil, nil, pause
	}
	return &driver.Handle{Version: 1, Config: c, State: driver.TaskRunning}, nil, nil
}

func (d *simDriver) find(id string) (*taskProcess, error) {
	if err := d.err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.processes[id]; p != nil && d.plugin.knownTasks[id] {
		return p, nil
	}
	return nil, driver.ErrTaskNotFound
}

// InspectTask answers like a driver made with package sdk.
func (d *simDriver) InspectTask(_ context.Context, id string) (*driver.TaskStatus, error) {
	p, err := d.find(id)
	if err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	status := &driver.TaskStatus{ID: id, StartStatus: &driver.StartStatus{Phase: driver.StartNotFound}}
	switch {
	case p != nil:
		status.State = driver.TaskRunning
		handle := &driver.Handle{Version: 1, Config: &driver.TaskConfig{ID: id}, State: driver.TaskRunning}
		status.StartStatus = &driver.StartStatus{Phase: driver.StartReturned, Handle: handle}
	case d.plugin.pendingStarts[id]:
		status.StartStatus.Phase = driver.StartPending
	}
	return status, nil
}

func (d *simDriver) RecoverTask(_ context.Context, h *driver.Handle) error {
	if err := d.err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.processes[h.Config.ID] == nil && h.Version == 0 {
		return driver.ErrTaskNotFound // the start was not executed
	}
	if d.processes[h.Config.ID] == nil {
		return errors.New("nothing to recover")
	}
	d.plugin.knownTasks[h.Config.ID], d.processes[h.Config.ID].isKnown = true, true
	return nil
}

func (d *simDriver) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	p, err := d.find(id)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	p.isKnown = true
	d.mu.Unlock()
	select {
	case <-p.exited:
		return &p.result, nil
	case <-d.agentDied:
	case <-d.plugin.exited:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return nil, d.err()
}

func (d *simDriver) StopTask(ctx context.Context, id string, timeout time.Duration, _ string) error {
	p, err := d.find(id)
	if err != nil {
		return err
	}
	if d.onStop != nil && p.alive() {
		d.onStop(p)
	}
	if err := d.sleepUnlessDown(ctx, min(p.stopDuration, timeout)); err != nil {
		return err
	}
	p.exit(driver.ExitResult{ExitCode: 130, Signal: 2})
	return nil
}

func (d *simDriver) DestroyTask(_ context.Context, id string, _ bool) error {
	if err := d.err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := driver.ErrTaskNotFound
	for other, p := range d.processes {
		same := strings.HasPrefix(other, id[:strings.LastIndexByte(id, '/')+1])
		if other == id || same && !d.plugin.knownTasks[id] {
			p.isAbandoned = !p.isKnown
			p.exit(driver.ExitResult{ExitCode: 137, Signal: 9})
			delete(d.processes, other)
			err = nil
		}
	}
	return err
}
