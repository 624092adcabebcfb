package sdk

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// adoptingDriver is an allMethodsDriver that can adopt.
type adoptingDriver struct {
	*allMethodsDriver
	adoptErr error
	adopted  []string
}

func (d *adoptingDriver) Adopt(_ context.Context, start *StartRequest) (*allMethodsTask, error) {
	if d.adoptErr != nil {
		return nil, d.adoptErr
	}
	var config struct{}
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	d.adopted = append(d.adopted, start.ID)
	return &allMethodsTask{sleepingTask: newSleepingTask(), state: allMethodsState{N: 7}}, nil
}

// Under Nomad, InspectTask answers as ever: the host does not ask for interrupted starts.
func TestInspectTaskUnderNomadHasNoStart(t *testing.T) {
	s := newTestServer(&adoptingDriver{allMethodsDriver: &allMethodsDriver{}})
	if _, err := s.InspectTask(t.Context(), testTaskID); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("unknown task: %v", err)
	}
	startTestTask(t, s)
	status, err := s.InspectTask(t.Context(), testTaskID)
	if err != nil || status.StartStatus != nil {
		t.Errorf("status %+v, %v", status, err)
	}
	if err := s.RecoverTask(t.Context(), &driver.Handle{Config: &driver.TaskConfig{ID: "a/t/1"}}); err == nil {
		t.Error("a handle of version 0 is recovered")
	}
}

// A start goes on after the agent has died, and the next agent gets its handle.
func TestStartGoesOnWithoutItsAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &minimalDriver{unblockStart: make(chan struct{})}
		s := newTestServer(d)
		s.hostIsNomadLite = true
		ctx, die := context.WithCancel(t.Context())
		go s.StartTask(ctx, testTaskConfig())
		synctest.Wait()
		die()
		synctest.Wait()
		status, err := s.InspectTask(t.Context(), testTaskID)
		if err != nil || status.StartStatus == nil || status.StartStatus.Phase != driver.StartPending {
			t.Fatalf("during the start: %+v, %v", status, err)
		}
		close(d.unblockStart)
		synctest.Wait()
		status, err = s.InspectTask(t.Context(), testTaskID)
		if err != nil || status.State != driver.TaskRunning || status.StartStatus == nil || status.StartStatus.Phase != driver.StartReturned {
			t.Fatalf("after the start: %+v, %v", status, err)
		}
		if h := status.StartStatus.Handle; h.Config.ID != testTaskID || h.Version != 1 {
			t.Errorf("handle %+v", h)
		}
		if err := s.DestroyTask(t.Context(), testTaskID, true); err != nil {
			t.Error(err)
		}
	})
}

// An agent that gives up a start destroys it: then the author's Start ends.
func TestDestroyEndsAStartThatItsAgentGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(&minimalDriver{unblockStart: make(chan struct{})})
		s.hostIsNomadLite = true
		ctx, giveUp := context.WithCancel(t.Context())
		go s.StartTask(ctx, testTaskConfig())
		synctest.Wait()
		giveUp()
		if err := s.DestroyTask(t.Context(), testTaskID, true); !errors.Is(err, driver.ErrTaskNotFound) {
			t.Errorf("DestroyTask: %v, want %v", err, driver.ErrTaskNotFound)
		}
		if len(s.startsByID) > 0 {
			t.Error("the start is not over")
		}
	})
}

// The handle that InspectTask returns recovers the task in another plugin process.
func TestHandleOfInspectTaskIsThatOfStartTask(t *testing.T) {
	s := newTestServer(&allMethodsDriver{})
	s.hostIsNomadLite = true
	handle := startTestTask(t, s)
	status, err := s.InspectTask(t.Context(), testTaskID)
	if err != nil {
		t.Fatal(err)
	}
	got := status.StartStatus.Handle
	if got.Version != handle.Version || !reflect.DeepEqual(got.DriverState, handle.DriverState) || got.Config.ID != testTaskID || len(got.Config.DriverConfig) > 0 {
		t.Errorf("handle %+v, want %+v", got, handle)
	}
	next := &allMethodsDriver{}
	if err := newTestServer(next).RecoverTask(t.Context(), got); err != nil || len(next.recoveredStates) == 0 {
		t.Errorf("recovered %v, %v", next.recoveredStates, err)
	}
}

// A plugin process that has not started the task adopts it by its config.
func TestAdopt(t *testing.T) {
	d := &adoptingDriver{allMethodsDriver: &allMethodsDriver{}}
	s := newTestServer(d)
	s.hostIsNomadLite = true
	status, err := s.InspectTask(t.Context(), testTaskID)
	if err != nil || status.StartStatus == nil || status.StartStatus.Phase != driver.StartNotFound {
		t.Fatalf("before: %+v, %v", status, err)
	}
	search := &driver.Handle{Config: testTaskConfig()}
	busy, ended := Recoverable(errors.New("busy")), errors.New("exit status unknown")
	for _, test := range []struct{ adopt, want error }{{ErrNotExecuted, driver.ErrTaskNotFound}, {busy, busy}, {ended, ended}} {
		d.adoptErr = test.adopt
		if err := s.RecoverTask(t.Context(), search); !errors.Is(err, test.want) {
			t.Errorf("%v: RecoverTask returns %v, want %v", test.adopt, err, test.want)
		}
	}
	d.adoptErr = nil
	if err := s.RecoverTask(t.Context(), search); err != nil {
		t.Fatal(err)
	}
	if status, err = s.InspectTask(t.Context(), testTaskID); err != nil || status.StartStatus.Phase != driver.StartReturned || len(status.StartStatus.Handle.DriverState) == 0 {
		t.Errorf("after: %+v, %v", status, err)
	}
	if err := s.DestroyTask(t.Context(), testTaskID, true); err != nil {
		t.Error(err)
	}

	plain := newTestServer(&allMethodsDriver{})
	plain.hostIsNomadLite = true
	if _, err := plain.InspectTask(t.Context(), testTaskID); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("a driver without Adopt: %v", err)
	}
	if err := plain.RecoverTask(t.Context(), search); err == nil {
		t.Error("a driver without Adopt adopts")
	}
}

// The schema of the driver can have changed since the start: a key that the driver no longer has does not lose the task.
func TestAdoptAcceptsAConfigOfAnEarlierSchema(t *testing.T) {
	s := newTestServer(&adoptingDriver{allMethodsDriver: &allMethodsDriver{}})
	s.hostIsNomadLite = true
	config := testTaskConfig()
	var err error
	if config.DriverConfig, err = hclspec.MarshalState(map[string]any{"removed": 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecoverTask(t.Context(), &driver.Handle{Config: config}); err != nil {
		t.Error(err)
	}
}

// blockingRecoverDriver is an allMethodsDriver whose Recover and Adopt block.
type blockingRecoverDriver struct {
	*allMethodsDriver
	unblock chan struct{}
}

func (d *blockingRecoverDriver) Recover(ctx context.Context, _ *StartRequest) (*allMethodsTask, error) {
	select {
	case <-d.unblock:
		return &allMethodsTask{sleepingTask: newSleepingTask()}, nil
	case <-ctx.Done():
		return nil, Recoverable(context.Cause(ctx))
	}
}

func (d *blockingRecoverDriver) Adopt(ctx context.Context, start *StartRequest) (*allMethodsTask, error) {
	return d.Recover(ctx, start)
}

// An agent dies while it recovers a task. The next agent's call waits for the recovery, which fails: that says nothing about the
// task.
func TestRecoverTaskIsRepeatedIfAConcurrentCallFails(t *testing.T) {
	for name, version := range map[string]int32{"Recover": 2, "Adopt": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &blockingRecoverDriver{&allMethodsDriver{}, make(chan struct{})}
				s := newTestServer(d)
				s.hostIsNomadLite = true
				handle := &driver.Handle{Version: version, Config: testTaskConfig()}
				ctx, die := context.WithCancel(t.Context())
				first, second := make(chan error, 1), make(chan error, 1)
				go func() { first <- s.RecoverTask(ctx, handle) }()
				synctest.Wait()
				go func() { second <- s.RecoverTask(t.Context(), handle) }()
				synctest.Wait()
				die()
				if err := <-first; !driver.IsRecoverable(err) {
					t.Errorf("first call: %v", err)
				}
				close(d.unblock)
				if err := <-second; err != nil {
					t.Errorf("second call: %v", err)
				}
				if err := s.DestroyTask(t.Context(), testTaskID, true); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A destroy cancels a recovery. The task still runs then, so the driver searches for its processes.
func TestDestroyDuringARecoverySweepsTheTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &blockingRecoverDriver{&allMethodsDriver{}, make(chan struct{})}
		s := newTestServer(d)
		config := testTaskConfig()
		config.ID, config.AllocID, config.Name = "remains/task/00000000", "remains", "task"
		recovered := make(chan error, 1)
		go func() { recovered <- s.RecoverTask(t.Context(), &driver.Handle{Version: 2, Config: config}) }()
		synctest.Wait()
		if err := s.DestroyTask(t.Context(), config.ID, true); err != nil {
			t.Errorf("DestroyTask: %v", err)
		}
		if err := <-recovered; !errors.Is(err, errDestroyed) {
			t.Errorf("RecoverTask: %v, want %v", err, errDestroyed)
		}
	})
}

// An agent inspects a start at the moment at which the recovery of another agent has failed.
func TestInspectTaskAfterAFailedRecovery(t *testing.T) {
	s := newTestServer(&blockingRecoverDriver{allMethodsDriver: &allMethodsDriver{}})
	failed := &taskStart{startRequest: s.newStartRequest(*testTaskConfig()), startReturned: make(chan struct{})}
	s.startsByID[testTaskID] = failed
	s.removeFailedStart(failed, errors.New("the agent has died"))
	s.startsByID[testTaskID] = failed // InspectTask has read the table before the start was removed
	if status := s.statusOfUnreturnedStart(testTaskID); status == nil || status.Phase != driver.StartNotFound {
		t.Errorf("status %+v, want %v", status, driver.StartNotFound)
	}
}
