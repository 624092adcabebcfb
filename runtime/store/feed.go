package store

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// Event reports a change of an object.
type Event struct {
	Index      uint64
	Topic      api.Topic
	Type       string // Type is the operation: see [Txn.Operation]
	Key        string
	Namespace  string // Namespace is empty for a node
	FilterKeys []string
	Deleted    bool
	Object     any // Object is shared: a *api.Job, *api.Evaluation …; if Deleted, the last version
}

// ErrLagged means that changes were dropped from the feed before a slow subscriber read
// them.
var ErrLagged = errors.New("subscriber has missed events")

// feed holds the events of the latest changes, one slice per change.
type feed struct {
	mu      sync.Mutex
	size    int
	changes [][]Event
	events  int           // events is the number of events in changes
	dropped uint64        // dropped is the number of changes that were removed from the buffer
	added   chan struct{} // grown is closed by add
}

func newFeed(size int) *feed {
	return &feed{size: size, added: make(chan struct{})}
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
		f.changes[0] = nil // release the events: the array is still in use
		f.changes = f.changes[1:]
		f.dropped++
	}
	close(f.added)
	f.added = make(chan struct{})
}

// maxEvents limits the kept events if changes are large: each event may hold the only
// reference to a version of an object.
const maxEvents = 1 << 11

// tooMany reports whether the oldest change must be dropped.
func (f *feed) tooMany() bool {
	return len(f.changes) > f.size || f.events > maxEvents && len(f.changes) > 1
}

// Subscription is one reader of the feed. It need not be closed.
type Subscription struct {
	feed *feed
	next uint64 // number of the next change, counted from the first of this process
}

// Subscribe returns a reader of the events, which starts at the oldest kept change whose
// index is at least from; 0 starts at the oldest kept change.
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

// Next blocks until there is a next change, and returns its events, at least one, which
// have the same index. After [ErrLagged] it continues with the oldest kept change. It must
// not be called concurrently.
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
		added := s.feed.added
		s.feed.mu.Unlock()
		select {
		case <-added:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
