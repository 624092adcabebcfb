package bridge

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/netns"
)

// packetSocket sends and receives all frames on an interface.
type packetSocket struct {
	file  *os.File
	index int
}

// openPacketSocket opens a socket for a namespace's interface, "" for the machine.
func openPacketSocket(t *testing.T, namespace, name string) *packetSocket {
	t.Helper()
	s := &packetSocket{}
	open := func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all))
		if err != nil {
			return err
		}
		s.file, s.index = os.NewFile(uintptr(fd), name), link.Attrs().Index
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: s.index})
	}
	var err error
	if namespace == "" {
		err = open()
	} else {
		err = netns.Do(netns.Path(namespace), open)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.file.Close() })
	return s
}

// frame is what a namespace sends, and whether it may.
type frame struct {
	bytes   []byte
	allowed bool
	what    string
}

// frameMaker makes a namespace's frames under its own and under other identities.
type frameMaker struct {
	random         *rand.Rand
	own, other     NamespaceStatus
	ownHW, otherHW net.HardwareAddr
	tag            uint64 // from the last frame, which is at its end
}

func (m *frameMaker) make() frame {
	type choice[T any] struct {
		value T
		own   bool
		name  string
	}
	hardware := []choice[net.HardwareAddr]{{m.ownHW, true, "own"}, {m.ownHW, true, "own"}, {m.otherHW, false, "other's"}, {net.HardwareAddr{2, 0, 0, 0, 0, 9}, false, "free"}}[m.random.IntN(4)]
	address4 := []choice[netip.Addr]{
		{m.own.IPv4Address, true, "own"}, {m.own.IPv4Address, true, "own"}, {m.other.IPv4Address, false, "other's"}, {testConfig.IPv4Subnet.Addr().Next(), false, "bridge's"},
		{netip.MustParseAddr(outsideAddress), false, "outside's"}, {netip.IPv4Unspecified(), false, "no"}, {netip.MustParseAddr("127.0.0.1"), false, "loopback"},
	}[m.random.IntN(7)]
	address6 := []choice[netip.Addr]{
		{m.own.IPv6Address, true, "own"}, {m.own.IPv6Address, true, "own"}, {linkLocalAddress(m.ownHW), true, "own link-local"}, {netip.IPv6Unspecified(), true, "no"},
		{m.other.IPv6Address, false, "other's"}, {linkLocalAddress(m.otherHW), false, "other's link-local"}, {netip.MustParseAddr("fe80::1"), false, "router's link-local"}, {netip.MustParseAddr(outsideAddress6), false, "outside's"},
	}[m.random.IntN(8)]

	head := append(bytes.Repeat([]byte{0xff}, 6), hardware.value...)
	f := frame{allowed: hardware.own, what: hardware.name + " hardware address, "}
	switch m.random.IntN(6) {
	case 0:
		f.what += address4.name + " address"
		f.allowed = f.allowed && address4.own
		f.bytes = append(append(head, 0x08, 0x00), ipv4Packet(address4.value)...)
	case 1:
		claimed := []choice[net.HardwareAddr]{{m.ownHW, true, "own"}, {m.otherHW, false, "other's"}}[m.random.IntN(2)]
		operation := byte(1 + m.random.IntN(2))
		f.what += "ARP " + string('0'+operation) + " of " + address4.name + " address with " + claimed.name + " hardware address"
		f.allowed = f.allowed && address4.own && claimed.own
		f.bytes = append(append(head, 0x08, 0x06), 0, 1, 8, 0, 6, 4, 0, operation)
		f.bytes = append(append(f.bytes, claimed.value...), address4.value.AsSlice()...)
		f.bytes = append(append(f.bytes, m.otherHW...), m.other.IPv4Address.AsSlice()...)
	case 2, 3, 4:
		messageType := []byte{128, 133, 134, 135, 136, 136, 137}[m.random.IntN(7)] // 128: echo request, 133: router solicitation, 135: neighbour solicitation
		target := []choice[netip.Addr]{{m.own.IPv6Address, true, "own"}, {m.other.IPv6Address, false, "other's"}, {testConfig.IPv6Subnet.Addr().Next(), false, "bridge's"}}[m.random.IntN(3)]
		extended := m.random.IntN(2) == 0
		f.what += address6.name + " address, ICMPv6 " + string(rune('0'+messageType/100)) + string(rune('0'+messageType/10%10)) + string(rune('0'+messageType%10)) + " for " + target.name + " address"
		if extended {
			f.what += " behind another header"
		}
		f.allowed = f.allowed && address6.own && messageType != 134 && messageType != 137 && (messageType != 136 || target.own)
		f.bytes = append(append(head, 0x86, 0xdd), icmp6Packet(address6.value, target.value, messageType, extended)...)
	default:
		protocol := []byte{0x81, 0x00}
		if m.random.IntN(2) == 0 {
			protocol = []byte{0x88, 0x8e}
		}
		f.what += "another protocol"
		f.allowed = false
		f.bytes = append(append(head, protocol...), make([]byte, 60)...)
	}
	for len(f.bytes) < 52 {
		f.bytes = append(f.bytes, 0)
	}
	m.tag++
	f.bytes = binary.BigEndian.AppendUint64(f.bytes, m.tag)
	return f
}

const tagSize = 8

func ipv4Packet(source netip.Addr) []byte {
	const headerSize, udpSize = 20, 8 + 20 + tagSize
	p := []byte{0x45, 0, 0, headerSize + udpSize, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	p = append(append(p, source.AsSlice()...), 255, 255, 255, 255)
	var sum uint32
	for i := 0; i < headerSize; i += 2 {
		sum += uint32(p[i])<<8 | uint32(p[i+1])
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
	return append(p, make([]byte, udpSize-tagSize)...)
}

func icmp6Packet(source, target netip.Addr, messageType byte, extended bool) []byte {
	message := append([]byte{messageType, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	next := byte(unix.IPPROTO_ICMPV6)
	if extended {
		message = append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, message...) // destination options: padding
		next = unix.IPPROTO_DSTOPTS
	}
	p := []byte{0x60, 0, 0, 0, 0, byte(len(message) + tagSize), next, 255}
	p = append(append(p, source.AsSlice()...), netip.MustParseAddr("ff02::1").AsSlice()...)
	return append(p, message...)
}

// TestNamespaceSendsAsItself sends random frames from one namespace, and checks which frames another namespace and the machine
// receive: only and all frames that the namespace may send.
func TestNamespaceSendsAsItself(t *testing.T) {
	b := New(testConfig)
	_, own := attach(t, b, "one")
	_, other := attach(t, b, "two")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &frameMaker{random: rand.New(rand.NewPCG(seed, 0)), own: own, other: other, ownHW: hardwareAddressForIPv4(own.IPv4Address), otherHW: hardwareAddressForIPv4(other.IPv4Address)}
	m.tag = m.random.Uint64() // a small number is also the end of an address, and so of the kernel's messages
	sender := openPacketSocket(t, "one", InterfaceName)
	for name, open := range map[string]func() *packetSocket{
		"the other namespace": func() *packetSocket { return openPacketSocket(t, "two", InterfaceName) },
		"the machine":         func() *packetSocket { return openPacketSocket(t, "", testConfig.Name) },
	} {
		receiver := open()
		denied := map[uint64]string{}
		allowed := 0
		for f := m.make(); allowed < 500; f = m.make() {
			if !f.allowed {
				denied[m.tag] = f.what
			}
			if _, err := sender.file.Write(f.bytes); err != nil {
				t.Fatalf("%s: %v", f.what, err)
			}
			if f.allowed {
				allowed++
				if !receiver.waitFor(t, m.tag, denied) {
					t.Errorf("%s does not receive a frame with %s", name, f.what)
				}
			}
		}
	}
}

// waitFor reports whether a frame arrives. Each denied frame that arrives before is an error.
func (s *packetSocket) waitFor(t *testing.T, tag uint64, denied map[uint64]string) bool {
	t.Helper()
	if err := s.file.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2000)
	for {
		n, err := s.file.Read(buffer)
		if err != nil {
			return false
		}
		got := binary.BigEndian.Uint64(buffer[max(0, n-tagSize):max(tagSize, n)])
		if got == tag {
			return true
		}
		if what, ok := denied[got]; ok {
			t.Errorf("%s receives a frame with %s", s.file.Name(), what)
		}
	}
}

// The machine takes no route from a namespace, also if the table is removed.
func TestMachineIgnoresRouterAdvertisements(t *testing.T) {
	if _, err := exec.LookPath("sysctl"); err != nil {
		t.Skip(err)
	}
	attach(t, New(testConfig), "one")
	got := command(t, "sysctl", "-n", "net.ipv6.conf.nomad.accept_ra", "net.ipv6.conf.nomad.autoconf", "net.ipv6.conf.nomad.accept_redirects", "net.ipv4.conf.nomad.accept_redirects")
	if strings.TrimSpace(strings.ReplaceAll(got, "\n", "")) != "0000" {
		t.Errorf("accept_ra, autoconf, accept_redirects of IPv6 and IPv4 are %q", got)
	}
}
