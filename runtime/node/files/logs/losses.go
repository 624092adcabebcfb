package logs

import (
	"fmt"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// lossTracker tracks the streams with output that cannot be written at present. Its methods may be called concurrently. The zero
// value is ready to use.
type lossTracker struct {
	mu           sync.Mutex
	lossByStream map[collectorwire.StreamKey]OutputLoss
}

// recordIfChanged records a stream's latest report, unless it equals the previous one.
func (t *lossTracker) recordIfChanged(k collectorwire.StreamKey, loss OutputLoss) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lossByStream == nil {
		t.lossByStream = make(map[collectorwire.StreamKey]OutputLoss)
	}
	if t.lossByStream[k] == loss {
		return false
	}
	t.lossByStream[k] = loss
	if loss.WritingResumed {
		delete(t.lossByStream, k)
	}
	return true
}

// remove removes an ended stream.
func (t *lossTracker) remove(k collectorwire.StreamKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.lossByStream, k)
}

// clear removes all streams.
func (t *lossTracker) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.lossByStream)
}

// OutputLossErr returns an error if task output cannot be written at present. It names one task and counts the other streams.
func (c *CollectorClient) OutputLossErr() error {
	c.losses.mu.Lock()
	defer c.losses.mu.Unlock()
	for _, loss := range c.losses.lossByStream {
		more := ""
		if n := len(c.losses.lossByStream) - 1; n > 0 {
			more = fmt.Sprintf(", and %d more", n)
		}
		return fmt.Errorf("%s of task %q of allocation %s%s: %s", loss.Stream, loss.Task, loss.AllocID, more, loss.Reason)
	}
	return nil
}
