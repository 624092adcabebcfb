package fingerprint

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

func (p *prober) readNetwork() {
	addr, ok := defaultAddr(listInterfaces(), defaultInterface(p.readText("proc/net/route"), p.readText("proc/net/ipv6_route")))
	if !ok {
		p.addDegradation("there is no network interface with an address: tasks get " + addr.String())
	}
	p.host.IP = addr.String()
	p.setAttribute("unique.network.ip-address", p.host.IP)
}

// iface is one network interface that is up.
type iface struct {
	name  string
	addrs []netip.Addr
}

// listInterfaces lists the interfaces that are up, without the loopback. It returns nil if the system
// call fails.
func listInterfaces() []iface {
	list, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var up []iface
	for _, i := range list {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		found := iface{name: i.Name}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				found.addrs = append(found.addrs, prefix.Addr().Unmap())
			}
		}
		up = append(up, found)
	}
	return up
}

// defaultAddr returns the address of the node: an address of the default interface, else of the
// first interface that has one; IPv4 before IPv6. Without any address it returns the loopback
// address and false.
func defaultAddr(list []iface, name string) (netip.Addr, bool) {
	for _, onlyDefault := range []bool{true, false} {
		for _, i := range list {
			if onlyDefault && i.name != name {
				continue
			}
			for _, version4 := range []bool{true, false} {
				for _, a := range i.addrs {
					if a.Is4() == version4 && a.IsGlobalUnicast() {
						return a, true
					}
				}
			}
		}
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1}), false
}

// defaultInterface returns the interface of the best default route in the kernel's routing tables.
func defaultInterface(route, ipv6Route string) string {
	const up = 1
	best, name := int64(-1), ""
	consider := func(iface, metric string, base int, flags string) {
		f, err := strconv.ParseInt(flags, 16, 64)
		if err != nil || f&up == 0 {
			return
		}
		if m, err := strconv.ParseInt(metric, base, 64); err == nil && (best < 0 || m < best) {
			best, name = m, iface
		}
	}
	for line := range strings.Lines(route) {
		// columns of /proc/net/route: Iface Destination Gateway Flags RefCnt Use Metric Mask
		// …
		if f := strings.Fields(line); len(f) >= 8 && f[1] == "00000000" && f[7] == "00000000" {
			consider(f[0], f[6], 10, f[3])
		}
	}
	if name != "" {
		return name
	}
	for line := range strings.Lines(ipv6Route) {
		// columns of /proc/net/ipv6_route: destination, length, source, length, next hop,
		// metric, refs, use, flags, device
		f := strings.Fields(line)
		if len(f) >= 10 && f[1] == "00" && strings.Trim(f[0], "0") == "" && f[9] != "lo" {
			consider(f[9], f[5], 16, f[8])
		}
	}
	return name
}
