package fingerprint

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// Interface is a machine's network interface that is up and has addresses.
type Interface struct {
	Name      string
	MAC       string       // empty if the interface has none
	MBits     int          // speed in megabits per second; defaultMBits if the interface has no known speed
	Addresses []netip.Addr // IPv4 before IPv6, unless IPv6 is preferred; without link-local addresses

	isLoopback bool
}

// defaultMBits is the speed for an interface without a known speed, as in Nomad.
const defaultMBits = 1000

// readInterfacesAndSelectNodeIP selects the interface with the node's address: the interface named by the operator, else
// the default route's, else the first with an address.
func (p *prober) readInterfacesAndSelectNodeIP() {
	interfaces, err := p.listUpInterfacesWithAddresses()
	if err != nil {
		p.addDegradation(err.Error())
	}
	p.host.Interfaces = interfaces
	name, address, ok := p.options.NetworkInterface, netip.Addr{}, false
	if name != "" {
		if address, ok = firstAddressOfInterface(interfaces, name); !ok {
			p.addDegradation(fmt.Sprintf("network interface %q: it does not exist, is down or has no address: the node gets another address", name))
		}
	}
	if !ok {
		name, address, ok = selectAddressOrLoopback(interfaces, defaultRouteInterface(p.readTrimmedTextOrEmpty("proc/net/route"), p.readTrimmedTextOrEmpty("proc/net/ipv6_route")))
	}
	if !ok {
		p.addDegradation("there is no network interface with an address: tasks get " + address.String())
	}
	p.host.InterfaceOfIP, p.host.IP = name, address.String()
	p.setAttributeUnlessEmpty(AttributeIP, p.host.IP)
}

// AttributeIP is the name of the attribute with the node's address.
const AttributeIP = "unique.network.ip-address"

// LoopbackInterface returns the name of the machine's loopback interface, or "" if there is none.
func LoopbackInterface() string {
	interfaces, _ := net.Interfaces() // without a list, there is none that could be used
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
	}
	return ""
}

// listUpInterfacesWithAddresses lists the interfaces that are up, in the kernel's order.
func (p *prober) listUpInterfacesWithAddresses() ([]Interface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	opcount.Count(opcount.Netlink)
	// net.Interface.Addrs would read all machine addresses for each interface.
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // an interface is added or removed meanwhile
		return nil, fmt.Errorf("list addresses of network interfaces: %w", err)
	}
	var up []Interface
	for _, i := range list {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		found := Interface{Name: i.Name, MAC: i.HardwareAddr.String(), isLoopback: i.Flags&net.FlagLoopback != 0}
		for _, a := range addresses {
			address, ok := netip.AddrFromSlice(a.IP)
			if address = address.Unmap(); ok && a.LinkIndex == i.Index && !address.IsLinkLocalUnicast() {
				found.Addresses = append(found.Addresses, address)
			}
		}
		if len(found.Addresses) > 0 {
			found.MBits = p.interfaceMBitsOrDefault(i.Name) // the tasks' ends in bridges, which can be many, have no address here
			sortByFamily(found.Addresses, p.options.PreferIPv6)
			up = append(up, found)
		}
	}
	return up, nil
}

// sortByFamily moves the addresses of the preferred family to the front, without another change of the order.
func sortByFamily(addresses []netip.Addr, preferIPv6 bool) {
	slices.SortStableFunc(addresses, func(a, b netip.Addr) int {
		if preferIPv6 {
			a, b = b, a
		}
		return cmp.Compare(a.BitLen(), b.BitLen())
	})
}

// interfaceMBitsOrDefault returns an interface's speed. For an interface without a carrier, and for most virtual ones, the
// kernel's file is missing or has -1.
func (p *prober) interfaceMBitsOrDefault(name string) int {
	return cmp.Or(int(p.readNumberOrZero("sys/class/net/"+name+"/speed")), defaultMBits)
}

// firstAddressOfInterface returns the named interface's first address, and false if it is not in the list.
func firstAddressOfInterface(interfaces []Interface, name string) (address netip.Addr, ok bool) {
	for _, i := range interfaces {
		if i.Name == name {
			return i.Addresses[0], true
		}
	}
	return netip.Addr{}, false
}

// selectAddressOrLoopback returns the node's address and its interface name: preferredInterface's first address, else the
// first address on any interface, except loopback addresses. If there is none, it returns 127.0.0.1, no interface, and
// false.
func selectAddressOrLoopback(interfaces []Interface, preferredInterface string) (name string, address netip.Addr, ok bool) {
	for _, onlyPreferred := range []bool{true, false} {
		for _, i := range interfaces {
			if i.isLoopback || onlyPreferred && i.Name != preferredInterface {
				continue
			}
			if at := slices.IndexFunc(i.Addresses, netip.Addr.IsGlobalUnicast); at >= 0 {
				return i.Name, i.Addresses[at], true
			}
		}
	}
	return "", netip.AddrFrom4([4]byte{127, 0, 0, 1}), false
}

// defaultRouteInterface returns the interface for the default route with the lowest metric, for IPv4 if there is one, else
// for IPv6. The parameters are the contents of /proc/net/route and /proc/net/ipv6_route.
func defaultRouteInterface(procNetRoute, procNetIPv6Route string) string {
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
	for line := range strings.Lines(procNetRoute) {
		// columns in /proc/net/route: Iface Destination Gateway Flags RefCnt Use Metric Mask …
		if f := strings.Fields(line); len(f) >= 8 && f[1] == "00000000" && f[7] == "00000000" {
			consider(f[0], f[6], 10, f[3])
		}
	}
	if name != "" {
		return name
	}
	for line := range strings.Lines(procNetIPv6Route) {
		// columns in /proc/net/ipv6_route: destination, length, source, length, next hop, metric, refs, use, flags, device
		f := strings.Fields(line)
		if len(f) >= 10 && f[1] == "00" && strings.Trim(f[0], "0") == "" && f[9] != "lo" {
			consider(f[9], f[5], 16, f[8])
		}
	}
	return name
}
