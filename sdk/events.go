package sdk

import (
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// eventBuffer is how many events wait for a host that does not listen. The
// oldest go first: what a driver said last is what a user needs.
const eventBuffer = 256

// events hands what drivers say about their tasks to every listening host.
type events struct {
	mu        sync.Mutex
	unheard   []*driver.TaskEvent // said while nobody listened
	listeners map[chan *driver.TaskEvent]struct{}
}

// send never blocks.
func (e *events) send(event *driver.TaskEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.listeners) == 0 {
		if len(e.unheard) == eventBuffer {
			e.unheard = e.unheard[1:]
		}
		e.unheard = append(e.unheard, event)
		return
	}
	for c := range e.listeners {
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

// listen returns a channel of events, which nobody closes, and how to stop.
func (e *events) listen() (<-chan *driver.TaskEvent, func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := make(chan *driver.TaskEvent, eventBuffer)
	for _, event := range e.unheard {
		c <- event
	}
	e.unheard = nil
	if e.listeners == nil {
		e.listeners = map[chan *driver.TaskEvent]struct{}{}
	}
	e.listeners[c] = struct{}{}
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, c)
	}
}
