package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
)

const defaultFingerprintInterval = 30 * time.Second

// driverServer implements the whole driver contract with an author's driver. It satisfies
// driver.Driver and base.Plugin.
type driverServer struct {
	basePlugin
	authorDriver *untypedDriver
	driverInfo   DriverInfo
	logger       hclog.Logger
	taskEvents   eventBroadcaster

	// hostIsNomadLite means that the host is a nomad-lite agent, which inspects a start whose response it has not
	// received: see [driver.StartStatus].
	hostIsNomadLite bool

	// dataDir is the data directory of that agent; nil if it could not be opened.
	dataDir *os.File

	mu                 sync.Mutex
	startsByID         map[string]*taskStart    // key: start id
	activeSweepsByTask map[string]chan struct{} // key: alloc id and task name; the channel is closed when the sweep ends
}

var (
	_ driver.Driver       = (*driverServer)(nil)
	_ driver.ExitNotifier = (*driverServer)(nil)
	_ driver.TaskSampler  = (*driverServer)(nil)
	_ base.Plugin         = (*driverServer)(nil)
)

// taskStart is one start of a task. The fields from startErr to cancelWait may be read after
// startReturned is closed, the fields from exitResult to taskExitedAt after exited is closed.
type taskStart struct {
	startRequest *StartRequest
	cancelStart  context.CancelCauseFunc // cancels the context of a Start or Recover that is in progress

	startReturned   chan struct{} // closed when Start or Recover has returned
	startErr        error         // error of Start or Recover; authorTask is nil if startErr is set
	authorTask      Task
	taskStartedAt   time.Time
	networkOverride *driver.NetworkOverride
	cancelWait      context.CancelFunc // cancels the context of the author's Wait

	exited       chan struct{} // closed when the author's Wait has returned
	exitResult   driver.ExitResult
	mayStillRun  bool // Wait panicked: the task may still run
	taskExitedAt time.Time

	destroyMu   sync.Mutex // one DestroyTask at a time
	isDestroyed bool       // guarded by destroyMu

	listenersMu   sync.Mutex
	exitListeners []exitListener // called when the start has failed or the task has exited
	exitIsKnown   bool           // the start has failed or the task has exited: further listeners are called immediately
}

// exitListener is one call of NotifyExit. It is dropped after the end of ctx.
type exitListener struct {
	ctx    context.Context
	onExit func(*driver.ExitResult, error)
}

var errDestroyed = errors.New("task was destroyed while it started")

// newDriverServer returns a server for a driver. The caller has validated id and info.
func newDriverServer(d *untypedDriver, id pluginIdentity, info DriverInfo, logger hclog.Logger) *driverServer {
	s := &driverServer{
		basePlugin:         basePlugin{authorPlugin: d.authorDriver, pluginIdentity: id, pluginType: base.TypeDriver, apiVersion: driver.APIVersion},
		authorDriver:       d,
		driverInfo:         info,
		logger:             logger,
		startsByID:         map[string]*taskStart{},
		activeSweepsByTask: map[string]chan struct{}{},
	}
	if s.driverInfo.StateVersion == 0 {
		s.driverInfo.StateVersion = 1
	}
	if s.driverInfo.FingerprintInterval == 0 {
		s.driverInfo.FingerprintInterval = defaultFingerprintInterval
	}
	if s.driverInfo.TaskSchema == nil {
		s.driverInfo.TaskSchema = hclspec.Object(nil)
	}
	return s
}

func (s *driverServer) Init(ctx context.Context) error {
	if initer, ok := s.authorPlugin.(Initializer); ok {
		return callInitRecoverPanic(ctx, initer)
	}
	return nil
}

func (s *driverServer) Shutdown(ctx context.Context) error {
	if shutdowner, ok := s.authorPlugin.(Shutdowner); ok {
		return callShutdownRecoverPanic(ctx, shutdowner)
	}
	return nil
}

func (s *driverServer) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	return s.driverInfo.TaskSchema, nil
}

func (s *driverServer) Capabilities(context.Context) (*driver.Capabilities, error) {
	info, err := callInfoRecoverPanic(s.authorDriver.authorDriver) // Info is called again because the capabilities may depend on the configuration
	if err != nil {
		return nil, err
	}
	if err := s.authorDriver.checkCapabilities(&info.Capabilities); err != nil {
		return nil, err
	}
	return &info.Capabilities, nil
}

func (s *driverServer) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	changes, err := callWatchIfWatcher(ctx, s.authorPlugin)
	if err != nil {
		return nil, err
	}
	return streamFingerprints(ctx, s.currentFingerprint, s.driverInfo.FingerprintInterval, changes), nil
}

func (s *driverServer) currentFingerprint(ctx context.Context) driver.Fingerprint {
	f := driver.Fingerprint{Health: driver.HealthHealthy}
	if fingerprinter, ok := s.authorPlugin.(Fingerprinter); ok {
		f = callFingerprintRecoverPanic(ctx, fingerprinter)
	}
	if f.Health == driver.HealthUndetected && f.HealthDescription == "" {
		f.HealthDescription = "the driver has set neither the Health nor the HealthDescription of its fingerprint"
	}
	if f.Health == driver.HealthHealthy && f.HealthDescription == "" {
		f.HealthDescription = "Healthy"
	}
	return f
}

func (s *driverServer) TaskEvents(ctx context.Context) (<-chan *driver.TaskEvent, error) {
	in, stop := s.taskEvents.subscribe()
	out := make(chan *driver.TaskEvent)
	go func() {
		defer close(out)
		defer stop()
		for {
			select {
			case event := <-in:
				select {
				case out <- event:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (s *driverServer) StartTask(ctx context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	if config == nil || config.ID == "" {
		return nil, nil, errors.New("start task: no task id given")
	}
	start := s.newStartRequest(*config)
	if s.hostIsNomadLite {
		// A start continues if the agent exits: the next agent inspects the start. An agent that gives up the
		// start destroys it.
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &taskStart{startRequest: start, cancelStart: cancel, startReturned: make(chan struct{}), exited: make(chan struct{})}
	s.mu.Lock()
	if s.startsByID[config.ID] != nil {
		s.mu.Unlock()
		return nil, nil, fmt.Errorf("task with ID %q already started", config.ID)
	}
	s.startsByID[config.ID] = t
	sweep := s.activeSweepsByTask[config.AllocID+"/"+config.Name]
	s.mu.Unlock()
	if sweep != nil {
		<-sweep // wait for a sweep that is running, which could kill the processes of this start
	}

	author, err := s.authorDriver.startMethod(ctx, start)
	if err == nil && ctx.Err() != nil {
		// The host gets no handle of this task, and so cannot stop it.
		err = errors.Join(context.Cause(ctx), killAndDestroyStartedTask(context.WithoutCancel(ctx), author))
	}
	var handle *driver.Handle
	if err == nil {
		handle, t.networkOverride, err = s.newHandleAndNetwork(config, author)
		if err != nil {
			err = errors.Join(err, killAndDestroyStartedTask(context.WithoutCancel(ctx), author))
		}
	}
	if err != nil {
		s.removeFailedStart(t, err)
		s.sweepAfterStartPanic(context.WithoutCancel(ctx), start, err)
		return nil, nil, err
	}
	s.markStartedAndWaitInBackground(t, author)
	return handle, t.networkOverride, nil
}

// sweepAfterStartPanic kills the processes that a Start may have started before it panicked:
// that Start returned no Task whose Kill would kill them.
func (s *driverServer) sweepAfterStartPanic(ctx context.Context, start *StartRequest, err error) {
	var panicErr *basewire.PanicError
	if !errors.As(err, &panicErr) {
		return
	}
	if err := s.sweepTask(ctx, start.ID, true); err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		start.Logger().Warn("a start that panicked may have left processes running", "error", err)
	}
}

func (s *driverServer) newStartRequest(config driver.TaskConfig) *StartRequest {
	if config.Resources == nil {
		config.Resources = new(driver.Resources)
	}
	return &StartRequest{
		TaskConfig: config,
		onEvent:    s.taskEvents.broadcast,
		logger:     s.logger.With("alloc_id", config.AllocID, "task", config.Name),
	}
}

// newHandleAndNetwork returns the handle of a started task, which the host stores, and the network of the task.
func (s *driverServer) newHandleAndNetwork(config *driver.TaskConfig, author Task) (*driver.Handle, *driver.NetworkOverride, error) {
	h, err := s.encodeHandle(config, author)
	if err != nil {
		return nil, nil, err
	}
	network, err := callNetworkIfReported(author)
	if err != nil {
		return nil, nil, err
	}
	return h, network, nil
}

func (s *driverServer) encodeHandle(config *driver.TaskConfig, author Task) (*driver.Handle, error) {
	h := &driver.Handle{
		Version: s.driverInfo.StateVersion,
		Config:  config,
		State:   driver.TaskRunning,
	}
	if stater, ok := author.(StateProvider); ok {
		state, err := callStateRecoverPanic(stater)
		if err != nil {
			return nil, err
		}
		h.DriverState, err = hclspec.MarshalState(state)
		if err != nil {
			return nil, fmt.Errorf("encode the state of task %q: %w", config.Name, err)
		}
	}
	return h, nil
}

// killAndDestroyStartedTask kills and destroys a task that has started and that the host will not learn of, because its
// start was cancelled or its handle could not be made.
func killAndDestroyStartedTask(ctx context.Context, author Task) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := callKillRecoverPanic(ctx, author); err != nil {
		return fmt.Errorf("kill the task again: %w", err)
	}
	// Other errors of Wait are about the exit status of a task that has ended.
	if _, err := callWaitRecoverPanic(ctx, author); ctx.Err() != nil || errors.As(err, new(*basewire.PanicError)) {
		return fmt.Errorf("wait for the killed task: %w", err)
	}
	return callDestroyIfDestroyer(ctx, author)
}

// removeFailedStart removes a start that has failed with err from the table, and unblocks the callers of waitStarted.
func (s *driverServer) removeFailedStart(t *taskStart, err error) {
	s.mu.Lock()
	delete(s.startsByID, t.startRequest.ID)
	s.mu.Unlock()
	t.startErr = err
	close(t.startReturned)
	t.callExitListeners()
}

// markStartedAndWaitInBackground marks a task as started, and starts the goroutine that calls the author's Wait. The
// goroutine ends when the task exits or is destroyed.
func (s *driverServer) markStartedAndWaitInBackground(t *taskStart, author Task) {
	ctx, cancel := context.WithCancel(context.Background())
	t.authorTask, t.cancelWait, t.taskStartedAt = author, cancel, time.Now()
	close(t.startReturned)
	go func() {
		defer cancel()
		result, err := callWaitRecoverPanic(ctx, author)
		if err != nil {
			var panicErr *basewire.PanicError
			t.mayStillRun = errors.As(err, &panicErr)
			result.Err = errors.Join(err, result.Err)
		}
		t.exitResult, t.taskExitedAt = result, time.Now()
		close(t.exited)
		t.callExitListeners()
		t.startRequest.Logger().Debug("task ended", "exit_code", result.ExitCode, "signal", result.Signal, "error", result.Err)
	}()
}

func (s *driverServer) RecoverTask(ctx context.Context, handle *driver.Handle) error {
	if handle == nil || handle.Config == nil || handle.Config.ID == "" {
		return errors.New("recover task: no task id given")
	}
	method := s.authorDriver.recoverMethod
	switch {
	case handle.Version == 0 && s.hostIsNomadLite:
		method = s.authorDriver.adoptMethod
	case handle.Version < 1 || handle.Version > s.driverInfo.StateVersion:
		return fmt.Errorf("recover task %q: its state has version %d, this driver knows 1 to %d", handle.Config.ID, handle.Version, s.driverInfo.StateVersion)
	}
	s.mu.Lock()
	for t := s.startsByID[handle.Config.ID]; t != nil; t = s.startsByID[handle.Config.ID] {
		s.mu.Unlock()
		_, err := t.waitStarted(ctx)
		if !errors.Is(err, driver.ErrTaskNotFound) {
			return err
		}
		s.mu.Lock() // the other call has failed, perhaps because its host has died, which says nothing about the task
	}
	if method == nil {
		s.mu.Unlock()
		return fmt.Errorf("recover task %q: tasks of driver %q end with its process", handle.Config.ID, s.name)
	}
	start := s.newStartRequest(*handle.Config)
	start.StateVersion, start.encodedState, start.isAdoption = handle.Version, handle.DriverState, handle.Version == 0
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &taskStart{startRequest: start, cancelStart: cancel, startReturned: make(chan struct{}), exited: make(chan struct{})}
	s.startsByID[start.ID] = t
	s.mu.Unlock()

	author, err := method(ctx, start)
	if err != nil {
		s.removeFailedStart(t, err)
		if errors.Is(err, ErrNotExecuted) {
			return driver.ErrTaskNotFound
		}
		return err
	}
	// After an error of Network the task is recovered without an address.
	if t.networkOverride, err = callNetworkIfReported(author); err != nil {
		start.Logger().Warn("the address of a recovered task is unknown", "error", err)
	}
	s.markStartedAndWaitInBackground(t, author)
	return nil
}

// waitForStartedTask returns a task of the table, after its start. It blocks while the start is in progress.
func (s *driverServer) waitForStartedTask(ctx context.Context, id string) (*taskStart, error) {
	s.mu.Lock()
	t := s.startsByID[id]
	s.mu.Unlock()
	if t == nil {
		return nil, driver.ErrTaskNotFound
	}
	return t.waitStarted(ctx)
}

// waitStarted blocks until Start or Recover has returned, and returns the task, or ErrTaskNotFound if the start has failed.
func (t *taskStart) waitStarted(ctx context.Context) (*taskStart, error) {
	select {
	case <-t.startReturned:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t.startErr != nil {
		return nil, driver.ErrTaskNotFound
	}
	return t, nil
}

func (t *taskStart) hasExited() bool {
	return wait.IsClosed(t.exited)
}

func (s *driverServer) WaitTask(ctx context.Context, id string) (*driver.ExitResult, error) {
	t, err := s.waitForStartedTask(ctx, id)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.exited:
		result := t.exitResult
		return &result, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// NotifyExit implements driver.ExitNotifier. A task needs no goroutine for its listeners.
func (s *driverServer) NotifyExit(ctx context.Context, id string, onExit func(*driver.ExitResult, error)) {
	s.mu.Lock()
	t := s.startsByID[id]
	s.mu.Unlock()
	if t == nil {
		onExit(nil, driver.ErrTaskNotFound)
		return
	}
	t.listenersMu.Lock()
	exitIsKnown := t.exitIsKnown
	if !exitIsKnown {
		kept := make([]exitListener, 0, 1) // most tasks have one listener
		for _, l := range t.exitListeners {
			if l.ctx.Err() == nil {
				kept = append(kept, l)
			}
		}
		t.exitListeners = append(kept, exitListener{ctx, onExit})
	}
	t.listenersMu.Unlock()
	if exitIsKnown {
		t.callExitListener(onExit)
	}
}

// callExitListeners is called once, after startErr or exitResult is set.
func (t *taskStart) callExitListeners() {
	t.listenersMu.Lock()
	listeners := t.exitListeners
	t.exitListeners, t.exitIsKnown = nil, true
	t.listenersMu.Unlock()
	for _, l := range listeners {
		t.callExitListener(l.onExit)
	}
}

func (t *taskStart) callExitListener(onExit func(*driver.ExitResult, error)) {
	if t.startErr != nil {
		onExit(nil, driver.ErrTaskNotFound)
		return
	}
	result := t.exitResult
	onExit(&result, nil)
}

func (s *driverServer) StopTask(ctx context.Context, id string, timeout time.Duration, signal string) error {
	t, err := s.waitForStartedTask(ctx, id)
	if err != nil || t.hasExited() {
		return err
	}
	if stopper, ok := t.authorTask.(Stopper); ok {
		err := callStopRecoverPanic(ctx, stopper, StopRequest{Signal: signal, Timeout: timeout})
		if err != nil && !t.hasExited() {
			return err
		}
		return t.waitExit(ctx)
	}
	if signaler, ok := t.authorTask.(Signaler); ok && timeout > 0 && t.sendStopSignal(ctx, signaler, signal) {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		select {
		case <-t.exited:
			return nil
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return t.killAndWait(ctx)
}

// sendStopSignal sends the stop signal to the task, and reports whether it was sent.
func (t *taskStart) sendStopSignal(ctx context.Context, signaler Signaler, signal string) bool {
	err := callSignalRecoverPanic(ctx, signaler, signal)
	if err != nil && signal != "" && !t.hasExited() {
		t.startRequest.Logger().Warn("stop signal not sent, sending the default one", "signal", signal, "error", err)
		err = callSignalRecoverPanic(ctx, signaler, "")
	}
	if err != nil && !t.hasExited() {
		t.startRequest.Logger().Warn("stop signal not sent, killing the task", "error", err)
		return false
	}
	return true
}

func (t *taskStart) killAndWait(ctx context.Context) error {
	if err := callKillRecoverPanic(ctx, t.authorTask); err != nil && !t.hasExited() {
		return fmt.Errorf("kill task %q: %w", t.startRequest.ID, err)
	}
	return t.waitExit(ctx)
}

func (t *taskStart) waitExit(ctx context.Context) error {
	select {
	case <-t.exited:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *driverServer) DestroyTask(ctx context.Context, id string, force bool) error {
	var t *taskStart
	for err := driver.ErrTaskNotFound; err != nil; {
		s.mu.Lock()
		t = s.startsByID[id]
		s.mu.Unlock()
		if t == nil {
			if task, any := strings.CutSuffix(id, "/"+driver.WildcardStart); any && force {
				if found, err := s.destroyTasksWithPrefix(ctx, task+"/"); found {
					return err
				}
			}
			return s.sweepTask(ctx, id, force)
		}
		if force {
			t.cancelStart(errDestroyed)
		}
		// A cancelled recovery has left the task running, and is no longer in the table.
		if _, err = t.waitStarted(ctx); err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
			return err
		}
	}

	t.destroyMu.Lock()
	defer t.destroyMu.Unlock()
	if t.isDestroyed {
		return driver.ErrTaskNotFound
	}
	if !t.hasExited() {
		if !force {
			return fmt.Errorf("destroy task %q: it is running, and destroying it is not forced", id)
		}
		if err := t.killAndWait(ctx); err != nil {
			return err
		}
	} else if t.mayStillRun {
		if err := callKillRecoverPanic(ctx, t.authorTask); err != nil {
			return fmt.Errorf("kill task %q, which may still run: %w", id, err)
		}
	}
	t.cancelWait()
	// Destroy continues if the host disconnects. After an error the task stays in the table:
	// the host repeats the call, and DestroyTask would return ErrTaskNotFound for a task
	// that is not in the table, which means that nothing of the task is left.
	if err := callDestroyIfDestroyer(context.WithoutCancel(ctx), t.authorTask); err != nil {
		return fmt.Errorf("destroy task %q: %w", id, err)
	}
	t.isDestroyed = true
	s.mu.Lock()
	delete(s.startsByID, id)
	s.mu.Unlock()
	return nil
}

// destroyTasksWithPrefix destroys the starts in the table whose id has the prefix.
func (s *driverServer) destroyTasksWithPrefix(ctx context.Context, prefix string) (found bool, err error) {
	s.mu.Lock()
	var ids []string
	for id := range s.startsByID {
		if strings.HasPrefix(id, prefix) {
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, s.DestroyTask(ctx, id, true))
	}
	return len(ids) > 0, errors.Join(errs...)
}

// sweepTask kills the remaining processes of a start that is not in the table, by the author's Sweep. It
// returns ErrTaskNotFound if there are none, or if the driver has no Sweep.
func (s *driverServer) sweepTask(ctx context.Context, id string, force bool) error {
	sweeper, ok := s.authorPlugin.(OrphanKiller)
	if !ok || !force {
		return driver.ErrTaskNotFound
	}
	allocID, name, ok := splitTaskID(id)
	if !ok {
		return driver.ErrTaskNotFound
	}
	key := allocID + "/" + name
	over := make(chan struct{})
	s.mu.Lock()
	for _, t := range s.startsByID {
		if t.startRequest.AllocID == allocID && t.startRequest.Name == name {
			s.mu.Unlock()
			return driver.ErrTaskNotFound // Sweep could kill the processes of this start
		}
	}
	if s.activeSweepsByTask[key] != nil {
		s.mu.Unlock()
		return driver.ErrTaskNotFound // a sweep for this task is already running
	}
	s.activeSweepsByTask[key] = over
	s.mu.Unlock()

	found, err := callSweepRecoverPanic(ctx, sweeper, SweepRequest{AllocID: allocID, TaskName: name})

	s.mu.Lock()
	delete(s.activeSweepsByTask, key)
	s.mu.Unlock()
	close(over)
	if err != nil {
		return fmt.Errorf("destroy task %q: %w", id, err)
	}
	if !found {
		return driver.ErrTaskNotFound
	}
	return nil
}

// splitTaskID splits an id of the form "<alloc id>/<task name>/<8 hexadecimal digits>".
func splitTaskID(id string) (allocID, name string, ok bool) {
	parts := strings.Split(id, "/")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return "", "", false
	}
	return parts[0], parts[1], true
}

func (s *driverServer) InspectTask(ctx context.Context, id string) (*driver.TaskStatus, error) {
	if s.hostIsNomadLite {
		if start := s.statusOfUnreturnedStart(id); start != nil {
			return &driver.TaskStatus{ID: id, State: driver.TaskUnknown, ExitResult: &driver.ExitResult{}, StartStatus: start}, nil
		}
	}
	t, err := s.waitForStartedTask(ctx, id)
	if err != nil {
		return nil, err
	}
	status := &driver.TaskStatus{
		ID:              id,
		Name:            t.startRequest.Name,
		State:           driver.TaskRunning,
		StartedAt:       t.taskStartedAt,
		ExitResult:      &driver.ExitResult{},
		NetworkOverride: t.networkOverride,
	}
	if t.hasExited() {
		result := t.exitResult
		status.State, status.CompletedAt, status.ExitResult = driver.TaskExited, t.taskExitedAt, &result
	}
	if status.DriverAttributes, err = callAttributesIfProvided(t.authorTask); err != nil {
		return nil, err
	}
	if s.hostIsNomadLite {
		config := t.startRequest.TaskConfig
		config.DriverConfig = nil // DriverConfig can hold passwords, and the host does not store it
		handle, err := s.encodeHandle(&config, t.authorTask)
		if err != nil {
			return nil, err
		}
		status.StartStatus = &driver.StartStatus{Phase: driver.StartReturned, Handle: handle}
	}
	return status, nil
}

// statusOfUnreturnedStart returns the phase of a start that is in progress, or, for a driver with Adopt, of a start that is
// not in the table. It returns nil for any other start. It does not wait for a start in progress, which can take minutes.
func (s *driverServer) statusOfUnreturnedStart(id string) *driver.StartStatus {
	s.mu.Lock()
	t := s.startsByID[id]
	s.mu.Unlock()
	failed := false
	if t != nil {
		select {
		case <-t.startReturned:
			failed = t.startErr != nil // the start has left the table in the meantime
		default:
			return &driver.StartStatus{Phase: driver.StartPending}
		}
	}
	if (t == nil || failed) && s.authorDriver.adoptMethod != nil {
		return &driver.StartStatus{Phase: driver.StartNotFound}
	}
	return nil
}

func (s *driverServer) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	t, statser, err := s.waitForTaskWithStats(ctx, id)
	if err != nil {
		return nil, err
	}
	if interval <= 0 {
		interval = time.Second
	}
	out := make(chan *driver.TaskStats)
	go func() {
		defer close(out)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			if sample := t.sampleOrNil(ctx, statser); sample != nil {
				select {
				case out <- sample:
				case <-t.exited:
					return
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-ticker.C:
			case <-t.exited:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// SampleTask implements driver.TaskSampler.
func (s *driverServer) SampleTask(ctx context.Context, id string) (*driver.TaskStats, error) {
	t, statser, err := s.waitForTaskWithStats(ctx, id)
	if err != nil {
		return nil, err
	}
	if t.hasExited() {
		return nil, io.EOF
	}
	return t.sampleOrNil(ctx, statser), nil
}

func (s *driverServer) waitForTaskWithStats(ctx context.Context, id string) (*taskStart, StatsProvider, error) {
	t, err := s.waitForStartedTask(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	statser, ok := t.authorTask.(StatsProvider)
	if !ok {
		return nil, nil, &driver.Error{Err: errors.New("stats not implemented for driver"), Recoverable: false}
	}
	return t, statser, nil
}

// sampleOrNil returns a sample of the author's Stats, or nil after an error.
func (t *taskStart) sampleOrNil(ctx context.Context, statser StatsProvider) *driver.TaskStats {
	sample, err := callStatsRecoverPanic(ctx, statser)
	if err != nil {
		if !t.hasExited() && ctx.Err() == nil {
			t.startRequest.Logger().Debug("no statistics this time", "error", err)
		}
		return nil
	}
	if err := sample.Validate(); err != nil {
		t.startRequest.Logger().Error("task statistics are refused", "error", err) // the host rejects invalid statistics without a message to the user
	}
	if sample.Timestamp.IsZero() {
		sample.Timestamp = time.Now()
	}
	return &sample
}

func (s *driverServer) SignalTask(ctx context.Context, id, signal string) error {
	t, err := s.waitForStartedTask(ctx, id)
	if err != nil {
		return err
	}
	caps, err := s.Capabilities(ctx)
	if err != nil {
		return err
	}
	signaler, ok := t.authorTask.(Signaler)
	if !ok || !caps.SendSignals {
		return errors.New("SignalTask is not supported by this driver")
	}
	if signal == "" {
		return errors.New("no signal given")
	}
	if t.hasExited() {
		return errors.New("task has ended")
	}
	return callSignalRecoverPanic(ctx, signaler, signal)
}

func (s *driverServer) ExecTask(ctx context.Context, id string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("command %q did not end within %v", firstElementOrEmpty(command), timeout))
		defer cancel()
	}
	// One buffer holds standard output and standard error in the order of their writes, because hosts
	// show only ExecResult.Stdout as the output of a check.
	var output outputTail
	exit, err := s.execInTask(ctx, id, driver.Exec{Command: command, Stdout: &output, Stderr: &output})
	if err != nil {
		return nil, err
	}
	return &driver.ExecResult{Stdout: output.tailBytes(), Exit: exit}, nil
}

func (s *driverServer) ExecTaskStreaming(ctx context.Context, id string, exec driver.Exec) (*driver.ExitResult, error) {
	result, err := s.execInTask(ctx, id, exec)
	if err != nil {
		return nil, err
	}
	return &result, nil
}

func (s *driverServer) execInTask(ctx context.Context, id string, exec driver.Exec) (driver.ExitResult, error) {
	t, err := s.waitForStartedTask(ctx, id)
	if err != nil {
		return driver.ExitResult{}, err
	}
	caps, err := s.Capabilities(ctx)
	if err != nil {
		return driver.ExitResult{}, err
	}
	execer, ok := t.authorTask.(Execer)
	switch {
	case !ok || !caps.Exec:
		return driver.ExitResult{}, errors.New("ExecTask is not supported by this driver")
	case len(exec.Command) == 0:
		return driver.ExitResult{}, errors.New("no command given")
	case t.hasExited():
		return driver.ExitResult{}, errors.New("task has ended")
	}
	result, err := callExecRecoverPanic(ctx, execer, exec)
	if ctx.Err() != nil {
		return driver.ExitResult{}, context.Cause(ctx) // the command was killed, so its exit status has no meaning
	}
	return result, err
}

func firstElementOrEmpty(command []string) string {
	if len(command) == 0 {
		return ""
	}
	return command[0]
}

func (s *driverServer) CreateNetwork(ctx context.Context, allocID, hostname string) (*driver.NetworkIsolation, bool, error) {
	networker, ok := s.authorPlugin.(NetworkManager)
	if !ok {
		return nil, false, errors.New("CreateNetwork RPC not supported by driver")
	}
	network, err := callCreateNetworkRecoverPanic(ctx, networker, CreateNetworkRequest{AllocID: allocID, Hostname: hostname})
	return network.Isolation, network.Created, err
}

func (s *driverServer) DestroyNetwork(ctx context.Context, allocID string, isolation *driver.NetworkIsolation) error {
	networker, ok := s.authorPlugin.(NetworkManager)
	if !ok {
		return errors.New("DestroyNetwork RPC not supported by driver")
	}
	return callDestroyNetworkRecoverPanic(ctx, networker, DestroyNetworkRequest{AllocID: allocID, Isolation: isolation})
}

// isNeededWithoutHost reports whether the table has tasks: the process must not exit while it has, because a host may connect again
// and call methods of these tasks. After the removal of the data directory none can, so only tasks that may run count.
func (s *driverServer) isNeededWithoutHost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dataDir == nil || !helperdir.IsRemoved(s.dataDir) {
		return len(s.startsByID) > 0
	}
	for _, t := range s.startsByID {
		if t.mayRun() {
			return true
		}
	}
	return false
}

// mayRun reports whether the task may run: neither has the start failed nor the task exited.
func (t *taskStart) mayRun() bool {
	t.listenersMu.Lock()
	defer t.listenersMu.Unlock()
	return !t.exitIsKnown || t.mayStillRun
}
