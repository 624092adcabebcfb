package metrics

import (
	"cmp"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// StatsdEncoder writes metrics in the line format of statsd. Counters are sent as differences, so an encoder belongs
// to one destination. It is not for concurrent use.
type StatsdEncoder struct {
	// Tags writes labels as tags, in the format of Datadog. Otherwise the values of the labels are parts of the name,
	// in the order of the labels' names; an empty value is "none".
	Tags bool
	// ConstantTags are added to the tags of each line.
	ConstantTags []string

	last map[string]float64 // values of counters at the last call of Lines, by time series; nil before the first call
}

// Lines returns the lines of a reading, each with a line end. The first call sends no counters, because it is unknown
// which of their events were sent by an earlier agent.
func (e *StatsdEncoder) Lines(families []*dto.MetricFamily) []string {
	var lines []string
	next := make(map[string]float64)
	count := func(name string, labels Labels, value float64) {
		key := seriesKey(name, labels)
		next[key] = value
		if e.last == nil {
			return
		}
		delta := value - e.last[key]
		if delta < 0 {
			delta = value // the process that counts was restarted
		}
		if delta > 0 {
			lines = append(lines, e.line(name, labels, delta, "c"))
		}
	}
	for _, f := range families {
		name := tableName(f)
		for _, m := range f.GetMetric() {
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				count(name, m.GetLabel(), m.GetCounter().GetValue())
			case dto.MetricType_HISTOGRAM:
				count(name+".count", m.GetLabel(), float64(m.GetHistogram().GetSampleCount()))
				count(name+".sum", m.GetLabel(), m.GetHistogram().GetSampleSum())
			default:
				value := m.GetGauge().GetValue()
				if value < 0 && !e.Tags { // a sign makes the value a difference
					lines = append(lines, e.line(name, m.GetLabel(), 0, "g"))
				}
				lines = append(lines, e.line(name, m.GetLabel(), value, "g"))
			}
		}
	}
	e.last = next
	return lines
}

func (e *StatsdEncoder) line(name string, labels Labels, value float64, kind string) string {
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

// cleanStatsd replaces characters with a meaning in the format, so that a value that a job chooses cannot add lines.
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

// Packets joins lines to packets.
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
