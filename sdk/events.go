package sdk

import (
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// eventBuffer is the maximum number of events that wait for a host. The oldest event is
// dropped first, because the driver's last message is the most useful.
const eventBuffer = 256

// events sends drivers' events about their tasks to every listening host.
type events struct {
	mu        sync.Mutex
	unheard   []*driver.TaskEvent // events sent while no host listened
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

// listen returns a channel of events, which is never closed, and a function that stops
// it.
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
