package hostport

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

func TestFree(t *testing.T) {
	tcp, port := listenBelowEphemeralPorts(t)
	if IsFree(port) {
		t.Errorf("port %d is free while this test listens on one address of it", port)
	}
	tcp.Close()
	if !IsFree(port) {
		t.Errorf("port %d is not free after this test has let it go", port)
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	if port := udp.LocalAddr().(*net.UDPAddr).Port; IsFree(port) {
		t.Errorf("UDP port %d is free while this test listens on it", port)
	}
}

// listenBelowEphemeralPorts listens on a port that the kernel gives to no outgoing connection of another program.
func listenBelowEphemeralPorts(t *testing.T) (net.Listener, int) {
	for port := 10000 + os.Getpid()%5000; port < 20000; port++ {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return l, port
		}
	}
	t.Fatal("no port between 10000 and 20000 is free")
	return nil, 0
}

// A program that listens on one address leaves the port of the other addresses free.
func TestFreeOnOtherAddresses(t *testing.T) {
	one, two := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	for _, listen := range []func(string) (io.Closer, int, error){
		func(address string) (io.Closer, int, error) {
			l, err := net.Listen("tcp4", address+":0")
			if err != nil {
				return nil, 0, err
			}
			return l, l.Addr().(*net.TCPAddr).Port, nil
		},
		func(address string) (io.Closer, int, error) {
			l, err := net.ListenPacket("udp4", address+":0")
			if err != nil {
				return nil, 0, err
			}
			return l, l.LocalAddr().(*net.UDPAddr).Port, nil
		},
	} {
		l, port, err := listen("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		if IsFree(port) || IsFreeAt(one, port) || IsFree(port, two) {
			t.Error("the port is free on the address on which this test listens")
		}
		if !IsFreeAt(two, port) || !IsFree(port, one, two) {
			t.Error("the port is not free on the other addresses")
		}
		l.Close()
		if l, port, err = listen(""); err != nil {
			t.Fatal(err)
		}
		if IsFree(port, one) || IsFreeAt(two, port) {
			t.Error("the port is free while this test listens on all addresses")
		}
		l.Close()
	}
}

// A listener is found for each protocol and IP version; a port to which a process is only connected has none.
func TestListeners(t *testing.T) {
	var ports []int
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := net.Listen(network, "localhost:0")
		if err != nil {
			t.Logf("%s is not tested: %v", network, err)
			continue
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	ports = append(ports, udp.LocalAddr().(*net.UDPAddr).Port)
	conn, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	connectedPort := conn.LocalAddr().(*net.TCPAddr).Port
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("process %q (pid %d)", strings.TrimSpace(string(comm)), os.Getpid())
	got := Listeners(append(ports, connectedPort))
	for _, port := range ports {
		if got[port] != want {
			t.Errorf("port %d: %q listens, want %q", port, got[port], want)
		}
	}
	if got[connectedPort] != "" {
		t.Errorf("port %d of a connection: %q listens", connectedPort, got[connectedPort])
	}
	if got := Listeners(nil); len(got) != 0 {
		t.Errorf("without ports: %v", got)
	}
}

func TestFindListeners(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "::"} {
		if got := FindListeners(host, port); len(got) != 1 || got[0].PID != os.Getpid() || got[0].UID != os.Geteuid() {
			t.Errorf("%s: %v", host, got)
		}
	}
	l.Close()
	if got := FindListeners("127.0.0.1", port); len(got) != 0 && got[0].PID == os.Getpid() {
		t.Errorf("after the listener was closed: %v", got)
	}
	for want, l := range map[string]Listener{
		`process "nginx" (pid 812, uid 33)`: {PID: 812, UID: 33, Name: "nginx"},
		`process "nginx" (pid 812, uid 33), of task "web" of allocation 0b5a1c2d,`: {
			PID: 812, UID: 33, Name: "nginx", Task: osprocess.TaskEnvID{AllocID: "0b5a1c2d-0000-4000-8000-123456789abc", Task: "web"},
		},
		"a process of uid 33": {UID: 33},
	} {
		if got := l.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
