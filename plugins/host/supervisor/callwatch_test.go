package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// hangingDriver is a fake driver that can hang: its calls then block until their contexts
// end, and its streams continue.
type hangingDriver struct {
	*fakeDriver
	mu           sync.Mutex
	answersAgain chan struct{} // hanging: closed when the driver no longer hangs; nil if it does not hang
	inspectCount int           // number of calls of InspectTask
	// clockAhead: how much earlier than the caller the driver notices the end of a
	// deadline.
	clockAhead time.Duration
}

func (d *hangingDriver) stopAnswering() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answersAgain = make(chan struct{})
}

func (d *hangingDriver) resumeAnswering() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.answersAgain)
	d.answersAgain = nil
}

func (d *hangingDriver) waitWhileHanging(ctx context.Context) error {
	d.mu.Lock()
	hanging := d.answersAgain
	d.mu.Unlock()
	if hanging == nil {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-d.clockAhead))
		defer cancel()
	}
	select {
	case <-hanging:
		return nil
	case <-d.plugin.done:
		return driver.ErrPluginDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *hangingDriver) TaskConfigSchema(ctx context.Context) (*hclspec.Spec, error) {
	return nil, d.waitWhileHanging(ctx)
}
func (d *hangingDriver) Capabilities(ctx context.Context) (*driver.Capabilities, error) {
	return nil, d.waitWhileHanging(ctx)
}
func (d *hangingDriver) StartTask(ctx context.Context, _ *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	return nil, nil, d.waitWhileHanging(ctx)
}
func (d *hangingDriver) RecoverTask(ctx context.Context, _ *driver.Handle) error {
	return d.waitWhileHanging(ctx)
}
func (d *hangingDriver) WaitTask(ctx context.Context, _ string) (*driver.ExitResult, error) {
	return nil, d.waitWhileHanging(ctx)
}
func (d *hangingDriver) StopTask(ctx context.Context, _ string, _ time.Duration, _ string) error {
	return d.waitWhileHanging(ctx)
}
func (d *hangingDriver) DestroyTask(ctx context.Context, _ string, _ bool) error {
	return d.waitWhileHanging(ctx)
}
func (d *hangingDriver) InspectTask(ctx context.Context, _ string) (*driver.TaskStatus, error) {
	d.mu.Lock()
	d.inspectCount++
	d.mu.Unlock()
	return nil, d.waitWhileHanging(ctx)
}
func (d *hangingDriver) SignalTask(ctx context.Context, _, _ string) error {
	return d.waitWhileHanging(ctx)
}
func (d *hangingDriver) CreateNetwork(ctx context.Context, _, _ string) (*driver.NetworkIsolation, bool, error) {
	return nil, false, d.waitWhileHanging(ctx)
}
func (d *hangingDriver) DestroyNetwork(ctx context.Context, _ string, _ *driver.NetworkIsolation) error {
	return d.waitWhileHanging(ctx)
}

// newHangingPlugin returns a plugin with a hangingDriver.
func newHangingPlugin() (*fakePlugin, *hangingDriver) {
	f := newFakePlugin("slow", "1")
	slow := &hangingDriver{fakeDriver: f.drv}
	f.wrapperDriver = slow
	return f, slow
}

// startSupervisorOfHangingDriver returns a supervisor with one driver that can hang, and a function that returns
// the events of its tasks.
func startSupervisorOfHangingDriver(t *testing.T) (*Supervisor, driver.Driver, *hangingDriver, func() []string) {
	t.Helper()
	var mu sync.Mutex
	var events []string
	f, slow := newHangingPlugin()
	s := startSupervisorWithTasks(t, Config{}, Tasks{OnEvent: func(name string, e driver.TaskEvent) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf("%s %s %s: %s", name, e.AllocID, e.TaskName, e.Message))
	}}, []catalog.Entry{externalEntry("slow")}, func(context.Context, string, int) (*fakePlugin, error) { return f, nil })
	d, err := s.Driver(t.Context(), "slow")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return s, d, slow, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return events
	}
}

func describeDriverHealth(s *Supervisor) string {
	synctest.Wait()
	info := s.DriverInfoByName()["slow"]
	return fmt.Sprintf("%v %v %s", info.Detected, info.Healthy, info.Description)
}

const healthyStatus = "true true Healthy"

// A StopTask that is not answered within the kill timeout and ten seconds emits an event on
// the task, and makes the driver unhealthy until it answers. The call is not cancelled.
func TestHangingStopMakesTheDriverUnhealthyUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d, slow, events := startSupervisorOfHangingDriver(t)
		slow.stopAnswering()
		stopped := make(chan error, 1)
		go func() { stopped <- d.StopTask(t.Context(), "alloc/web/1234abcd", 20*time.Second, "") }()
		time.Sleep(30*time.Second - time.Millisecond)
		if got := describeDriverHealth(s); got != healthyStatus || len(events()) > 0 {
			t.Errorf("before its time: %s, %q", got, events())
		}
		infoChanged := s.InfoChanged()
		time.Sleep(time.Millisecond)
		if got, want := describeDriverHealth(s), "true false no answer to StopTask for 30s (plugin slow, pid 42)"; got != want {
			t.Errorf("late: %s, want %s", got, want)
		}
		select {
		case <-infoChanged:
		default:
			t.Error("the change of the driver was not reported")
		}
		want := `slow alloc web: driver "slow" has not answered StopTask for 30s (plugin slow, pid 42); the task may still run`
		if got := events(); len(got) != 1 || got[0] != want {
			t.Errorf("events %q, want %q", got, want)
		}
		slow.fingerprints <- driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "fine", Attributes: map[string]driver.Attribute{"driver.slow": {Value: true}}}
		if got := describeDriverHealth(s); !strings.HasPrefix(got, "true false no answer") {
			t.Errorf("a fingerprint made the driver healthy, which does not answer: %s", got)
		}
		time.Sleep(time.Hour)
		slow.resumeAnswering()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if got := describeDriverHealth(s); got != "true true fine" {
			t.Errorf("after its answer: %s", got)
		}
		if n := len(events()); n != 1 {
			t.Errorf("%d events, want one per call", n)
		}
	})
}

// Each call that a driver can answer soon is watched. A start may take an hour, and
// WaitTask as long as the task.
func TestEveryCallThatMustEndHasALimit(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name  string
		limit time.Duration // 0 means none
		call  func(driver.Driver) error
	}{
		{"TaskConfigSchema", 10 * time.Second, func(d driver.Driver) error { _, err := d.TaskConfigSchema(ctx); return err }},
		{"Capabilities", 10 * time.Second, func(d driver.Driver) error { _, err := d.Capabilities(ctx); return err }},
		{"RecoverTask", time.Minute, func(d driver.Driver) error {
			return d.RecoverTask(ctx, &driver.Handle{Config: &driver.TaskConfig{ID: "a/t/1"}})
		}},
		{"StopTask", 10 * time.Second, func(d driver.Driver) error { return d.StopTask(ctx, "a/t/1", 0, "SIGKILL") }},
		{"DestroyTask", time.Minute, func(d driver.Driver) error { return d.DestroyTask(ctx, "a/t/1", true) }},
		{"InspectTask", 10 * time.Second, func(d driver.Driver) error { _, err := d.InspectTask(ctx, "a/t/1"); return err }},
		{"SignalTask", 10 * time.Second, func(d driver.Driver) error { return d.SignalTask(ctx, "a/t/1", "SIGHUP") }},
		{"CreateNetwork", time.Minute, func(d driver.Driver) error { _, _, err := d.CreateNetwork(ctx, "a", "h"); return err }},
		{"DestroyNetwork", time.Minute, func(d driver.Driver) error { return d.DestroyNetwork(ctx, "a", &driver.NetworkIsolation{}) }},
		{"StartTask", 0, func(d driver.Driver) error { _, _, err := d.StartTask(ctx, &driver.TaskConfig{}); return err }},
		{"WaitTask", 0, func(d driver.Driver) error { _, err := d.WaitTask(ctx, "a/t/1"); return err }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, d, slow, _ := startSupervisorOfHangingDriver(t)
				slow.stopAnswering()
				done := make(chan error, 1)
				go func() { done <- c.call(d) }()
				if c.limit == 0 {
					time.Sleep(time.Hour)
					if got := describeDriverHealth(s); got != healthyStatus {
						t.Errorf("after an hour: %s", got)
					}
				} else {
					time.Sleep(c.limit - time.Millisecond)
					if got := describeDriverHealth(s); got != healthyStatus {
						t.Errorf("before its time: %s", got)
					}
					time.Sleep(time.Millisecond)
					if got := describeDriverHealth(s); !strings.HasPrefix(got, "true false no answer to "+c.name) {
						t.Errorf("late: %s", got)
					}
				}
				slow.resumeAnswering()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if got := describeDriverHealth(s); got != healthyStatus {
					t.Errorf("after its answer: %s", got)
				}
			})
		})
	}
}

// The driver never answers a late call whose caller has cancelled it. The supervisor calls
// InspectTask until the driver answers.
func TestDriverIsAskedAfterItsCallersGaveUp(t *testing.T) {
	for _, c := range []struct{ giveUp, ahead time.Duration }{{5 * time.Second, 0}, {time.Minute, 0}, {5 * time.Second, time.Millisecond}} {
		giveUp := c.giveUp
		t.Run(fmt.Sprintf("after %v, the driver %v ahead", giveUp, c.ahead), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, d, slow, events := startSupervisorOfHangingDriver(t)
				slow.stopAnswering()
				slow.clockAhead = c.ahead
				ctx, cancel := context.WithTimeout(t.Context(), giveUp)
				defer cancel()
				if err := d.StopTask(ctx, "alloc/web/1234abcd", 20*time.Second, ""); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("StopTask: %v", err)
				}
				time.Sleep(time.Minute)
				if got := describeDriverHealth(s); !strings.HasPrefix(got, "true false no answer to StopTask") || len(events()) != 1 {
					t.Errorf("after its caller gave up: %s, %q", got, events())
				}
				slow.resumeAnswering()
				time.Sleep(answerTimeout)
				if got := describeDriverHealth(s); got != healthyStatus {
					t.Errorf("after it answers again: %s", got)
				}
				inspectCount := slow.inspectCount
				time.Sleep(time.Hour)
				if slow.inspectCount != inspectCount {
					t.Errorf("asked %d times more, though it has answered", slow.inspectCount-inspectCount)
				}
			})
		})
	}
}

// A caller that cancels its call early does not make the driver unhealthy if the driver
// answers other calls.
func TestCallerThatGivesUpDoesNotMakeTheDriverUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d, slow, events := startSupervisorOfHangingDriver(t)
		slow.stopAnswering()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.InspectTask(ctx, "a/t/1"); err == nil {
			t.Error("InspectTask succeeds")
		}
		slow.resumeAnswering()
		for range 60 {
			time.Sleep(time.Second)
			if got := describeDriverHealth(s); got != healthyStatus {
				t.Fatal(got)
			}
		}
		if len(events()) > 0 {
			t.Error(events())
		}
	})
}

// If an unhealthy driver is replaced by a new process, the driver is healthy again.
func TestNextProcessOfAHangingDriverIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		launches := 0
		var lastDriver *hangingDriver
		s := startSupervisor(t, Config{}, []catalog.Entry{externalEntry("slow")}, func(context.Context, string, int) (f *fakePlugin, _ error) {
			launches++
			f, lastDriver = newHangingPlugin()
			return f, nil
		})
		d, err := s.Driver(t.Context(), "slow")
		if err != nil {
			t.Fatal(err)
		}
		lastDriver.stopAnswering()
		stopped := make(chan error, 1)
		go func() { stopped <- d.StopTask(t.Context(), "a/t/1", 0, "") }()
		time.Sleep(11 * time.Second)
		if got := describeDriverHealth(s); !strings.HasPrefix(got, "true false no answer") {
			t.Errorf("late: %s", got)
		}
		lastDriver.plugin.die()
		if err := <-stopped; !errors.Is(err, driver.ErrPluginDown) {
			t.Errorf("StopTask: %v", err)
		}
		if got := describeDriverHealth(s); got != healthyStatus || launches != 2 {
			t.Errorf("the process after: %s, %d launches", got, launches)
		}
	})
}
