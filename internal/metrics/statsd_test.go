package metrics

import (
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

func readings(restarts, unallocated float64, job string) []*dto.MetricFamily {
	s := NewSet(&Settings{})
	s.Add("nomad.client.allocs.restart", restarts, NewLabels("host", "a.example", "job", job))
	s.Add("nomad.client.unallocated.cpu", unallocated, NewLabels("host", "a.example"))
	return s.Families()
}

func TestStatsdLines(t *testing.T) {
	e := &StatsdEncoder{}
	for i, check := range []struct {
		restarts, unallocated float64
		want                  string
	}{
		{5, 1.5, "nomad.client.unallocated.cpu.a_example:1.5|g\n"}, // an earlier agent has counted the restarts
		{7, -1, "nomad.client.allocs.restart.a_example.web:2|c\nnomad.client.unallocated.cpu.a_example:0|g\nnomad.client.unallocated.cpu.a_example:-1|g\n"},
		{7, 0, "nomad.client.unallocated.cpu.a_example:0|g\n"},
		{3, 0, "nomad.client.allocs.restart.a_example.web:3|c\nnomad.client.unallocated.cpu.a_example:0|g\n"}, // a process counts from zero
	} {
		if got := strings.Join(e.Lines(readings(check.restarts, check.unallocated, "web")), ""); got != check.want {
			t.Errorf("reading %d:\n%swant\n%s", i, got, check.want)
		}
	}
	if got := e.Lines(readings(4, 0, "other")); got[0] != "nomad.client.allocs.restart.a_example.other:4|c\n" {
		t.Errorf("a new time series is sent as %q", got)
	}
	if got := e.Lines(readings(1, 0, "")); got[0] != "nomad.client.allocs.restart.a_example.none:1|c\n" {
		t.Errorf("a time series with an empty label is sent as %q", got)
	}
}

func TestDatadogLinesHaveTags(t *testing.T) {
	e := &StatsdEncoder{Tags: true, ConstantTags: []string{"env:test"}}
	e.Lines(readings(0, 0, "web"))
	want := []string{
		"nomad.client.allocs.restart:1|c|#env:test,host:a.example,job:web\n",
		"nomad.client.unallocated.cpu:-2|g|#env:test,host:a.example\n",
	}
	if got := e.Lines(readings(1, -2, "web")); !slices.Equal(got, want) {
		t.Errorf("lines %q, want %q", got, want)
	}
}

// TestStatsdValuesAddNoLines checks that a name that a job chooses cannot forge metrics.
func TestStatsdValuesAddNoLines(t *testing.T) {
	const job = "a\nnomad.x:9|g\n:1|c|#b,\x00é"
	for _, e := range []*StatsdEncoder{{}, {Tags: true}} {
		e.Lines(readings(0, 0, job))
		for _, line := range e.Lines(readings(1, 1, job)) {
			if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") || strings.Contains(line, "nomad.x:9") || !e.Tags && strings.Count(line, ":") != 1 {
				t.Errorf("line %q", line)
			}
		}
	}
}

func TestHistogramsAreSentAsCountAndSum(t *testing.T) {
	histogram := func(count uint64, sum float64) []*dto.MetricFamily {
		return []*dto.MetricFamily{{
			Name: new("nomad_lite_hook_duration_seconds"), Type: dto.MetricType_HISTOGRAM.Enum(),
			Metric: []*dto.Metric{{Label: NewLabels("hook", "logs"), Histogram: &dto.Histogram{SampleCount: &count, SampleSum: &sum}}},
		}}
	}
	e := &StatsdEncoder{}
	e.Lines(histogram(1, 2))
	want := []string{"nomad_lite_hook_duration_seconds.count.logs:2|c\n", "nomad_lite_hook_duration_seconds.sum.logs:0.5|c\n"}
	if got := e.Lines(histogram(3, 2.5)); !slices.Equal(got, want) {
		t.Errorf("lines %q, want %q", got, want)
	}
}

func TestPacketsFitIntoFrames(t *testing.T) {
	var lines []string
	for i := range 200 {
		lines = append(lines, strings.Repeat("x", i)+"\n")
	}
	lines = append(lines, strings.Repeat("y", 2*maxPacket)+"\n")
	var joined strings.Builder
	packets := Packets(lines)
	for i, p := range packets {
		if len(p) > maxPacket && i < len(packets)-1 || p[len(p)-1] != '\n' {
			t.Errorf("packet %d of %d bytes", i, len(p))
		}
		joined.Write(p)
	}
	if joined.String() != strings.Join(lines, "") {
		t.Error("the packets do not have the lines")
	}
}
