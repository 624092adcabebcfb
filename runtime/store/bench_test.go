package store

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// reportLatencies adds the median and the 99th percentile of latencies to a benchmark.
func reportLatencies(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// newBenchTaskState is a task's state after a start.
func newBenchTaskState(n int) *api.TaskState {
	return &api.TaskState{State: "running", Restarts: uint64(n), Events: []*api.TaskEvent{
		{Type: "Received", Time: int64(n), DisplayMessage: "Task received by client"},
		{Type: "Task Setup", Time: int64(n), DisplayMessage: "Building Task Directory"},
		{Type: "Started", Time: int64(n), DisplayMessage: "Task started by client"},
	}}
}

// BenchmarkSyncWrite measures a write's lower bound: the time that the disk needs to sync the same bytes, without a store.
func BenchmarkSyncWrite(b *testing.B) {
	payload, err := encodeMsgpack(newBenchTaskState(1))
	if err != nil {
		b.Fatal(err)
	}
	for _, syncs := range []int{1, 2} { // a bbolt commit syncs the file twice
		b.Run(fmt.Sprintf("fdatasync=%d", syncs), func(b *testing.B) {
			f, err := os.Create(tempStatePath(b))
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write(make([]byte, 1<<20)); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
			var latencies []time.Duration
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				start := time.Now()
				for range syncs {
					if _, err := f.WriteAt(payload, 0); err != nil {
						b.Fatal(err)
					}
					if err := unix.Fdatasync(int(f.Fd())); err != nil {
						b.Fatal(err)
					}
				}
				latencies = append(latencies, time.Since(start))
			}
			reportLatencies(b, latencies)
		})
	}
}

func BenchmarkPutTaskState(b *testing.B) {
	for _, writers := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := openStore(b, tempStatePath(b))
			mustUpdate(b, s, func(tx *Txn) {
				for w := range writers {
					tx.PutScheduledAllocation(&api.Allocation{ID: fmt.Sprint(w)})
				}
			})
			took := make([][]time.Duration, writers)
			commits := s.CommitCount()
			b.ResetTimer()
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for i := w; i < b.N; i += writers {
						start := time.Now()
						if err := s.PutTaskState(fmt.Sprint(w), "web", newBenchTaskState(i), state.DurabilitySync)(); err != nil {
							b.Error(err)
						}
						took[w] = append(took[w], time.Since(start))
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
			b.ReportMetric(float64(s.CommitCount()-commits)/b.Elapsed().Seconds(), "commits/s")
			reportLatencies(b, slices.Concat(took...))
		})
	}
}

// fillStore stores n running allocations of one job, with the records of their runners.
func fillStore(b *testing.B, s *Store, n int) {
	job := testJob("web", 0)
	mustUpdate(b, s, func(tx *Txn) {
		tx.PutJobAndVersion(job)
		for i := range n {
			id := fmt.Sprintf("%08x-0000-0000-0000-000000000000", i)
			tx.PutScheduledAllocation(&api.Allocation{
				ID: id, Namespace: "default", JobID: "web", Job: job, NodeID: "n", EvalID: "e", ClientStatus: "running",
				TaskStates:         map[string]*api.TaskState{"web": newBenchTaskState(i)},
				AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"web": {}}},
			})
			state, err := encodeMsgpack(newBenchTaskState(i))
			if err != nil {
				b.Fatal(err)
			}
			tx.putLocalRecordOfKnownAlloc(taskStatesTable, id, id+"\x00web", state, nil)
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	const n = 1000
	s := openStore(b, tempStatePath(b))
	fillStore(b, s, n)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	path := s.file.path
	s = nil
	var memBefore, memAfter runtime.MemStats
	live := func(m *runtime.MemStats) {
		runtime.GC()
		runtime.GC() // the second collection frees each sync.Pool's objects
		runtime.ReadMemStats(m)
	}
	live(&memBefore)
	opened := openStore(b, path)
	live(&memAfter)
	if err := opened.Close(); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := openStore(b, path).Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(memAfter.HeapAlloc-memBefore.HeapAlloc)/n, "heap-B/alloc")
	b.ReportMetric(float64(info.Size())/n, "file-B/alloc")
	runtime.KeepAlive(opened)
}

// BenchmarkEncode measures the writer's time besides waiting for the disk.
func BenchmarkEncode(b *testing.B) {
	alloc := &api.Allocation{ID: "a", Namespace: "default", TaskStates: map[string]*api.TaskState{"web": newBenchTaskState(1)}}
	for name, v := range map[string]any{"job": testJob("web", 0), "allocation": newWrittenAllocationRecord(&allocationRecord{Alloc: alloc}), "task state": newBenchTaskState(1)} {
		payload, err := encodeMsgpack(v)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := encodeMsgpack(v); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(payload)), "bytes")
		})
	}
}
