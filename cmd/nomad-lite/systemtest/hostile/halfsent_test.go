package hostile

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/programs"
	"github.com/nomad-lite/nomad-lite/internal/racedetector"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// processMemory returns the value of a line of /proc/PID/status, in bytes.
func processMemory(t testing.TB, pid int, line string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(line + `:\s*(\d+) kB`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no %s in %s", line, text)
	}
	kib, _ := strconv.Atoi(string(found[1]))
	return kib << 10
}

// 1,000 incomplete requests of a client without a token do not fill the memory of the agent, and do
// not block other clients, whether they come from one address or from ten.
func TestHalfSentRequests(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("sends thousands of requests")
	}
	if racedetector.Enabled {
		t.Skip("measures memory, of which the race detector takes most")
	}
	const maxMemoryGrowth = 64 << 20
	agents := map[bool]*systemtest.TokenProtectedAgent{}
	for _, kind := range slices.Sorted(maps.Keys(programs.PartialRequestByKind())) {
		secure := kind == systemtest.PartialTLSHandshake
		if agents[secure] == nil {
			agents[secure] = systemtest.StartTokenProtectedAgent(t, secure)
		}
		g := agents[secure]
		for _, sources := range []int{1, 10} {
			if sources == 1 && kind != "half of a header" {
				continue // an attack from one address is weaker, because the agent serves only 100 connections of an address
			}
			t.Run(fmt.Sprintf("%s from %d addresses", kind, sources), func(t *testing.T) {
				if sources == 1 || kind != "half of a header" && !secure {
					slowtest.Skip(t, "attacks for more than a second, like the other subtests")
				}
				before := processMemory(t, g.PID, "VmRSS")
				// A write of 5 to clear_refs resets the peak memory (VmHWM) of the agent.
				if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", g.PID), []byte("5"), 0); err != nil {
					t.Fatal(err)
				}
				end := systemtest.StartSlowlorisAttack(t, kind, g.Address, sources)
				defer end()
				for range 2 {
					ctx, cancel := context.WithTimeout(t.Context(), systemtest.WaitTimeout)
					for _, from := range []net.IP{nil, systemtest.SecondLoopbackIP} {
						if _, err := systemtest.MeasureHealthRequest(ctx, g.SocketPath, g.Address, from, g.UsesTLS); err != nil {
							t.Errorf("the agent does not answer (from %v): %v", from, err)
						}
					}
					cancel()
					time.Sleep(500 * time.Millisecond)
				}
				grown := processMemory(t, g.PID, "VmHWM") - before
				t.Logf("before %d MB, grown by %.1f MB", before>>20, float64(grown)/(1<<20))
				if grown > maxMemoryGrowth {
					t.Errorf("the agent has grown by %d bytes, want at most %d", grown, maxMemoryGrowth)
				}
			})
		}
	}
}
