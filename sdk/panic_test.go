package sdk

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// panickingDriver has every method that a driver can have. The method with the given name
// panics.
type panickingDriver struct {
	panicMethod atomic.Pointer[string]
	task        *panickingTask
	sweepCount  atomic.Int32
}

// panickingTask has every method that a task can have.
type panickingTask struct {
	*sleepingTask
	driver *panickingDriver
}

// newPanickingDriver returns a driver. Until the test ends, the log discards
// the stacks of its panics.
func newPanickingDriver(t *testing.T) *panickingDriver {
	log := hclog.Default()
	hclog.SetDefault(hclog.NewNullLogger())
	t.Cleanup(func() { hclog.SetDefault(log) })
	return &panickingDriver{}
}

func (d *panickingDriver) panicIfSelected(method string) {
	if panics := d.panicMethod.Load(); panics != nil && *panics == method {
		var nilPointer *sleepingTask
		nilPointer.killCount++ // nil dereference, the most common panic
	}
}

func (d *panickingDriver) Info() DriverInfo {
	d.panicIfSelected("Info")
	return DriverInfo{Name: "panicker", FingerprintInterval: time.Minute, Capabilities: driver.Capabilities{SendSignals: true, Exec: true}}
}

func (d *panickingDriver) Start(context.Context, *StartRequest) (*panickingTask, error) {
	d.panicIfSelected("Start")
	d.task = &panickingTask{newSleepingTask(), d}
	return d.task, nil
}

func (d *panickingDriver) Recover(context.Context, *StartRequest) (*panickingTask, error) {
	d.panicIfSelected("Recover")
	return &panickingTask{newSleepingTask(), d}, nil
}

func (d *panickingDriver) Configure(context.Context, *Config) error {
	d.panicIfSelected("Configure")
	return nil
}
func (d *panickingDriver) Init(context.Context) error     { d.panicIfSelected("Init"); return nil }
func (d *panickingDriver) Shutdown(context.Context) error { d.panicIfSelected("Shutdown"); return nil }

func (d *panickingDriver) Fingerprint(context.Context) driver.Fingerprint {
	d.panicIfSelected("Fingerprint")
	return driver.Fingerprint{Health: driver.HealthHealthy}
}

func (d *panickingDriver) Sweep(context.Context, SweepRequest) (bool, error) {
	d.sweepCount.Add(1)
	d.panicIfSelected("Sweep")
	return true, nil
}

func (d *panickingDriver) CreateNetwork(context.Context, CreateNetworkRequest) (CreateNetworkResponse, error) {
	d.panicIfSelected("CreateNetwork")
	return CreateNetworkResponse{}, nil
}

func (d *panickingDriver) DestroyNetwork(context.Context, DestroyNetworkRequest) error {
	d.panicIfSelected("DestroyNetwork")
	return nil
}

func (p *panickingTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	p.driver.panicIfSelected("Wait")
	return p.sleepingTask.Wait(ctx)
}

func (p *panickingTask) Kill(ctx context.Context) error {
	p.driver.panicIfSelected("Kill")
	return p.sleepingTask.Kill(ctx)
}

func (p *panickingTask) Signal(context.Context, string) error {
	p.driver.panicIfSelected("Signal")
	return nil
}

func (p *panickingTask) Stop(ctx context.Context, _ StopRequest) error {
	p.driver.panicIfSelected("Stop")
	return p.sleepingTask.Kill(ctx)
}

func (p *panickingTask) Exec(context.Context, driver.Exec) (driver.ExitResult, error) {
	p.driver.panicIfSelected("Exec")
	return driver.ExitResult{}, nil
}

func (p *panickingTask) Stats(context.Context) (driver.TaskStats, error) {
	p.driver.panicIfSelected("Stats")
	return driver.TaskStats{}, nil
}

func (p *panickingTask) State() any { p.driver.panicIfSelected("State"); return 1 }
func (p *panickingTask) Network() *driver.NetworkOverride {
	p.driver.panicIfSelected("Network")
	return nil
}
func (p *panickingTask) Attributes() map[string]string {
	p.driver.panicIfSelected("Attributes")
	return nil
}
func (p *panickingTask) Destroy(context.Context) error {
	p.driver.panicIfSelected("Destroy")
	return nil
}

// callAllMethods makes every call that a host can make, and returns the errors.
func callAllMethods(t *testing.T, s *driverServer) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	add(s.SetConfig(ctx, &base.Config{}))
	add(s.Init(ctx))
	_, err := s.Capabilities(ctx)
	add(err)
	fingerprints, err := s.Fingerprint(ctx)
	add(err)
	if f := <-fingerprints; f.Health != driver.HealthHealthy {
		add(errors.New(f.HealthDescription))
	}
	_, _, err = s.CreateNetwork(ctx, "alloc", "")
	add(err)
	add(s.DestroyNetwork(ctx, "alloc", nil))

	handle, _, err := s.StartTask(ctx, testTaskConfig())
	add(err)
	if err == nil {
		_, err = s.InspectTask(ctx, testTaskID)
		add(err)
		add(s.SignalTask(ctx, testTaskID, "SIGHUP"))
		_, err = s.ExecTask(ctx, testTaskID, []string{"true"}, 0)
		add(err)
		stats, err := s.TaskStats(ctx, testTaskID, time.Second)
		add(err)
		select {
		case <-stats:
		case <-time.After(time.Minute):
		}
		add(s.StopTask(ctx, testTaskID, time.Second, ""))
		add(s.DestroyTask(ctx, testTaskID, true))
	} else {
		state, err := hclspec.MarshalState(1)
		if err != nil {
			t.Fatal(err)
		}
		handle = &driver.Handle{Version: 1, Config: testTaskConfig(), DriverState: state}
	}

	again := *handle
	copied := *testTaskConfig()
	copied.ID = "alloc/task/00000002"
	again.Config = &copied
	if err := s.RecoverTask(ctx, &again); err != nil {
		add(err)
	} else {
		killed := make(chan error, 1)
		go func() {
			time.Sleep(time.Second) // WaitTask must come first
			killed <- s.DestroyTask(ctx, copied.ID, true)
		}()
		result, err := s.WaitTask(ctx, copied.ID)
		if add(err); err == nil {
			add(result.Err)
		}
		add(<-killed)
	}
	add(s.DestroyTask(ctx, "other/task/00000003", true))
	add(s.Shutdown(ctx))
	return errors.Join(errs...)
}

// If a method panics, the call that used it returns an error that names the method; the
// process continues.
func TestPanicOfAnyMethodIsAnError(t *testing.T) {
	for _, method := range []string{
		"Info", "Configure", "Init", "Shutdown", "Fingerprint", "CreateNetwork", "DestroyNetwork", "Sweep", "Start", "Recover",
		"Wait", "Signal", "Stop", "Exec", "State", "Network", "Attributes", "Destroy",
	} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newPanickingDriver(t)
				s := newTestServer(d)
				d.panicMethod.Store(new(method))
				err := callAllMethods(t, s)
				if err == nil || !strings.Contains(err.Error(), "."+method+" panicked: runtime error: invalid memory address") {
					t.Errorf("the errors of all calls are: %v", err)
				}
				d.panicMethod.Store(new(""))
				for _, id := range []string{testTaskID, "alloc/task/00000002"} { // after the panic, Destroy is called again
					if err := s.DestroyTask(t.Context(), id, true); err != nil && (method == "Destroy" || !errors.Is(err, driver.ErrTaskNotFound)) {
						t.Errorf("destroy %s again: %v", id, err)
					}
				}
				if err := callAllMethods(t, s); err != nil {
					t.Errorf("when nothing panics any longer: %v", err)
				}
			})
		})
	}
}

func TestPanicOfKillKeepsTheTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newPanickingDriver(t)
		s := newTestServer(d)
		startTestTask(t, s)
		d.panicMethod.Store(new("Kill"))
		if err := s.DestroyTask(t.Context(), testTaskID, true); err == nil || !strings.Contains(err.Error(), "Kill panicked") {
			t.Errorf("DestroyTask: %v", err)
		}
		d.panicMethod.Store(new(""))
		if err := s.DestroyTask(t.Context(), testTaskID, true); err != nil {
			t.Errorf("DestroyTask, when Kill works again: %v", err)
		}
	})
}

func TestStatsContinueAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newPanickingDriver(t)
		s := newTestServer(d)
		startTestTask(t, s)
		d.panicMethod.Store(new("Stats"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		samples, err := s.TaskStats(ctx, testTaskID, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		d.panicMethod.Store(new(""))
		if _, ok := <-samples; !ok {
			t.Error("the stream has ended")
		}
	})
}

// A task whose Wait panicked counts as failed. It may still run, so DestroyTask kills
// it.
func TestDestroyKillsATaskWhoseWaitPanicked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newPanickingDriver(t)
		d.panicMethod.Store(new("Wait"))
		s := newTestServer(d)
		startTestTask(t, s)
		result, err := s.WaitTask(t.Context(), testTaskID)
		if err != nil || result.Successful() || !strings.Contains(result.Err.Error(), "*sdk.panickingTask.Wait panicked") {
			t.Errorf("WaitTask: %+v, %v", result, err)
		}
		if err := s.DestroyTask(t.Context(), testTaskID, true); err != nil {
			t.Error(err)
		}
		if kills := d.task.killCount; kills != 1 {
			t.Errorf("the task was killed %d times", kills)
		}
	})
}

// A start that panicked may have started processes. It returned no task that could stop
// them, so only Sweep finds them.
func TestStartPanicSweepsTaskAndIsNotRecoverable(t *testing.T) {
	d := newPanickingDriver(t)
	d.panicMethod.Store(new("Start"))
	s := newTestServer(d)
	_, _, err := s.StartTask(t.Context(), testTaskConfig())
	if err == nil || driver.IsRecoverable(err) {
		t.Errorf("StartTask: %v, recoverable %v", err, driver.IsRecoverable(err))
	}
	if n := d.sweepCount.Load(); n != 1 {
		t.Errorf("swept %d times", n)
	}
	d.panicMethod.Store(new(""))
	startTestTask(t, s) // the id can be used again
}

// nilTaskDriver is a driver whose Start and Recover return neither a task nor an error.
type nilTaskDriver struct{}

func (nilTaskDriver) Info() DriverInfo                                              { return DriverInfo{Name: "nobody"} }
func (nilTaskDriver) Start(context.Context, *StartRequest) (*sleepingTask, error)   { return nil, nil }
func (nilTaskDriver) Recover(context.Context, *StartRequest) (*sleepingTask, error) { return nil, nil }

type nilTaskInterfaceDriver struct{}

func (nilTaskInterfaceDriver) Info() DriverInfo                                   { return DriverInfo{Name: "nobody"} }
func (nilTaskInterfaceDriver) Start(context.Context, *StartRequest) (Task, error) { return nil, nil }

func TestStartWithNeitherTaskNorErrorIsAnError(t *testing.T) {
	s := newTestServer(nilTaskDriver{})
	_, _, err := s.StartTask(t.Context(), testTaskConfig())
	if err == nil || err.Error() != "method sdk.nilTaskDriver.Start returned neither a task nor an error" {
		t.Errorf("StartTask: %v", err)
	}
	err = s.RecoverTask(t.Context(), &driver.Handle{Version: 1, Config: testTaskConfig()})
	if err == nil || err.Error() != "method sdk.nilTaskDriver.Recover returned neither a task nor an error" {
		t.Errorf("RecoverTask: %v", err)
	}
	if _, _, err := newTestServer(nilTaskInterfaceDriver{}).StartTask(t.Context(), testTaskConfig()); err == nil {
		t.Error("StartTask of an interface that is nil succeeds")
	}
}
