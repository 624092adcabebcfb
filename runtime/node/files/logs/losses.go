package logs

import (
	"fmt"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// maxWaitingLosses is the capacity of the LossTracker.Changed channel.
const maxWaitingLosses = 256

// LossTracker tracks the streams with output that cannot be written at present. Its methods may be called concurrently.
type LossTracker struct {
	changed chan OutputLoss

	mu           sync.Mutex
	lossByStream map[collectorwire.StreamKey]OutputLoss
}

// Losses returns what tracks the streams with output that cannot be written at present.
func (c *CollectorClient) Losses() *LossTracker { return c.losses }

// Changed returns a channel that receives a value when a task's output cannot be written, and again when it can be written.
// Values that nobody receives wait for the receiver; if maxWaitingLosses wait, further values are only in the log.
func (t *LossTracker) Changed() <-chan OutputLoss { return t.changed }

// Err returns an error if task output cannot be written at present. It names one task and counts the other streams.
func (t *LossTracker) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, loss := range t.lossByStream {
		more := ""
		if n := len(t.lossByStream) - 1; n > 0 {
			more = fmt.Sprintf(", and %d more", n)
		}
		return fmt.Errorf("%s of task %q of allocation %s%s: %s", loss.Stream, loss.Task, loss.AllocID, more, loss.Reason)
	}
	return nil
}

// record records a stream's latest report. If it differs from the previous one, record sends it to the channel of Changed.
func (t *LossTracker) record(k collectorwire.StreamKey, loss OutputLoss) (changed bool) {
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
	select {
	case t.changed <- loss:
	default:
	}
	return true
}

// remove removes an ended stream.
func (t *LossTracker) remove(k collectorwire.StreamKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.lossByStream, k)
}

// clear removes all streams.
func (t *LossTracker) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.lossByStream)
}
