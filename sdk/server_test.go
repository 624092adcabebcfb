package sdk

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// sleepingTask is the minimal task: it only has Wait and Kill.
type sleepingTask struct {
	ended     chan struct{}
	endOnce   sync.Once
	result    driver.ExitResult
	waitErr   error // error of Wait after the end
	killCount int
}

func newSleepingTask() *sleepingTask { return &sleepingTask{ended: make(chan struct{})} }

func (s *sleepingTask) end(r driver.ExitResult) {
	s.endOnce.Do(func() {
		s.result = r
		close(s.ended)
	})
}

func (s *sleepingTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	select {
	case <-s.ended:
		return s.result, s.waitErr
	case <-ctx.Done():
		return driver.ExitResult{}, ctx.Err()
	}
}

func (s *sleepingTask) Kill(context.Context) error {
	s.killCount++
	s.end(driver.ExitResult{ExitCode: 137, Signal: 9})
	return nil
}

// minimalDriver is a driver without optional methods.
type minimalDriver struct {
	unblockStart chan struct{} // Start blocks until this channel is closed; nil means no wait
	err          error

	mu    sync.Mutex
	tasks []*sleepingTask
}

func (*minimalDriver) Info() DriverInfo { return DriverInfo{Name: "napper"} }

func (d *minimalDriver) Start(ctx context.Context, _ *StartRequest) (*sleepingTask, error) {
	if d.unblockStart != nil {
		select {
		case <-d.unblockStart:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	n := newSleepingTask()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tasks = append(d.tasks, n)
	return n, nil
}

// allMethodsTask is a task with every optional method.
type allMethodsTask struct {
	*sleepingTask
	mu             sync.Mutex
	signals        []string
	rejectedSignal string // name of a signal that Signal rejects
	ignoresSignals bool   // signals do not end the task
	state          any
	destroyCount   int

	destroyErr error
}

func (a *allMethodsTask) Signal(_ context.Context, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if name == a.rejectedSignal && name != "" {
		return errors.New("unknown signal")
	}
	a.signals = append(a.signals, name)
	if !a.ignoresSignals {
		a.end(driver.ExitResult{ExitCode: 130, Signal: 2})
	}
	return nil
}

func (a *allMethodsTask) Exec(ctx context.Context, e driver.Exec) (driver.ExitResult, error) {
	if e.Command[0] == "hang" {
		<-ctx.Done()
		return driver.ExitResult{}, errors.New("killed")
	}
	e.Stdout.Write([]byte("out "))
	e.Stderr.Write([]byte("err "))
	return driver.ExitResult{ExitCode: 7}, nil
}

func (a *allMethodsTask) Stats(context.Context) (driver.TaskStats, error) {
	return driver.TaskStats{Total: driver.Usage{Memory: driver.MemoryUsage{RSS: 1}}}, nil
}

func (a *allMethodsTask) State() any { return a.state }
func (a *allMethodsTask) Network() *driver.NetworkOverride {
	return &driver.NetworkOverride{Addr: "10.0.0.1"}
}
func (a *allMethodsTask) Attributes() map[string]string { return map[string]string{"k": "v"} }

func (a *allMethodsTask) Destroy(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.destroyCount++
	return a.destroyErr
}

type allMethodsDriver struct {
	newTask func() *allMethodsTask

	mu              sync.Mutex
	recoveredStates []any
	sweptTasks      []string
	unblockSweep    chan struct{}  // pauses a sweep until it is closed; nil means no pause
	topology        *base.Topology // of the last Configure
	configs         []string
	fingerprints    []driver.Fingerprint
	changes         chan struct{}
	startResources  *driver.Resources // resources of the last start
	schema          *hclspec.Spec
	noCapabilities  bool // the driver declares no capability
}

type allMethodsState struct {
	N int `codec:"n"`
}

func (d *allMethodsDriver) Info() DriverInfo {
	return DriverInfo{
		Name: "full", Version: "1.2.3", StateVersion: 2, FingerprintInterval: time.Minute, ConfigSchema: d.schema,
		Capabilities: driver.Capabilities{SendSignals: !d.noCapabilities, Exec: !d.noCapabilities},
	}
}

func (d *allMethodsDriver) Start(_ context.Context, start *StartRequest) (*allMethodsTask, error) {
	d.startResources = start.Resources
	start.Env["CHANGED"] = "by the author"
	start.EventWithDetails("hello", map[string]string{"a": "b"})
	if d.newTask != nil {
		return d.newTask(), nil
	}
	return &allMethodsTask{sleepingTask: newSleepingTask(), state: allMethodsState{N: 5}}, nil
}

func (d *allMethodsDriver) Recover(_ context.Context, start *StartRequest) (*allMethodsTask, error) {
	var s allMethodsState
	if err := start.DecodeState(&s); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recoveredStates = append(d.recoveredStates, s, start.StateVersion)
	return &allMethodsTask{sleepingTask: newSleepingTask()}, nil
}

func (d *allMethodsDriver) Configure(_ context.Context, c *Config) error {
	var configBody struct {
		Name string `codec:"name"`
	}
	if err := c.Decode(&configBody); err != nil {
		return err
	}
	d.configs = append(d.configs, configBody.Name)
	d.topology = c.Topology
	if configBody.Name == "bad" {
		return errors.New("bad name")
	}
	return nil
}

func (d *allMethodsDriver) Fingerprint(context.Context) driver.Fingerprint {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.fingerprints[0]
	if len(d.fingerprints) > 1 {
		d.fingerprints = d.fingerprints[1:]
	}
	return f
}

func (d *allMethodsDriver) Watch(context.Context) <-chan struct{} { return d.changes }

func (d *allMethodsDriver) Sweep(_ context.Context, req SweepRequest) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweptTasks = append(d.sweptTasks, req.AllocID+" "+req.TaskName)
	if d.unblockSweep != nil {
		d.unblockSweep <- struct{}{}
		<-d.unblockSweep
	}
	return req.AllocID == "remains", nil
}

func newTestServer[T Task](d Driver[T]) *driverServer {
	info := d.Info()
	id, err := newPluginIdentity(d, info.Name, info.Version, info.ConfigSchema)
	if err != nil {
		panic(err)
	}
	untyped, err := newUntypedDriver(d)
	if err != nil {
		panic(err)
	}
	return newDriverServer(untyped, id, info, hclog.NewNullLogger())
}

const testTaskID = "alloc/task/00000001"

func testTaskConfig() *driver.TaskConfig {
	return &driver.TaskConfig{ID: testTaskID, Name: "task", AllocID: "alloc", Env: map[string]string{"A": "b"}}
}

func startTestTask(t *testing.T, s *driverServer) *driver.Handle {
	t.Helper()
	handle, _, err := s.StartTask(t.Context(), testTaskConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.DestroyTask(context.Background(), testTaskID, true) })
	return handle
}

func TestCapabilitiesAreDeclared(t *testing.T) {
	least, err := newTestServer(&minimalDriver{}).Capabilities(t.Context())
	if err != nil || least.SendSignals || least.Exec || least.MustCreateNetwork {
		t.Errorf("of the least driver: %+v, %v", least, err)
	}
	most, err := newTestServer(&allMethodsDriver{}).Capabilities(t.Context())
	if err != nil || !most.SendSignals || !most.Exec {
		t.Errorf("of a full driver: %+v, %v", most, err)
	}
}

// A driver that declares neither Exec nor SendSignals gets no command and no signal,
// although its tasks have the methods. Only a stop sends a signal.
func TestCallsWithoutCapabilityFail(t *testing.T) {
	f := &allMethodsTask{sleepingTask: newSleepingTask()}
	s := newTestServer(&allMethodsDriver{noCapabilities: true, newTask: func() *allMethodsTask { return f }})
	if caps, err := s.Capabilities(t.Context()); err != nil || caps.SendSignals || caps.Exec {
		t.Errorf("capabilities %+v, %v", caps, err)
	}
	startTestTask(t, s)
	if result, err := s.ExecTask(t.Context(), testTaskID, []string{"true"}, time.Minute); err == nil || err.Error() != "ExecTask is not supported by this driver" {
		t.Errorf("ExecTask returns %+v, %v", result, err)
	}
	if result, err := s.ExecTaskStreaming(t.Context(), testTaskID, driver.Exec{Command: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard}); err == nil || err.Error() != "ExecTask is not supported by this driver" {
		t.Errorf("ExecTaskStreaming returns %+v, %v", result, err)
	}
	if err := s.SignalTask(t.Context(), testTaskID, "SIGHUP"); err == nil || err.Error() != "SignalTask is not supported by this driver" || len(f.signals) > 0 {
		t.Errorf("SignalTask returns %v, the task got %q", err, f.signals)
	}
	if err := s.StopTask(t.Context(), testTaskID, time.Minute, "SIGINT"); err != nil || !slices.Equal(f.signals, []string{"SIGINT"}) {
		t.Errorf("StopTask returns %v, the task got %q", err, f.signals)
	}
}

func TestInfoDefaults(t *testing.T) {
	s := newTestServer(&minimalDriver{})
	info, err := s.PluginInfo(t.Context())
	if err != nil || info.Name != "napper" || info.Version != "0.1.0" || !slices.Equal(info.APIVersions, []string{"v0.1.0"}) || info.Type != base.TypeDriver {
		t.Errorf("info %+v, %v", info, err)
	}
	if schema, err := s.TaskConfigSchema(t.Context()); schema == nil || err != nil {
		t.Errorf("task schema %v, %v, want an empty object", schema, err)
	}
	if schema, err := s.ConfigSchema(t.Context()); schema != nil || err != nil {
		t.Errorf("config schema %v, %v, want none", schema, err)
	}
	for _, bad := range []string{"", "a b", "a/b", "ä"} {
		if _, err := newPluginIdentity(nil, bad, "", nil); err == nil {
			t.Errorf("name %q is taken", bad)
		}
	}
}

func TestTaskHandle(t *testing.T) {
	handle := startTestTask(t, newTestServer(&allMethodsDriver{}))
	var state allMethodsState
	if err := hclspec.UnmarshalState(handle.DriverState, &state); err != nil || state.N != 5 {
		t.Errorf("state %+v, %v", state, err)
	}
	if handle.Version != 2 || handle.State != driver.TaskRunning {
		t.Errorf("handle %+v", handle)
	}
}

type unencodableState struct{}

func (unencodableState) MarshalBinary() ([]byte, error) { return nil, errors.New("no") }
func (*unencodableState) UnmarshalBinary([]byte) error  { return nil }

func TestStateThatCannotBeEncodedEndsTheTask(t *testing.T) {
	f := &allMethodsTask{sleepingTask: newSleepingTask(), state: unencodableState{}}
	s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return f }})
	if _, _, err := s.StartTask(t.Context(), testTaskConfig()); err == nil {
		t.Fatal("the task starts")
	}
	if f.killCount != 1 || f.destroyCount != 1 {
		t.Errorf("killed %d times, destroyed %d times, want once", f.killCount, f.destroyCount)
	}
	if _, err := s.WaitTask(t.Context(), testTaskID); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("the task is known: %v", err)
	}
}

// The error of Wait is the error of the exit result, and the exit status is kept.
func TestErrorOfWait(t *testing.T) {
	d := &minimalDriver{}
	s := newTestServer(d)
	if _, _, err := s.StartTask(t.Context(), testTaskConfig()); err != nil {
		t.Fatal(err)
	}
	d.tasks[0].waitErr = errors.New("the kernel has killed it")
	d.tasks[0].end(driver.ExitResult{ExitCode: 3, OOMKilled: true})
	result, err := s.WaitTask(t.Context(), testTaskID)
	if err != nil || result.ExitCode != 3 || !result.OOMKilled || result.Err == nil || result.Err.Error() != "the kernel has killed it" {
		t.Errorf("got %+v, %v", result, err)
	}
}

// A task is destroyed although its Wait returns an error.
func TestTaskOfFailedStartIsDestroyedAfterErrorOfWait(t *testing.T) {
	f := &allMethodsTask{sleepingTask: newSleepingTask(), state: unencodableState{}}
	f.waitErr = errors.New("exit status unknown")
	s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return f }})
	if _, _, err := s.StartTask(t.Context(), testTaskConfig()); err == nil || strings.Contains(err.Error(), "exit status unknown") {
		t.Errorf("StartTask: %v, want the error of the state", err)
	}
	if f.killCount != 1 || f.destroyCount != 1 {
		t.Errorf("killed %d times, destroyed %d times, want once", f.killCount, f.destroyCount)
	}
}

func TestUndeliveredStartIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &minimalDriver{}
		s := newTestServer(d)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := s.StartTask(ctx, testTaskConfig()); !errors.Is(err, context.Canceled) {
			t.Fatalf("StartTask says %v", err)
		}
		if len(d.tasks) != 1 || d.tasks[0].killCount != 1 {
			t.Fatalf("the task runs, and nobody knows of it")
		}
	})
}

func TestFailedStart(t *testing.T) {
	d := &minimalDriver{err: Recoverable(errors.New("busy"))}
	s := newTestServer(d)
	if _, _, err := s.StartTask(t.Context(), testTaskConfig()); !driver.IsRecoverable(err) {
		t.Errorf("%v is not recoverable", err)
	}
	d.err = nil
	startTestTask(t, s) // the id can be used again
	if _, _, err := s.StartTask(t.Context(), testTaskConfig()); err == nil || err.Error() != `task with ID "alloc/task/00000001" already started` {
		t.Errorf("a known id: %v", err)
	}
	if _, _, err := s.StartTask(t.Context(), &driver.TaskConfig{}); err == nil {
		t.Error("a start without an id succeeds")
	}
}

func TestDestroyDuringStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(&minimalDriver{unblockStart: make(chan struct{})})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, _, err := s.StartTask(t.Context(), testTaskConfig()); !errors.Is(err, errDestroyed) {
				t.Errorf("StartTask says %v, want %v", err, errDestroyed)
			}
		})
		synctest.Wait()
		if err := s.DestroyTask(t.Context(), testTaskID, true); !errors.Is(err, driver.ErrTaskNotFound) {
			t.Errorf("DestroyTask says %v, want %v", err, driver.ErrTaskNotFound)
		}
		wg.Wait()
	})
}

func TestCallsDuringStartWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &minimalDriver{unblockStart: make(chan struct{})}
		s := newTestServer(d)
		var wg sync.WaitGroup
		wg.Go(func() { startTestTask(t, s) })
		synctest.Wait()
		wg.Go(func() {
			if _, err := s.WaitTask(t.Context(), testTaskID); err != nil {
				t.Errorf("WaitTask: %v", err)
			}
		})
		synctest.Wait()
		close(d.unblockStart)
		synctest.Wait()
		d.tasks[0].end(driver.ExitResult{})
		wg.Wait()
	})
}

// NotifyExit reports what WaitTask returns: before, during and after the run of a task, for a start that fails and for
// an unknown task. A listener whose context has ended is dropped.
func TestNotifyExit(t *testing.T) {
	type report struct {
		exitResult *driver.ExitResult
		err        error
	}
	notify := func(ctx context.Context, s *driverServer, id string) <-chan report {
		reports := make(chan report, 2)
		s.NotifyExit(ctx, id, func(r *driver.ExitResult, err error) { reports <- report{r, err} })
		return reports
	}
	expectOnce := func(t *testing.T, when string, reports <-chan report, code int, err error) {
		t.Helper()
		synctest.Wait()
		if len(reports) != 1 {
			t.Fatalf("%s: %d reports, want 1", when, len(reports))
		}
		if r := <-reports; !errors.Is(r.err, err) || err == nil && r.exitResult.ExitCode != code {
			t.Errorf("%s: got %+v, %v, want exit code %d, %v", when, r.exitResult, r.err, code, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		task := newSleepingTask()
		s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return &allMethodsTask{sleepingTask: task} }})
		expectOnce(t, "unknown task", notify(t.Context(), s, testTaskID), 0, driver.ErrTaskNotFound)
		startTestTask(t, s)
		ended, cancel := context.WithCancel(t.Context())
		notify(ended, s, testTaskID)
		cancel()
		first, second := notify(t.Context(), s, testTaskID), notify(t.Context(), s, testTaskID)
		if n := len(s.startsByID[testTaskID].exitListeners); n != 2 {
			t.Errorf("%d listeners, want 2 without the one whose context has ended", n)
		}
		synctest.Wait()
		if len(first) > 0 {
			t.Error("the exit of a running task was reported")
		}
		task.end(driver.ExitResult{ExitCode: 7})
		expectOnce(t, "first listener", first, 7, nil)
		expectOnce(t, "second listener", second, 7, nil)
		expectOnce(t, "after the exit", notify(t.Context(), s, testTaskID), 7, nil)
	})
	synctest.Test(t, func(t *testing.T) {
		d := &minimalDriver{unblockStart: make(chan struct{}), err: errors.New("no")}
		s := newTestServer(d)
		go s.StartTask(t.Context(), testTaskConfig())
		synctest.Wait()
		reports := notify(t.Context(), s, testTaskID)
		synctest.Wait()
		if len(reports) > 0 {
			t.Error("a start in progress was reported as an exit")
		}
		close(d.unblockStart)
		expectOnce(t, "failed start", reports, 0, driver.ErrTaskNotFound)
	})
}

func TestStopTask(t *testing.T) {
	const timeout = 10 * time.Second
	for _, test := range []struct {
		name    string
		task    *allMethodsTask
		signal  string
		signals []string
		kills   int
		took    time.Duration
	}{
		{"a signal ends it at once", &allMethodsTask{}, "", []string{""}, 0, 0},
		{"the signal of the job is sent", &allMethodsTask{}, "SIGUSR1", []string{"SIGUSR1"}, 0, 0},
		{"an unknown signal gives way to the default", &allMethodsTask{rejectedSignal: "SIGFOO"}, "SIGFOO", []string{""}, 0, 0},
		{"a deaf task is killed after the timeout", &allMethodsTask{ignoresSignals: true}, "", []string{""}, 1, timeout},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.task.sleepingTask = newSleepingTask()
				s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return test.task }})
				startTestTask(t, s)
				began := time.Now()
				if err := s.StopTask(t.Context(), testTaskID, timeout, test.signal); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("it took %v, want %v", took, test.took)
				}
				if !slices.Equal(test.task.signals, test.signals) || test.task.killCount != test.kills {
					t.Errorf("signals %q and %d kills, want %q and %d", test.task.signals, test.task.killCount, test.signals, test.kills)
				}
			})
		})
	}
	t.Run("a task that knows no signals is killed at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newTestServer(&minimalDriver{})
			startTestTask(t, s)
			began := time.Now()
			if err := s.StopTask(t.Context(), testTaskID, timeout, "SIGTERM"); err != nil || time.Since(began) != 0 {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		})
	})
}

func TestDestroyTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &allMethodsTask{sleepingTask: newSleepingTask()}
		s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return f }})
		startTestTask(t, s)
		if err := s.DestroyTask(t.Context(), testTaskID, false); err == nil || f.killCount != 0 {
			t.Errorf("without force: %v, %d kills", err, f.killCount)
		}
		var wg sync.WaitGroup
		var errs [4]error
		for i := range errs {
			wg.Go(func() { errs[i] = s.DestroyTask(t.Context(), testTaskID, true) })
		}
		wg.Wait()
		done := 0
		for _, err := range errs {
			if err == nil {
				done++
			} else if !errors.Is(err, driver.ErrTaskNotFound) {
				t.Error(err)
			}
		}
		if done != 1 || f.destroyCount != 1 {
			t.Errorf("destroyed by %d calls, %d times by the author, want once", done, f.destroyCount)
		}
	})
}

// A host that repeats a failed DestroyTask must not get the response that the task
// is unknown.
func TestDestroyThatFailedIsRepeated(t *testing.T) {
	f := &allMethodsTask{sleepingTask: newSleepingTask(), destroyErr: errors.New("no descriptor")}
	s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return f }})
	startTestTask(t, s)
	for range 2 {
		if err := s.DestroyTask(t.Context(), testTaskID, true); !errors.Is(err, f.destroyErr) {
			t.Errorf("%v, want %v", err, f.destroyErr)
		}
	}
	f.mu.Lock()
	f.destroyErr = nil
	f.mu.Unlock()
	if err := s.DestroyTask(t.Context(), testTaskID, true); err != nil || f.destroyCount != 3 {
		t.Errorf("%v, destroyed %d times by the author, want 3 times", err, f.destroyCount)
	}
	if err := s.DestroyTask(t.Context(), testTaskID, true); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("afterwards: %v, want %v", err, driver.ErrTaskNotFound)
	}
}

func TestDestroyOfUnknownTaskSweepsIt(t *testing.T) {
	d := &allMethodsDriver{}
	s := newTestServer(d)
	startTestTask(t, s)
	for _, test := range []struct {
		name, id string
		force    bool
		found    bool
	}{
		{"remains are found", "remains/task/00000000", true, true},
		{"nothing is found", "nothing/task/00000000", true, false},
		{"not without force", "remains/task/00000000", false, false},
		{"another start of the same task is known", "alloc/task/00000000", true, false},
		{"the id has another form", "remains", true, false},
	} {
		err := s.DestroyTask(t.Context(), test.id, test.force)
		if test.found && err != nil || !test.found && !errors.Is(err, driver.ErrTaskNotFound) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if want := []string{"remains task", "nothing task"}; !slices.Equal(d.sweptTasks, want) {
		t.Errorf("swept %q, want %q", d.sweptTasks, want)
	}
}

func TestDestroyWildcardStart(t *testing.T) {
	d := &allMethodsDriver{}
	s := newTestServer(d)
	startTestTask(t, s)
	any := strings.TrimSuffix(testTaskID, testTaskID[strings.LastIndexByte(testTaskID, '/')+1:]) + driver.WildcardStart
	if err := s.DestroyTask(t.Context(), any, false); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("without force: %v", err)
	}
	if err := s.DestroyTask(t.Context(), any, true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.InspectTask(t.Context(), testTaskID); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("the start that was known: %v", err)
	}
	if err := s.DestroyTask(t.Context(), "remains/task/"+driver.WildcardStart, true); err != nil {
		t.Errorf("remains: %v", err)
	}
	if want := []string{"remains task"}; !slices.Equal(d.sweptTasks, want) {
		t.Errorf("swept %q, want %q", d.sweptTasks, want)
	}
}

func TestStartWaitsForASweepOfTheSameTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &allMethodsDriver{unblockSweep: make(chan struct{})}
		s := newTestServer(d)
		var wg sync.WaitGroup
		wg.Go(func() { s.DestroyTask(t.Context(), "alloc/task/00000000", true) })
		<-d.unblockSweep
		started := false
		wg.Go(func() {
			startTestTask(t, s)
			started = true
		})
		synctest.Wait()
		if started {
			t.Error("the task starts under the sweep, which may take it for remains")
		}
		d.unblockSweep <- struct{}{}
		wg.Wait()
	})
}

func TestRecoverTask(t *testing.T) {
	handle := startTestTask(t, newTestServer(&allMethodsDriver{}))
	d := &allMethodsDriver{}
	s := newTestServer(d)
	for range 2 { // twice: the second call finds the task in the table
		if err := s.RecoverTask(t.Context(), handle); err != nil {
			t.Fatal(err)
		}
	}
	if want := []any{allMethodsState{N: 5}, int32(2)}; !reflect.DeepEqual(d.recoveredStates, want) {
		t.Errorf("recovered %v, want %v", d.recoveredStates, want)
	}
	status, err := s.InspectTask(t.Context(), testTaskID)
	if err != nil || status.State != driver.TaskRunning || status.DriverAttributes["k"] != "v" {
		t.Errorf("status %+v, %v", status, err)
	}
	for _, version := range []int32{0, 3} {
		foreign := *handle
		foreign.Version = version
		foreign.Config = &driver.TaskConfig{ID: "other/task/00000000"}
		if err := s.RecoverTask(t.Context(), &foreign); err == nil {
			t.Errorf("a state of version %d is recovered", version)
		}
	}
	if err := newTestServer(&minimalDriver{}).RecoverTask(t.Context(), &driver.Handle{Version: 1, Config: testTaskConfig()}); err == nil {
		t.Error("a driver that cannot recover does")
	}
	if err := s.RecoverTask(t.Context(), nil); err == nil {
		t.Error("no handle is recovered")
	}
}

func TestConfiguration(t *testing.T) {
	d := &allMethodsDriver{}
	s := newTestServer(d)
	body := func(name string) []byte {
		b, err := hclspec.MarshalState(map[string]string{"name": name})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	steps := []struct {
		config *base.Config
		ok     bool
	}{
		{&base.Config{}, true},
		{&base.Config{}, true}, // same configuration as before
		{&base.Config{MsgpackConfig: body("bad")}, false},
		{&base.Config{MsgpackConfig: body("bad")}, false}, // still invalid
		{&base.Config{MsgpackConfig: body("good")}, true},
		{&base.Config{MsgpackConfig: body("good")}, true}, // same configuration as before
		{&base.Config{MsgpackConfig: body("good"), Driver: &base.ClientDriverConfig{ClientMinPort: 1}}, true},
	}
	for i, step := range steps {
		if err := s.SetConfig(t.Context(), step.config); (err == nil) != step.ok {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if want := []string{"", "bad", "bad", "good", "good"}; !slices.Equal(d.configs, want) {
		t.Errorf("the author was given %q, want %q", d.configs, want)
	}
	topology := &base.Topology{Cores: []base.Core{{CoreID: 3, BaseSpeed: 2000}}}
	if err := s.SetConfig(t.Context(), &base.Config{Driver: &base.ClientDriverConfig{Topology: topology}}); err != nil || d.topology != topology {
		t.Errorf("the author was given the topology %+v, %v", d.topology, err)
	}
	if err := newTestServer(&minimalDriver{}).SetConfig(t.Context(), &base.Config{MsgpackConfig: body("x")}); err != nil {
		t.Errorf("a driver without configuration: %v", err)
	}
}

// A key of the schema without a field in the author's struct is an error, because
// its value would be lost silently.
func TestConfigThatTheStructCannotHoldIsAnError(t *testing.T) {
	body, err := hclspec.MarshalState(map[string]any{"message": "hi", "times": 2})
	if err != nil {
		t.Fatal(err)
	}
	var tooFewFields struct {
		Times int `codec:"times"`
	}
	start := &StartRequest{TaskConfig: driver.TaskConfig{Name: "web", DriverConfig: body}}
	want := "decode the config of task \"web\": \"message\" has no field in the Go struct: add one with the tag `codec:\"message\"`"
	if err := start.DecodeConfig(&tooFewFields); err == nil || err.Error() != want {
		t.Errorf("Config:\n%v, want\n%s", err, want)
	}
	if err := (&Config{encodedBody: body}).Decode(&tooFewFields); err == nil || !strings.Contains(err.Error(), `"message" has no field`) {
		t.Errorf("Decode: %v", err)
	}
	var wrongFieldType struct {
		Message []string `codec:"message"`
		Times   int      `codec:"times"`
	}
	if err := start.DecodeConfig(&wrongFieldType); err == nil || !strings.Contains(err.Error(), `"message" is a string, which does not fit the Go type []string`) {
		t.Errorf("Config with another type: %v", err)
	}
	start.StateVersion = 1 // an earlier version, for which keys without a field are allowed
	if err := start.DecodeConfig(&tooFewFields); err != nil || tooFewFields.Times != 2 {
		t.Errorf("Config of a task that is recovered: %v, %+v", err, tooFewFields)
	}
}

func TestFingerprintStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := driver.Fingerprint{Health: driver.HealthHealthy}
		bad := driver.Fingerprint{Health: driver.HealthUnhealthy, HealthDescription: "no daemon"}
		s := newTestServer(&allMethodsDriver{fingerprints: []driver.Fingerprint{good, good, bad, good}})
		ctx, cancel := context.WithCancel(t.Context())
		c, err := s.Fingerprint(ctx)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, want := range []struct {
			after time.Duration
			f     driver.Fingerprint
		}{
			{0, driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy"}},
			{2 * time.Minute, bad}, // sent only at the next change, because an unchanged report is not repeated
			{3 * time.Minute, driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy"}},
		} {
			if got := <-c; !reflect.DeepEqual(got, want.f) || time.Since(began) != want.after {
				t.Errorf("after %v: %+v, want %+v after %v", time.Since(began), got, want.f, want.after)
			}
		}
		cancel()
		if _, ok := <-c; ok {
			t.Error("a fingerprint after the end")
		}
	})
}

func TestWatchedFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &allMethodsDriver{changes: make(chan struct{}), fingerprints: []driver.Fingerprint{{Health: driver.HealthHealthy}, {}}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c, err := newTestServer(d).Fingerprint(ctx)
		if err != nil {
			t.Fatal(err)
		}
		<-c
		began := time.Now()
		d.changes <- struct{}{}
		if got := <-c; got.Health != driver.HealthUndetected || !strings.Contains(got.HealthDescription, "has set neither the Health") || time.Since(began) != 0 {
			t.Errorf("a fingerprint without Health, %v after the change: %+v", time.Since(began), got)
		}
	})
}

func TestResourcesOfStartAreNotNil(t *testing.T) {
	d := &allMethodsDriver{newTask: func() *allMethodsTask { return &allMethodsTask{sleepingTask: newSleepingTask()} }}
	s := newTestServer(d)
	startTestTask(t, s)
	if d.startResources == nil || !reflect.DeepEqual(*d.startResources, driver.Resources{}) {
		t.Errorf("resources of a start for which the host has sent none: %+v", d.startResources)
	}
}

func TestSampleTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &allMethodsTask{sleepingTask: newSleepingTask()}
		s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return f }})
		if _, err := s.SampleTask(t.Context(), testTaskID); !errors.Is(err, driver.ErrTaskNotFound) {
			t.Errorf("unknown task: %v, want %v", err, driver.ErrTaskNotFound)
		}
		startTestTask(t, s)
		if sample, err := s.SampleTask(t.Context(), testTaskID); err != nil || sample.Timestamp != time.Now() {
			t.Errorf("running task: %+v, %v", sample, err)
		}
		f.end(driver.ExitResult{})
		synctest.Wait()
		if sample, err := s.SampleTask(t.Context(), testTaskID); err != io.EOF {
			t.Errorf("exited task: %+v, %v, want %v", sample, err, io.EOF)
		}
	})
	s := newTestServer(&minimalDriver{})
	startTestTask(t, s)
	if _, err := s.SampleTask(t.Context(), testTaskID); err == nil || driver.IsRecoverable(err) {
		t.Errorf("a task without statistics: %v", err)
	}
}

func TestStatsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &allMethodsTask{sleepingTask: newSleepingTask()}
		s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return f }})
		startTestTask(t, s)
		c, err := s.TaskStats(t.Context(), testTaskID, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i := range 3 {
			sample := <-c
			if want := time.Duration(i) * 5 * time.Second; time.Since(began) != want || sample.Timestamp != time.Now() {
				t.Errorf("sample %d after %v says %v, want it after %v", i, time.Since(began), sample.Timestamp, want)
			}
		}
		f.end(driver.ExitResult{})
		synctest.Wait()
		if _, ok := <-c; ok {
			t.Error("a sample after the end of the task")
		}
	})
	s := newTestServer(&minimalDriver{})
	startTestTask(t, s)
	if _, err := s.TaskStats(t.Context(), testTaskID, time.Second); err == nil || driver.IsRecoverable(err) {
		t.Errorf("a task without statistics: %v", err)
	}
}

func TestExecTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &allMethodsTask{sleepingTask: newSleepingTask()}
		s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return f }})
		startTestTask(t, s)
		result, err := s.ExecTask(t.Context(), testTaskID, []string{"x"}, time.Minute)
		if err != nil || string(result.Stdout) != "out err " || result.Exit.ExitCode != 7 {
			t.Errorf("%+v, %v", result, err)
		}
		began := time.Now()
		_, err = s.ExecTask(t.Context(), testTaskID, []string{"hang"}, time.Minute)
		if err == nil || !strings.Contains(err.Error(), `"hang" did not end within 1m0s`) || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := s.ExecTask(t.Context(), testTaskID, nil, time.Minute); err == nil {
			t.Error("no command is run")
		}
		f.end(driver.ExitResult{})
		synctest.Wait()
		if _, err := s.ExecTask(t.Context(), testTaskID, []string{"x"}, time.Minute); err == nil {
			t.Error("a command is run in a task that has ended")
		}
		if err := s.SignalTask(t.Context(), testTaskID, "SIGHUP"); err == nil {
			t.Error("a signal is sent to a task that has ended")
		}
	})
	s := newTestServer(&minimalDriver{})
	startTestTask(t, s)
	for name, err := range map[string]error{
		"SignalTask":     s.SignalTask(t.Context(), testTaskID, "SIGHUP"),
		"ExecTask":       keepOnlyError(s.ExecTask(t.Context(), testTaskID, []string{"x"}, 0)),
		"DestroyNetwork": s.DestroyNetwork(t.Context(), "alloc", nil),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), name) || !strings.Contains(err.Error(), "not supported by") {
			t.Errorf("%s of a driver that cannot: %v", name, err)
		}
	}
}

func keepOnlyError[A any](_ A, err error) error { return err }

func TestTaskEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(&allMethodsDriver{})
		startTestTask(t, s) // the event of this start is sent while no host listens
		ctx, cancel := context.WithCancel(t.Context())
		first, err := s.TaskEvents(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := <-first; got.Message != "hello" || got.TaskID != testTaskID || got.AllocID != "alloc" || got.TaskName != "task" || got.Annotations["a"] != "b" {
			t.Errorf("event %+v", got)
		}
		second, err := s.TaskEvents(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s.taskEvents.broadcast(&driver.TaskEvent{Message: "second"})
		for _, c := range []<-chan *driver.TaskEvent{first, second} {
			if got := <-c; got.Message != "second" {
				t.Errorf("event %+v", got)
			}
		}
		// A host that does not read events blocks no sender, and misses the oldest
		// events.
		for range eventBufferSize + 10 {
			s.taskEvents.broadcast(&driver.TaskEvent{Message: "many"})
		}
		s.taskEvents.broadcast(&driver.TaskEvent{Message: "last"})
		n := 0
		for (<-first).Message != "last" {
			n++
		}
		if n < eventBufferSize-2 || n > eventBufferSize+2 {
			t.Errorf("%d events were kept, want about %d", n, eventBufferSize)
		}
		cancel()
		synctest.Wait()
		if len(s.taskEvents.listenerChannels) != 0 {
			t.Error("a listener that has gone is still listed")
		}
	})
}

func TestEventsWithoutListener(t *testing.T) {
	var e eventBroadcaster
	for range 2 * eventBufferSize {
		e.broadcast(&driver.TaskEvent{})
	}
	if len(e.undeliveredEvents) != eventBufferSize {
		t.Errorf("%d events are kept, want %d", len(e.undeliveredEvents), eventBufferSize)
	}
}

func TestOutputTailKeepsTheEnd(t *testing.T) {
	for _, size := range []int{0, 1, 10, outputTailSize - 1, outputTailSize, outputTailSize + 1, 3 * outputTailSize, 5*outputTailSize + 3} {
		for _, chunk := range []int{1 << 20, 1000} {
			text := make([]byte, size)
			for i := range text {
				text[i] = byte(i * 7)
			}
			var out outputTail
			for rest := text; len(rest) > 0; {
				n := min(chunk, len(rest))
				if w, err := out.Write(rest[:n]); w != n || err != nil {
					t.Fatalf("wrote %d of %d, %v", w, n, err)
				}
				rest = rest[n:]
			}
			if got, want := out.tailBytes(), text[max(0, size-outputTailSize):]; string(got) != string(want) {
				t.Errorf("of %d bytes in chunks of %d the tail is wrong: %d bytes", size, chunk, len(got))
			}
		}
	}
}

// A driver is needed by ended tasks only as long as an agent can connect again: not after its data directory was removed.
func TestEndedTaskOfRemovedDirectoryNeedsNoDriver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	dataDir, err := keeper.OpenOrCreateDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dataDir.Close()
	task := newSleepingTask()
	s := newTestServer(&allMethodsDriver{newTask: func() *allMethodsTask { return &allMethodsTask{sleepingTask: task} }})
	s.dataDir = dataDir.Handle()
	check := func(when string, want bool) {
		t.Helper()
		if got := s.isNeededWithoutHost(); got != want {
			t.Errorf("%s: needed %t, want %t", when, got, want)
		}
	}
	check("without tasks", false)
	startTestTask(t, s)
	check("the task runs", true)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	check("the task runs, and the directory was removed", true)
	exited := make(chan struct{})
	s.NotifyExit(t.Context(), testTaskID, func(*driver.ExitResult, error) { close(exited) })
	task.end(driver.ExitResult{})
	<-exited
	check("the task has ended, and the directory was removed", false)
	s.dataDir = nil
	check("the task has ended", true)
}

func TestIdlePluginStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := true
		stopped := make(chan struct{})
		i := &idleTimer{isNeededWithoutHost: func() bool { return busy }}
		i.start(func() { close(stopped) })
		over := func() bool {
			synctest.Wait()
			return wait.IsClosed(stopped)
		}
		time.Sleep(3 * idleTimeout)
		if over() {
			t.Fatal("a plugin with tasks ends")
		}
		busy = false
		i.connOpened()
		time.Sleep(3 * idleTimeout)
		if over() {
			t.Fatal("a plugin with a host ends")
		}
		i.connClosed()
		time.Sleep(idleTimeout - time.Second)
		if over() {
			t.Fatal("a plugin ends before the host could come back")
		}
		time.Sleep(2 * time.Second)
		if !over() {
			t.Fatal("a plugin without host and tasks stays")
		}
	})
}

func TestDebugSocket(t *testing.T) {
	for value, want := range map[string]string{"": "", "hello=/x": "/x", "other=/x": "", "hello": "", "hello=/a=b": "/a=b"} {
		if got := debugSocketPath(value, "hello"); got != want {
			t.Errorf("%q is %q, want %q", value, got, want)
		}
	}
}
