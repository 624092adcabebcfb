package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// ConnectedEndpoint is an endpoint connected by Attach, with the addresses that Attach has returned.
type ConnectedEndpoint struct {
	Endpoint
	Status NamespaceStatus
}

// Damage describes a namespace without a connection when Repair was called.
type Damage struct {
	AllocID string
	Reason  string // what was missing; and if IsRepaired is false, why Repair could not restore it
	// IsRepaired: the namespace is connected again, with the same addresses. Otherwise only Detach and Attach connect it, with other
	// addresses.
	IsRepaired bool
}

// Repair restores what connected namespaces need, after another program has removed it: the bridge, the interfaces, the rules and the
// settings of the machine. Examples are `ip link del nomad`, `nft flush ruleset`, and rules that Docker has set. Repair changes
// nothing inside a namespace that has its interface, because a task with the capability net_admin may have configured it. No
// endpoint may be passed to Detach before Repair has returned.
func (b *Bridge) Repair(endpoints []ConnectedEndpoint) (damages []Damage, err error) {
	if len(endpoints) == 0 {
		return nil, nil
	}
	err = b.withInterprocessLock(func() error {
		device, err := b.ensureBridge()
		if err != nil {
			return err
		}
		if err := b.ensureFirewall(device); err != nil {
			return err
		}
		interfaces, err := listHostInterfaces()
		if err != nil {
			return err
		}
		var errs []error
		var connections []*connection
		for _, e := range endpoints {
			damage, err := b.repairInterface(device, interfaces, &e)
			if err != nil {
				errs = append(errs, fmt.Errorf("allocation %s: %w", e.AllocID, err))
				continue
			}
			if damage.Reason != "" {
				damages = append(damages, damage)
			}
			if damage.Reason == "" || damage.IsRepaired {
				connections = append(connections, &connection{Endpoint: e.Endpoint, status: e.Status})
			}
		}
		b.permitSourcesAndForwardPorts(device, connections)
		for _, c := range connections {
			errs = append(errs, c.err)
		}
		return errors.Join(errs...)
	})
	return damages, err
}

// repairInterface connects an endpoint's namespace to the bridge again, unless it is connected. It sets the endpoint's status to
// the addresses in the interface's alias, if it has one. The result is the zero Damage if the namespace was connected. interfaces
// are the machine's.
func (b *Bridge) repairInterface(device *netlink.Bridge, interfaces *hostInterfaces, e *ConnectedEndpoint) (Damage, error) {
	name := hostInterfaceName(e.AllocID)
	damage := Damage{AllocID: e.AllocID, IsRepaired: true}
	links := interfaces.links
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == name })
	hasAlias := false
	if i >= 0 {
		id, status := parseInterfaceAlias(links[i].Attrs().Alias)
		if hasAlias = id == e.AllocID && status.IPv4Address.IsValid(); hasAlias {
			e.Status = status
		}
	}
	switch {
	case i < 0:
		damage.Reason = "its interface " + name + " was removed"
	case links[i].Attrs().MasterIndex != device.Index:
		damage.Reason = fmt.Sprintf("its interface %s was not connected to the bridge %s", name, device.Name)
	case links[i].Attrs().Flags&net.FlagUp == 0:
		damage.Reason = "its interface " + name + " was down"
	case !hasAlias:
		damage.Reason = "its interface " + name + " had lost its alias"
	default:
		return Damage{}, nil
	}
	var obstacle string
	wasConnected := i >= 0 && links[i].Attrs().MasterIndex == device.Index
	if !wasConnected && !b.isInConfiguredSubnets(e.Status) { // a new bridge has no address in an earlier subnet
		obstacle = fmt.Sprintf("its address %s is not in the subnet %s", e.Status.IPv4Address, b.config.IPv4Subnet)
	} else if owner := findOwnerOfAddresses(links, e.AllocID, e.Status); i < 0 && owner != "" {
		obstacle = "allocation " + owner + " has its address"
	}
	if obstacle != "" {
		damage.Reason, damage.IsRepaired = damage.Reason+", and "+obstacle, false
		return damage, nil
	}
	if i < 0 {
		if _, err := b.connectNamespace(device, interfaces, e.Endpoint, e.Status); err != nil {
			return damage, err
		}
		return damage, waitInterfacesUpOrTimeout(name, b.config.Name)
	}
	opcount.Count(opcount.Netlink)
	if err := netlink.LinkSetMaster(links[i], device); err != nil {
		return Damage{}, fmt.Errorf("connect interface %s to the bridge: %w", name, err)
	}
	if err := b.configureHostInterface(name, formatInterfaceAlias(e.AllocID, e.Status)); err != nil {
		return Damage{}, fmt.Errorf("interface %s: set alias, hairpin mode and state: %w", name, err)
	}
	return damage, waitInterfacesUpOrTimeout(name, b.config.Name)
}

// findOwnerOfAddresses returns another allocation with one of the addresses, or "".
func findOwnerOfAddresses(interfaces []netlink.Link, allocID string, s NamespaceStatus) string {
	for _, link := range interfaces {
		id, other := parseInterfaceAlias(link.Attrs().Alias)
		if id == "" || id == allocID {
			continue
		}
		for _, address := range []netip.Addr{s.IPv4Address, s.IPv6Address} {
			if address.IsValid() && (address == other.IPv4Address || address == other.IPv6Address) {
				return id
			}
		}
	}
	return ""
}
