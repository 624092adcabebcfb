package attack

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

func setOnlySupplementaryGroup(groupID *uint32) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(groupID)), 0)
	return errno
}

func (p *probe) tryConnectUnix(path string) {
	p.tryConnectReportAndWrite(unix.AF_UNIX, &unix.SockaddrUnix{Name: path}, path)
}

func (p *probe) tryConnectTCP(address string) {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return
	}
	p.tryConnectReportAndWrite(unix.AF_INET, &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}, address)
}

func (p *probe) tryConnectReportAndWrite(family int, to unix.Sockaddr, reportedAddress string) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	// A connection that a firewall drops must not hold up the task.
	timeout := unix.Timeval{Usec: 200_000}
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout) != nil || unix.Connect(fd, to) != nil {
		return
	}
	p.report(Connected, reportedAddress)
	_, _ = unix.Write(fd, []byte(p.ProbeTaskName+"\n")) // the connection itself is already reported
}

// sendSpoofedFrames sends frames with false sources, with Marker at their end: IPv4 packets and ARP replies from the
// addresses of neighbours, and router advertisements. It sends nothing if the interface is in the network of the
// machine, because other machines there would accept the frames.
func (p *probe) sendSpoofedFrames() {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("eth0")
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFADDR, request) != nil || !p.isInNetworkOfNeighbour(request) {
		return
	}
	if unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request) != nil {
		return
	}
	index := int(request.Uint32())
	if unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index}) != nil {
		return
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return
	}
	own := [6]byte(name.(*unix.SockaddrLinklayer).Addr[:6])
	send := func(frame []byte) {
		frame = append(frame, Marker...)
		if unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index}) == nil {
			p.report(Call, "frame")
		}
	}
	head := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, own[:]...)
	for _, neighbour := range p.NeighbourIPs {
		address, err := netip.ParseAddr(neighbour)
		if err != nil {
			continue
		}
		source := address.As4()
		send(newUDPFrameWithoutMarker(head, source))
		arp := append(append([]byte{}, head...), 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2)
		arp = append(append(append(arp, own[:]...), source[:]...), append(own[:], source[:]...)...)
		send(arp)
	}
	// One advertisement is from the link-local address of the interface, and one from another address.
	linkLocal := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: own[0] ^ 2, 9: own[1], 10: own[2], 11: 0xff, 12: 0xfe, 13: own[3], 14: own[4], 15: own[5]})
	for _, source := range []netip.Addr{linkLocal, netip.MustParseAddr("fe80::bad")} {
		send(newRouterAdvertWithoutMarker(append([]byte{0x33, 0x33, 0, 0, 0, 1}, own[:]...), source))
	}
}

// isInNetworkOfNeighbour reports whether the address of an interface is in the same network as a neighbour.
func (p *probe) isInNetworkOfNeighbour(interfaceRequest *unix.Ifreq) bool {
	own, err := interfaceRequest.Inet4Addr()
	if err != nil {
		return false
	}
	const prefixSize = 20 // prefix length of bridge_network_subnet
	network := netip.PrefixFrom(netip.AddrFrom4([4]byte(own)), prefixSize).Masked()
	for _, neighbour := range p.NeighbourIPs {
		if address, err := netip.ParseAddr(neighbour); err == nil && network.Contains(address) {
			return true
		}
	}
	return false
}

func newUDPFrameWithoutMarker(ethernetAddresses []byte, source [4]byte) []byte {
	const headerSize, udpSize = 20, 8
	size := byte(headerSize + udpSize + len(Marker))
	packet := append([]byte{0x45, 0, 0, size, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, source[:]...)
	packet = append(packet, 255, 255, 255, 255)
	binary.BigEndian.PutUint16(packet[10:], internetChecksum(packet))
	packet = append(packet, 0x30, 0x39, 0x30, 0x39, 0, byte(udpSize+len(Marker)), 0, 0)
	return append(append(append([]byte{}, ethernetAddresses...), 0x08, 0x00), packet...)
}

// newRouterAdvertWithoutMarker returns a frame to which the caller appends Marker. Marker is the content of an option,
// and the checksum includes it.
func newRouterAdvertWithoutMarker(ethernetAddresses []byte, source netip.Addr) []byte {
	const lifetime = 60 // seconds
	message := []byte{134, 0, 0, 0, 64, 0, 0, lifetime, 0, 0, 0, 0, 0, 0, 0, 0}
	option := append([]byte{200, 4, 0, 0, 0, 0, 0, 0}, Marker...) // an unknown option of 32 bytes
	to := netip.MustParseAddr("ff02::1")
	pseudo := append(append(append([]byte{}, source.AsSlice()...), to.AsSlice()...), 0, 0, 0, byte(len(message)+len(option)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(message[2:], internetChecksum(append(append(pseudo, message...), option...)))
	frame := append(append([]byte{}, ethernetAddresses...), 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(message)+len(option)), unix.IPPROTO_ICMPV6, 255)
	frame = append(append(frame, source.AsSlice()...), to.AsSlice()...)
	return append(append(frame, message...), option[:len(option)-len(Marker)]...)
}

func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
