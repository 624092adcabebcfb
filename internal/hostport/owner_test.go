package hostport

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestOwnerOfConnected(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::]:0", "[::1]:0"} {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Logf("%s is not tested: %v", listen, err)
			continue
		}
		defer l.Close()
		address := netip.MustParseAddrPort(l.Addr().String())
		if address.Addr().IsUnspecified() {
			address = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), address.Port())
		}
		client, err := net.Dial("tcp", address.String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		own := client.LocalAddr().(*net.TCPAddr).AddrPort()
		if owner, found := OwnerOfConnected(address, own); found {
			t.Errorf("%s: %+v has a connection that no process has accepted", listen, owner)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if owner, found := OwnerOfConnected(address, own); !found || owner.UID != os.Geteuid() {
			t.Errorf("%s: accepted by %+v, %v, want uid %d", listen, owner, found, os.Geteuid())
		}
		owner, found := OwnerOfListener(address)
		if got := owner.String(); !found || !strings.Contains(got, "(pid ") {
			t.Errorf("%s: the listener is %s, %v", listen, got, found)
		}
		l.Close()
		if owner, found := OwnerOfListener(address); found {
			t.Errorf("%s: after the end %s listens", listen, owner)
		}
	}
}
