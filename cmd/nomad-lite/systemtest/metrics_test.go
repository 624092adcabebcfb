package systemtest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// TestAgentSendsMetrics checks that statsd receives the metrics of an agent in each collection interval.
func TestAgentSendsMetrics(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	startTestAgent(t, false, fmt.Sprintf("telemetry {\n statsd_address = %q\n disable_hostname = true\n}\n", l.LocalAddr()))
	_ = l.SetReadDeadline(time.Now().Add(30 * time.Second))
	b := make([]byte, 64<<10)
	for readings := 0; readings < 3; {
		n, _, err := l.ReadFrom(b)
		if err != nil {
			t.Fatalf("%v after %d readings", err, readings)
		}
		readings += strings.Count("\n"+string(b[:n]), "\nnomad.nomad.job_status.running:0|g\n")
	}
}
