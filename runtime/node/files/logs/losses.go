package logs

import (
	"fmt"
	"sync"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// LossTracker tracks the streams with output that cannot be written at present. Its methods may be called concurrently.
type LossTracker struct {
	mu           sync.Mutex
	lossByStream map[collectorwire.StreamKey]OutputLoss
	handle       func(OutputLoss)                       // see Handle
	unhandled    map[collectorwire.StreamKey]OutputLoss // each stream's last change before Handle
}

// Losses returns what tracks the streams with output that cannot be written at present.
func (c *CollectorClient) Losses() *LossTracker { return c.losses }

// Handle makes the tracker call handle when a task's output cannot be written, and again when it can be written: before Stop
// returns for the task, and at once with each stream's last change before Handle. handle must return soon, and must not call the
// tracker; nil means that nobody is told any more.
func (t *LossTracker) Handle(handle func(OutputLoss)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handle = handle
	if handle == nil {
		return
	}
	for _, loss := range t.unhandled {
		handle(loss)
	}
	clear(t.unhandled)
}

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

// record records a stream's latest report. If it differs from the previous one, record tells the function of Handle.
func (t *LossTracker) record(k collectorwire.StreamKey, loss OutputLoss) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lossByStream[k] == loss {
		return false
	}
	t.lossByStream[k] = loss
	if loss.WritingResumed {
		delete(t.lossByStream, k)
	}
	if t.handle != nil {
		t.handle(loss)
	} else {
		t.unhandled[k] = loss
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
