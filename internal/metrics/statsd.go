package metrics

import (
	"cmp"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// StatsdEncoder writes metrics in the line format of statsd. Counters are sent as differences, so an encoder belongs
// to one sink. It is not for concurrent use.
type StatsdEncoder struct {
	// Tags means that labels are written as tags, in the format of Datadog. Otherwise the values of the labels are
	// parts of the name, in the order of the labels' names; an empty value is written as "none".
	Tags bool
	// ConstantTags are added to the tags of each line.
	ConstantTags []string

	lastCounterValues map[string]float64 // values of counters at the last call of Lines, by time series; nil before the first call
}

// Lines returns the lines for the metrics families, each with a line end. The first call returns no lines for counters,
// because it is unknown which of their events an earlier agent has sent.
func (e *StatsdEncoder) Lines(families []*dto.MetricFamily) []string {
	var lines []string
	next := make(map[string]float64)
	count := func(name string, labels Labels, value float64) {
		key := seriesKey(name, labels)
		next[key] = value
		if e.lastCounterValues == nil {
			return
		}
		delta := value - e.lastCounterValues[key]
		if delta < 0 {
			delta = value // the process that counts was restarted
		}
		if delta > 0 {
			lines = append(lines, e.formatLine(name, labels, delta, "c"))
		}
	}
	for _, f := range families {
		name := definitionName(f)
		for _, m := range f.GetMetric() {
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				count(name, m.GetLabel(), m.GetCounter().GetValue())
			case dto.MetricType_HISTOGRAM:
				count(name+".count", m.GetLabel(), float64(m.GetHistogram().GetSampleCount()))
				count(name+".sum", m.GetLabel(), m.GetHistogram().GetSampleSum())
			default:
				value := m.GetGauge().GetValue()
				if value < 0 && !e.Tags { // statsd adds a gauge with a sign to the old value, so the gauge is first set to 0
					lines = append(lines, e.formatLine(name, m.GetLabel(), 0, "g"))
				}
				lines = append(lines, e.formatLine(name, m.GetLabel(), value, "g"))
			}
		}
	}
	e.lastCounterValues = next
	return lines
}

func (e *StatsdEncoder) formatLine(name string, labels Labels, value float64, kind string) string {
	var b strings.Builder
	b.WriteString(name)
	if !e.Tags {
		for _, p := range labels {
			b.WriteByte('.')
			b.WriteString(cmp.Or(strings.ReplaceAll(cleanStatsd(p.GetValue()), ".", "_"), "none"))
		}
	}
	b.WriteByte(':')
	b.WriteString(strconv.FormatFloat(value, 'f', -1, 64))
	b.WriteByte('|')
	b.WriteString(kind)
	separator := "|#"
	if e.Tags {
		for _, tag := range e.ConstantTags {
			b.WriteString(separator + tag)
			separator = ","
		}
		for _, p := range labels {
			b.WriteString(separator + p.GetName() + ":" + cleanStatsd(p.GetValue()))
			separator = ","
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// cleanStatsd replaces characters that have a meaning in the line format by _, so that the value of a label, which a job
// can choose, cannot add lines.
func cleanStatsd(value string) string {
	return strings.Map(func(c rune) rune {
		if c <= ' ' || c == 0x7f || strings.ContainsRune(":|#@,", c) {
			return '_'
		}
		return c
	}, value)
}

// maxPacket is the maximum size of a UDP packet in bytes that networks do not split, unless a single line is longer.
const maxPacket = 1432

// Packets joins lines to UDP packets.
func Packets(lines []string) (packets [][]byte) {
	var packet []byte
	for _, line := range lines {
		if len(packet) > 0 && len(packet)+len(line) > maxPacket {
			packets = append(packets, packet)
			packet = nil
		}
		packet = append(packet, line...)
	}
	if len(packet) > 0 {
		packets = append(packets, packet)
	}
	return packets
}
