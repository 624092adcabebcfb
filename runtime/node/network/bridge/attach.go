package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
)

// connection is a namespace that is being connected.
type connection struct {
	Endpoint
	status      NamespaceStatus
	hasNewPorts bool  // a port was not forwarded to the namespace before
	err         error // why the namespace is not connected
}

// maxAttachedTogether limits how many Attach calls are executed together: the first one returns with the last one.
const maxAttachedTogether = 32

// Attach connects a namespace: it creates the bridge if there is none, and an interface in the namespace with
// addresses that no other namespace has, and forwards the ports. It can be called again for a completely or partly
// connected namespace: a connected namespace keeps its addresses. After an error Detach must be called
// nevertheless. The error is a [*PortInUseError] if a port is forwarded to another allocation. Concurrent calls are executed
// together; an error that concerns one namespace is returned by its call only.
func (b *Bridge) Attach(e Endpoint) (NamespaceStatus, error) {
	c := &connection{Endpoint: e}
	b.attachCalls.execute(c, maxAttachedTogether, func(connections []*connection) {
		if err := b.withInterprocessLock(func() error { return b.connectAll(connections) }); err != nil {
			for _, c := range connections {
				c.err = errors.Join(c.err, err)
			}
		}
	})
	if c.err != nil {
		return NamespaceStatus{}, fmt.Errorf("bridge %s: %w", b.config.Name, c.err)
	}
	return c.status, nil
}

// connectAll connects namespaces, and sets the status or the error of each. It returns an error if none can be connected.
func (b *Bridge) connectAll(connections []*connection) error {
	device, err := b.ensureBridge()
	if err != nil {
		return err
	}
	if err := b.ensureFirewall(device); err != nil {
		return err
	}
	interfaces, err := listHostInterfaces() // the list stays valid, because other agents wait for the lock
	if err != nil {
		return err
	}
	for _, c := range connections {
		point := failpoint.EnterStep(failpoint.StepConnectNetwork)
		c.status, c.err = b.connectNamespace(device, interfaces, c.Endpoint, NamespaceStatus{})
		point.Leave()
	}
	for _, c := range connections {
		if c.err == nil {
			c.err = waitInterfacesUpOrTimeout(hostInterfaceName(c.AllocID), b.config.Name)
		}
		if c.err != nil {
			c.err = fmt.Errorf("connect the namespace of allocation %s: %w", c.AllocID, c.err)
		}
	}
	point := failpoint.EnterStep(failpoint.StepForwardPorts)
	defer point.Leave()
	b.permitSourcesAndForwardPorts(device, connections)
	return nil
}

// hostInterfaces are the machine's interfaces.
type hostInterfaces struct {
	links []netlink.Link
	inUse map[netip.Addr]bool // addresses in the links' aliases, also of links that are no ports: Repair connects these again
}

func listHostInterfaces() (*hostInterfaces, error) {
	links, err := listInterfaces()
	if err != nil {
		return nil, err
	}
	h := &hostInterfaces{inUse: map[netip.Addr]bool{}}
	for _, link := range links {
		h.add(link)
	}
	return h, nil
}

func (h *hostInterfaces) add(link netlink.Link) {
	h.links = append(h.links, link)
	_, status := parseInterfaceAlias(link.Attrs().Alias)
	h.inUse[status.IPv4Address], h.inUse[status.IPv6Address] = true, true
}

// remove removes a link. Its addresses stay in use.
func (h *hostInterfaces) remove(name string) {
	h.links = slices.DeleteFunc(h.links, func(l netlink.Link) bool { return l.Attrs().Name == name })
}
