package exec

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// BenchmarkStart measures the start, and the whole life, of a program that exits at once: isolated and,
// as the floor, without isolation.
func BenchmarkStart(b *testing.B) {
	for name, start := range map[string]func(*sdk.StartRequest) (sdk.Task, error){
		"isolated": func(s *sdk.StartRequest) (sdk.Task, error) { return new(Driver).Start(b.Context(), s) },
		"plain": func(s *sdk.StartRequest) (sdk.Task, error) {
			return process.Start(b.Context(), s, process.Command{Path: "/bin/true"})
		},
	} {
		b.Run(name, func(b *testing.B) {
			s := newStartRequest(b, map[string]any{"command": "/bin/true"})
			var starts []float64
			for b.Loop() {
				began := time.Now()
				task, err := start(s)
				if err != nil {
					b.Fatal(err)
				}
				starts = append(starts, float64(time.Since(began).Microseconds()))
				if _, err := task.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				if err := task.(sdk.Destroyer).Destroy(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(starts)
			b.ReportMetric(starts[len(starts)/2], "start-us")
		})
	}
}
