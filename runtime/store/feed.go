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

// eventFeed holds the events of the latest changes, one slice per change.
type eventFeed struct {
	mu             sync.Mutex
	maxChanges     int
	changes        [][]Event
	eventCount     int           // number of events in changes
	droppedChanges uint64        // number of changes that were removed from the buffer
	added          chan struct{} // closed and replaced by add
}

func newEventFeed(size int) *eventFeed {
	return &eventFeed{maxChanges: size, added: make(chan struct{})}
}

func (f *eventFeed) add(changes [][]Event) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, changes...)
	for _, events := range changes {
		f.eventCount += len(events)
	}
	for f.isOverLimit() {
		f.eventCount -= len(f.changes[0])
		f.changes[0] = nil // release the events: the array is still in use
		f.changes = f.changes[1:]
		f.droppedChanges++
	}
	close(f.added)
	f.added = make(chan struct{})
}

// maxEvents limits the kept events if changes are large: each event may hold the only
// reference to a version of an object.
const maxEvents = 1 << 11

// isOverLimit reports whether the oldest change must be dropped.
func (f *eventFeed) isOverLimit() bool {
	return len(f.changes) > f.maxChanges || f.eventCount > maxEvents && len(f.changes) > 1
}

// Subscription is one reader of the feed. It need not be closed.
type Subscription struct {
	feed       *eventFeed
	nextChange uint64 // number of the next change, counted from the first of this process
}

// Subscribe returns a reader of the events, which starts at the oldest kept change whose
// index is at least from; 0 starts at the oldest kept change.
func (s *Store) Subscribe(from uint64) *Subscription {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.droppedChanges
	for _, events := range f.changes {
		if events[0].Index >= from {
			break
		}
		next++
	}
	return &Subscription{feed: f, nextChange: next}
}

// Next blocks until there is a next change, and returns its events, at least one, which
// have the same index. After [ErrLagged] it continues with the oldest kept change. It must
// not be called concurrently.
func (s *Subscription) Next(ctx context.Context) ([]Event, error) {
	for {
		s.feed.mu.Lock()
		if s.nextChange < s.feed.droppedChanges {
			s.nextChange = s.feed.droppedChanges
			s.feed.mu.Unlock()
			return nil, ErrLagged
		}
		if i := s.nextChange - s.feed.droppedChanges; i < uint64(len(s.feed.changes)) {
			events := s.feed.changes[i]
			s.nextChange++
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
