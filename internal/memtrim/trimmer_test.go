package memtrim

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

func gcPercent() int {
	p := debug.SetGCPercent(100)
	debug.SetGCPercent(p)
	return p
}

func TestTrimmerSetsPercentage(t *testing.T) {
	runtime.GC() // before the first collection the percentage stays high
	before := gcPercent()
	synctest.Test(t, func(t *testing.T) {
		check := func(when string, want int) {
			t.Helper()
			if got := gcPercent(); got != want {
				t.Errorf("%s the percentage is %d, want %d", when, got, want)
			}
		}
		trimmer := New(25, 300)
		defer trimmer.Stop()
		check("at first", 25)
		trimmer.PostponeTrim()
		check("after Postpone", 25)
		trimmer.NotifyBusy()
		time.Sleep(idleDelay - time.Millisecond)
		trimmer.PostponeTrim()
		time.Sleep(idleDelay - time.Millisecond)
		check("while the process works", 300)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		check("while the process is idle", 25)
		trimmer.NotifyBusy()
		check("when the process works again", 300)
		trimmer.Stop()
		check("after Stop", before)
		time.Sleep(2 * idleDelay)
		trimmer.NotifyBusy()
		check("a second after Stop", before)

		busy := New(25, 300)
		defer busy.Stop()
		busy.NotifyBusy()
		check("at first, of a process that is busy", 300)
		time.Sleep(idleDelay + time.Millisecond)
		synctest.Wait()
		check("when that process is idle", 25)
	})
}

func TestFirstCollectionWaitsForTheHeapGoal(t *testing.T) {
	for _, test := range []struct {
		name  string
		stats runtime.MemStats
		want  bool
	}{
		{"a small heap before the first collection", runtime.MemStats{HeapAlloc: 1 << 20, NextGC: 2 << 20}, false},
		{"a heap above its goal", runtime.MemStats{HeapAlloc: 3 << 20, NextGC: 2 << 20}, true},
		{"after a collection", runtime.MemStats{HeapAlloc: 1 << 20, NextGC: 2 << 20, NumGC: 1}, true},
	} {
		if got := collectionSavesMemory(&test.stats); got != test.want {
			t.Errorf("%s: a collection saves memory: %t, want %t", test.name, got, test.want)
		}
	}
}
