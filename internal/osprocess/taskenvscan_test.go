//go:build linux

package osprocess

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Each caller gets a scan that started after its call, and all callers together wait for two scans.
func TestConcurrentCallersShareScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scans := 0
		s := newTaskEnvScanner(func() (map[TaskEnvID][]ID, error) {
			scans++
			started := time.Now()
			time.Sleep(time.Second)
			return map[TaskEnvID][]ID{{AllocID: started.String()}: nil}, fmt.Errorf("%d", started.UnixNano())
		})
		var wg sync.WaitGroup
		for i := range 100 {
			time.Sleep(time.Millisecond)
			called := time.Now()
			wg.Go(func() {
				scan := s.scan()
				var started int64
				if _, err := fmt.Sscan(scan.err.Error(), &started); err != nil {
					t.Error(err)
				}
				if started < called.UnixNano() {
					t.Errorf("call %d got a scan that started %v before it", i, called.Sub(time.Unix(0, started)))
				}
			})
		}
		wg.Wait()
		if scans != 2 {
			t.Errorf("%d scans for 100 callers, want 2", scans)
		}
	})
}

func TestTaskWithoutProcessesNeedsOneScan(t *testing.T) {
	scanner := taskEnvScans
	t.Cleanup(func() { taskEnvScans = scanner })
	scans := 0
	taskEnvScans = newTaskEnvScanner(func() (map[TaskEnvID][]ID, error) {
		scans++
		return readTaskEnvs()
	})
	if ended, err := EndLeftovers(t.Context(), newAllocID(), "web"); err != nil || len(ended) > 0 || scans != 1 {
		t.Errorf("ended %v with %d scans, error %v, want one scan", ended, scans, err)
	}
}
