package memtrim

import (
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
	})
}
