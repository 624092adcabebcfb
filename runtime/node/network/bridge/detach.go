package bridge

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// detachCall is a Detach call in progress.
type detachCall struct {
	allocID string
	err     error
}

// Detach disconnects an allocation's namespace, also if the namespace no longer exists. When no namespace is connected any
// longer, it removes the bridge's rules, and the bridge if Attach has created it. It does nothing if the allocation is not
// connected. Concurrent calls are executed together and share an error, after which each caller must call Detach again.
func (b *Bridge) Detach(allocID string) error {
	call := &detachCall{allocID: allocID}
	b.detachCalls.execute(call, math.MaxInt, func(calls []*detachCall) {
		allocIDs := make(map[string]bool, len(calls))
		for _, c := range calls {
			allocIDs[c.allocID] = true
		}
		err := b.withInterprocessLock(func() error { return b.detachAllocs(allocIDs) })
		if err != nil {
			err = fmt.Errorf("bridge %s: %w", b.config.Name, err)
		}
		for _, c := range calls {
			c.err = err
		}
	})
	return call.err
}

// detachAllocs disconnects the allocations' namespaces.
func (b *Bridge) detachAllocs(allocIDs map[string]bool) error {
	device, err := findBridge(b.config.Name)
	if err != nil {
		return errors.Join(err, deleteNftablesTablesIfExist(b.config.Name))
	}
	links, err := hostInterfacesOf(allocIDs)
	if err != nil {
		return err
	}
	point := failpoint.EnterStep(failpoint.StepDisconnectNetwork)
	err = b.removeNetworksOfAllocs(allocIDs, links)
	point.Leave()
	if err != nil {
		return err
	}
	return b.removeRulesAndBridgeIfUnused(device)
}

// removeNetworksOfAllocs removes allocations' rules, tracked connections and interfaces. It deletes the interfaces last, because
// their aliases reserve the addresses, and a call that continues an interrupted one reads the addresses from them.
func (b *Bridge) removeNetworksOfAllocs(allocIDs map[string]bool, hostInterfaces []netlink.Link) error {
	if err := b.removeAllocsFromFirewall(allocIDs); err != nil {
		return fmt.Errorf("remove forwarded ports: %w", err)
	}
	// Tracked connections' packets would go to the next namespace that gets the address.
	if err := deleteConnectionsOfAddresses(namespaceAddressesFromAliases(hostInterfaces)); err != nil {
		return err
	}
	return deleteLinks(hostInterfaces)
}

// hostInterfacesOf returns the machine interfaces connected to the given allocations' namespaces.
func hostInterfacesOf(allocIDs map[string]bool) ([]netlink.Link, error) {
	names := make(map[string]bool, len(allocIDs))
	for id := range allocIDs {
		names[hostInterfaceName(id)] = true
	}
	opcount.Count(opcount.Netlink)
	all, err := retryInterruptedDump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return slices.DeleteFunc(all, func(l netlink.Link) bool { return !names[l.Attrs().Name] }), nil
}

// namespaceAddressesFromAliases returns the addresses, from the aliases, of the namespaces connected to machine interfaces.
func namespaceAddressesFromAliases(hostInterfaces []netlink.Link) map[netip.Addr]bool {
	addresses := make(map[netip.Addr]bool)
	for _, link := range hostInterfaces {
		_, status := parseInterfaceAlias(link.Attrs().Alias)
		for _, address := range []netip.Addr{status.IPv4Address, status.IPv6Address} {
			if address.IsValid() {
				addresses[address] = true
			}
		}
	}
	return addresses
}

// deleteLinks deletes interfaces. It deletes several interfaces as a group, because the kernel waits once per deletion
// until no processor uses the interfaces.
func deleteLinks(links []netlink.Link) error {
	if len(links) == 1 {
		return deleteLinkIfExists(links[0].Attrs().Name)
	}
	if len(links) == 0 {
		return nil
	}
	group := randomInterfaceGroup()
	for _, link := range links {
		opcount.Count(opcount.Netlink)
		if err := netlink.LinkSetGroup(link, int(group)); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("set the group of interface %s: %w", link.Attrs().Name, err)
		}
	}
	request := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_GROUP, binary.NativeEndian.AppendUint32(nil, group)))
	opcount.Count(opcount.Netlink)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %d interfaces: %w", len(links), err)
	}
	return nil
}

// randomInterfaceGroup returns an unused interface group number. Administrators use small numbers.
func randomInterfaceGroup() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never returns an error
	return binary.NativeEndian.Uint32(b[:])&(1<<31-1) | 1<<30
}

// FindBridgeAndDetach is Detach for another agent's allocation. It finds the bridge by the allocation's interface. Without this
// interface, it removes all unconnected bridges created by Attach.
func FindBridgeAndDetach(allocID string) error {
	link, err := findLink(hostInterfaceName(allocID))
	if err != nil {
		return err
	}
	if link == nil {
		return detachFromEachCreatedBridge(allocID)
	}
	opcount.Count(opcount.Netlink)
	device, err := netlink.LinkByIndex(link.Attrs().MasterIndex)
	if err != nil {
		return deleteLinkIfExists(hostInterfaceName(allocID)) // the bridge was deleted
	}
	return New(Config{Name: device.Attrs().Name}).Detach(allocID)
}

// detachFromEachCreatedBridge calls Detach for each bridge that this package has created: an agent may have died after it
// deleted a bridge's last interface and before it deleted the bridge.
func detachFromEachCreatedBridge(allocID string) error {
	opcount.Count(opcount.Netlink)
	links, err := retryInterruptedDump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, link := range links {
		if device, ok := link.(*netlink.Bridge); ok && wasCreatedByNomadLite(device) {
			errs = append(errs, New(Config{Name: device.Name}).Detach(allocID))
		}
	}
	return errors.Join(errs...)
}

// removeRulesAndBridgeIfUnused removes the bridge's rules if no namespace is connected to the bridge. It then removes the bridge
// too, unless an administrator has created the bridge, or has connected another interface. device is nil if the bridge was
// removed: then Repair restores the rules for namespaces yet to be connected.
func (b *Bridge) removeRulesAndBridgeIfUnused(device *netlink.Bridge) error {
	var ports []netlink.Link
	if device != nil {
		var err error
		if ports, err = bridgePortInterfaces(device); err != nil {
			return err
		}
	}
	for _, port := range ports {
		if strings.HasPrefix(port.Attrs().Alias, aliasPrefix) {
			return nil
		}
	}
	if err := errors.Join(removeIptablesForwardAcceptRules(b.config.Name), deleteNftablesTablesIfExist(b.config.Name)); device == nil || err != nil {
		return err
	}
	if !wasCreatedByNomadLite(device) || len(ports) > 0 {
		return removeLoopback6Route(device)
	}
	return deleteLinkIfExists(b.config.Name)
}
