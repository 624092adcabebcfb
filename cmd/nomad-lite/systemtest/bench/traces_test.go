package bench

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp/otlptest"
)

// BenchmarkTraces measures how long 100 allocations take to complete: without a collector, with a collector, and with a
// collector that does not answer.
func BenchmarkTraces(b *testing.B) {
	count := sized(100)
	for _, bench := range []struct{ name, endpoint string }{
		{"none", ""}, {"collector", otlptest.NewHTTP(b, nil).URL}, {"silent", otlptest.NewHanging(b).URL},
	} {
		b.Run(bench.name, func(b *testing.B) {
			settings := ""
			if bench.endpoint != "" {
				settings = fmt.Sprintf("telemetry {\n otlp {\n endpoint = %q\n }\n}\n", bench.endpoint)
			}
			a := startBenchAgent(b, b.TempDir(), settings)
			defer a.end(b, syscall.SIGINT)
			round := 0
			for b.Loop() {
				round++
				id := fmt.Sprint("true-", round)
				a.run(b, "batch", id, count, "/bin/true")
				a.waitStatus(b, id, count, api.AllocClientStatusComplete)
			}
		})
	}
}
