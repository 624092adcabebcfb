package taskdriver

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Backoff is a retry delay that doubles from InitialDelay up to MaxDelay.
type Backoff struct {
	InitialDelay, MaxDelay time.Duration
	currentDelay           time.Duration // next delay; 0 before the first call of NextDelay
}

func (b *Backoff) NextDelay() time.Duration {
	d := max(b.currentDelay, b.InitialDelay)
	b.currentDelay = min(2*d, b.MaxDelay)
	return d
}

// Outage is a period in which driver calls get no answer about the task. The zero value is ready to use.
type Outage struct {
	outageReported    bool    // AwaitRetryUnlessDone has called report since the driver's last answer
	pluginDownBackoff Backoff // delay after a call during which the plugin process exited
	retryBackoff      Backoff // delay between attempts if no channel announces that the driver is available
}

// resetAfterAnswer resets the outage after an answer.
func (o *Outage) resetAfterAnswer() { *o = Outage{} }

// AwaitRetryUnlessDone blocks until the driver call that failed with err may be repeated. It returns false when ctx is
// done. In each outage, it calls reportOnce with the first error other than the plugin process's death during the
// call. reportOnce may be nil.
func (o *Outage) AwaitRetryUnlessDone(ctx context.Context, err error, reportOnce func(error)) bool {
	var unavailableErr *driver.UnavailableError
	var undecidedErr *inconclusiveRecoveryError
	if !errors.As(err, &unavailableErr) && !errors.As(err, &undecidedErr) {
		// The first relaunch of the plugin is immediate. Further ones are delayed, because
		// recovering a task that crashes the plugin would otherwise run in a tight loop.
		o.pluginDownBackoff.InitialDelay, o.pluginDownBackoff.MaxDelay = 5*time.Millisecond, time.Second
		if o.pluginDownBackoff.currentDelay == 0 {
			o.pluginDownBackoff.currentDelay = o.pluginDownBackoff.InitialDelay
			return ctx.Err() == nil
		}
		return wait.Sleep(ctx, o.pluginDownBackoff.NextDelay()) == nil
	}
	if !o.outageReported {
		o.outageReported = true
		if reportOnce != nil {
			reportOnce(err)
		}
	}
	if unavailableErr == nil || unavailableErr.RetryOnClose == nil {
		o.retryBackoff.InitialDelay, o.retryBackoff.MaxDelay = time.Second, 30*time.Second
		return wait.Sleep(ctx, o.retryBackoff.NextDelay()) == nil
	}
	select {
	case <-unavailableErr.RetryOnClose:
		return true
	case <-ctx.Done():
		return false
	}
}

// WithUnavailableErrors returns a function that calls dispense and wraps each error in a
// *driver.UnavailableError, because a dispense error is not the driver's answer about the task.
func WithUnavailableErrors(dispense DispenseFunc) DispenseFunc {
	return func(ctx context.Context) (driver.Driver, error) {
		d, err := dispense(ctx)
		var unavailableErr *driver.UnavailableError
		if err != nil && !errors.As(err, &unavailableErr) {
			err = &driver.UnavailableError{Err: err}
		}
		return d, err
	}
}

// IsTemporarilyUnavailable reports whether err means the driver is currently unavailable, so a
// later call may succeed.
func IsTemporarilyUnavailable(err error) bool {
	var unavailableErr *driver.UnavailableError
	if errors.As(err, &unavailableErr) {
		return unavailableErr.Plugin != "" // an empty Plugin means no plugin serves the driver
	}
	return errors.Is(err, driver.ErrPluginDown)
}
