package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// BenchmarkEventStream measures how many events of allocations each of several clients receives per second. Its floor is a plain
// net/http handler that writes the same lines.
func BenchmarkEventStream(b *testing.B) {
	const allocs, changes = 100, 10 // the feed of the store has room for both
	f := newClientFixture(b, nil)
	f.registerAndWait(b, newJob("web", "batch", "app"))
	var ids []string
	for range allocs {
		ids = append(ids, f.putAlloc(b, "web"))
	}
	restarts := uint64(0)
	change := func(b *testing.B) (last uint64) {
		for range changes {
			restarts++
			index, err := f.store.Update(b.Context(), func(tx *store.Txn) error {
				for _, id := range ids {
					next := *tx.Allocation(nil, id)
					next.TaskStates = map[string]*api.TaskState{"t": {State: "running", Restarts: restarts, StartedAt: time.Now()}}
					tx.PutReportedAllocation(&next)
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			last = index
		}
		return last
	}
	server := httptest.NewServer(f)
	defer server.Close()
	from := f.store.Snapshot().Index() + 1
	last := change(b)
	lines := receiveEventLines(b, fmt.Sprintf("%s/v1/event/stream?index=%d", server.URL, from), last)
	floor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, line := range lines {
			_, _ = io.WriteString(w, line+"\n")
			_ = http.NewResponseController(w).Flush()
		}
	}))
	defer floor.Close()
	for _, clients := range []int{1, 50} {
		for _, from := range []string{"", ", floor"} {
			b.Run(fmt.Sprintf("%d clients%s", clients, from), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					url, end := floor.URL, last
					if from == "" {
						url = fmt.Sprintf("%s/v1/event/stream?index=%d", server.URL, f.store.Snapshot().Index()+1)
						end = change(b)
					}
					b.StartTimer()
					var received sync.WaitGroup
					for range clients {
						received.Go(func() { receiveEventLines(b, url, end) })
					}
					received.Wait()
				}
				b.ReportMetric(float64(b.N*allocs*changes)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

// receiveEventLines returns the lines of an event stream up to the one with an index.
func receiveEventLines(b *testing.B, url string, last uint64) (lines []string) {
	response, err := http.Get(url)
	if err != nil {
		b.Error(err)
		return nil
	}
	defer response.Body.Close()
	scanner := bufio.NewScanner(response.Body)
	scanner.Buffer(nil, 1<<20)
	end := fmt.Sprintf(`"Index":%d`, last)
	for scanner.Scan() {
		line := scanner.Text()
		lines = append(lines, line)
		if strings.Contains(line, end) {
			return lines
		}
	}
	b.Error("the stream has ended: ", scanner.Err())
	return lines
}
