package bridge

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// bridgeAlias is the alias of a bridge that this package has created. It is information for administrators.
const bridgeAlias = "nomad-lite"

// bridgeHardwareAddress returns the hardware address for a bridge with this name that this package has created. It identifies
// such bridges, because the kernel sets it when it creates the interface, and the alias only afterwards.
func bridgeHardwareAddress(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("nomad-lite " + name))
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}

// wasCreatedByNomadLite reports whether this package has created the bridge.
func wasCreatedByNomadLite(device *netlink.Bridge) bool {
	return bytes.Equal(device.HardwareAddr, bridgeHardwareAddress(device.Name))
}

// findBridge returns the bridge with the name, nil if it does not exist.
func findBridge(name string) (*netlink.Bridge, error) {
	link, err := findLink(name)
	if link == nil || err != nil {
		return nil, err
	}
	device, ok := link.(*netlink.Bridge)
	if !ok {
		return nil, fmt.Errorf("the network interface %s exists and is no bridge: set bridge_network_name to another name", name)
	}
	return device, nil
}

// findLink returns the network interface with the name, nil if it does not exist.
func findLink(name string) (netlink.Link, error) {
	opcount.Count(opcount.Netlink)
	link, err := netlink.LinkByName(name)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return nil, nil
	}
	return link, err
}

// ensureBridge returns the machine's bridge interface. It creates the interface if necessary, and sets its addresses, sysctls and
// state.
func (b *Bridge) ensureBridge() (*netlink.Bridge, error) {
	device, err := findBridge(b.config.Name)
	if err != nil {
		return nil, err
	}
	if device == nil {
		if err := b.checkSubnetUnused(); err != nil {
			return nil, err
		}
		if device, err = createBridge(b.config.Name); err != nil {
			return nil, fmt.Errorf("create: %w", err)
		}
	}
	for _, subnet := range b.configuredSubnets() {
		// newNetlinkAddressWithoutDAD turns off duplicate address detection, which would only delay the first use.
		address := newNetlinkAddressWithoutDAD(netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits()))
		opcount.Count(opcount.Netlink)
		if err := netlink.AddrReplace(device, address); err != nil {
			return nil, fmt.Errorf("set address %s: %w", address, err)
		}
	}
	if err := b.setSysctls(); err != nil {
		return nil, err
	}
	opcount.Count(opcount.Netlink)
	if err := netlink.LinkSetUp(device); err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	return device, b.ensureLoopback6Route(device)
}

// configuredSubnets returns the configured subnets for IPv4 and, if it is used, for IPv6.
func (b *Bridge) configuredSubnets() []netip.Prefix {
	if !b.config.IPv6Subnet.IsValid() {
		return []netip.Prefix{b.config.IPv4Subnet}
	}
	return []netip.Prefix{b.config.IPv4Subnet, b.config.IPv6Subnet}
}

// checkSubnetUnused returns an error if one of the bridge's subnets overlaps with a machine interface's subnet.
func (b *Bridge) checkSubnetUnused() error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue // the interface was removed meanwhile
		}
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			for _, subnet := range b.configuredSubnets() {
				if err == nil && prefix.Overlaps(subnet) {
					return fmt.Errorf("the subnet %s overlaps with the address %s of interface %s: set bridge_network_subnet to another network", subnet, prefix, i.Name)
				}
			}
		}
	}
	return nil
}

// createBridge creates a bridge interface with a fixed hardware address. Otherwise the address would change when
// interfaces are connected to the bridge, and namespaces would send to the former address for a while.
func createBridge(name string) (*netlink.Bridge, error) {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	attributes.HardwareAddr = bridgeHardwareAddress(name)
	opcount.Count(opcount.Netlink)
	opcount.Count(opcount.Netlink)
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
		return nil, err
	}
	device, err := findBridge(name)
	if err != nil {
		return nil, err
	}
	opcount.Count(opcount.Netlink)
	return device, netlink.LinkSetAlias(device, bridgeAlias)
}

// sysctl is a kernel parameter, as a path below /proc/sys, with its value.
type sysctl struct{ pathBelowProcSys, value string }

// setUnlessEqual sets the parameter, unless it has the value already: in a container, the file can be read-only.
func (s sysctl) setUnlessEqual() error {
	path := "/proc/sys/" + s.pathBelowProcSys
	if value, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(value)) == s.value {
		return nil
	}
	if err := os.WriteFile(path, []byte(s.value), 0); err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", strings.ReplaceAll(s.pathBelowProcSys, "/", "."), s.value, err)
	}
	return nil
}

// setSysctls turns on forwarding in the kernel, and makes the machine ignore routes and addresses that namespaces
// announce.
func (b *Bridge) setSysctls() error {
	ipv4, ipv6 := "net/ipv4/conf/"+b.config.Name+"/", "net/ipv6/conf/"+b.config.Name+"/"
	needed := []sysctl{
		{"net/ipv4/ip_forward", "1"},
		// Connections from the machine's 127.0.0.1 are forwarded. The table drops packets from namespaces to 127.0.0.0/8.
		{ipv4 + "route_localnet", "1"},
	}
	if b.config.IPv6Subnet.IsValid() {
		needed = append(needed, sysctl{"net/ipv6/conf/all/forwarding", "1"})
		if err := disableDuplicateAddressDetection(b.config.Name); err != nil {
			return err
		}
	}
	for _, s := range needed {
		if err := s.setUnlessEqual(); err != nil {
			return err
		}
	}
	for _, s := range []sysctl{{ipv6 + "accept_ra", "0"}, {ipv6 + "autoconf", "0"}, {ipv6 + "accept_redirects", "0"}, {ipv4 + "accept_redirects", "0"}} {
		// Errors on a machine without IPv6, and in a container with read-only parameters, are ignored, because newSourceCheckTable's
		// table drops such announcements anyway.
		if err := s.setUnlessEqual(); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EROFS) {
			return err
		}
	}
	return nil
}

// newNetlinkAddressWithoutDAD returns an address's netlink form, without duplicate address detection.
func newNetlinkAddressWithoutDAD(prefix netip.Prefix) *netlink.Addr {
	address := &netlink.Addr{IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}}
	if prefix.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	return address
}

// hostInterfaceName returns the name for the machine's end of an allocation's veth pair.
func hostInterfaceName(allocID string) string {
	sum := sha256.Sum256([]byte(allocID))
	return "nl" + hex.EncodeToString(sum[:6])
}

// aliasPrefix starts the alias on the machine's end of a veth pair. The allocation ID and the namespace's addresses follow.
const aliasPrefix = "nomad-lite "

func formatInterfaceAlias(allocID string, s NamespaceStatus) string {
	alias := aliasPrefix + allocID + " " + s.IPv4Address.String()
	if s.IPv6Address.IsValid() {
		alias += " " + s.IPv6Address.String()
	}
	return alias
}

// parseInterfaceAlias returns the allocation ID and the addresses in an alias. They are zero if the alias is not from
// formatInterfaceAlias.
func parseInterfaceAlias(alias string) (allocID string, s NamespaceStatus) {
	fields := strings.Fields(strings.TrimPrefix(alias, aliasPrefix))
	if !strings.HasPrefix(alias, aliasPrefix) || len(fields) < 2 {
		return "", NamespaceStatus{}
	}
	s = NamespaceStatus{Interface: InterfaceName}
	s.IPv4Address, _ = netip.ParseAddr(fields[1]) // with the zero value, Attach connects the namespace again
	if len(fields) > 2 {
		s.IPv6Address, _ = netip.ParseAddr(fields[2])
	}
	return fields[0], s
}

// retryInterruptedDump calls a function that lists kernel objects by netlink. It calls the function again if another process has
// changed an object during the call.
func retryInterruptedDump[T any](call func() ([]T, error)) ([]T, error) {
	const attempts = 20
	for i := 1; ; i++ {
		all, err := call()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || i == attempts {
			return all, err
		}
	}
}

// bridgePortInterfaces returns the bridge's ports.
func bridgePortInterfaces(device *netlink.Bridge) ([]netlink.Link, error) {
	all, err := listInterfaces()
	return portsOf(device, all), err
}

func listInterfaces() ([]netlink.Link, error) {
	opcount.Count(opcount.Netlink)
	all, err := retryInterruptedDump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return all, nil
}

// portsOf returns the bridge ports among the interfaces.
func portsOf(device *netlink.Bridge, interfaces []netlink.Link) (ports []netlink.Link) {
	for _, link := range interfaces {
		if link.Attrs().MasterIndex == device.Index {
			ports = append(ports, link)
		}
	}
	return ports
}

// findStatusOfAlloc returns an allocation's addresses if its namespace is connected to the bridge with these ports, or else the
// zero value.
func findStatusOfAlloc(ports []netlink.Link, allocID string) NamespaceStatus {
	for _, port := range ports {
		if id, status := parseInterfaceAlias(port.Attrs().Alias); id == allocID {
			return status
		}
	}
	return NamespaceStatus{}
}

// connectNamespace creates a namespace's veth pair, unless it exists, and sets the namespace's addresses and routes. A new pair
// gets the addresses in wanted, or else unused addresses.
//
// It does not wait until the interfaces transmit packets. interfaces are the machine's, among which connectNamespace reserves the
// addresses.
func (b *Bridge) connectNamespace(device *netlink.Bridge, interfaces *hostInterfaces, e Endpoint, wanted NamespaceStatus) (NamespaceStatus, error) {
	ns, err := vnetns.GetFromPath(e.NamespacePath)
	if err != nil {
		return NamespaceStatus{}, fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	namespaceHandle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return NamespaceStatus{}, fmt.Errorf("%s is not a network namespace: %w", e.NamespacePath, err)
	}
	defer namespaceHandle.Close()

	status := findStatusOfAlloc(portsOf(device, interfaces.links), e.AllocID)
	isConnected := b.isInConfiguredSubnets(status)
	if isConnected {
		opcount.Count(opcount.Netlink)
		_, err := namespaceHandle.LinkByName(InterfaceName)
		isConnected = err == nil
	}
	if isConnected {
		err = setInterfaceUp(hostInterfaceName(e.AllocID))
	} else { // the namespace is not connected, or a dead agent did not complete it
		status, err = b.recreateVethPair(device, interfaces, ns, e.AllocID, wanted)
	}
	if err != nil {
		return NamespaceStatus{}, err
	}
	if status.IPv6Address.IsValid() {
		err := netns.Do(e.NamespacePath, func() error { return disableDuplicateAddressDetection(InterfaceName) })
		if err != nil {
			return NamespaceStatus{}, err
		}
	}
	return status, b.configureNamespace(namespaceHandle, status)
}

// operationalTimeout limits how long waitInterfacesUpOrTimeout waits for each interface.
const operationalTimeout = 2 * time.Second

// waitInterfacesUpOrTimeout waits until interfaces that are up transmit packets, or operationalTimeout has passed. Without the
// wait, a task's first packet could be lost, which delays its first connection by a second.
func waitInterfacesUpOrTimeout(names ...string) error {
	deadline := time.Now().Add(operationalTimeout)
	for _, name := range names {
		opcount.Count(opcount.Netlink)
		for {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("interface %s: %w", name, err)
			}
			if link.Attrs().OperState == netlink.OperUp || time.Now().After(deadline) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

func setInterfaceUp(name string) error {
	opcount.Count(opcount.Netlink)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	opcount.Count(opcount.Netlink)
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("interface %s: set up: %w", name, err)
	}
	return nil
}

// disableDuplicateAddressDetection turns off duplicate address detection for an interface's IPv6 addresses. The interface would
// send nothing for a second during the detection. It must be called before the interface is up.
func disableDuplicateAddressDetection(name string) error {
	path := "/proc/sys/net/ipv6/conf/" + name + "/accept_dad"
	if err := os.WriteFile(path, []byte("0"), 0); err != nil && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("sysctl net.ipv6.conf.%s.accept_dad=0: %w", name, err)
	}
	return nil
}

// isInConfiguredSubnets reports whether a namespace's addresses are in the configured subnets, and not in an earlier
// configuration's.
func (b *Bridge) isInConfiguredSubnets(s NamespaceStatus) bool {
	if !b.config.IPv4Subnet.Contains(s.IPv4Address) {
		return false
	}
	if !b.config.IPv6Subnet.IsValid() {
		return !s.IPv6Address.IsValid()
	}
	return b.config.IPv6Subnet.Contains(s.IPv6Address)
}

// recreateVethPair creates an allocation's veth pair. One end is in the namespace. The other end is connected to the bridge and
// up, and its alias has the namespace's addresses: those in status, which are chosen if status is the zero value. interfaces are
// the machine's.
func (b *Bridge) recreateVethPair(device *netlink.Bridge, interfaces *hostInterfaces, ns vnetns.NsHandle, allocID string, status NamespaceStatus) (NamespaceStatus, error) {
	name := hostInterfaceName(allocID)
	if slices.ContainsFunc(interfaces.links, func(l netlink.Link) bool { return l.Attrs().Name == name }) {
		if err := deleteLinkIfExists(name); err != nil {
			return NamespaceStatus{}, err
		}
		interfaces.remove(name)
	}
	if !status.IPv4Address.IsValid() {
		var err error
		if status, err = b.chooseAddresses(interfaces.inUse, allocID); err != nil {
			return NamespaceStatus{}, err
		}
	}
	if err := createVethPair(name, device, ns, hardwareAddressForIPv4(status.IPv4Address)); err != nil {
		return NamespaceStatus{}, fmt.Errorf("create interface %s: %w", name, err)
	}
	alias := formatInterfaceAlias(allocID, status)
	if err := b.configureHostInterface(name, alias); err != nil {
		return NamespaceStatus{}, fmt.Errorf("interface %s: set alias, hairpin mode and state: %w", name, err)
	}
	interfaces.add(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Alias: alias, MasterIndex: device.Index, Flags: net.FlagUp}})
	return status, nil
}

// createVethPair creates a veth pair in one request: the end with the name is a bridge port, and the end InterfaceName is in the
// namespace.
func createVethPair(name string, device *netlink.Bridge, ns vnetns.NsHandle, namespaceHardwareAddress net.HardwareAddr) error {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(InterfaceName))
	peer.AddRtAttr(unix.IFLA_ADDRESS, namespaceHardwareAddress)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns)))

	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	request.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(device.Index))))
	request.AddData(info)
	opcount.Count(opcount.Netlink)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// configureHostInterface sets a bridge port's alias and hairpin mode, and sets the port up, in one request.
func (b *Bridge) configureHostInterface(name, alias string) error {
	hairpin := byte(1)
	if b.config.NoHairpin {
		hairpin = 0
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil).AddRtAttr(nl.IFLA_BRPORT_MODE, []byte{hairpin})

	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Flags, message.Change = unix.IFF_UP, unix.IFF_UP
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	request.AddData(message)
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
	request.AddData(info)
	opcount.Count(opcount.Netlink)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// hardwareAddressForIPv4 returns the hardware address for a namespace with an IPv4 address. It depends on that address alone,
// because neighbours cache it: they reach the next namespace with the IPv4 address at once.
func hardwareAddressForIPv4(address netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x02, 0x6e}, address.AsSlice()...)
}

// chooseAddresses returns unused addresses.
func (b *Bridge) chooseAddresses(used map[netip.Addr]bool, allocID string) (NamespaceStatus, error) {
	status := NamespaceStatus{Interface: InterfaceName}
	var err error
	if status.IPv4Address, err = chooseAddress(b.config.IPv4Subnet, allocID, used); err != nil {
		return NamespaceStatus{}, err
	}
	if b.config.IPv6Subnet.IsValid() {
		status.IPv6Address, err = chooseAddress(b.config.IPv6Subnet, allocID, used)
	}
	return status, err
}

// chooseAddress returns a subnet's unused address. The search starts at an address that depends on the allocation: a recently
// released address is rarely used again, while peers still send to it.
func chooseAddress(subnet netip.Prefix, allocID string, used map[netip.Addr]bool) (netip.Addr, error) {
	const reserved = 3 // the subnet's and the bridge's addresses, and the IPv4 broadcast address
	free := uint64(1)<<min(subnet.Addr().BitLen()-subnet.Bits(), 32) - reserved
	sum := sha256.Sum256([]byte(allocID))
	start := binary.BigEndian.Uint64(sum[:])
	for i := range min(free, uint64(len(used))+1) { // among len(used)+1 addresses, at least one is unused
		address := addressAt(subnet, 2+(start%free+i)%free)
		if !used[address] {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("all %d addresses of the subnet %s are in use: stop allocations, or set bridge_network_subnet to a larger network", free, subnet)
}

// addressAt returns the address at an offset from a subnet's start. The offset is below 1<<32.
func addressAt(subnet netip.Prefix, offset uint64) netip.Addr {
	bytes := subnet.Addr().AsSlice()
	low := bytes[len(bytes)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)|uint32(offset))
	address, _ := netip.AddrFromSlice(bytes) // cannot fail, because bytes has an address's size
	return address
}

// configureNamespace sets a namespace's addresses and default routes.
func (b *Bridge) configureNamespace(namespaceHandle *netlink.Handle, s NamespaceStatus) error {
	opcount.Count(opcount.Netlink)
	link, err := namespaceHandle.LinkByName(InterfaceName)
	if err != nil {
		return fmt.Errorf("interface %s of the namespace: %w", InterfaceName, err)
	}
	for _, address := range []netip.Addr{s.IPv4Address, s.IPv6Address} {
		if !address.IsValid() {
			continue
		}
		opcount.Count(opcount.Netlink)
		if err := namespaceHandle.AddrReplace(link, newNetlinkAddressWithoutDAD(netip.PrefixFrom(address, b.configuredSubnetOf(address).Bits()))); err != nil {
			return fmt.Errorf("set address %s: %w", address, err)
		}
	}
	opcount.Count(opcount.Netlink)
	if err := namespaceHandle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the interface of the namespace up: %w", err)
	}
	for _, address := range []netip.Addr{s.IPv4Address, s.IPv6Address} {
		if !address.IsValid() {
			continue
		}
		gateway := b.configuredSubnetOf(address).Addr().Next()
		opcount.Count(opcount.Netlink)
		if err := namespaceHandle.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("set default route to %s: %w", gateway, err)
		}
	}
	return nil
}

func (b *Bridge) configuredSubnetOf(address netip.Addr) netip.Prefix {
	if address.Is4() {
		return b.config.IPv4Subnet
	}
	return b.config.IPv6Subnet
}

// deleteLinkIfExists deletes an interface. It does nothing if the interface does not exist.
func deleteLinkIfExists(name string) error {
	link, err := findLink(name)
	if link == nil || err != nil {
		return err
	}
	opcount.Count(opcount.Netlink)
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}
