package metrics

import (
	"cmp"
	"math"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// Labels are the labels of a value, sorted by name. Values can share them.
type Labels []*dto.LabelPair

// maxLabelValue is the maximum length of a label's value in bytes: jobs choose the values.
const maxLabelValue = 256

// NewLabels returns labels from names and values in turn. The values can have any content.
func NewLabels(namesAndValues ...string) Labels {
	var labels Labels
	return labels.With(namesAndValues...)
}

// With returns the labels and further labels, which must have other names.
func (l Labels) With(namesAndValues ...string) Labels {
	all := make(Labels, len(l), len(l)+len(namesAndValues)/2)
	copy(all, l)
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		value := namesAndValues[i+1]
		if len(value) > maxLabelValue {
			value = value[:maxLabelValue]
		}
		value = strings.ToValidUTF8(value, "?")
		all = append(all, &dto.LabelPair{Name: &namesAndValues[i], Value: &value})
	}
	slices.SortFunc(all, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// withoutLabel returns the labels without the label of a name.
func (l Labels) withoutLabel(name string) Labels {
	return slices.DeleteFunc(slices.Clone(l), func(p *dto.LabelPair) bool { return p.GetName() == name })
}

// Set collects the values of all metrics at one time. It is not for concurrent use.
type Set struct {
	settings     *Settings
	familyByName map[string]*dto.MetricFamily // keys are Definition.Name
	seenSeries   map[string]bool              // results of seriesKey for the values that were added
}

// NewSet returns an empty set for the metrics that the settings select.
func NewSet(s *Settings) *Set {
	return &Set{settings: s, familyByName: make(map[string]*dto.MetricFamily), seenSeries: make(map[string]bool)}
}

// AddInstruments adds the instruments of the process. The label host, if an instrument has it, gets the value host.
func (s *Set) AddInstruments(host string) {
	for _, f := range gatherInstruments() {
		d := byPrometheusName()[f.GetName()]
		if !s.settings.selects(d) {
			continue
		}
		if !s.settings.OmitHost && slices.Contains(d.Labels, hostLabelName) {
			for _, m := range f.GetMetric() {
				m.Label = Labels(m.Label).With(hostLabelName, host)
			}
		}
		s.familyByName[d.Name] = f
	}
}

// Add adds a value of a metric, which must be a gauge or a counter of the table. It ignores values that are
// not finite, and further values with the same labels.
func (s *Set) Add(name string, value float64, labels Labels) {
	d := byName()[name]
	if d == nil {
		panic("metric is not in the table: " + name)
	}
	if math.IsNaN(value) || math.IsInf(value, 0) || !s.settings.selects(d) {
		return
	}
	if s.settings.OmitHost {
		labels = labels.withoutLabel(hostLabelName)
	}
	key := seriesKey(name, labels)
	if s.seenSeries[key] {
		return
	}
	s.seenSeries[key] = true
	m := &dto.Metric{Label: labels}
	if d.Kind == Counter {
		m.Counter = &dto.Counter{Value: &value}
	} else {
		m.Gauge = &dto.Gauge{Value: &value}
	}
	f := s.familyByName[name]
	if f == nil {
		f = newFamily(d)
		s.familyByName[name] = f
	}
	f.Metric = append(f.Metric, m)
}

// seriesKey identifies a time series. Names and values cannot contain the separator, which is not UTF-8.
func seriesKey(name string, labels Labels) string {
	var b strings.Builder
	b.WriteString(name)
	for _, p := range labels {
		b.WriteByte(0xff)
		b.WriteString(p.GetName())
		b.WriteByte(0xff)
		b.WriteString(p.GetValue())
	}
	return b.String()
}

func newFamily(d *Definition) *dto.MetricFamily {
	name, kind := d.PrometheusName(), dto.MetricType_GAUGE
	if d.Kind == Counter {
		kind = dto.MetricType_COUNTER
	}
	return &dto.MetricFamily{Name: &name, Help: &d.Help, Type: &kind}
}

// definitionName returns the name of a family's metric in the table, or the name of the family if the table does not have it.
func definitionName(f *dto.MetricFamily) string {
	if d := byPrometheusName()[f.GetName()]; d != nil {
		return d.Name
	}
	return f.GetName()
}

// Families returns the families in the order of their names.
func (s *Set) Families() []*dto.MetricFamily {
	all := make([]*dto.MetricFamily, 0, len(s.familyByName))
	for _, f := range s.familyByName {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}
