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

// panicker has every method that a driver can have. The method with the given name
// panics.
type panicker struct {
	method atomic.Pointer[string]
	task   *panickyTask
	sweeps atomic.Int32
}

// panickyTask has every method that a task can have.
type panickyTask struct {
	*nap
	driver *panicker
}

// newPanicker discards the stacks in the log until the test ends.
func newPanicker(t *testing.T) *panicker {
	log := hclog.Default()
	hclog.SetDefault(hclog.NewNullLogger())
	t.Cleanup(func() { hclog.SetDefault(log) })
	return &panicker{}
}

func (d *panicker) check(method string) {
	if panics := d.method.Load(); panics != nil && *panics == method {
		var missing *nap
		missing.kills++ // nil dereference, the most common panic
	}
}

func (d *panicker) Info() DriverInfo {
	d.check("Info")
	return DriverInfo{Name: "panicker", FingerprintInterval: time.Minute, Capabilities: driver.Capabilities{SendSignals: true, Exec: true}}
}

func (d *panicker) Start(context.Context, *StartRequest) (*panickyTask, error) {
	d.check("Start")
	d.task = &panickyTask{newNap(), d}
	return d.task, nil
}

func (d *panicker) Recover(context.Context, *StartRequest) (*panickyTask, error) {
	d.check("Recover")
	return &panickyTask{newNap(), d}, nil
}

func (d *panicker) Configure(context.Context, *Config) error { d.check("Configure"); return nil }
func (d *panicker) Init(context.Context) error               { d.check("Init"); return nil }
func (d *panicker) Shutdown(context.Context) error           { d.check("Shutdown"); return nil }

func (d *panicker) Fingerprint(context.Context) driver.Fingerprint {
	d.check("Fingerprint")
	return driver.Fingerprint{Health: driver.HealthHealthy}
}

func (d *panicker) Sweep(context.Context, string, string) (bool, error) {
	d.sweeps.Add(1)
	d.check("Sweep")
	return true, nil
}

func (d *panicker) CreateNetwork(context.Context, string, string) (*driver.NetworkIsolation, bool, error) {
	d.check("CreateNetwork")
	return nil, false, nil
}

func (d *panicker) DestroyNetwork(context.Context, string, *driver.NetworkIsolation) error {
	d.check("DestroyNetwork")
	return nil
}

func (p *panickyTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	p.driver.check("Wait")
	return p.nap.Wait(ctx)
}

func (p *panickyTask) Kill(ctx context.Context) error {
	p.driver.check("Kill")
	return p.nap.Kill(ctx)
}

func (p *panickyTask) Signal(context.Context, string) error { p.driver.check("Signal"); return nil }

func (p *panickyTask) Stop(ctx context.Context, _ time.Duration, _ string) error {
	p.driver.check("Stop")
	return p.nap.Kill(ctx)
}

func (p *panickyTask) Exec(context.Context, driver.Exec) (driver.ExitResult, error) {
	p.driver.check("Exec")
	return driver.ExitResult{}, nil
}

func (p *panickyTask) Stats(context.Context) (driver.TaskStats, error) {
	p.driver.check("Stats")
	return driver.TaskStats{}, nil
}

func (p *panickyTask) State() any                       { p.driver.check("State"); return 1 }
func (p *panickyTask) Network() *driver.NetworkOverride { p.driver.check("Network"); return nil }
func (p *panickyTask) Attributes() map[string]string    { p.driver.check("Attributes"); return nil }
func (p *panickyTask) Destroy(context.Context) error    { p.driver.check("Destroy"); return nil }

// callEverything makes every call that a host can make, and returns the errors.
func callEverything(t *testing.T, s *server) error {
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

	handle, _, err := s.StartTask(ctx, config())
	add(err)
	if err == nil {
		_, err = s.InspectTask(ctx, id)
		add(err)
		add(s.SignalTask(ctx, id, "SIGHUP"))
		_, err = s.ExecTask(ctx, id, []string{"true"}, 0)
		add(err)
		stats, err := s.TaskStats(ctx, id, time.Second)
		add(err)
		select {
		case <-stats:
		case <-time.After(time.Minute):
		}
		add(s.StopTask(ctx, id, time.Second, ""))
		add(s.DestroyTask(ctx, id, true))
	} else {
		state, err := hclspec.MarshalState(1)
		if err != nil {
			t.Fatal(err)
		}
		handle = &driver.Handle{Version: 1, Config: config(), DriverState: state}
	}

	again := *handle
	copied := *config()
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

// A panic of any method is an error of the call that used it, and names the method; the
// process continues.
func TestPanicOfAnyMethodIsAnError(t *testing.T) {
	for _, method := range []string{
		"Info", "Configure", "Init", "Shutdown", "Fingerprint", "CreateNetwork", "DestroyNetwork", "Sweep", "Start", "Recover",
		"Wait", "Signal", "Stop", "Exec", "State", "Network", "Attributes", "Destroy",
	} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newPanicker(t)
				s := serverOf(d)
				d.method.Store(new(method))
				err := callEverything(t, s)
				if err == nil || !strings.Contains(err.Error(), "."+method+" panicked: runtime error: invalid memory address") {
					t.Errorf("the errors of all calls are: %v", err)
				}
				d.method.Store(new(""))
				for _, id := range []string{id, "alloc/task/00000002"} { // a Destroy that panicked is repeated
					if err := s.DestroyTask(t.Context(), id, true); err != nil && (method == "Destroy" || !errors.Is(err, driver.ErrTaskNotFound)) {
						t.Errorf("destroy %s again: %v", id, err)
					}
				}
				if err := callEverything(t, s); err != nil {
					t.Errorf("when nothing panics any longer: %v", err)
				}
			})
		})
	}
}

func TestPanicOfKillKeepsTheTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newPanicker(t)
		s := serverOf(d)
		begin(t, s)
		d.method.Store(new("Kill"))
		if err := s.DestroyTask(t.Context(), id, true); err == nil || !strings.Contains(err.Error(), "Kill panicked") {
			t.Errorf("DestroyTask: %v", err)
		}
		d.method.Store(new(""))
		if err := s.DestroyTask(t.Context(), id, true); err != nil {
			t.Errorf("DestroyTask, when Kill works again: %v", err)
		}
	})
}

func TestStatsContinueAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newPanicker(t)
		s := serverOf(d)
		begin(t, s)
		d.method.Store(new("Stats"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		samples, err := s.TaskStats(ctx, id, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		d.method.Store(new(""))
		if _, ok := <-samples; !ok {
			t.Error("the stream has ended")
		}
	})
}

// A task whose Wait panicked counts as failed. It may still run, so DestroyTask kills
// it.
func TestDestroyKillsATaskWhoseWaitPanicked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newPanicker(t)
		d.method.Store(new("Wait"))
		s := serverOf(d)
		begin(t, s)
		result, err := s.WaitTask(t.Context(), id)
		if err != nil || result.Successful() || !strings.Contains(result.Err.Error(), "*sdk.panickyTask.Wait panicked") {
			t.Errorf("WaitTask: %+v, %v", result, err)
		}
		if err := s.DestroyTask(t.Context(), id, true); err != nil {
			t.Error(err)
		}
		if kills := d.task.kills; kills != 1 {
			t.Errorf("the task was killed %d times", kills)
		}
	})
}

// A start that panicked may have started processes. It returned no task that could stop
// them, so only Sweep finds them.
func TestPanicOfStartIsSweptAndNotRecoverable(t *testing.T) {
	d := newPanicker(t)
	d.method.Store(new("Start"))
	s := serverOf(d)
	_, _, err := s.StartTask(t.Context(), config())
	if err == nil || driver.IsRecoverable(err) {
		t.Errorf("StartTask: %v, recoverable %v", err, driver.IsRecoverable(err))
	}
	if n := d.sweeps.Load(); n != 1 {
		t.Errorf("swept %d times", n)
	}
	d.method.Store(new(""))
	begin(t, s) // the id can be used again
}

// nobody is a driver whose Start and Recover return neither a task nor an error.
type nobody struct{}

func (nobody) Info() DriverInfo                                     { return DriverInfo{Name: "nobody"} }
func (nobody) Start(context.Context, *StartRequest) (*nap, error)   { return nil, nil }
func (nobody) Recover(context.Context, *StartRequest) (*nap, error) { return nil, nil }

type nobodyByInterface struct{}

func (nobodyByInterface) Info() DriverInfo                                   { return DriverInfo{Name: "nobody"} }
func (nobodyByInterface) Start(context.Context, *StartRequest) (Task, error) { return nil, nil }

func TestStartWithNeitherTaskNorErrorIsAnError(t *testing.T) {
	s := serverOf(nobody{})
	_, _, err := s.StartTask(t.Context(), config())
	if err == nil || err.Error() != "method sdk.nobody.Start returned neither a task nor an error" {
		t.Errorf("StartTask: %v", err)
	}
	err = s.RecoverTask(t.Context(), &driver.Handle{Version: 1, Config: config()})
	if err == nil || err.Error() != "method sdk.nobody.Recover returned neither a task nor an error" {
		t.Errorf("RecoverTask: %v", err)
	}
	if _, _, err := serverOf(nobodyByInterface{}).StartTask(t.Context(), config()); err == nil {
		t.Error("StartTask of an interface that is nil succeeds")
	}
}
