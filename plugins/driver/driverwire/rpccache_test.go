package driverwire

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// A plugin can return DeadlineExceeded before the caller's context has ended.
func TestCallersDoNotShareADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cache rpcCache[int]
		conn := basewire.NewConn(nil, make(chan struct{}))
		go func() {
			_, err := cache.get(t.Context(), conn, func() (*int, error) {
				time.Sleep(time.Second)
				return nil, context.DeadlineExceeded
			})
			if err != context.DeadlineExceeded {
				t.Errorf("the caller with the deadline got %v", err)
			}
		}()
		synctest.Wait()
		got, err := cache.get(t.Context(), conn, func() (*int, error) { return new(7), nil })
		if err != nil || *got != 7 {
			t.Errorf("a caller without a deadline got %v, %v", got, err)
		}
	})
}
