package bridge

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
)

// InterfaceName is the interface name in a connected namespace.
const InterfaceName = "eth0"

// Config configures a bridge.
type Config struct {
	Name       string       // interface name on the machine, and part of the nftables table name
	IPv4Subnet netip.Prefix // IPv4 network; the bridge has its first address, the namespaces have the others
	IPv6Subnet netip.Prefix // IPv6 network; the zero value means that namespaces have no IPv6 address
	// NoHairpin turns off the interfaces' hairpin mode. Without it, a namespace cannot reach its own forwarded ports
	// while the kernel filters bridged frames (br_netfilter).
	NoHairpin bool
	// AddressesForwardingOnlyHostIPPorts are machine addresses. On each, only ports with this address as HostIP are
	// forwarded.
	AddressesForwardingOnlyHostIPPorts []netip.Addr
}

// Validate returns an error if the configuration cannot be used.
func (c Config) Validate() error {
	const maxInterfaceName = 15
	switch {
	case c.Name == "" || len(c.Name) > maxInterfaceName || strings.ContainsAny(c.Name, "/: \t\n%"):
		return fmt.Errorf("bridge_network_name %q is not the name of a network interface", c.Name)
	case !c.IPv4Subnet.Addr().Is4() || c.IPv4Subnet.Bits() > 30:
		return fmt.Errorf("bridge_network_subnet %q is not an IPv4 network with at least 4 addresses, such as 172.26.64.0/20", c.IPv4Subnet)
	case c.IPv6Subnet.IsValid() && (!c.IPv6Subnet.Addr().Is6() || c.IPv6Subnet.Addr().Is4In6() || c.IPv6Subnet.Bits() > 126):
		return fmt.Errorf("bridge_network_subnet_ipv6 %q is not an IPv6 network with at least 4 addresses, such as fd00:a110:c8::/64", c.IPv6Subnet)
	}
	return nil
}

// ForwardedPort is a machine port forwarded to a namespace, for TCP and UDP.
type ForwardedPort struct {
	Label string
	// HostIP is the only machine address on which the port is forwarded. The zero value means all addresses, except
	// Config.AddressesForwardingOnlyHostIPPorts and the HostIP of each ForwardedPort with the same HostPort.
	HostIP        netip.Addr
	HostPort      int
	NamespacePort int // port in the namespace
}

// Endpoint is a network namespace that Attach connects to the bridge, and the ports forwarded to it.
type Endpoint struct {
	AllocID       string
	NamespacePath string // namespace file
	Ports         []ForwardedPort
}

// NamespaceStatus describes a connected namespace.
type NamespaceStatus struct {
	Interface   string
	IPv4Address netip.Addr
	IPv6Address netip.Addr // zero without IPv6
}

// Bridge connects namespaces to one of the machine's bridges. Its methods may be called concurrently, also by
// several processes: a method blocks while another call changes the bridge.
type Bridge struct {
	config      Config
	attachCalls callQueue[connection]
	detachCalls callQueue[detachCall]

	mu       sync.Mutex      // held together with the interprocess lock
	firewall *firewallTables // as this Bridge has last written and read it; nil before. Guarded by mu, except in ProbeInNewNetworkNamespace.
}

// New returns a Bridge with a valid configuration. It changes nothing on the machine.
func New(c Config) *Bridge {
	c.IPv4Subnet, c.IPv6Subnet = c.IPv4Subnet.Masked(), c.IPv6Subnet.Masked()
	return &Bridge{config: c}
}

// PortInUseError reports that a machine port is forwarded to another allocation.
type PortInUseError struct {
	Label, OwnerAllocID string
	HostPort            int
}

func (e *PortInUseError) Error() string {
	return fmt.Sprintf("port %q: %d is forwarded to allocation %s: stop that allocation, or use another port", e.Label, e.HostPort, e.OwnerAllocID)
}

// ProbeInNewNetworkNamespace creates the bridge and its rules in the calling thread's network namespace, which must
// be new. No other method may be called concurrently. An error says which feature the kernel, or the process, lacks.
func (b *Bridge) ProbeInNewNetworkNamespace() error {
	device, err := b.ensureBridge()
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	return b.ensureFirewall(device)
}
