package hooks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

func TestStatsAsksAgain(t *testing.T) {
	final := &driver.Error{Err: errors.New("stats not implemented for driver")}
	for _, c := range []struct {
		name   string
		answer func(n int) error // of the n-th request; nil is a stream of one sample
		want   string            // when it asked, within 20 s
	}{
		{"after one interval, when the stream ends", func(int) error { return nil }, "[0s 5s 10s 15s 20s]"},
		{"later and later, when there is an error", func(int) error { return errors.New("x") }, "[0s 1s 3s 7s 12s 17s]"},
		{"soon again, when it worked in between", func(n int) error {
			if n == 2 {
				return nil
			}
			return errors.New("x")
		}, "[0s 1s 3s 8s 9s 11s 15s 20s]"},
		{"not at all, when the driver says that it is of no use", func(int) error { return final }, "[0s]"},
		{"later, when the driver says that it may be of use", func(int) error { return driver.Recoverable(errors.New("x")) }, "[0s 1s 3s 7s 12s 17s]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var mu sync.Mutex
				var asked []time.Duration
				samples := 0
				source := func(context.Context, time.Duration) (<-chan *driver.TaskStats, error) {
					mu.Lock()
					defer mu.Unlock()
					asked = append(asked, time.Since(begin))
					if err := c.answer(len(asked) - 1); err != nil {
						return nil, err
					}
					stream := make(chan *driver.TaskStats, 1)
					stream <- &driver.TaskStats{}
					close(stream)
					return stream, nil
				}
				h := NewStats(source, func(*driver.TaskStats) { samples++ }, 5*time.Second, hclog.NewNullLogger())
				if err := h.Poststart(t.Context(), hook.TaskPoststartRequest{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20*time.Second + time.Millisecond)
				if err := h.Exited(t.Context(), hook.TaskExitedRequest{}); err != nil {
					t.Fatal(err)
				}
				at := len(asked)
				time.Sleep(time.Minute)
				if got := fmt.Sprint(asked[:at]); got != c.want || len(asked) != at {
					t.Errorf("asked at %v and %d times later, want %s", got, len(asked)-at, c.want)
				}
			})
		})
	}
}

func TestStatsOutlivesTheContextOfPoststart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := make(chan *driver.TaskStats)
		recorded := make(chan *driver.TaskStats, 1)
		source := func(ctx context.Context, _ time.Duration) (<-chan *driver.TaskStats, error) {
			context.AfterFunc(ctx, func() { close(stream) })
			return stream, nil
		}
		h := NewStats(source, func(s *driver.TaskStats) { recorded <- s }, time.Second, hclog.NewNullLogger())
		ctx, cancel := context.WithCancel(t.Context())
		if err := h.Poststart(ctx, hook.TaskPoststartRequest{}); err != nil {
			t.Fatal(err)
		}
		cancel() // the call is over
		synctest.Wait()
		stream <- &driver.TaskStats{}
		<-recorded
		if err := h.Shutdown(t.Context(), hook.TaskShutdownRequest{}); err != nil {
			t.Fatal(err)
		}
	})
}
