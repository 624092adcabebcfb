package services

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
)

// Address modes.
const (
	addressModeAuto      = "auto"
	addressModeHost      = "host"
	addressModeDriver    = "driver"
	addressModeAlloc     = "alloc"
	addressModeAllocIPv6 = "alloc_ipv6"
)

// addressResolver resolves the address mode and the port label of a service or a check to an IP address and a port.
type addressResolver struct {
	spec           *Spec
	task           string                  // task of the service; empty for a service of the group
	network        *driver.NetworkOverride // network that the driver has made for the task; nil if there is none
	serviceAddress string                  // field address of the service block; may be empty
}

// resolve resolves an address mode and a port label. Port 0 means that the label is empty.
func (p addressResolver) resolve(mode, label string) (ip string, port int, err error) {
	switch mode {
	case "", addressModeAuto:
		switch {
		case p.serviceAddress != "":
			_, port, err := p.resolveHost(label)
			return p.serviceAddress, port, err
		case p.network != nil && p.network.AutoAdvertise:
			return p.resolveDriver(label)
		}
		return p.resolveHost(label)
	case addressModeHost:
		return p.resolveHost(label)
	case addressModeDriver:
		if p.network == nil {
			return "", 0, errors.New(`cannot use address_mode="driver": no driver network exists`)
		}
		return p.resolveDriver(label)
	case addressModeAlloc:
		return p.resolveAlloc(mode, p.spec.Address, label)
	case addressModeAllocIPv6:
		return p.resolveAlloc(mode, p.spec.AddressIPv6, label)
	}
	return "", 0, fmt.Errorf("invalid address mode %q", mode)
}

func (p addressResolver) resolveHost(label string) (string, int, error) {
	if m, ok := p.portByLabel(label); ok {
		return m.HostIP, m.HostPort, nil
	}
	ip := p.spec.HostIP
	if n, ok := p.spec.TaskNetworks[p.task]; ok && p.task != "" {
		ip = n.IP
	}
	port, err := parseLiteralPort(label)
	return ip, port, err
}

func (p addressResolver) resolveDriver(label string) (string, int, error) {
	if m, ok := p.portByLabel(label); ok && m.AllocPort > 0 {
		return p.network.Addr, m.AllocPort, nil
	}
	if port, ok := p.network.PortMap[label]; ok {
		return p.network.Addr, port, nil
	}
	if m, ok := p.portByLabel(label); ok {
		return p.network.Addr, m.HostPort, nil
	}
	port, err := parseLiteralPort(label)
	return p.network.Addr, port, err
}

func (p addressResolver) resolveAlloc(mode, ip, label string) (string, int, error) {
	if ip == "" {
		return "", 0, fmt.Errorf("cannot use address_mode=%q: no allocation network status reported", mode)
	}
	if m, ok := p.portByLabel(label); ok {
		if m.AllocPort > 0 {
			return ip, m.AllocPort, nil
		}
		return ip, m.HostPort, nil
	}
	port, err := parseLiteralPort(label)
	return ip, port, err
}

// portByLabel returns the port with a label: of the group, or else of the task.
func (p addressResolver) portByLabel(label string) (taskenv.Port, bool) {
	if label == "" {
		return taskenv.Port{}, false
	}
	for _, ports := range [][]taskenv.Port{p.spec.Ports, p.spec.TaskNetworks[p.task].Ports} {
		if i := slices.IndexFunc(ports, func(m taskenv.Port) bool { return m.Label == label }); i >= 0 {
			return ports[i], true
		}
	}
	return taskenv.Port{}, false
}

// parseLiteralPort parses a label that is a port number. An empty label is port 0.
func parseLiteralPort(label string) (int, error) {
	if label == "" {
		return 0, nil
	}
	port, err := strconv.ParseUint(label, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("invalid port %q: port label not found", label)
	}
	return int(port), nil
}

// resolveCheck returns the address that a check of a service connects to.
func (p addressResolver) resolveCheck(s *Service, c *Check) (string, error) {
	label, mode := c.Port, c.AddressMode
	if label == "" {
		label = s.Port
	}
	if mode == "" {
		mode = addressModeHost
		if p.serviceAddress != "" {
			mode = addressModeAuto
		}
	}
	ip, port, err := p.resolve(mode, label)
	if err != nil {
		return "", err
	}
	if port == 0 {
		return "", fmt.Errorf("check %q has no port", c.Name)
	}
	return net.JoinHostPort(ip, strconv.Itoa(port)), nil
}
