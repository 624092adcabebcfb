package wait

import (
	"context"
	"errors"
	"time"
)

// Sleep blocks for d, and returns nil, or until ctx ends, and returns context.Cause(ctx). If ctx has ended before, it returns at once.
func Sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// WhileError calls try until its error is not target, and returns that error. It repeats the call every 5 ms, for timeout at
// most, or until ctx ends; then it returns the error of the last call. It calls try at least once.
func WhileError(ctx context.Context, target error, timeout time.Duration, try func() error) error {
	for end := time.Now().Add(timeout); ; {
		err := try()
		if !errors.Is(err, target) || !time.Now().Before(end) || Sleep(ctx, 5*time.Millisecond) != nil {
			return err
		}
	}
}

// IsClosed reports whether c is closed. It does not block. No goroutine must send values to c.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// CloseUnlessClosed closes c unless it is closed. All callers must hold the same lock, and no goroutine must send values
// to c.
func CloseUnlessClosed(c chan struct{}) {
	if !IsClosed(c) {
		close(c)
	}
}

// Notify sends a value to c, which has a buffer. It does not block: if the buffer is full, an earlier notice waits for the
// receiver.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
