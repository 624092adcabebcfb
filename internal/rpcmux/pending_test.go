package rpcmux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
)

var errDown = errors.New("down")

// startCall calls Call in a new goroutine, and sends its result on the returned channel.
func startCall(ctx context.Context, p *PendingCalls[string], send func(uint64) error) <-chan string {
	outcome := make(chan string, 1)
	go func() {
		answer, err := p.Call(ctx, send)
		outcome <- fmt.Sprintf("%q %v", answer, err)
	}()
	return outcome
}

func sendSucceeds(uint64) error { return nil }

func TestAnswersInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New[string](errDown, nil)
		first := startCall(t.Context(), p, sendSucceeds)
		synctest.Wait()
		second := startCall(t.Context(), p, sendSucceeds)
		synctest.Wait()
		p.DeliverResponse(2, "two")
		p.DeliverResponse(1, "one")
		if got := <-first + " " + <-second; got != `"one" <nil> "two" <nil>` {
			t.Error(got)
		}
	})
}

func TestEndOfTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New[string](errDown, nil)
		waiting := startCall(t.Context(), p, sendSucceeds)
		notSent := startCall(t.Context(), p, func(uint64) error { return fmt.Errorf("send: %w", errDown) })
		synctest.Wait()
		select {
		case got := <-notSent:
			t.Errorf("%s before the end", got)
		default:
		}
		if p.Ended() {
			t.Error("ended before the end")
		}
		p.End()
		for _, c := range []<-chan string{waiting, notSent, startCall(t.Context(), p, sendSucceeds)} {
			if got := <-c; got != `"" down` {
				t.Error(got)
			}
		}
		if !p.Ended() {
			t.Error("not ended after the end")
		}
	})
}

// A response that arrives after its caller has been cancelled is passed to drop: it may
// contain descriptors.
func TestLateAnswersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var droppedAnswers []string
		p := New(errDown, func(answer string) { droppedAnswers = append(droppedAnswers, answer) })
		ctx, cancel := context.WithCancelCause(t.Context())
		waiting := startCall(ctx, p, sendSucceeds)
		synctest.Wait()
		cancel(errors.New("enough"))
		if got := <-waiting; got != `"" enough` {
			t.Error(got)
		}
		p.DeliverResponse(1, "late")
		answered := startCall(t.Context(), p, func(id uint64) error {
			p.DeliverResponse(id, "early")
			return errors.New("refused")
		})
		if got := <-answered; got != `"" refused` {
			t.Error(got)
		}
		p.DeliverResponse(9, "unasked")
		if want := []string{"late", "early", "unasked"}; !slices.Equal(droppedAnswers, want) {
			t.Errorf("dropped %q, want %q", droppedAnswers, want)
		}
	})
}
