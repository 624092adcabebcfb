package metrics

import (
	"math"
	"time"

	"github.com/hashicorp/nomad/api"
	dto "github.com/prometheus/client_model/go"
)

// Summary returns families in the format of Nomad's API, under the names of the table. Histograms are
// samples, with their count and sum.
func Summary(families []*dto.MetricFamily, now time.Time) api.MetricsSummary {
	s := api.MetricsSummary{
		Timestamp: now.UTC().Truncate(time.Second).Format("2006-01-02 15:04:05 -0700 MST"),
		Gauges:    []api.GaugeValue{}, Points: []api.PointValue{}, Counters: []api.SampledValue{}, Samples: []api.SampledValue{},
	}
	for _, f := range families {
		name := definitionName(f)
		for _, m := range f.GetMetric() {
			labels := make(map[string]string, len(m.GetLabel()))
			for _, p := range m.GetLabel() {
				labels[p.GetName()] = p.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				v := m.GetCounter().GetValue()
				s.Counters = append(s.Counters, api.SampledValue{
					Name: name, DisplayLabels: labels, Mean: v, AggregateSample: &api.AggregateSample{Count: 1, Sum: v, Min: v, Max: v},
				})
			case dto.MetricType_HISTOGRAM:
				h := m.GetHistogram()
				mean := h.GetSampleSum() / math.Max(1, float64(h.GetSampleCount()))
				s.Samples = append(s.Samples, api.SampledValue{
					Name: name, DisplayLabels: labels, Mean: mean,
					AggregateSample: &api.AggregateSample{Count: int(h.GetSampleCount()), Sum: h.GetSampleSum()},
				})
			default:
				s.Gauges = append(s.Gauges, api.GaugeValue{Name: name, DisplayLabels: labels, Value: float32(m.GetGauge().GetValue())})
			}
		}
	}
	return s
}
