package store

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// Event says that an object has changed.
type Event struct {
	Index      uint64
	Topic      api.Topic
	Type       string // the operation: see [Txn.Operation]
	Key        string
	Namespace  string // empty for a node
	FilterKeys []string
	Deleted    bool
	Object     any // *api.Job, *api.Evaluation …, shared; the last one if Deleted
}

// ErrLagged means that a subscriber was so slow that changes were dropped which
// it had not seen.
var ErrLagged = errors.New("subscriber has missed events")

// feed holds the events of the last changes, one slice for each.
type feed struct {
	mu      sync.Mutex
	size    int
	changes [][]Event
	events  int           // in changes
	dropped uint64        // how many changes have left the buffer
	grown   chan struct{} // closed by add
}

func newFeed(size int) *feed {
	return &feed{size: size, grown: make(chan struct{})}
}

func (f *feed) add(changes [][]Event) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, changes...)
	for _, events := range changes {
		f.events += len(events)
	}
	for f.tooMany() {
		f.events -= len(f.changes[0])
		f.changes[0] = nil // the array lives on for a while
		f.changes = f.changes[1:]
		f.dropped++
	}
	close(f.grown)
	f.grown = make(chan struct{})
}

// maxEvents is how many events are kept if the changes are large: each holds on to a
// version of an object that nobody else may have any more.
const maxEvents = 1 << 11

// tooMany reports whether the oldest change has to go.
func (f *feed) tooMany() bool {
	return len(f.changes) > f.size || f.events > maxEvents && len(f.changes) > 1
}

// Subscription is one reader of the feed. It needs no end.
type Subscription struct {
	feed *feed
	next uint64 // number of the next change, counted from the first of this process
}

// Subscribe returns a reader of the events, from the oldest change that is kept
// whose index is at least from. With 0 it begins with the oldest of all.
func (s *Store) Subscribe(from uint64) *Subscription {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.dropped
	for _, events := range f.changes {
		if events[0].Index >= from {
			break
		}
		next++
	}
	return &Subscription{feed: f, next: next}
}

// Next returns the events of the next change, at least one, which all have the
// same index. It waits for them. After [ErrLagged] it goes on with the oldest
// change that is kept. It must not be called concurrently.
func (s *Subscription) Next(ctx context.Context) ([]Event, error) {
	for {
		s.feed.mu.Lock()
		if s.next < s.feed.dropped {
			s.next = s.feed.dropped
			s.feed.mu.Unlock()
			return nil, ErrLagged
		}
		if i := s.next - s.feed.dropped; i < uint64(len(s.feed.changes)) {
			events := s.feed.changes[i]
			s.next++
			s.feed.mu.Unlock()
			return events, nil
		}
		grown := s.feed.grown
		s.feed.mu.Unlock()
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
