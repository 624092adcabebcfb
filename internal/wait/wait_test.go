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
