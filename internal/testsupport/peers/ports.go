package peers

import (
	"net"
	"testing"
)

// FindFreePorts returns n TCP ports that no process listens on.
func FindFreePorts(t testing.TB, n int) (ports []int) {
	t.Helper()
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
