package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(reason) })
		began := time.Now()
		if err := Sleep(ctx, time.Second); err != nil || time.Since(began) != time.Second {
			t.Errorf("a second: %v after %v", err, time.Since(began))
		}
		if err := Sleep(ctx, time.Hour); !errors.Is(err, reason) || time.Since(began) != time.Minute {
			t.Errorf("until the context ends: %v after %v", err, time.Since(began))
		}
		if err := Sleep(ctx, 0); !errors.Is(err, reason) {
			t.Errorf("after the context has ended: %v", err)
		}
	})
}

func TestWhileError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, broken := errors.New("busy"), errors.New("broken")
		began := time.Now()
		endsAfter := func(d time.Duration, last error) func() error {
			return func() error {
				if time.Since(began) < d {
					return busy
				}
				return last
			}
		}
		if err := WhileError(t.Context(), busy, time.Second, endsAfter(100*time.Millisecond, nil)); err != nil || time.Since(began) != 100*time.Millisecond {
			t.Errorf("success after 100 ms: %v after %v", err, time.Since(began))
		}
		if err := WhileError(t.Context(), busy, time.Second, endsAfter(200*time.Millisecond, broken)); err != broken || time.Since(began) != 200*time.Millisecond {
			t.Errorf("another error after 200 ms: %v after %v", err, time.Since(began))
		}
		if err := WhileError(t.Context(), busy, time.Second, endsAfter(time.Hour, nil)); err != busy || time.Since(began) != 1200*time.Millisecond {
			t.Errorf("no success within a second: %v after %v", err, time.Since(began))
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		calls := 0
		if err := WhileError(cancelled, busy, time.Second, func() error { calls++; return busy }); err != busy || calls != 1 {
			t.Errorf("after the context has ended: %v, %d calls", err, calls)
		}
	})
}

func TestIsClosed(t *testing.T) {
	c := make(chan struct{})
	if IsClosed(c) {
		t.Error("an open channel is closed")
	}
	close(c)
	if !IsClosed(c) {
		t.Error("a closed channel is open")
	}
}

func TestNotify(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 2 {
		Notify(c)
	}
	if len(c) != 1 {
		t.Errorf("two notices left %d values, want 1", len(c))
	}
}
