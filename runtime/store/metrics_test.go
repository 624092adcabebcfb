package store

import (
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// instrumentValue returns the value of a counter, or the number of observations of a histogram.
func instrumentValue(t *testing.T, name string) float64 {
	t.Helper()
	s := metrics.NewSet(&metrics.Settings{})
	s.AddInstruments("")
	for _, f := range s.Families() {
		switch {
		case f.GetName() != name || len(f.GetMetric()) != 1:
		case f.GetType() == dto.MetricType_HISTOGRAM:
			return float64(f.GetMetric()[0].GetHistogram().GetSampleCount())
		default:
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

func TestWritesAreCounted(t *testing.T) {
	s := openStore(t, t.TempDir()+"/state.db")
	commits, records := instrumentValue(t, "nomad_lite_store_commit_duration_seconds"), instrumentValue(t, "nomad_lite_store_written_records_total")
	if _, err := s.Update(t.Context(), func(tx *Txn) error {
		tx.PutMeta(state.BootIDName, "a")
		tx.PutMeta(state.EndedAllocPrefix+"b", true)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := instrumentValue(t, "nomad_lite_store_commit_duration_seconds") - commits; n != 1 {
		t.Errorf("%v commits, want 1", n)
	}
	if n := instrumentValue(t, "nomad_lite_store_written_records_total") - records; n != 2 {
		t.Errorf("%v records, want 2", n)
	}
	if s.FileSize() <= 0 {
		t.Errorf("the state file has %d bytes", s.FileSize())
	}
}
