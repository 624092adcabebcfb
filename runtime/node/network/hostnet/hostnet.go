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

// Config configures the networks of the machine. The zero value is valid.
type Config struct {
	Bridge bridge.Config // defaults: nomad, 172.26.64.0/20
	CNI    cni.Config    // defaults: /opt/cni/bin, /opt/cni/config
	// CNICacheDir is the directory in which libcni stores the results of CNI plugins. Only the agent may be able to write
	// to it.
	CNICacheDir string
	// HostNetworks are the networks of the machine that ports can name, besides default.
	HostNetworks map[string]HostNetwork
}

// WithDefaults returns the configuration with its defaults.
func (c Config) WithDefaults() Config {
	c.Bridge.Name = cmp.Or(c.Bridge.Name, "nomad")
	c.Bridge.Subnet = cmp.Or(c.Bridge.Subnet, netip.MustParsePrefix("172.26.64.0/20"))
	if c.CNI.PluginDirs == nil {
		c.CNI.PluginDirs = []string{"/opt/cni/bin"}
	}
	c.CNI.ConfigDir = cmp.Or(c.CNI.ConfigDir, "/opt/cni/config")
	return c
}

// Network modes. The mode of a CNI network is cniPrefix and the name of the network.
const (
	modeBridge = "bridge"
	cniPrefix  = "cni/"
)

// Host implements network.Host.
type Host struct {
	config Config
	bridge *bridge.Bridge
	cni    *cni.Client
}

var _ network.Host = (*Host)(nil)

// New returns a Host with a configuration that has its defaults. It changes nothing on the machine.
func New(c Config) *Host {
	return &Host{config: c, bridge: bridge.New(c.Bridge), cni: cni.New(c.CNI, c.CNICacheDir)}
}

// CreateNamespace implements network.Host.
func (*Host) CreateNamespace(allocID string) (string, error) {
	return netns.Path(allocID), netns.Create(allocID)
}

// RemoveNamespace implements network.Host.
func (*Host) RemoveNamespace(allocID string) error { return netns.Remove(allocID) }

// SetCNIConfig implements network.Host: it adds the configuration of a CNI network to the record.
func (h *Host) SetCNIConfig(n *state.AllocNetwork) error {
	name, isCNI := strings.CutPrefix(n.Mode, cniPrefix)
	if !isCNI {
		return nil
	}
	if err := cni.CheckArgs(n.CNIArgs); err != nil {
		return err
	}
	config, err := h.cni.NetworkConfig(name)
	n.CNIConfig = config
	return err
}

// Connect implements network.Host. It waits up to portRetryTimeout for ports that are forwarded to another allocation, which
// may be stopping.
func (h *Host) Connect(ctx context.Context, n *state.AllocNetwork, path string) (*state.NetworkStatus, error) {
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
		return h.connectBridge(ctx, e)
	case strings.HasPrefix(n.Mode, cniPrefix):
		status, err := h.cni.Add(ctx, cniEndpoint(n, path))
		if err != nil {
			return nil, err
		}
		return statusOfCNI(status), nil
	}
	return nil, nil
}

// checkPortsFree returns an error if a program of the machine listens on one of the ports: clients of the program
// would reach the allocation instead.
func (h *Host) checkPortsFree(n *state.AllocNetwork) error {
	for _, p := range n.Ports {
		if h.isPortFree(p, n.Mode) {
			continue
		}
		listener := cmp.Or(hostport.Listeners([]int{p.HostPort})[p.HostPort], "a program of the machine")
		return fmt.Errorf("port %q: %s listens on %d: stop it, or use another port", p.Label, listener, p.HostPort)
	}
	return nil
}

func (h *Host) isPortFree(p state.NetworkPort, mode string) bool {
	if address, err := netip.ParseAddr(p.HostIP); err == nil {
		return hostport.IsFreeAt(address, p.HostPort)
	}
	if mode != modeBridge {
		return hostport.IsFree(p.HostPort) // CNI plugins forward a port without HostIP on all addresses
	}
	return hostport.IsFree(p.HostPort, h.config.Bridge.AddressesOnlyForHostIPPorts...)
}

// portRetryTimeout is how long, and portRetryInterval how often, Connect retries while a port is forwarded to another
// allocation.
const portRetryTimeout, portRetryInterval = 10 * time.Second, 100 * time.Millisecond

// connectBridge connects a namespace to the bridge. It retries while a port is forwarded to another allocation.
func (h *Host) connectBridge(ctx context.Context, e bridge.Endpoint) (*state.NetworkStatus, error) {
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
		port := bridge.Port{Label: p.Label, HostPort: p.HostPort, NamespacePort: p.To}
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
	e := cni.Endpoint{AllocID: n.AllocID, NamespacePath: path, NetworkConfig: n.CNIConfig, Args: n.CNIArgs}
	for _, p := range n.Ports {
		e.Ports = append(e.Ports, cni.Port{HostIP: p.HostIP, HostPort: p.HostPort, NamespacePort: p.To})
	}
	return e
}

func statusOfBridge(s bridge.NamespaceStatus) *state.NetworkStatus {
	status := &state.NetworkStatus{Interface: s.Interface, Address: s.Address.String(), DNS: namespaceDNSConfig()}
	if s.Address6.IsValid() {
		status.AddressIPv6 = s.Address6.String()
	}
	return status
}

func statusOfCNI(s cni.NamespaceStatus) *state.NetworkStatus {
	status := &state.NetworkStatus{Interface: s.Interface, Address: s.Address, AddressIPv6: s.Address6}
	if len(s.DNSServers) > 0 || len(s.DNSSearch) > 0 || len(s.DNSOptions) > 0 {
		status.DNS = &driver.DNSConfig{Servers: s.DNSServers, Searches: s.DNSSearch, Options: s.DNSOptions}
	}
	return status
}

// Disconnect implements network.Host.
func (h *Host) Disconnect(ctx context.Context, n *state.AllocNetwork) error {
	switch {
	case n.Mode == modeBridge:
		return h.bridge.Detach(n.AllocID)
	case strings.HasPrefix(n.Mode, cniPrefix) && len(n.CNIConfig) > 0:
		return h.cni.Del(ctx, cniEndpoint(n, namespacePath(n)))
	}
	return nil
}

// namespacePath returns the path of the namespace of a network, also of one that was not created completely.
func namespacePath(n *state.AllocNetwork) string {
	if n.Isolation != nil {
		return n.Isolation.Path
	}
	return netns.Path(n.AllocID)
}

// Repair implements network.Host.
func (h *Host) Repair(networks []state.AllocNetwork) error {
	var endpoints []bridge.Endpoint
	var errs []error
	for i := range networks {
		if networks[i].Mode == modeBridge {
			e, err := bridgeEndpoint(&networks[i], namespacePath(&networks[i]))
			errs = append(errs, err)
			endpoints = append(endpoints, e)
		}
	}
	return errors.Join(append(errs, h.bridge.Repair(endpoints))...)
}
