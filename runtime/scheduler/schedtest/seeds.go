package schedtest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// RunSeeds runs simulations with the seeds 1 to n on all processors, until one fails.
func RunSeeds(t *testing.T, n int, simulate func(seed uint64)) {
	var last atomic.Uint64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := last.Add(1); seed <= uint64(n) && !t.Failed(); seed = last.Add(1) {
				simulate(seed)
			}
		})
	}
	workers.Wait()
}
