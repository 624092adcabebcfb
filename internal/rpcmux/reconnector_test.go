package rpcmux

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitReturnsTheNextConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		l := NewReconnector[*PendingCalls[int]](stop, errors.New("closed"))
		found := make(chan *PendingCalls[int], 1)
		wait := func() {
			c, err := l.WaitForConn(t.Context())
			if err != nil {
				t.Error(err)
			}
			found <- c
		}
		first, second := New[int](errDown, nil), New[int](errDown, nil)
		go wait()
		synctest.Wait()
		l.SetConn(first, nil)
		if c := <-found; c != first || l.CurrentConn() != first {
			t.Error("the connection that came is not the one that was waited for")
		}

		first.End() // the connection has ended, and Set was not called yet
		go wait()
		synctest.Wait()
		l.SetConn(nil, errors.New("no socket"))
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		if _, err := l.WaitForConn(ctx); err == nil || err.Error() != "enough\nno socket" {
			t.Errorf("waited in vain: %v", err)
		}
		l.SetConn(second, nil)
		if c := <-found; c != second {
			t.Error("an ended connection was returned")
		}

		l.SetConn(nil, nil)
		close(stop)
		if _, err := l.WaitForConn(t.Context()); err == nil || err.Error() != "closed" {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestConnectWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := NewReconnector[*PendingCalls[int]](ctx.Done(), errors.New("closed"))
		refused := errors.New("refused")
		there := New[int](errDown, nil)
		begun := time.Now()
		var connectTimes, failureTimes []time.Duration
		connect := func(context.Context) (*PendingCalls[int], error) {
			if connectTimes = append(connectTimes, time.Since(begun)); len(connectTimes)%4 == 0 {
				return there, nil
			}
			return nil, refused
		}
		failed := func(err error) { failureTimes = append(failureTimes, time.Since(begun)) }

		waited := make(chan error)
		go func() {
			short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("enough"))
			defer cancel()
			_, err := l.WaitForConn(short)
			waited <- err
		}()
		c, ok := l.ConnectWithBackoff(ctx, connect, failed)
		if c != there || !ok || l.CurrentConn() != nil {
			t.Errorf("reached %v, %v, set %v", c, ok, l.CurrentConn())
		}
		const ms = time.Millisecond
		if want := []time.Duration{0, 20 * ms, 60 * ms, 140 * ms}; !slices.Equal(connectTimes, want) || !slices.Equal(failureTimes, want[:3]) {
			t.Errorf("tried after %v, told after %v, want %v", connectTimes, failureTimes, want)
		}
		if err := <-waited; err == nil || err.Error() != "enough\nrefused" {
			t.Errorf("who waited meanwhile: %v", err)
		}

		time.AfterFunc(10*ms, cancel)
		begun = time.Now()
		if _, ok := l.ConnectWithBackoff(ctx, connect, failed); ok || time.Since(begun) != 10*ms {
			t.Errorf("after the end of the context: %v, after %v", ok, time.Since(begun))
		}
		if _, ok := l.ConnectWithBackoff(ctx, func(context.Context) (*PendingCalls[int], error) { panic("connects for nobody") }, failed); ok {
			t.Error("reached for nobody")
		}
	})
}
