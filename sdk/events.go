package sdk

import (
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// eventBufferSize is the maximum number of undelivered events, and of events in the channel of a listener. The
// oldest event is dropped first, because the driver's last message is the most useful.
const eventBufferSize = 256

// eventBroadcaster sends the driver's events about its tasks to every connected host that listens.
type eventBroadcaster struct {
	mu                sync.Mutex
	undeliveredEvents []*driver.TaskEvent // events sent while no host listened
	listenerChannels  map[chan *driver.TaskEvent]struct{}
}

// broadcast sends an event to all listeners, or buffers it while there are none. It never blocks.
func (e *eventBroadcaster) broadcast(event *driver.TaskEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.listenerChannels) == 0 {
		if len(e.undeliveredEvents) == eventBufferSize {
			e.undeliveredEvents = e.undeliveredEvents[1:]
		}
		e.undeliveredEvents = append(e.undeliveredEvents, event)
		return
	}
	for c := range e.listenerChannels {
		for sent := false; !sent; {
			select {
			case c <- event:
				sent = true
			default:
				select {
				case <-c:
				default:
				}
			}
		}
	}
}

// subscribe returns a channel of events, which is never closed, and a function that ends the subscription.
func (e *eventBroadcaster) subscribe() (events <-chan *driver.TaskEvent, unsubscribe func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := make(chan *driver.TaskEvent, eventBufferSize)
	for _, event := range e.undeliveredEvents {
		c <- event
	}
	e.undeliveredEvents = nil
	if e.listenerChannels == nil {
		e.listenerChannels = map[chan *driver.TaskEvent]struct{}{}
	}
	e.listenerChannels[c] = struct{}{}
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listenerChannels, c)
	}
}
