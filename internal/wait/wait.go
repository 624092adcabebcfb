package wait

import (
	"context"
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
