package metrics

import (
	"errors"
	"path"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func countSeries(c prometheus.Collector) (n int) {
	series := make(chan prometheus.Metric)
	go func() {
		c.Collect(series)
		close(series)
	}()
	for range series {
		n++
	}
	return n
}

func counterValue(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// TestInstrumentsAreBounded checks that names that jobs choose do not create time series without limit.
func TestInstrumentsAreBounded(t *testing.T) {
	c := newCounter("nomad_lite_hook_failures_total")
	for i := range 3 * maxSeries {
		c.Add(1, "hook"+strconv.Itoa(i), "prestart")
	}
	if n := countSeries(c.vec()); n != maxSeries+1 {
		t.Errorf("%d time series", n)
	}
	if n := counterValue(t, c.vec().WithLabelValues(otherValue, otherValue)); n != 2*maxSeries {
		t.Errorf("%v further events", n)
	}
}

func TestPluginCallsHaveClasses(t *testing.T) {
	for method, want := range map[string]string{
		"/hashicorp.nomad.plugins.drivers.proto.Driver/StartTask": "start",
		"/nomadlite.plugins.hook.v1.Hook/Prestart":                "hook",
		"/nomadlite.plugins.hook.v1.Hook/Describe":                "describe",
		"/hashicorp.nomad.plugins.drivers.proto.Driver/NoSuch":    "other",
	} {
		plugin := "test-" + want + path.Base(method)
		ObservePluginCall(plugin, method, time.Millisecond, true)
		if n := counterValue(t, pluginFailures.vec().WithLabelValues(want, plugin)); n != 1 {
			t.Errorf("%s: %v calls of the class %s", method, n, want)
		}
	}
	before := countSeries(pluginCalls.vec())
	ObservePluginCall("waiting", "/x.Driver/WaitTask", time.Hour, false)
	if after := countSeries(pluginCalls.vec()); after != before {
		t.Error("WaitTask was counted")
	}
}

func TestStoreWritesAreCounted(t *testing.T) {
	commits := func() uint64 {
		var m dto.Metric
		if err := storeCommits.vec().WithLabelValues().(prometheus.Metric).Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.GetHistogram().GetSampleCount()
	}
	records, failures := storeRecords.vec().WithLabelValues(), storeFailures.vec().WithLabelValues()
	commitsBefore, recordsBefore, failuresBefore := commits(), counterValue(t, records), counterValue(t, failures)
	ObserveStoreWrite(time.Millisecond, 3, nil)
	ObserveStoreWrite(time.Millisecond, 5, errors.New("no space"))
	if n := commits() - commitsBefore; n != 2 {
		t.Errorf("%d writes, want 2", n)
	}
	if n := counterValue(t, records) - recordsBefore; n != 3 {
		t.Errorf("%v records, want 3", n)
	}
	if n := counterValue(t, failures) - failuresBefore; n != 1 {
		t.Errorf("%v failures, want 1", n)
	}
}

func BenchmarkObservePluginCall(b *testing.B) {
	for b.Loop() {
		ObservePluginCall("raw_exec", "/hashicorp.nomad.plugins.drivers.proto.Driver/InspectTask", time.Millisecond, false)
	}
}

func BenchmarkObserveHook(b *testing.B) {
	for b.Loop() {
		HookCalls.Observe(time.Millisecond, "artifacts", "prestart")
	}
}
