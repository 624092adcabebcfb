package httpapi

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// reportLatency calls f repeatedly and reports the median and the 99th percentile of its duration.
func reportLatency(b *testing.B, f func(i int) error) {
	b.Helper()
	var callDurations []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		if err := f(i); err != nil {
			b.Fatal(err)
		}
		callDurations = append(callDurations, time.Since(begin))
	}
	slices.Sort(callDurations)
	b.ReportMetric(float64(callDurations[len(callDurations)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(callDurations[len(callDurations)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkJobs uses the public client over the loopback interface.
func BenchmarkJobs(b *testing.B) {
	api := newClientFixture(b, nil)
	for i := range 100 {
		api.registerAndWait(b, newJob(fmt.Sprintf("job-%03d", i), "batch", "app"))
	}
	b.Run("list of 100", func(b *testing.B) {
		reportLatency(b, func(int) error { _, _, err := api.Jobs().List(nil); return err })
	})
	b.Run("info", func(b *testing.B) {
		reportLatency(b, func(int) error { _, _, err := api.Jobs().Info("job-050", nil); return err })
	})
	b.Run("plan", func(b *testing.B) {
		reportLatency(b, func(i int) error {
			_, _, err := api.Jobs().Plan(newJob("job-050", "batch", "app", withEnv(fmt.Sprint(i))), true, nil)
			return err
		})
	})
	b.Run("register unchanged", func(b *testing.B) {
		reportLatency(b, func(int) error { _, _, err := api.Jobs().Register(newJob("job-050", "batch", "app"), nil); return err })
	})
	b.Run("register a new version", func(b *testing.B) {
		reportLatency(b, func(i int) error {
			_, _, err := api.Jobs().Register(newJob("job-050", "batch", "app", withEnv(fmt.Sprint(i))), nil)
			return err
		})
	})
}
