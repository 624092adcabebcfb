package evaluators

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A job with a hundred templates delays the template of another job by one evaluation.
func TestJobsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTurns(2)
		run := func(id string) (waited time.Duration) {
			begin := time.Now()
			if err := s.acquire(t.Context(), job{"default", id}); err != nil {
				t.Error(err)
			}
			waited = time.Since(begin)
			time.Sleep(time.Second)
			s.release()
			return waited
		}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { run("many") })
		}
		synctest.Wait()
		if waited := run("one"); waited > time.Second {
			t.Errorf("the other job has waited for %v", waited)
		}
		begin := time.Now()
		all.Wait()
		if took := time.Since(begin); took > 50*time.Second {
			t.Errorf("the first job needed %v more", took)
		}
	})
}

// No slot is lost or used twice, also if contexts end at the same moment as a turn comes.
func TestTurnsUnderCancellation(t *testing.T) {
	const slots = 3
	s := newTurns(slots)
	running := make(chan struct{}, slots)
	var all sync.WaitGroup
	for worker := range 20 {
		all.Go(func() {
			for range 500 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(200*time.Microsecond))
				err := s.acquire(ctx, job{id: string(rune('a' + worker%5))})
				switch {
				case err == nil:
					select {
					case running <- struct{}{}:
					default:
						t.Error("more callers than slots")
					}
					<-running
					s.release()
				case !errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if s.free != slots || len(s.waiting) > 0 || len(s.next) > 0 {
		t.Errorf("%d slots are free, %d jobs wait", s.free, len(s.waiting))
	}
}
