package memtrim

import (
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
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
	defer debug.SetGCPercent(debug.SetGCPercent(77))
	before := gcPercent()
	synctest.Test(t, func(t *testing.T) {
		check := func(when string, want int) {
			t.Helper()
			if got := gcPercent(); got != want {
				t.Errorf("%s the percentage is %d, want %d", when, got, want)
			}
		}
		trimmer := New()
		defer trimmer.Stop()
		check("at first", 25)
		trimmer.PostponeTrim()
		check("after PostponeTrim", 50)
		trimmer.NotifyBusy()
		time.Sleep(idleDelay - time.Millisecond)
		trimmer.PostponeTrim()
		time.Sleep(idleDelay - time.Millisecond)
		check("while the process works", 100)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		check("while the process is idle", 25)
		trimmer.NotifyBusy()
		check("when the process works again", 100)
		trimmer.EndBusy()
		check("after EndBusy", 25)
		trimmer.NotifyBusy()
		trimmer.Stop()
		check("after Stop", before)
		time.Sleep(2 * idleDelay)
		trimmer.NotifyBusy()
		trimmer.EndBusy()
		check("a second after Stop", before)

		busy := New()
		defer busy.Stop()
		busy.NotifyBusy()
		check("at first, of a process that is busy", 100)
		time.Sleep(idleDelay + time.Millisecond)
		synctest.Wait()
		check("when that process is idle", 25)
	})
}

// TestFirstCollectionIsAvoided runs itself in a process that has not collected garbage.
func TestFirstCollectionIsAvoided(t *testing.T) {
	const childEnvVar = "MEMTRIM_TEST_CHILD"
	if os.Getenv(childEnvVar) == "" {
		child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), childEnvVar+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	before := runtimeTablesSize()
	synctest.Test(t, func(t *testing.T) {
		trimmer := New()
		defer trimmer.Stop()
		for _, when := range []string{"at first", "while the process is idle"} {
			if got := gcPercent(); got != busyGCPercent {
				t.Errorf("%s the percentage is %d, want %d", when, got, busyGCPercent)
			}
			time.Sleep(idleDelay + time.Millisecond)
			synctest.Wait()
		}
	})
	if new(Trimmer).hasCollectedGarbage() {
		t.Error("the process has collected garbage")
	}
	defer func() {
		if runtime.GC(); !new(Trimmer).hasCollectedGarbage() {
			t.Error("the process has not collected garbage after runtime.GC")
		}
	}()
	if grown := runtimeTablesSize() - before; grown > 128<<10 { // the first collection and runtime.ReadMemStats add half a MB
		t.Errorf("the tables of the runtime have grown by %d bytes", grown)
	}
}

// runtimeTablesSize returns the size of the tables of the garbage collector and the allocator, in bytes.
func runtimeTablesSize() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/metadata/other:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
