package calls

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		l := NewLine[*Pending[int]](stop, errors.New("closed"))
		found := make(chan *Pending[int], 1)
		wait := func() {
			c, err := l.Wait(t.Context())
			if err != nil {
				t.Error(err)
			}
			found <- c
		}
		first, second := New[int](errDown, nil), New[int](errDown, nil)
		go wait()
		synctest.Wait()
		l.Set(first, nil)
		if c := <-found; c != first || l.Now() != first {
			t.Error("the connection that came is not the one that was waited for")
		}

		first.End() // nobody has said so yet
		go wait()
		synctest.Wait()
		l.Set(nil, errors.New("no socket"))
		synctest.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		if _, err := l.Wait(ctx); err == nil || err.Error() != "enough\nno socket" {
			t.Errorf("waited in vain: %v", err)
		}
		l.Set(second, nil)
		if c := <-found; c != second {
			t.Error("an ended connection was returned")
		}

		l.Set(nil, nil)
		close(stop)
		if _, err := l.Wait(t.Context()); err == nil || err.Error() != "closed" {
			t.Errorf("after the end: %v", err)
		}
	})
}
