package store

import (
	"context"
	"errors"
	"sync"

	"github.com/hashicorp/nomad/api"
)

// Event is one object change.
type Event struct {
	Index      uint64
	Topic      api.Topic
	Type       string // Type is the operation that changed the object, see [Txn.SetEventOperation]
	Key        string
	Namespace  string // Namespace is empty for a node
	FilterKeys []string
	Deleted    bool
	Object     any // Object is a *api.Job, *api.Evaluation … shared with other readers. If Deleted is set, it is the object's last version.
}

// ErrLagged: the feed has dropped changes before a slow subscriber has read them.
var ErrLagged = errors.New("subscriber has missed events")

// eventFeed holds the events of the latest changes, one slice per change.
type eventFeed struct {
	mu                 sync.Mutex
	maxChanges         int
	eventsByChange     [][]Event
	eventCount         int           // event count in eventsByChange
	droppedChangeCount uint64        // how many changes were removed from the feed
	eventsAdded        chan struct{} // closed and replaced when a change is added
}

func newEventFeed(maxChanges int) *eventFeed {
	return &eventFeed{maxChanges: maxChanges, eventsAdded: make(chan struct{})}
}

func (f *eventFeed) addChanges(changes [][]Event) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eventsByChange = append(f.eventsByChange, changes...)
	for _, events := range changes {
		f.eventCount += len(events)
	}
	for f.mustDropOldestChange() {
		f.eventCount -= len(f.eventsByChange[0])
		f.eventsByChange[0] = nil // otherwise the array, which stays in use, would keep the events in memory
		f.eventsByChange = f.eventsByChange[1:]
		f.droppedChangeCount++
	}
	close(f.eventsAdded)
	f.eventsAdded = make(chan struct{})
}

// maxEventsPerChange is how many events the feed keeps at most, for each of maxChanges, if it has more than one change. It limits
// memory: an event may hold the only reference to an object's old version.
const maxEventsPerChange = 20

// mustDropOldestChange reports whether the feed has more than maxChanges changes, or too many events.
func (f *eventFeed) mustDropOldestChange() bool {
	return len(f.eventsByChange) > f.maxChanges || f.eventCount > f.maxChanges*maxEventsPerChange && len(f.eventsByChange) > 1
}

// Subscription is one reader's position in the event feed. It need not be closed.
type Subscription struct {
	feed             *eventFeed
	nextChangeNumber uint64 // number of the next change to read; this process's first change has number 0
}

// Subscribe returns an event reader that starts at the oldest kept change with an index of at least fromIndex; 0 starts at the
// oldest kept change.
func (s *Store) Subscribe(fromIndex uint64) *Subscription {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.droppedChangeCount
	for _, events := range f.eventsByChange {
		if events[0].Index >= fromIndex {
			break
		}
		next++
	}
	return &Subscription{feed: f, nextChangeNumber: next}
}

// SubscribeLatest returns an event reader. It starts with the last kept changes that have at most maxEvents events together;
// with the last change if it has more.
func (s *Store) SubscribeLatest(maxEvents int) *Subscription {
	f := s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	first, count := len(f.eventsByChange), 0
	for first > 0 {
		count += len(f.eventsByChange[first-1])
		if count > maxEvents && first < len(f.eventsByChange) {
			break
		}
		first--
	}
	return &Subscription{feed: f, nextChangeNumber: f.droppedChangeCount + uint64(first)}
}

// Next blocks until the feed has a change that this Subscription has not returned, and returns the events of the change: at
// least one, all with the same index. After [ErrLagged], Next continues with the oldest change in the feed. Next must not
// be called concurrently.
func (s *Subscription) Next(ctx context.Context) ([]Event, error) {
	for {
		s.feed.mu.Lock()
		if s.nextChangeNumber < s.feed.droppedChangeCount {
			s.nextChangeNumber = s.feed.droppedChangeCount
			s.feed.mu.Unlock()
			return nil, ErrLagged
		}
		if i := s.nextChangeNumber - s.feed.droppedChangeCount; i < uint64(len(s.feed.eventsByChange)) {
			events := s.feed.eventsByChange[i]
			s.nextChangeNumber++
			s.feed.mu.Unlock()
			return events, nil
		}
		added := s.feed.eventsAdded
		s.feed.mu.Unlock()
		select {
		case <-added:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
