package sdk

import (
	"context"
	"reflect"
	"time"
)

// streamFingerprints calls fingerprint at once, after each interval, and for each value on changes. It sends each result
// that differs from the previous one on the returned channel, which it closes when ctx ends. changes may be nil.
func streamFingerprints[F any](ctx context.Context, fingerprint func(context.Context) F, interval time.Duration, changes <-chan struct{}) <-chan F {
	out := make(chan F)
	go func() {
		defer close(out)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		var lastSent *F
		for {
			now := fingerprint(ctx)
			if lastSent == nil || !reflect.DeepEqual(*lastSent, now) {
				select {
				case out <- now:
				case <-ctx.Done():
					return
				}
				lastSent = &now
			}
			select {
			case <-ticker.C:
			case _, ok := <-changes:
				if !ok {
					changes = nil
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
