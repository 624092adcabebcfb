package lifecycle

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestOpenGateLetsAllPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		var passedCount atomic.Int32
		for range 3 {
			go func() {
				if g.Wait(t.Context()) == nil {
					passedCount.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := passedCount.Load(); n != 0 {
			t.Fatalf("%d passed a closed gate", n)
		}
		g.SetOpen(true)
		g.SetOpen(true)
		synctest.Wait()
		if n := passedCount.Load(); n != 3 {
			t.Errorf("%d of 3 passed an open gate", n)
		}
		if err := g.Wait(t.Context()); err != nil {
			t.Errorf("a later waiter: %v", err)
		}
	})
}

func TestGateClosesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		g.SetOpen(true)
		g.SetOpen(false)
		passed := false
		go func() { passed = g.Wait(t.Context()) == nil }()
		synctest.Wait()
		if passed {
			t.Error("passed a gate that was closed again")
		}
		g.SetOpen(true)
		synctest.Wait()
		if !passed {
			t.Error("did not pass a gate that was opened again")
		}
	})
}

// A waiter that an opening woke must not pass if the gate closes first.
func TestGateClosedBeforeTheWaiterRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		passed := false
		go func() { passed = g.Wait(t.Context()) == nil }()
		synctest.Wait()

		g.mu.Lock() // blocks the waiter between waking up and checking again
		close(g.opened)
		g.opened = nil
		g.mu.Unlock()
		synctest.Wait()
		if passed {
			t.Error("passed a closed gate")
		}
		g.SetOpen(true)
	})
}

func TestDoneContextHasPriorityOverOpenGate(t *testing.T) {
	killed := errors.New("killed")
	for range 100 { // a plain select would pass in about half of the rounds
		var g Gate
		g.SetOpen(true)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(killed)
		if err := g.Wait(ctx); !errors.Is(err, killed) {
			t.Fatalf("Wait = %v, want the cause of the end", err)
		}
	}
}

func TestEndOfContextWakesTheWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		killed := errors.New("killed")
		var g Gate
		ctx, cancel := context.WithCancelCause(t.Context())
		var err error
		go func() { err = g.Wait(ctx) }()
		synctest.Wait()
		cancel(killed)
		synctest.Wait()
		if !errors.Is(err, killed) {
			t.Errorf("Wait = %v, want the cause of the end", err)
		}
	})
}

// A waiter must not miss an opening, however often the gate changes.
func TestGateUnderLoad(t *testing.T) {
	var g Gate
	done := make(chan struct{})
	for range 8 {
		go func() {
			for range 200 {
				g.Wait(context.Background())
			}
			done <- struct{}{}
		}()
	}
	stop := make(chan struct{})
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for open := true; ; open = !open {
			select {
			case <-stop:
				return
			default:
				g.SetOpen(open)
			}
		}
	}()
	for range 8 {
		<-done
	}
	close(stop)
	<-moved
}
