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

// addressResolver has the data from which the address of a service or a check is resolved.
type addressResolver struct {
	spec           *Spec
	task           string                  // empty for the group
	network        *driver.NetworkOverride // network of the task, if its driver made one
	serviceAddress string                  // address of the service block
}

// resolve resolves an address mode and a port label. Port zero means no port.
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
		return m.HostIP, m.Value, nil
	}
	ip := p.spec.HostIP
	if n, ok := p.spec.TaskNets[p.task]; ok && p.task != "" {
		ip = n.IP
	}
	port, err := parseLiteralPort(label)
	return ip, port, err
}

func (p addressResolver) resolveDriver(label string) (string, int, error) {
	if m, ok := p.portByLabel(label); ok && m.To > 0 {
		return p.network.Addr, m.To, nil
	}
	if port, ok := p.network.PortMap[label]; ok {
		return p.network.Addr, port, nil
	}
	if m, ok := p.portByLabel(label); ok {
		return p.network.Addr, m.Value, nil
	}
	port, err := parseLiteralPort(label)
	return p.network.Addr, port, err
}

func (p addressResolver) resolveAlloc(mode, ip, label string) (string, int, error) {
	if ip == "" {
		return "", 0, fmt.Errorf("cannot use address_mode=%q: no allocation network status reported", mode)
	}
	if m, ok := p.portByLabel(label); ok {
		if m.To > 0 {
			return ip, m.To, nil
		}
		return ip, m.Value, nil
	}
	port, err := parseLiteralPort(label)
	return ip, port, err
}

// portByLabel returns the port with a label from the ports of the group and of the task.
func (p addressResolver) portByLabel(label string) (taskenv.Port, bool) {
	if label == "" {
		return taskenv.Port{}, false
	}
	for _, ports := range [][]taskenv.Port{p.spec.Ports, p.spec.TaskNets[p.task].Ports} {
		if i := slices.IndexFunc(ports, func(m taskenv.Port) bool { return m.Label == label }); i >= 0 {
			return ports[i], true
		}
	}
	return taskenv.Port{}, false
}

// parseLiteralPort parses a label that is a port number.
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
