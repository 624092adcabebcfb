package logs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// If an agent runs out of descriptors while it connects to the log collector, it neither stops nor
// replaces it.
func TestAgentWithoutDescriptorsKeepsCollector(t *testing.T) {
	s := newFixture(t, Config{})
	stdout, _ := s.startTask(StreamLimits{MaxFiles: 3, MaxFileBytes: 1 << 20})
	out := s.openFIFO(stdout)
	s.writeText(out, "a\n")
	s.awaitOutput(Stdout, "a\n")
	p := s.collector.LastProcess()
	failed, connected := 0, 0
	for free := range 16 {
		restore := processtest.LimitDescriptors(t, free)
		l, err := s.collector.connectAndHandOverStreams(t.Context(), true)
		restore()
		switch {
		case err == nil:
			connected++
			if l.process != p {
				t.Errorf("%d descriptors: connected to %v, want %v", free, l.process, p)
			}
			l.close()
		case osprocess.IsResourceExhausted(err):
			failed++
		default:
			t.Errorf("%d descriptors: %v, want an error of the descriptors", free, err)
		}
		if !p.Alive() {
			t.Fatalf("%d descriptors: the collector was ended", free)
		}
	}
	if failed == 0 || connected == 0 {
		t.Errorf("%d attempts failed, %d succeeded: the test proves nothing", failed, connected)
	}
	s.writeText(out, "b\n")
	s.awaitOutput(Stdout, "a\nb\n")

	// The lack of descriptors may also become visible in other steps than the dial.
	if err := os.Remove(filepath.Join(helperdir.SocketDir(s.runDir), collectorwire.SocketName)); err != nil {
		t.Fatal(err)
	}
	restore := processtest.LimitDescriptors(t, 0)
	_, err := s.collector.connectAndHandOverStreams(t.Context(), true)
	restore()
	if !osprocess.IsResourceExhausted(err) || !p.Alive() {
		t.Errorf("without a socket and a descriptor: %v, the collector runs: %v", err, p.Alive())
	}
}
