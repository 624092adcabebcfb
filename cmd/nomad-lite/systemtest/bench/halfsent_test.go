package bench

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
)

// BenchmarkHealthUnderAttack measures a health request over a new connection while another user has
// 1,000 incomplete requests open, of the kind that delays it most.
func BenchmarkHealthUnderAttack(b *testing.B) {
	a := startBenchAgent(b, b.TempDir())
	defer a.end(b, syscall.SIGINT)
	self, err := a.client.Agent().Self()
	if err != nil {
		b.Fatal(err)
	}
	advertised, _ := self.Config["AdvertiseAddrs"].(map[string]any)
	address, _ := advertised["HTTP"].(string)
	ask := func(from net.IP) float64 {
		took, err := systemtest.MeasureHealthRequest(b.Context(), filepath.Join(a.dir, agentsocket.FileName), address, from, false)
		if err != nil {
			b.Fatal(err)
		}
		return systemtest.Milliseconds(took)
	}
	worst := func(from net.IP) (most float64) {
		for range 50 {
			most = max(most, ask(from))
		}
		return most
	}
	for b.Loop() {
		var socketLatency, secondAddressLatency, socketBaseline, secondAddressBaseline float64
		for kind := range programs.PartialRequestByKind() {
			if kind == systemtest.PartialTLSHandshake {
				continue
			}
			socketBaseline, secondAddressBaseline = max(socketBaseline, worst(nil)), max(secondAddressBaseline, worst(systemtest.SecondLoopbackIP))
			end := systemtest.StartSlowlorisAttack(b, kind, address, 10)
			socketLatency, secondAddressLatency = max(socketLatency, worst(nil)), max(secondAddressLatency, worst(systemtest.SecondLoopbackIP))
			end()
		}
		addBenchSample(b, "health, socket", socketLatency, socketBaseline)
		addBenchSample(b, "health, second address", secondAddressLatency, secondAddressBaseline)
	}
}
