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

	"github.com/nomad-lite/nomad-lite/runtime/metrics"
)

// startPush runs Push until the test ends.
func startPush(t *testing.T, c *Collector) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Push(ctx, hclog.NewNullLogger()) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// receiveUntil receives packets until they contain a text.
func receiveUntil(t *testing.T, l net.PacketConn, want string) {
	t.Helper()
	_ = l.SetReadDeadline(time.Now().Add(20 * time.Second))
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
	c.SetSettings(metrics.Settings{Sinks: []metrics.Sink{
		{Protocol: metrics.Statsd, Address: statsd.LocalAddr().String()},
		{Protocol: metrics.Datadog, Address: datadog.LocalAddr().String(), Tags: []string{"env:test"}},
		{Protocol: metrics.Statsite},
	}})
	receiveUntil(t, statsd, "nomad.client.uptime.dc1.n1.none."+nodeID+".default.eligible.ready:7|g\n")
	receiveUntil(t, datadog, "nomad.nomad.job_status.running:1|g|#env:test,host:n1\n")
	receiveUntil(t, statsd, "nomad.client.uptime.") // the next reading
}

// TestPushSurvivesUnreachableSinks checks that a sink without a listener does not keep others from their metrics.
func TestPushSurvivesUnreachableSinks(t *testing.T) {
	t.Parallel()
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
	for range 2 { // the second connection replaces one that was closed
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "nomad.") {
			t.Errorf("statsite received %q, %v", line, err)
		}
		conn.Close()
	}
	l.Close()
}
