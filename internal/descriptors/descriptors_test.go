package descriptors

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestForTasks(t *testing.T) {
	for limit, want := range map[uint64]uint64{0: PerTask, 64: PerTask, 70: PerTask, 71: 7, 20000: 19936} {
		if got := ForTasks(limit); got != want {
			t.Errorf("ForTasks(%d) = %d, want %d", limit, got, want)
		}
	}
}

func TestLimiterBoundsOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(3 * descriptorsPerOperation)
		var running, most atomic.Int32
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_ = l.Run(t.Context(), func() error {
					n := running.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					time.Sleep(time.Second)
					running.Add(-1)
					return nil
				})
			})
		}
		wg.Wait()
		if most.Load() != 3 {
			t.Errorf("%d operations ran at one time, want 3", most.Load())
		}
	})
}

func TestLimiterReturnsTheCauseOfTheContext(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	l := NewLimiter(0)
	err := l.Run(ctx, func() error {
		cancel(stopped)
		return l.Run(ctx, func() error {
			t.Error("a second operation was called")
			return nil
		})
	})
	if !errors.Is(err, stopped) {
		t.Errorf("error %v, want %v", err, stopped)
	}
}

func TestRetryRepeatsWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, waits := 0, 0
		no := errors.New("no")
		err := Retry(t.Context(), func(error) { waits++ }, func() error {
			if calls++; calls < 4 {
				return fmt.Errorf("open: %w", unix.EMFILE)
			}
			return no
		})
		if err != no || calls != 4 || waits != 1 {
			t.Errorf("error %v after %d calls and %d waits, want %v, 4 and 1", err, calls, waits, no)
		}
	})
}

func TestRetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := Retry(ctx, func(error) {}, func() error { return unix.ENFILE }); !errors.Is(err, unix.ENFILE) {
			t.Errorf("error %v, want %v", err, unix.ENFILE)
		}
	})
}
