package taskrunner

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// pause is a delay that doubles from first up to most.
type pause struct {
	first, most time.Duration
	next        time.Duration // next delay; 0 before the first call of nextDelay
}

func (p *pause) nextDelay() time.Duration {
	d := max(p.next, p.first)
	p.next = min(2*d, p.most)
	return d
}

// outage is a period in which calls of a driver get no answer. The zero value is ready
// to use.
type outage struct {
	reported        bool  // wait has called report since the driver's last answer
	pluginDownPause pause // delay after a call during which the plugin process exited
	retry           pause // delay between attempts if no channel announces that the driver is available
}

// end resets the outage after an answer.
func (o *outage) end() { *o = outage{} }

// wait blocks until the call that failed with err may be repeated. It returns false
// when ctx is done. It calls report with the first error of the outage that means that
// the driver is unavailable or could not find out about the task; report may be nil.
func (o *outage) wait(ctx context.Context, err error, report func(error)) bool {
	var unavailable *driver.UnavailableError
	var undecided *undecidedRecoveryError
	if !errors.As(err, &unavailable) && !errors.As(err, &undecided) {
		// The first relaunch of the plugin is immediate. Further ones are delayed, because
		// the recovery of a task that crashes the plugin would otherwise run in a tight loop.
		o.pluginDownPause.first, o.pluginDownPause.most = 5*time.Millisecond, time.Second
		if o.pluginDownPause.next == 0 {
			o.pluginDownPause.next = o.pluginDownPause.first
			return ctx.Err() == nil
		}
		return sleep(ctx, o.pluginDownPause.nextDelay())
	}
	if !o.reported {
		o.reported = true
		if report != nil {
			report(err)
		}
	}
	if unavailable == nil || unavailable.Changed == nil {
		o.retry.first, o.retry.most = time.Second, 30*time.Second
		return sleep(ctx, o.retry.nextDelay())
	}
	select {
	case <-unavailable.Changed:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleep waits for the duration d, and reports whether d has passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// withUnavailableError returns a function that calls find and wraps each error in a
// *driver.UnavailableError, because an error of find is not an answer of the driver
// about the task.
func withUnavailableError(find dispenseFunc) dispenseFunc {
	return func(ctx context.Context) (driver.Driver, error) {
		d, err := find(ctx)
		var unavailable *driver.UnavailableError
		if err != nil && !errors.As(err, &unavailable) {
			err = &driver.UnavailableError{Err: err}
		}
		return d, err
	}
}
