package bridge

import "testing"

// Detach removes the rules and the interface also if the bridge was removed before.
func TestDetachWithoutBridge(t *testing.T) {
	before := machineState(t)
	b := New(testConfig)
	_, status := attach(t, b, "one", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	checkAnswer(t, "connected", "", "tcp", at(status.IPv4Address, 8080), "one 172.26.64.1")
	command(t, "ip", "link", "del", "nomad")
	if err := b.Detach("one"); err != nil {
		t.Error(err)
	}
	if after := machineState(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
	if n := countTracked(t, status.IPv4Address); n > 0 {
		t.Errorf("%d connections of a disconnected namespace are tracked", n)
	}
}
