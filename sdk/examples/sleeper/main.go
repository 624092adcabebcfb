// Command sleeper is a minimal task driver: its tasks sleep in the process of the driver,
// and end when it exits. It shows the required methods of a driver, and how to add optional
// ones.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() { sdk.ServeDriver(&sleepDriver{}) }

type sleepDriver struct{}

var _ sdk.Driver[*sleepTask] = (*sleepDriver)(nil)

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"duration": hclspec.Attr("duration", "string", true),
})

func (*sleepDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         "sleeper",
		Version:      "0.1.0",
		TaskSchema:   taskSchema,
		Capabilities: driver.Capabilities{SendSignals: true},
	}
}

func (*sleepDriver) Start(_ context.Context, start *sdk.StartRequest) (*sleepTask, error) {
	var config struct {
		Duration string `codec:"duration"`
	}
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	duration, err := time.ParseDuration(config.Duration)
	if err != nil {
		return nil, fmt.Errorf("duration: %w", err)
	}
	start.Event("going to bed")
	return &sleepTask{wakeTime: time.Now().Add(duration), wokenEarly: make(chan struct{})}, nil
}

// sleepTask is a running task.
type sleepTask struct {
	wakeTime    time.Time
	wakeOnce    sync.Once
	wokenEarly  chan struct{}
	earlyResult driver.ExitResult // set before ended is closed
}

var (
	_ sdk.Task     = (*sleepTask)(nil)
	_ sdk.Signaler = (*sleepTask)(nil) // optional interface
)

func (s *sleepTask) Wait(ctx context.Context) (driver.ExitResult, error) {
	timer := time.NewTimer(time.Until(s.wakeTime))
	defer timer.Stop()
	select {
	case <-timer.C:
		return driver.ExitResult{}, nil
	case <-s.wokenEarly:
		return s.earlyResult, nil
	case <-ctx.Done():
		return driver.ExitResult{}, ctx.Err()
	}
}

// wakeEarly makes Wait return the result before wakeTime; only the first call has an effect.
func (s *sleepTask) wakeEarly(result driver.ExitResult) {
	s.wakeOnce.Do(func() {
		s.earlyResult = result
		close(s.wokenEarly)
	})
}

func (s *sleepTask) Kill(context.Context) error {
	s.wakeEarly(driver.ExitResult{ExitCode: 137, Signal: 9})
	return nil
}

// Signal ends the task successfully. The host stops a task with a signal first.
func (s *sleepTask) Signal(context.Context, string) error {
	s.wakeEarly(driver.ExitResult{})
	return nil
}
