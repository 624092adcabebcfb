package bridge

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/netns"
)

// deviceAlias is the alias of a bridge that this package has created.
const deviceAlias = "nomad-lite"

// findDevice returns the bridge with the name, nil if it does not exist.
func findDevice(name string) (*netlink.Bridge, error) {
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

// findLink returns the interface with the name, nil if it does not exist.
func findLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return nil, nil
	}
	return link, err
}

// ensureDevice returns the bridge of the machine, up and with its addresses.
func (b *Bridge) ensureDevice() (*netlink.Bridge, error) {
	device, err := findDevice(b.config.Name)
	if err != nil {
		return nil, err
	}
	if device == nil {
		if err := b.checkSubnetUnused(); err != nil {
			return nil, err
		}
		if device, err = createDevice(b.config.Name); err != nil {
			return nil, fmt.Errorf("create: %w", err)
		}
	}
	for _, subnet := range b.subnets() {
		// An address of a bridge is not in use before: duplicate address detection would only delay it.
		address := newAddress(netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits()))
		if err := netlink.AddrReplace(device, address); err != nil {
			return nil, fmt.Errorf("set address %s: %w", address, err)
		}
	}
	if err := b.setSysctls(); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(device); err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	return device, b.ensureLoopback6Route(device)
}

func (b *Bridge) subnets() []netip.Prefix {
	if !b.config.Subnet6.IsValid() {
		return []netip.Prefix{b.config.Subnet}
	}
	return []netip.Prefix{b.config.Subnet, b.config.Subnet6}
}

// checkSubnetUnused returns an error if the addresses of the bridge belong to a network of the machine.
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
			for _, subnet := range b.subnets() {
				if err == nil && prefix.Overlaps(subnet) {
					return fmt.Errorf("the subnet %s overlaps with the address %s of interface %s: set bridge_network_subnet to another network", subnet, prefix, i.Name)
				}
			}
		}
	}
	return nil
}

// createDevice creates a bridge. Its hardware address is set, because otherwise it would change with
// the interfaces of the bridge, and namespaces would send to the former address.
func createDevice(name string) (*netlink.Bridge, error) {
	sum := sha256.Sum256([]byte("nomad-lite " + name))
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	attributes.HardwareAddr = append(net.HardwareAddr{0x02}, sum[:5]...)
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
		return nil, err
	}
	device, err := findDevice(name)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetAlias(device, deviceAlias); err != nil {
		return nil, err
	}
	device.Alias = deviceAlias
	return device, nil
}

// sysctl is a parameter of the kernel, as a path below /proc/sys, with its value.
type sysctl struct{ path, value string }

// set does nothing if the parameter has the value: the file can be read-only, as in a container.
func (s sysctl) set() error {
	path := "/proc/sys/" + s.path
	if value, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(value)) == s.value {
		return nil
	}
	if err := os.WriteFile(path, []byte(s.value), 0); err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", strings.ReplaceAll(s.path, "/", "."), s.value, err)
	}
	return nil
}

// setSysctls sets the parameters of the kernel without which it forwards nothing, and those by which the machine takes
// no routes and addresses from namespaces.
func (b *Bridge) setSysctls() error {
	ipv4, ipv6 := "net/ipv4/conf/"+b.config.Name+"/", "net/ipv6/conf/"+b.config.Name+"/"
	needed := []sysctl{
		{"net/ipv4/ip_forward", "1"},
		// Connections from 127.0.0.1 of the machine are forwarded. The table drops packets from
		// namespaces to 127.0.0.0/8.
		{ipv4 + "route_localnet", "1"},
	}
	if b.config.Subnet6.IsValid() {
		needed = append(needed, sysctl{"net/ipv6/conf/all/forwarding", "1"})
		if err := skipAddressDetection(b.config.Name); err != nil {
			return err
		}
	}
	for _, s := range needed {
		if err := s.set(); err != nil {
			return err
		}
	}
	for _, s := range []sysctl{{ipv6 + "accept_ra", "0"}, {ipv6 + "autoconf", "0"}, {ipv6 + "accept_redirects", "0"}, {ipv4 + "accept_redirects", "0"}} {
		// The machine can have no IPv6, and a container no writable parameters. The bridge's table drops
		// the messages before.
		if err := s.set(); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EROFS) {
			return err
		}
	}
	return nil
}

func newAddress(prefix netip.Prefix) *netlink.Addr {
	address := &netlink.Addr{IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}}
	if prefix.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	return address
}

// hostInterface returns the name of the interface of the machine that leads to the namespace of an allocation.
func hostInterface(allocID string) string {
	sum := sha256.Sum256([]byte(allocID))
	return "nl" + hex.EncodeToString(sum[:6])
}

// aliasPrefix is the start of the alias of an interface that leads to a namespace; the allocation and
// its addresses follow.
const aliasPrefix = "nomad-lite "

func formatAlias(allocID string, s Status) string {
	alias := aliasPrefix + allocID + " " + s.Address.String()
	if s.Address6.IsValid() {
		alias += " " + s.Address6.String()
	}
	return alias
}

// parseAlias returns the allocation and the addresses in an alias. The addresses are zero if the alias
// is incomplete.
func parseAlias(alias string) (allocID string, s Status) {
	fields := strings.Fields(strings.TrimPrefix(alias, aliasPrefix))
	if !strings.HasPrefix(alias, aliasPrefix) || len(fields) < 2 {
		return "", Status{}
	}
	s = Status{Interface: InterfaceName}
	s.Address, _ = netip.ParseAddr(fields[1]) // the zero value means that the namespace is connected again
	if len(fields) > 2 {
		s.Address6, _ = netip.ParseAddr(fields[2])
	}
	return fields[0], s
}

// list calls a function that lists objects of the kernel, again if another process has changed one meanwhile.
func list[T any](call func() ([]T, error)) ([]T, error) {
	const attempts = 20
	for i := 1; ; i++ {
		all, err := call()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || i == attempts {
			return all, err
		}
	}
}

// portsOf returns the interfaces that are connected to the bridge.
func portsOf(device *netlink.Bridge) ([]netlink.Link, error) {
	all, err := list(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var ports []netlink.Link
	for _, link := range all {
		if link.Attrs().MasterIndex == device.Index {
			ports = append(ports, link)
		}
	}
	return ports, nil
}

// findStatus returns the status of an allocation whose namespace is connected, else the zero value.
func (b *Bridge) findStatus(device *netlink.Bridge, allocID string) (Status, error) {
	ports, err := portsOf(device)
	if err != nil {
		return Status{}, err
	}
	for _, port := range ports {
		if id, status := parseAlias(port.Attrs().Alias); id == allocID {
			return status, nil
		}
	}
	return Status{}, nil
}

// connect creates the interfaces of a namespace and sets its addresses and routes.
func (b *Bridge) connect(device *netlink.Bridge, e Endpoint) (Status, error) {
	ns, err := vnetns.GetFromPath(e.Path)
	if err != nil {
		return Status{}, fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return Status{}, fmt.Errorf("%s is not a network namespace: %w", e.Path, err)
	}
	defer inside.Close()

	status, err := b.findStatus(device, e.AllocID)
	if err != nil {
		return Status{}, err
	}
	if _, err := inside.LinkByName(InterfaceName); err != nil || !b.isCurrent(status) {
		// The namespace is not connected, or an agent that has died did not complete it.
		if status, err = b.createInterfaces(device, ns, e.AllocID); err != nil {
			return Status{}, err
		}
	}
	if status.Address6.IsValid() {
		err := netns.Do(e.Path, func() error { return skipAddressDetection(InterfaceName) })
		if err != nil {
			return Status{}, err
		}
	}
	if err := setUp(hostInterface(e.AllocID)); err != nil {
		return Status{}, err
	}
	if err := b.configureInside(inside, status); err != nil {
		return Status{}, err
	}
	return status, waitOperational(hostInterface(e.AllocID), b.config.Name)
}

// operationalTimeout limits how long Attach waits for the kernel.
const operationalTimeout = 2 * time.Second

// waitOperational waits until interfaces that are up transmit packets. Otherwise the first packet of a task
// could be lost, which delays its first connection by a second.
func waitOperational(names ...string) error {
	deadline := time.Now().Add(operationalTimeout)
	for _, name := range names {
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

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("interface %s: set up: %w", name, err)
	}
	return nil
}

// skipAddressDetection turns off the search for duplicates of the interface's own IPv6 addresses, which
// would take a second in which the interface sends nothing. It must be called before the interface is up.
func skipAddressDetection(name string) error {
	path := "/proc/sys/net/ipv6/conf/" + name + "/accept_dad"
	if err := os.WriteFile(path, []byte("0"), 0); err != nil && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("sysctl net.ipv6.conf.%s.accept_dad=0: %w", name, err)
	}
	return nil
}

// isCurrent reports whether the addresses of a namespace are in the configured subnets.
func (b *Bridge) isCurrent(s Status) bool {
	if !b.config.Subnet.Contains(s.Address) {
		return false
	}
	if !b.config.Subnet6.IsValid() {
		return !s.Address6.IsValid()
	}
	return b.config.Subnet6.Contains(s.Address6)
}

// createInterfaces creates a veth pair. One end is in the namespace, the other end is connected to the bridge
// and has an alias with free addresses.
func (b *Bridge) createInterfaces(device *netlink.Bridge, ns vnetns.NsHandle, allocID string) (Status, error) {
	name := hostInterface(allocID)
	if err := deleteLink(name); err != nil {
		return Status{}, err
	}
	status, err := b.chooseAddresses(device, allocID)
	if err != nil {
		return Status{}, err
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MasterIndex = name, device.Index
	veth := &netlink.Veth{
		LinkAttrs: attributes, PeerName: InterfaceName, PeerNamespace: netlink.NsFd(ns),
		PeerHardwareAddr: hardwareAddress(status.Address),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return Status{}, fmt.Errorf("create interface %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return Status{}, fmt.Errorf("interface %s: %w", name, err)
	}
	if err := netlink.LinkSetAlias(link, formatAlias(allocID, status)); err != nil {
		return Status{}, fmt.Errorf("interface %s: set alias: %w", name, err)
	}
	if err := netlink.LinkSetHairpin(link, !b.config.NoHairpin); err != nil {
		return Status{}, fmt.Errorf("interface %s: set hairpin mode: %w", name, err)
	}
	return status, nil
}

// hardwareAddress returns the hardware address for an IPv4 address. It depends on that address alone, because
// neighbours remember it: the next namespace with the address is reached at once.
func hardwareAddress(address netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x02, 0x6e}, address.AsSlice()...)
}

// chooseAddresses returns addresses that no other namespace of the bridge has.
func (b *Bridge) chooseAddresses(device *netlink.Bridge, allocID string) (Status, error) {
	ports, err := portsOf(device)
	if err != nil {
		return Status{}, err
	}
	used := make(map[netip.Addr]bool)
	for _, port := range ports {
		_, other := parseAlias(port.Attrs().Alias)
		used[other.Address], used[other.Address6] = true, true
	}
	status := Status{Interface: InterfaceName}
	if status.Address, err = chooseAddress(b.config.Subnet, allocID, used); err != nil {
		return Status{}, err
	}
	if b.config.Subnet6.IsValid() {
		status.Address6, err = chooseAddress(b.config.Subnet6, allocID, used)
	}
	return status, err
}

// chooseAddress returns an unused address of a subnet. The search starts at an address that depends on the
// allocation: an address that was just released is rarely used again, while peers still send to it.
func chooseAddress(subnet netip.Prefix, allocID string, used map[netip.Addr]bool) (netip.Addr, error) {
	const reserved = 3 // the address of the subnet, the bridge, and the broadcast address of IPv4
	free := uint64(1)<<min(subnet.Addr().BitLen()-subnet.Bits(), 32) - reserved
	sum := sha256.Sum256([]byte(allocID))
	start := binary.BigEndian.Uint64(sum[:])
	for i := range min(free, uint64(len(used))+1) {
		address := addressAt(subnet, 2+(start%free+i)%free)
		if !used[address] {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("all %d addresses of the subnet %s are in use: stop allocations, or set bridge_network_subnet to a larger network", free, subnet)
}

// addressAt returns the address at an offset from the start of a subnet. The offset is below 1<<32.
func addressAt(subnet netip.Prefix, offset uint64) netip.Addr {
	bytes := subnet.Addr().AsSlice()
	low := bytes[len(bytes)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)|uint32(offset))
	address, _ := netip.AddrFromSlice(bytes) // the size is that of an address
	return address
}

// configureInside sets the addresses and default routes of a namespace.
func (b *Bridge) configureInside(inside *netlink.Handle, s Status) error {
	link, err := inside.LinkByName(InterfaceName)
	if err != nil {
		return fmt.Errorf("interface %s of the namespace: %w", InterfaceName, err)
	}
	for _, address := range []netip.Addr{s.Address, s.Address6} {
		if !address.IsValid() {
			continue
		}
		if err := inside.AddrReplace(link, newAddress(netip.PrefixFrom(address, b.subnetOf(address).Bits()))); err != nil {
			return fmt.Errorf("set address %s: %w", address, err)
		}
	}
	if err := inside.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the interface of the namespace up: %w", err)
	}
	for _, address := range []netip.Addr{s.Address, s.Address6} {
		if !address.IsValid() {
			continue
		}
		gateway := b.subnetOf(address).Addr().Next()
		if err := inside.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("set default route to %s: %w", gateway, err)
		}
	}
	return nil
}

func (b *Bridge) subnetOf(address netip.Addr) netip.Prefix {
	if address.Is4() {
		return b.config.Subnet
	}
	return b.config.Subnet6
}

// deleteLink deletes an interface. It does nothing if the interface does not exist.
func deleteLink(name string) error {
	link, err := findLink(name)
	if link == nil || err != nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}
