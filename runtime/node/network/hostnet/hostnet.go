package hostnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/network"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/bridge"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/cni"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Config configures the machine's networks. The zero value is valid.
type Config struct {
	Bridge bridge.Config // defaults: nomad, 172.26.64.0/20
	CNI    cni.Config    // defaults: /opt/cni/bin, /opt/cni/config
	// CNICacheDir is the directory in which libcni stores CNI plugin results. Only the agent may be able to write to it.
	CNICacheDir string
	// HostNetworks are the machine's networks that ports can name, besides default.
	HostNetworks map[string]HostNetwork
}

// WithDefaults returns the configuration with its defaults.
func (c Config) WithDefaults() Config {
	c.Bridge.Name = cmp.Or(c.Bridge.Name, "nomad")
	c.Bridge.IPv4Subnet = cmp.Or(c.Bridge.IPv4Subnet, netip.MustParsePrefix("172.26.64.0/20"))
	if c.CNI.PluginDirs == nil {
		c.CNI.PluginDirs = []string{"/opt/cni/bin"}
	}
	c.CNI.ConfigDir = cmp.Or(c.CNI.ConfigDir, "/opt/cni/config")
	return c
}

// Network modes. A CNI network's mode is cniPrefix and the network's name.
const (
	modeBridge = "bridge"
	cniPrefix  = "cni/"
)

// HostNamespaces implements network.HostNamespaces.
type HostNamespaces struct {
	config Config
	bridge *bridge.Bridge
	cni    *cni.Client
}

var _ network.HostNamespaces = (*HostNamespaces)(nil)

// New returns HostNamespaces with a configuration that has its defaults. It changes nothing on the machine.
func New(c Config) *HostNamespaces {
	return &HostNamespaces{config: c, bridge: bridge.New(c.Bridge), cni: cni.New(c.CNI, c.CNICacheDir)}
}

// CreateNamespace implements network.HostNamespaces.
func (*HostNamespaces) CreateNamespace(allocID string) (path string, err error) {
	return netns.Path(allocID), netns.Create(allocID)
}

// RemoveNamespace implements network.HostNamespaces.
func (*HostNamespaces) RemoveNamespace(allocID string) error { return netns.Remove(allocID) }

// ReadCNIConfigIntoRecord implements network.HostNamespaces: it adds a CNI network's configuration to the record.
func (h *HostNamespaces) ReadCNIConfigIntoRecord(n *state.AllocNetwork) error {
	name, isCNI := strings.CutPrefix(n.Mode, cniPrefix)
	if !isCNI {
		return nil
	}
	if err := cni.CheckArgsForSeparators(n.CNIArgs); err != nil {
		return err
	}
	config, err := h.cni.ReadNetworkConfigJSON(name)
	n.CNIConfig = config
	return err
}

// CheckPortsAndConnectNamespace implements network.HostNamespaces. It waits up to portRetryTimeout for ports forwarded to
// another allocation, which may be stopping.
func (h *HostNamespaces) CheckPortsAndConnectNamespace(ctx context.Context, n *state.AllocNetwork, path string) (*state.NetworkStatus, error) {
	if n.Mode == modeBridge || strings.HasPrefix(n.Mode, cniPrefix) {
		if err := h.checkPortsFree(n); err != nil {
			return nil, err
		}
	}
	switch {
	case n.Mode == modeBridge:
		e, err := bridgeEndpoint(n, path)
		if err != nil {
			return nil, err
		}
		return h.attachToBridgeWhenPortsFree(ctx, e)
	case strings.HasPrefix(n.Mode, cniPrefix):
		status, err := h.cni.Add(ctx, cniEndpoint(n, path))
		if err != nil {
			return nil, err
		}
		return statusOfCNI(status), nil
	}
	return nil, nil
}

// checkPortsFree returns an error if a program on the machine listens on one of the ports: the program's clients would reach the
// allocation instead.
func (h *HostNamespaces) checkPortsFree(n *state.AllocNetwork) error {
	for _, p := range n.Ports {
		if h.isPortFree(p, n.Mode) {
			continue
		}
		listener := cmp.Or(hostport.Listeners([]int{p.HostPort})[p.HostPort], "a program of the machine")
		return fmt.Errorf("port %q: %s listens on %d: stop it, or use another port", p.Label, listener, p.HostPort)
	}
	return nil
}

func (h *HostNamespaces) isPortFree(p state.NetworkPort, networkMode string) bool {
	if address, err := netip.ParseAddr(p.HostIP); err == nil {
		return hostport.IsFreeAt(address, p.HostPort)
	}
	if networkMode != modeBridge {
		return hostport.IsFree(p.HostPort) // CNI plugins forward a port without HostIP on all addresses
	}
	return hostport.IsFree(p.HostPort, h.config.Bridge.AddressesForwardingOnlyHostIPPorts...)
}

// portRetryTimeout is how long, and portRetryInterval how often, attachToBridgeWhenPortsFree retries while a port is
// forwarded to another allocation.
const portRetryTimeout, portRetryInterval = 10 * time.Second, 100 * time.Millisecond

// attachToBridgeWhenPortsFree connects a namespace to the bridge. It retries while a port is forwarded to another
// allocation.
func (h *HostNamespaces) attachToBridgeWhenPortsFree(ctx context.Context, e bridge.Endpoint) (*state.NetworkStatus, error) {
	for deadline := time.Now().Add(portRetryTimeout); ; {
		status, err := h.bridge.Attach(e)
		if err == nil {
			return statusOfBridge(status), nil
		}
		if inUse := new(bridge.PortInUseError); !errors.As(err, &inUse) || time.Now().After(deadline) {
			return nil, err
		}
		select {
		case <-time.After(portRetryInterval):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func bridgeEndpoint(n *state.AllocNetwork, path string) (bridge.Endpoint, error) {
	e := bridge.Endpoint{AllocID: n.AllocID, NamespacePath: path}
	for _, p := range n.Ports {
		port := bridge.ForwardedPort{Label: p.Label, HostPort: p.HostPort, NamespacePort: p.To}
		if p.HostIP != "" {
			var err error
			if port.HostIP, err = netip.ParseAddr(p.HostIP); err != nil {
				return e, fmt.Errorf("port %q: address of its host network: %w", p.Label, err)
			}
		}
		e.Ports = append(e.Ports, port)
	}
	return e, nil
}

func cniEndpoint(n *state.AllocNetwork, path string) cni.Endpoint {
	e := cni.Endpoint{AllocID: n.AllocID, NamespacePath: path, NetworkConfigJSON: n.CNIConfig, CNIArgs: n.CNIArgs}
	for _, p := range n.Ports {
		e.Ports = append(e.Ports, cni.ForwardedPort{HostIP: p.HostIP, HostPort: p.HostPort, NamespacePort: p.To})
	}
	return e
}

func statusOfBridge(s bridge.NamespaceStatus) *state.NetworkStatus {
	status := &state.NetworkStatus{Interface: s.Interface, Address: s.IPv4Address.String(), DNS: namespaceDNSConfigIfNeeded()}
	if s.IPv6Address.IsValid() {
		status.AddressIPv6 = s.IPv6Address.String()
	}
	return status
}

func statusOfCNI(s cni.NamespaceStatus) *state.NetworkStatus {
	status := &state.NetworkStatus{Interface: s.Interface, Address: s.IPv4Address, AddressIPv6: s.IPv6Address}
	for _, l := range s.Links {
		status.Links = append(status.Links, state.NetworkLink(l))
	}
	if len(s.DNSServers) > 0 || len(s.DNSSearch) > 0 || len(s.DNSOptions) > 0 {
		status.DNS = &driver.DNSConfig{Servers: s.DNSServers, Searches: s.DNSSearch, Options: s.DNSOptions}
	}
	return status
}

// DisconnectNamespace implements network.HostNamespaces.
func (h *HostNamespaces) DisconnectNamespace(ctx context.Context, n *state.AllocNetwork) error {
	switch {
	case n.Mode == modeBridge:
		return h.bridge.Detach(n.AllocID)
	case strings.HasPrefix(n.Mode, cniPrefix) && len(n.CNIConfig) > 0:
		return h.cni.Del(ctx, cniEndpoint(n, networkNamespacePath(n)))
	}
	return nil
}

// networkNamespacePath returns the path of a network's namespace, even if the namespace was not created completely.
func networkNamespacePath(n *state.AllocNetwork) string {
	if n.Isolation != nil {
		return n.Isolation.Path
	}
	return netns.Path(n.AllocID)
}

// Repair implements network.HostNamespaces.
func (h *HostNamespaces) Repair(networks []state.AllocNetwork) (damages []network.Damage, err error) {
	var connected []bridge.ConnectedEndpoint
	var errs []error
	for i := range networks {
		n := &networks[i]
		if n.Mode == modeBridge {
			e, err := connectedBridgeEndpoint(n)
			errs = append(errs, err)
			connected = append(connected, e)
			continue
		}
		reason, err := findLostCNILink(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("allocation %s: %w", n.AllocID, err))
		}
		if reason != "" {
			damages = append(damages, network.Damage{AllocID: n.AllocID, Reason: reason})
		}
	}
	ofBridge, err := h.bridge.Repair(connected)
	for _, d := range ofBridge {
		damages = append(damages, network.Damage(d))
	}
	return damages, errors.Join(append(errs, err)...)
}

func connectedBridgeEndpoint(n *state.AllocNetwork) (bridge.ConnectedEndpoint, error) {
	e, err := bridgeEndpoint(n, networkNamespacePath(n))
	s := bridge.NamespaceStatus{Interface: n.Status.Interface}
	s.IPv4Address, _ = netip.ParseAddr(n.Status.Address)
	s.IPv6Address, _ = netip.ParseAddr(n.Status.AddressIPv6) // the zero value without IPv6
	return bridge.ConnectedEndpoint{Endpoint: e, Status: s}, err
}

// findLostCNILink returns which interface a namespace has lost. An earlier version's record has no links, which are not checked.
func findLostCNILink(n *state.AllocNetwork) (reason string, err error) {
	if len(n.Status.Links) == 0 {
		return "", nil
	}
	links := make([]cni.Link, len(n.Status.Links))
	for i, l := range n.Status.Links {
		links[i] = cni.Link(l)
	}
	return cni.FindLostLink(networkNamespacePath(n), links)
}
