package memtrim

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// idleDelay is the time without work after which a process is idle.
const idleDelay = time.Second

// Trimmer releases the memory of the process when it becomes idle, and sets the garbage
// collection percentage (see debug.SetGCPercent): a low percentage for an idle process, to
// save memory, and a higher one while the process works, because with a small heap a low
// percentage costs a third of the CPU time.
type Trimmer struct {
	idleGCPercent, busyGCPercent int

	mu                sync.Mutex
	timer             *time.Timer
	isBusy            bool
	originalGCPercent int // percentage before New
	stopped           bool
}

// New returns the Trimmer of a process that has just started, and sets the percentage
// for an idle process. A process has one Trimmer at a time. The caller must call Stop.
func New(idleGCPercent, busyGCPercent int) *Trimmer {
	t := &Trimmer{idleGCPercent: idleGCPercent, busyGCPercent: busyGCPercent}
	t.originalGCPercent = debug.SetGCPercent(idleGCPercent)
	t.timer = time.AfterFunc(idleDelay, t.onIdle)
	return t
}

// NotifyBusy reports that the process works. It may be called concurrently, and does nothing
// after Stop.
func (t *Trimmer) NotifyBusy() { t.resetTimer(true) }

// PostponeTrim reports work that allocates many long-lived objects. It postpones the release of
// memory. It keeps the garbage collection percentage low, because with a higher percentage the
// objects would be scattered over more memory. It may be called concurrently, and does nothing
// after Stop.
func (t *Trimmer) PostponeTrim() { t.resetTimer(false) }

func (t *Trimmer) resetTimer(busy bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	t.timer.Reset(idleDelay)
	if busy && !t.isBusy {
		t.isBusy = true
		debug.SetGCPercent(t.busyGCPercent)
	}
}

// Stop restores the garbage collection percentage from before New. It may be called
// twice.
func (t *Trimmer) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	t.stopped = true
	t.timer.Stop()
	debug.SetGCPercent(t.originalGCPercent)
}

func (t *Trimmer) onIdle() {
	t.mu.Lock()
	if t.stopped {
		t.mu.Unlock()
		return
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	if !collectionSavesMemory(&stats) {
		t.mu.Unlock()
		releaseProgramPages()
		return
	}
	t.isBusy = false
	debug.SetGCPercent(t.idleGCPercent)
	t.mu.Unlock()
	ReleaseMemory()
}

// collectionSavesMemory reports whether a garbage collection is worth its memory. The first collection of a process
// allocates about half a MB for itself, which is never freed. While the heap of such a process is below its goal, it also
// keeps the percentage of a busy process, because a low percentage starts the first collection early.
func collectionSavesMemory(stats *runtime.MemStats) bool {
	return stats.NumGC > 0 || stats.HeapAlloc >= stats.NextGC
}
