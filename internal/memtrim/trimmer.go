package memtrim

import (
	"sync"
	"time"
)

// idleDelay is the time without work after which a process is idle.
const idleDelay = time.Second

// Garbage collection percentages, see setGCPercent.
const (
	// idleGCPercent is lower than Go's default of 100, so that garbage is collected earlier: after a burst of starts, a
	// process without work returns most memory.
	idleGCPercent = 25
	// startingGCPercent is for work that allocates many long-lived objects. A higher percentage scatters these over more
	// memory, and with a lower one, garbage collection takes 40 percent of the agent's CPU time while 100 tasks start.
	startingGCPercent = 50
	// busyGCPercent saves CPU time. With idleGCPercent, a third of the agent's CPU time in a loop of restarts was spent
	// in garbage collection, and 40 percent while 100 tasks stop.
	busyGCPercent = 100
)

// Trimmer releases the memory of the process when it becomes idle, and sets the garbage
// collection percentage: the lowest for an idle process, to save memory, and up to Go's default while the process works.
//
// A process that has not collected garbage counts as busy and releases no heap, because the first collection allocates half
// a MB that is never freed. A small process, such as a plugin or the keeper, thus never collects garbage.
type Trimmer struct {
	mu                sync.Mutex
	timer             *time.Timer
	gcPercent         int32    // current percentage; 0 before Start
	originalGCPercent int32    // percentage before Start
	running           bool     // Start was called, and Stop was not
	gcStats           []uint64 // see readGCStats; allocated once
}

// New returns the Trimmer of this process, and starts it.
func New() *Trimmer {
	t := new(Trimmer)
	t.Start()
	return t
}

// Start sets the percentage of an idle process, unless the process has not collected garbage yet. A process has one started
// Trimmer at a time. The caller must call Stop. Start must be called once; before it, the other methods do nothing.
func (t *Trimmer) Start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = true
	t.gcPercent = idleGCPercent
	if !t.hasCollectedGarbage() {
		t.gcPercent = busyGCPercent
	}
	t.originalGCPercent = setGCPercent(t.gcPercent)
	t.timer = time.AfterFunc(idleDelay, t.onIdle)
}

// NotifyBusy reports that the process works. It may be called concurrently, and does nothing
// after Stop.
func (t *Trimmer) NotifyBusy() { t.resetTimer(busyGCPercent) }

// EndBusy reports that the work has ended that NotifyBusy has reported. The garbage collection percentage is that of an idle
// process again, and the release of memory is postponed. It may be called concurrently, and does nothing after Stop.
func (t *Trimmer) EndBusy() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.running {
		return
	}
	t.timer.Reset(idleDelay)
	if t.hasCollectedGarbage() {
		t.setPercentLocked(idleGCPercent)
	}
}

// PostponeTrim reports work that allocates many long-lived objects. It postpones the release of
// memory, and raises a lower garbage collection percentage to startingGCPercent. It may be called
// concurrently, and does nothing after Stop.
func (t *Trimmer) PostponeTrim() { t.resetTimer(startingGCPercent) }

// resetTimer postpones the release of memory, and raises the percentage to minPercent.
func (t *Trimmer) resetTimer(minPercent int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.running {
		return
	}
	t.timer.Reset(idleDelay)
	t.setPercentLocked(max(t.gcPercent, minPercent))
}

func (t *Trimmer) setPercentLocked(percent int32) {
	if percent != t.gcPercent { // setGCPercent stops all goroutines
		t.gcPercent = percent
		setGCPercent(percent)
	}
}

// Stop restores the garbage collection percentage from before Start. It may be called
// twice.
func (t *Trimmer) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.running {
		return
	}
	t.running = false
	t.timer.Stop()
	setGCPercent(t.originalGCPercent)
}

func (t *Trimmer) onIdle() {
	t.mu.Lock()
	if !t.running {
		t.mu.Unlock()
		return
	}
	if !t.hasCollectedGarbage() {
		t.mu.Unlock()
		return
	}
	t.setPercentLocked(idleGCPercent)
	t.mu.Unlock()
	freeOSMemory()
}

// hasCollectedGarbage reports whether the process has collected garbage. It does not call runtime.ReadMemStats, which costs
// as much memory as a first collection: both return the free slots of each size to a list, and each list has 6 KB that are
// never freed.
func (t *Trimmer) hasCollectedGarbage() bool {
	if t.gcStats == nil {
		t.gcStats = make([]uint64, 0, maxGCStats)
	}
	readGCStats(&t.gcStats)
	return t.gcStats[len(t.gcStats)-gcStatsTotals+1] > 0
}
