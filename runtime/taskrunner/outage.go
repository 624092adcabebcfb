package taskrunner

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// pause is a delay that doubles from first to most.
type pause struct {
	first, most time.Duration
	next        time.Duration // 0 before the first
}

func (p *pause) take() time.Duration {
	d := max(p.next, p.first)
	p.next = min(2*d, p.most)
	return d
}

// outage is a time in which calls of a driver get no answer. The zero value is
// ready to be used.
type outage struct {
	reported bool  // since the last answer
	down     pause // after a call that a plugin process has not survived
	retry    pause // where nothing announces that another try may succeed
}

// end resets the outage after an answer.
func (o *outage) end() { *o = outage{} }

// wait blocks until the call that has failed with err may be repeated. It returns
// false when ctx has ended. report is called with the first error of the outage
// that says that the driver is unavailable, or could not find out about the task; it
// may be nil.
func (o *outage) wait(ctx context.Context, err error, report func(error)) bool {
	var unavailable *driver.UnavailableError
	var undecided *undecidedError
	if !errors.As(err, &unavailable) && !errors.As(err, &undecided) {
		// The first relaunch is immediate. A task whose recovery kills the plugin must
		// not do so in a loop.
		o.down.first, o.down.most = 5*time.Millisecond, time.Second
		if o.down.next == 0 {
			o.down.next = o.down.first
			return ctx.Err() == nil
		}
		return sleep(ctx, o.down.take())
	}
	if !o.reported {
		o.reported = true
		if report != nil {
			report(err)
		}
	}
	if unavailable == nil || unavailable.Changed == nil {
		o.retry.first, o.retry.most = time.Second, 30*time.Second
		return sleep(ctx, o.retry.take())
	}
	select {
	case <-unavailable.Changed:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleep reports whether d has passed before ctx has ended.
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

// available wraps what finds the driver of a task, so that each of its errors is a
// *driver.UnavailableError: an error without a driver is not an answer about the task.
func available(find dispense) dispense {
	return func(ctx context.Context) (driver.Driver, error) {
		d, err := find(ctx)
		var unavailable *driver.UnavailableError
		if err != nil && !errors.As(err, &unavailable) {
			err = &driver.UnavailableError{Err: err}
		}
		return d, err
	}
}
