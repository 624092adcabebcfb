package collect

import (
	"bufio"
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp"
	"github.com/nomad-lite/nomad-lite/runtime/agent/otlp/otlptest"
)

// startPush runs Push until the test ends.
func startPush(t *testing.T, c *MetricsCollector) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.PushToSinks(ctx, hclog.NewNullLogger()) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// receiveUntil receives packets until they contain a text.
func receiveUntil(t *testing.T, l net.PacketConn, want string) {
	t.Helper()
	if err := l.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	b := make([]byte, 64<<10)
	for !strings.Contains(all.String(), want) {
		n, _, err := l.ReadFrom(b)
		if err != nil {
			t.Fatalf("%v; received\n%s\nwant %s", err, all.String(), want)
		}
		all.Write(b[:n])
	}
}

func listenUDP(t *testing.T) net.PacketConn {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestPushSendsToSinks(t *testing.T) {
	t.Parallel()
	c := newCollector(t, &fakeNode{host: measuredHost})
	statsd, datadog := listenUDP(t), listenUDP(t)
	startPush(t, c)
	c.SetSettings(metrics.Settings{CollectionInterval: time.Hour, Sinks: []metrics.Sink{{Protocol: metrics.Statsd, Address: statsd.LocalAddr().String()}}})
	receiveUntil(t, statsd, "nomad.nomad.job_status.running.n1:1|g\n")

	// New settings apply at once, not after the interval.
	c.SetSettings(metrics.Settings{CollectionInterval: 20 * time.Millisecond, Sinks: []metrics.Sink{
		{Protocol: metrics.Statsd, Address: statsd.LocalAddr().String()},
		{Protocol: metrics.Datadog, Address: datadog.LocalAddr().String(), Tags: []string{"env:test"}},
		{Protocol: metrics.Statsite},
	}})
	receiveUntil(t, statsd, "nomad.client.uptime.dc1.n1.none."+nodeID+".default.eligible.ready:7|g\n")
	receiveUntil(t, datadog, "nomad.nomad.job_status.running:1|g|#env:test,host:n1\n")
	receiveUntil(t, statsd, "nomad.client.uptime.") // the next reading
}

// TestPushSurvivesUnreachableSinks checks that other sinks get their metrics beside one without a listener.
func TestPushSurvivesUnreachableSinks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits three intervals of a second")
	}
	c := newCollector(t, &fakeNode{host: measuredHost})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close() // nothing listens before the first reading was sent to the other sink
	statsd, gone := listenUDP(t), listenUDP(t)
	gone.Close()
	c.SetSettings(metrics.Settings{Sinks: []metrics.Sink{
		{Protocol: metrics.Datadog, Address: gone.LocalAddr().String()},
		{Protocol: metrics.Statsite, Address: address},
		{Protocol: metrics.Statsd, Address: statsd.LocalAddr().String()},
	}})
	startPush(t, c)
	receiveUntil(t, statsd, "nomad.nomad.job_status.running.n1:1|g\n")

	l, err = net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the sender replaces the first connection, which was closed
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "nomad.") {
			t.Errorf("statsite received %q, %v", line, err)
		}
		conn.Close()
	}
	l.Close()
}

func openExporter(t *testing.T, url string, interval time.Duration) *otlp.MetricsExporter {
	t.Helper()
	e, err := otlp.NewMetricsExporter(otlp.Config{CollectorURL: url + "/v1/metrics", Protocol: otlp.ProtocolHTTP, MetricsExportInterval: interval}, otlp.AgentFacts{}, time.Now(), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestPushOTLPSendsWhatIsServed checks that the collector gets the table's metrics, the last ones when the agent shuts down.
func TestPushOTLPSendsWhatIsServed(t *testing.T) {
	t.Parallel()
	c := newCollector(t, &fakeNode{host: measuredHost})
	receiver := otlptest.NewHTTP(t, nil)
	e := openExporter(t, receiver.URL, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.PushOTLP(ctx, e) })
	for deadline := time.Now().Add(20 * time.Second); len(receiver.ResourceMetrics()) < 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no metrics were received")
		}
	}
	received := make(map[string]bool)
	for _, m := range receiver.Metrics() {
		received[m.GetName()] = true
	}
	for _, f := range c.Gather(t.Context()) {
		if name := metrics.FindByPrometheusName(f.GetName()).Name; !received[name] {
			t.Errorf("%s was not exported", name)
		}
	}
	cancel()
	wg.Wait()
	if n := len(receiver.ResourceMetrics()); n != 2 {
		t.Errorf("%d requests, want one at the start and one at the shutdown", n)
	}
}

// TestPushOTLPSurvivesDeadCollector checks that unsendable readings are counted, and that the shutdown does not wait long for an
// unresponsive collector.
func TestPushOTLPSurvivesDeadCollector(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for three requests that time out")
	}
	c := newCollector(t, &fakeNode{host: measuredHost})
	e := openExporter(t, otlptest.SilentURL(t), 100*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.PushOTLP(ctx, e) })
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(prometheusText(t, c.Gather(t.Context())), `nomad_lite_sink_failures_total{sink="otlp"} 3`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the failures are not counted")
		}
	}
	begin := time.Now()
	cancel()
	wg.Wait()
	if took := time.Since(begin); took > lastExportTimeout+2*time.Second {
		t.Errorf("the shutdown took %v", took)
	}
}
