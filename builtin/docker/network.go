package docker

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// setNetwork sets the network of the container, its published ports and its resolver.
func (b *containerBuilder) setNetwork() (*network.NetworkingConfig, error) {
	n := b.taskConfig.networkConfig
	if err := b.setDNS(); err != nil {
		return nil, err
	}
	if joinsGroupNetwork(b.taskConfig, b.start.NetworkIsolation) {
		return nil, b.joinGroupNetwork()
	}
	b.hostConfig.NetworkMode = container.NetworkMode(n.NetworkMode)
	if n.NetworkMode == "" {
		b.hostConfig.NetworkMode = network.NetworkBridge
	}
	b.containerConfig.Hostname = n.Hostname
	b.hostConfig.ExtraHosts = n.ExtraHosts
	if err := b.publishPorts(); err != nil {
		return nil, err
	}
	return b.endpointConfig()
}

// hasOwnEndpoint reports whether a container with this network mode has an address in a network of
// Docker. A container with another mode uses the network of the host or of another container, or
// has none.
func hasOwnEndpoint(mode container.NetworkMode) bool {
	return !mode.IsHost() && !mode.IsNone() && !mode.IsContainer()
}

// endpointConfig returns the settings of the container in its network.
func (b *containerBuilder) endpointConfig() (*network.NetworkingConfig, error) {
	n := b.taskConfig.networkConfig
	if len(n.NetworkAliases) == 0 && n.IPv4Address == "" && n.IPv6Address == "" && n.MACAddress == "" {
		return nil, nil
	}
	if !hasOwnEndpoint(b.hostConfig.NetworkMode) {
		return nil, fmt.Errorf("network_aliases, ipv4_address, ipv6_address and mac_address need a network of Docker, and the container uses %q", b.hostConfig.NetworkMode)
	}
	settings := &network.EndpointSettings{Aliases: n.NetworkAliases}
	if n.IPv4Address != "" || n.IPv6Address != "" {
		settings.IPAMConfig = &network.EndpointIPAMConfig{}
	}
	for _, a := range []struct {
		option, text string
		dst          *netip.Addr
	}{
		{"ipv4_address", n.IPv4Address, ipamAddressField(settings, false)},
		{"ipv6_address", n.IPv6Address, ipamAddressField(settings, true)},
	} {
		if a.text == "" {
			continue
		}
		var err error
		if *a.dst, err = netip.ParseAddr(a.text); err != nil {
			return nil, fmt.Errorf("%s is %q; it must be an IP address", a.option, a.text)
		}
	}
	if n.MACAddress != "" {
		mac, err := net.ParseMAC(n.MACAddress)
		if err != nil {
			return nil, fmt.Errorf("mac_address is %q; it must be a MAC address", n.MACAddress)
		}
		settings.MacAddress = network.HardwareAddr(mac)
	}
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{string(b.hostConfig.NetworkMode): settings}}, nil
}

func ipamAddressField(settings *network.EndpointSettings, v6 bool) *netip.Addr {
	if settings.IPAMConfig == nil {
		return nil
	}
	if v6 {
		return &settings.IPAMConfig.IPv6Address
	}
	return &settings.IPAMConfig.IPv4Address
}

// setDNS sets the resolver from the options of the task or, if the task sets none, from the dns
// block of the group's network.
func (b *containerBuilder) setDNS() error {
	servers, searches, options := b.taskConfig.DNSServers, b.taskConfig.DNSSearchDomains, b.taskConfig.DNSOptions
	if d := b.start.DNS; d != nil && len(servers)+len(searches)+len(options) == 0 {
		servers, searches, options = d.Servers, d.Searches, d.Options
	}
	for _, s := range servers {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("dns_servers: %q is not an IP address", s)
		}
		b.hostConfig.DNS = append(b.hostConfig.DNS, addr)
	}
	b.hostConfig.DNSSearch, b.hostConfig.DNSOptions = searches, options
	return nil
}

// portMapping is a published port.
type portMapping struct {
	label         string
	hostIP        string
	hostPort      int32
	containerPort int32
}

// portMappings returns the ports that the task publishes.
func (b *containerBuilder) portMappings() ([]portMapping, error) {
	resources := b.start.Resources
	if resources == nil {
		resources = &driver.Resources{}
	}
	var mappings []portMapping
	for _, label := range b.taskConfig.Ports {
		found := false
		for _, p := range resources.Ports {
			if p.Label == label {
				found = true
				mappings = append(mappings, portMapping{label, p.HostIP, p.Value, p.To})
			}
		}
		if !found {
			return nil, fmt.Errorf("ports: the label %q is not in the network block of the group", label)
		}
	}
	if len(b.taskConfig.Ports) > 0 {
		return mappings, nil
	}
	known := map[string]bool{}
	for _, n := range resources.Networks {
		for _, ports := range [][]driver.NetworkPort{n.ReservedPorts, n.DynamicPorts} {
			for _, p := range ports {
				known[p.Label] = true
				mappings = append(mappings, portMapping{p.Label, n.IP, p.Value, int32(b.taskConfig.PortMap[p.Label])})
			}
		}
	}
	for label := range b.taskConfig.PortMap {
		if !known[label] {
			return nil, fmt.Errorf("port_map: the label %q is not in a network block of the task; for ports of the group write ports = [%q]", label, label)
		}
	}
	return mappings, nil
}

// publishPorts publishes ports for TCP and UDP. A container in the network of the host or of
// another container publishes nothing.
func (b *containerBuilder) publishPorts() error {
	mappings, err := b.portMappings()
	if err != nil || len(mappings) == 0 {
		return err
	}
	if !hasOwnEndpoint(b.hostConfig.NetworkMode) {
		return nil
	}
	b.containerConfig.ExposedPorts, b.hostConfig.PortBindings = network.PortSet{}, network.PortMap{}
	for _, m := range mappings {
		if m.containerPort == 0 {
			m.containerPort = m.hostPort
		}
		var hostIP netip.Addr
		if m.hostIP != "" {
			if hostIP, err = netip.ParseAddr(m.hostIP); err != nil {
				return fmt.Errorf("port %q: the host's address %q is not an IP address", m.label, m.hostIP)
			}
		}
		for _, protocol := range []network.IPProtocol{network.TCP, network.UDP} {
			port, ok := network.PortFrom(uint16(m.containerPort), protocol)
			if !ok || m.containerPort < 1 || m.containerPort > 65535 {
				return fmt.Errorf("port %q: %d is not a port", m.label, m.containerPort)
			}
			b.containerConfig.ExposedPorts[port] = struct{}{}
			b.hostConfig.PortBindings[port] = append(b.hostConfig.PortBindings[port], network.PortBinding{HostIP: hostIP, HostPort: fmt.Sprint(m.hostPort)})
		}
	}
	return nil
}

// networkOverride returns the address and port map of a started container, or nil if the container
// has no address of its own.
func networkOverride(t *taskConfig, resources *driver.Resources, c container.InspectResponse) *driver.NetworkOverride {
	if c.NetworkSettings == nil {
		return nil
	}
	mode := container.NetworkMode(t.NetworkMode)
	if !hasOwnEndpoint(mode) {
		return nil
	}
	for _, endpoint := range c.NetworkSettings.Networks {
		addr := endpoint.IPAddress
		if t.AdvertiseIPv6Address {
			addr = endpoint.GlobalIPv6Address
		}
		if !addr.IsValid() {
			continue
		}
		ports := map[string]int{}
		for label, port := range t.PortMap {
			ports[label] = int(port)
		}
		if resources != nil {
			for _, label := range t.Ports {
				for _, p := range resources.Ports {
					if p.Label == label && p.To > 0 {
						ports[label] = int(p.To)
					}
				}
			}
		}
		// Other machines can reach addresses of networks other than the default bridge, as
		// far as the operator has arranged it.
		isDefaultBridge := mode == "" || mode == "bridge" || mode == "default"
		return &driver.NetworkOverride{Addr: addr.String(), PortMap: ports, AutoAdvertise: !isDefaultBridge || t.AdvertiseIPv6Address}
	}
	return nil
}
