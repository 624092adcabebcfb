package schedtest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// RunWithSeeds runs simulations with the seeds 1 to n on all processors, until one fails.
func RunWithSeeds(t *testing.T, n int, simulate func(seed uint64)) {
	var lastSeed atomic.Uint64
	var workersWG sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workersWG.Go(func() {
			for seed := lastSeed.Add(1); seed <= uint64(n) && !t.Failed(); seed = lastSeed.Add(1) {
				simulate(seed)
			}
		})
	}
	workersWG.Wait()
}
