package jobs

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp/otlptest"
)

// TestAgentSendsMetrics checks that statsd receives the metrics of an agent in each collection interval.
func TestAgentSendsMetrics(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	systemtest.StartTestAgent(t, false, fmt.Sprintf("telemetry {\n statsd_address = %q\n disable_hostname = true\n}\n", l.LocalAddr()))
	if err := l.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64<<10)
	for readings := 0; readings < 3; {
		n, _, err := l.ReadFrom(b)
		if err != nil {
			t.Fatalf("%v after %d readings", err, readings)
		}
		readings += strings.Count("\n"+string(b[:n]), "\nnomad.nomad.job_status.running:0|g\n")
	}
}

// TestAgentExportsMetrics checks that an OpenTelemetry collector receives the metrics of an agent in each interval,
// with the same description of the agent as its traces.
func TestAgentExportsMetrics(t *testing.T) {
	collector := otlptest.NewGRPC(t)
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "300")
	systemtest.StartTestAgent(t, false, fmt.Sprintf("telemetry {\n otlp {\n endpoint = %q\n protocol = \"grpc\"\n metrics = true\n }\n}\n", collector.URL))
	names := make(map[string]int)
	for deadline := time.Now().Add(30 * time.Second); names["nomad.nomad.job_status.running"] < 3; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("received %v", names)
		}
		clear(names)
		for _, m := range collector.Metrics() {
			names[m.GetName()]++
		}
	}
	if names["nomad_lite_store_commit_duration_seconds"] == 0 {
		t.Errorf("received %v", names)
	}
	resource := otlptest.StringAttributes(collector.ResourceMetrics()[0].GetResource())
	for _, name := range []string{"service.name", "service.version", "service.instance.id", "host.name", "nomad.node.id", "nomad.node.name", "nomad.datacenter", "nomad.region"} {
		if resource[name] == "" {
			t.Errorf("the attribute %s is missing: %v", name, resource)
		}
	}
}
