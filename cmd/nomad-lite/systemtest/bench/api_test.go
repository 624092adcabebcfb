package bench

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// BenchmarkAllocationList measures requests for the list of 1,000 allocations. Its baseline is a server that has the compressed
// answer in memory.
func BenchmarkAllocationList(b *testing.B) {
	dir := b.TempDir()
	a := startBenchAgent(b, dir)
	defer a.end(b, syscall.SIGINT)
	count := sized(1000)
	a.run(b, "batch", "ended", count, "/bin/true")
	a.waitStatus(b, "ended", count, api.AllocClientStatusComplete)
	agentSocket := filepath.Join(dir, agentsocket.FileName)
	list := getCompressed(b, agentSocket)
	baselineSocket := filepath.Join(b.TempDir(), "s")
	listener, err := net.Listen("unix", baselineSocket)
	if err != nil {
		b.Fatal(err)
	}
	baseline := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(list) // the client closes the connection if it fails
	})}
	go func() { _ = baseline.Serve(listener) }() // until Close
	defer baseline.Close()
	for b.Loop() {
		var times, baselines []float64
		for range 50 {
			times = append(times, systemtest.Milliseconds(measureTime(b, func() error { getCompressed(b, agentSocket); return nil })))
			baselines = append(baselines, systemtest.Milliseconds(measureTime(b, func() error { getCompressed(b, baselineSocket); return nil })))
		}
		addBenchSample(b, "list", systemtest.Median(times), systemtest.Median(baselines))
	}
}

// getCompressed returns the compressed list of allocations that the server of a socket has, without decompressing it.
func getCompressed(b *testing.B, socket string) []byte {
	b.Helper()
	transport := &http.Transport{
		DisableCompression: true, // else the client decompresses the answer
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://agent/v1/allocations", nil)
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := transport.RoundTrip(request)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.Header.Get("Content-Encoding") != "gzip" {
		b.Fatalf("%v, %v", response.Header, err)
	}
	return body
}

// BenchmarkManyEndedAllocations measures an agent that starts with 10,000 allocations that have ended.
func BenchmarkManyEndedAllocations(b *testing.B) {
	dir := b.TempDir()
	a := startBenchAgent(b, dir)
	count := sized(10_000)
	a.run(b, "batch", "ended", count, "/bin/true")
	a.waitStatus(b, "ended", count, api.AllocClientStatusComplete)
	a.end(b, syscall.SIGINT)
	for b.Loop() {
		empty := startBenchAgent(b, b.TempDir())
		empty.end(b, syscall.SIGINT)
		a = startBenchAgent(b, dir)
		addBenchSample(b, "ended, ready", systemtest.Milliseconds(a.startDuration), systemtest.Milliseconds(empty.startDuration))
		settle(5 * time.Second)
		addBenchSample(b, "ended, memory", float64(systemtest.ReadMemoryKiB(b, a.Process.Pid))/1000*1.024, missingBaselineValue)
		addBenchSample(b, "ended, pauses", a.garbageCollectionPauses(b), missingBaselineValue)
		a.end(b, syscall.SIGINT)
	}
}

// garbageCollectionPauses returns the sum of the pauses of all garbage collections of the agent, in milliseconds.
func (a *benchAgent) garbageCollectionPauses(b *testing.B) float64 {
	b.Helper()
	var metrics struct {
		Gauges []struct {
			Name  string
			Value float64
		}
	}
	if _, err := a.client.Raw().Query("/v1/metrics", &metrics, nil); err != nil {
		b.Fatal(err)
	}
	for _, gauge := range metrics.Gauges {
		if gauge.Name == "nomad.runtime.total_gc_pause_ns" {
			return gauge.Value / 1e6
		}
	}
	b.Fatal("the agent has no metric of its garbage collections")
	return 0
}
