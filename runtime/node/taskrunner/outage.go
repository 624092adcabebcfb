package taskrunner

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// backoff is a retry delay that doubles from initialDelay up to maxDelay.
type backoff struct {
	initialDelay, maxDelay time.Duration
	currentDelay           time.Duration // next delay; 0 before the first call of nextDelay
}

func (b *backoff) nextDelay() time.Duration {
	d := max(b.currentDelay, b.initialDelay)
	b.currentDelay = min(2*d, b.maxDelay)
	return d
}

// driverOutage is a period in which driver calls get no answer about the task. The zero value is ready to use.
type driverOutage struct {
	outageReported    bool    // awaitRetry has called report since the driver's last answer
	pluginDownBackoff backoff // delay after a call during which the plugin process exited
	retryBackoff      backoff // delay between attempts if no channel announces that the driver is available
}

// resetAfterAnswer resets the outage after an answer.
func (o *driverOutage) resetAfterAnswer() { *o = driverOutage{} }

// awaitRetry blocks until the driver call that failed with err may be repeated. It returns false when ctx is done. It calls report
// once per outage, with the first error that is not the death of the plugin process during the call. report may be nil.
func (o *driverOutage) awaitRetry(ctx context.Context, err error, report func(error)) bool {
	var unavailableErr *driver.UnavailableError
	var undecidedErr *inconclusiveRecoveryError
	if !errors.As(err, &unavailableErr) && !errors.As(err, &undecidedErr) {
		// The first relaunch of the plugin is immediate. Further ones are delayed, because
		// the recovery of a task that crashes the plugin would otherwise run in a tight loop.
		o.pluginDownBackoff.initialDelay, o.pluginDownBackoff.maxDelay = 5*time.Millisecond, time.Second
		if o.pluginDownBackoff.currentDelay == 0 {
			o.pluginDownBackoff.currentDelay = o.pluginDownBackoff.initialDelay
			return ctx.Err() == nil
		}
		return wait.Sleep(ctx, o.pluginDownBackoff.nextDelay()) == nil
	}
	if !o.outageReported {
		o.outageReported = true
		if report != nil {
			report(err)
		}
	}
	if unavailableErr == nil || unavailableErr.Changed == nil {
		o.retryBackoff.initialDelay, o.retryBackoff.maxDelay = time.Second, 30*time.Second
		return wait.Sleep(ctx, o.retryBackoff.nextDelay()) == nil
	}
	select {
	case <-unavailableErr.Changed:
		return true
	case <-ctx.Done():
		return false
	}
}

// dispenseWhenAvailable returns a function that calls find until it returns a driver, or an error that is not temporary. It calls
// report with the first temporary error.
func dispenseWhenAvailable(find dispenseDriverFunc, report func(error)) dispenseDriverFunc {
	return func(ctx context.Context) (driver.Driver, error) {
		var outage driverOutage
		for {
			d, err := find(ctx)
			if !IsDriverTemporarilyUnavailable(err) {
				return d, err
			}
			if !outage.awaitRetry(ctx, err, report) {
				return nil, context.Cause(ctx)
			}
		}
	}
}

// dispenseWithUnavailableError returns a function that calls find and wraps each error in a
// *driver.UnavailableError, because an error of find is not an answer of the driver
// about the task.
func dispenseWithUnavailableError(find dispenseDriverFunc) dispenseDriverFunc {
	return func(ctx context.Context) (driver.Driver, error) {
		d, err := find(ctx)
		var unavailableErr *driver.UnavailableError
		if err != nil && !errors.As(err, &unavailableErr) {
			err = &driver.UnavailableError{Err: err}
		}
		return d, err
	}
}
