package bridge

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
)

// detachQueue has the allocations of calls of Detach that wait for their turn. A call removes all of them at once,
// because the kernel needs as long for many as for one.
type detachQueue struct {
	turn sync.Mutex // belongs to the call that removes; it is locked before mu

	mu      sync.Mutex
	waiting []*detachCall
}

// detachCall is a call of Detach. The fields done and err belong to the turn of the queue.
type detachCall struct {
	allocID string
	done    bool
	err     error
}

func (q *detachQueue) add(allocID string) *detachCall {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := &detachCall{allocID: allocID}
	q.waiting = append(q.waiting, c)
	return c
}

func (q *detachQueue) takeAll() []*detachCall {
	q.mu.Lock()
	defer q.mu.Unlock()
	calls := q.waiting
	q.waiting = nil
	return calls
}

// Detach disconnects the namespace of an allocation, also if it no longer exists, and removes the
// rules of the bridge, and the bridge that Attach has created, when no namespace is connected. It does nothing if the allocation is not
// connected. Concurrent calls are served together, and an error can be that of another one: the call must be repeated.
func (b *Bridge) Detach(allocID string) error {
	call := b.queue.add(allocID)
	b.queue.turn.Lock()
	defer b.queue.turn.Unlock()
	if call.done {
		return call.err
	}
	calls := b.queue.takeAll()
	allocIDs := make(map[string]bool, len(calls))
	for _, c := range calls {
		allocIDs[c.allocID] = true
	}
	err := b.locked(func() error { return b.detach(allocIDs) })
	if err != nil {
		err = fmt.Errorf("bridge %s: %w", b.config.Name, err)
	}
	for _, c := range calls {
		c.done, c.err = true, err
	}
	return err
}

// detach disconnects the namespaces of allocations.
func (b *Bridge) detach(allocIDs map[string]bool) error {
	device, err := findDevice(b.config.Name)
	if device == nil || err != nil {
		return errors.Join(err, deleteTables(b.config.Name))
	}
	links, err := linksOf(allocIDs)
	if err != nil {
		return err
	}
	point := failpoint.EnterStep(failpoint.StepDisconnectNetwork)
	err = b.disconnect(allocIDs, links)
	point.Leave()
	if err != nil {
		return err
	}
	return b.removeUnused(device)
}

// disconnect deletes the interfaces of allocations. The interfaces are the last step: their aliases reserve the
// addresses, and have them for the next call, if this one is not completed.
func (b *Bridge) disconnect(allocIDs map[string]bool, links []netlink.Link) error {
	if err := b.unforward(allocIDs); err != nil {
		return fmt.Errorf("remove forwarded ports: %w", err)
	}
	// Packets of the kernel's known connections would go to the next namespace with the address.
	if err := deleteConnections(addressesOf(links)); err != nil {
		return err
	}
	return deleteLinks(links)
}

// linksOf returns the interfaces of the machine that lead to namespaces of allocations.
func linksOf(allocIDs map[string]bool) ([]netlink.Link, error) {
	names := make(map[string]bool, len(allocIDs))
	for id := range allocIDs {
		names[hostInterface(id)] = true
	}
	all, err := list(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return slices.DeleteFunc(all, func(l netlink.Link) bool { return !names[l.Attrs().Name] }), nil
}

// addressesOf returns the addresses of the namespaces to which interfaces lead.
func addressesOf(links []netlink.Link) map[netip.Addr]bool {
	addresses := make(map[netip.Addr]bool)
	for _, link := range links {
		_, status := parseAlias(link.Attrs().Alias)
		for _, address := range []netip.Addr{status.Address, status.Address6} {
			if address.IsValid() {
				addresses[address] = true
			}
		}
	}
	return addresses
}

// deleteLinks deletes interfaces. Several are deleted as a group, for which the kernel waits only once until no
// processor uses the interfaces.
func deleteLinks(links []netlink.Link) error {
	if len(links) == 1 {
		return deleteLink(links[0].Attrs().Name)
	}
	if len(links) == 0 {
		return nil
	}
	group := newGroup()
	for _, link := range links {
		if err := netlink.LinkSetGroup(link, int(group)); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("set the group of interface %s: %w", link.Attrs().Name, err)
		}
	}
	request := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_GROUP, binary.NativeEndian.AppendUint32(nil, group)))
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %d interfaces: %w", len(links), err)
	}
	return nil
}

// newGroup returns the number of a group of interfaces that no other interface has. Administrators use
// small numbers.
func newGroup() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return binary.NativeEndian.Uint32(b[:])&(1<<31-1) | 1<<30
}

// DetachLeftover is like Detach, for an allocation of an agent whose bridge is not known. It does nothing if
// the allocation is not connected.
func DetachLeftover(allocID string) error {
	link, err := findLink(hostInterface(allocID))
	if link == nil || err != nil {
		return err
	}
	device, err := netlink.LinkByIndex(link.Attrs().MasterIndex)
	if err != nil {
		return deleteLink(hostInterface(allocID)) // the bridge was deleted
	}
	return New(Config{Name: device.Attrs().Name}).Detach(allocID)
}

// removeUnused removes the rules of the bridge if no namespace is connected to it, and the bridge, unless an administrator
// has created it or an interface of others is connected.
func (b *Bridge) removeUnused(device *netlink.Bridge) error {
	ports, err := portsOf(device)
	if err != nil {
		return err
	}
	for _, port := range ports {
		if strings.HasPrefix(port.Attrs().Alias, aliasPrefix) {
			return nil
		}
	}
	if err := errors.Join(removeAccepts(b.config.Name), deleteTables(b.config.Name)); err != nil {
		return err
	}
	if device.Alias != deviceAlias || len(ports) > 0 {
		return removeLoopback6Route(device)
	}
	return deleteLink(b.config.Name)
}
