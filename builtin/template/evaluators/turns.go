package evaluators

import (
	"context"
	"slices"
	"sync"
)

// turns is a semaphore. Jobs that wait for it take turns, so a job with many templates does not delay another job. Its
// methods may be called concurrently.
type turns struct {
	mu      sync.Mutex
	free    int
	next    []job // jobs that wait, the next one first
	waiting map[job][]chan struct{}
}

type job struct{ namespace, id string }

func newTurns(free int) *turns { return &turns{free: free, waiting: make(map[job][]chan struct{})} }

// acquire blocks until it is the turn of the job. It returns the error of ctx. The caller must call release after a success.
func (s *turns) acquire(ctx context.Context, j job) error {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	if s.waiting[j] == nil {
		s.next = append(s.next, j)
	}
	s.waiting[j] = append(s.waiting[j], granted)
	s.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
		s.leave(j, granted)
		return ctx.Err()
	}
}

// leave ends the wait of a caller whose context has ended.
func (s *turns) leave(j job, granted chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[j], granted)
	if i < 0 { // it was granted at the same time
		s.releaseLocked()
		return
	}
	s.waiting[j] = slices.Delete(s.waiting[j], i, i+1)
	if len(s.waiting[j]) == 0 {
		delete(s.waiting, j)
		s.next = slices.DeleteFunc(s.next, func(other job) bool { return other == j })
	}
}

func (s *turns) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

func (s *turns) releaseLocked() {
	if len(s.next) == 0 {
		s.free++
		return
	}
	j := s.next[0]
	s.next = s.next[1:]
	close(s.waiting[j][0])
	if s.waiting[j] = s.waiting[j][1:]; len(s.waiting[j]) > 0 {
		s.next = append(s.next, j)
	} else {
		delete(s.waiting, j)
	}
}
