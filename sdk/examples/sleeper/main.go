// Command sleeper is a minimal task driver: its tasks sleep, in the process of
// the driver, and end with it. It shows the required methods of a driver, and
// how to add optional ones.
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

func main() { sdk.ServeDriver(&sleeper{}) }

type sleeper struct{}

var _ sdk.Driver[*nap] = (*sleeper)(nil)

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"duration": hclspec.Attr("duration", "string", true),
})

func (*sleeper) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         "sleeper",
		Version:      "0.1.0",
		TaskSchema:   taskSchema,
		Capabilities: driver.Capabilities{SendSignals: true},
	}
}

func (*sleeper) Start(_ context.Context, start *sdk.StartRequest) (*nap, error) {
	var config struct {
		Duration string `codec:"duration"`
	}
	if err := start.Config(&config); err != nil {
		return nil, err
	}
	duration, err := time.ParseDuration(config.Duration)
	if err != nil {
		return nil, fmt.Errorf("duration: %w", err)
	}
	start.Event("going to bed", nil)
	return &nap{until: time.Now().Add(duration), woken: make(chan struct{})}, nil
}

// nap is a running task.
type nap struct {
	until  time.Time
	once   sync.Once
	woken  chan struct{}
	result driver.ExitResult // set before woken is closed
}

var (
	_ sdk.Task     = (*nap)(nil)
	_ sdk.Signaler = (*nap)(nil) // optional interface
)

func (n *nap) Wait(ctx context.Context) (driver.ExitResult, error) {
	timer := time.NewTimer(time.Until(n.until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return driver.ExitResult{}, nil
	case <-n.woken:
		return n.result, nil
	case <-ctx.Done():
		return driver.ExitResult{}, ctx.Err()
	}
}

// wake ends the nap; only the first call has an effect.
func (n *nap) wake(result driver.ExitResult) {
	n.once.Do(func() {
		n.result = result
		close(n.woken)
	})
}

func (n *nap) Kill(context.Context) error {
	n.wake(driver.ExitResult{ExitCode: 137, Signal: 9})
	return nil
}

// Signal ends the nap successfully. A stop starts with a signal.
func (n *nap) Signal(context.Context, string) error {
	n.wake(driver.ExitResult{})
	return nil
}
