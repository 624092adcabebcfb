package logs

import (
	"fmt"
	"sync"
)

// lossTracker tracks the streams whose output cannot be written at present. Its methods may be called concurrently. The
// zero value is ready to use.
type lossTracker struct {
	mu     sync.Mutex
	losses map[streamKey]OutputLoss
}

// recordIfChanged records the latest report of a stream. It returns false if it is equal to the previous report.
func (t *lossTracker) recordIfChanged(k streamKey, loss OutputLoss) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.losses == nil {
		t.losses = make(map[streamKey]OutputLoss)
	}
	if t.losses[k] == loss {
		return false
	}
	t.losses[k] = loss
	if loss.WritingResumed {
		delete(t.losses, k)
	}
	return true
}

// remove removes a stream that has ended.
func (t *lossTracker) remove(k streamKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.losses, k)
}

// clear removes all streams.
func (t *lossTracker) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.losses)
}

// OutputLossErr returns an error if output of tasks cannot be written at present.
func (c *Collector) OutputLossErr() error {
	c.losses.mu.Lock()
	defer c.losses.mu.Unlock()
	for _, loss := range c.losses.losses {
		return fmt.Errorf("output of tasks is lost (%d streams): %s", len(c.losses.losses), loss.Reason)
	}
	return nil
}
