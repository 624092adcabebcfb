package services

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

// Address modes.
const (
	modeAuto      = "auto"
	modeHost      = "host"
	modeDriver    = "driver"
	modeAlloc     = "alloc"
	modeAllocIPv6 = "alloc_ipv6"
)

// addressSource has the data from which the address of a service or a check is resolved.
type addressSource struct {
	spec    *Spec
	task    string                  // empty for the group
	network *driver.NetworkOverride // network of the task, if its driver made one
	custom  string                  // address of the service block
}

// address resolves an address mode and a port label. Port zero means no port.
func (p addressSource) address(mode, label string) (ip string, port int, err error) {
	switch mode {
	case "", modeAuto:
		switch {
		case p.custom != "":
			_, port, err := p.host(label)
			return p.custom, port, err
		case p.network != nil && p.network.AutoAdvertise:
			return p.driver(label)
		}
		return p.host(label)
	case modeHost:
		return p.host(label)
	case modeDriver:
		if p.network == nil {
			return "", 0, errors.New(`cannot use address_mode="driver": no driver network exists`)
		}
		return p.driver(label)
	case modeAlloc:
		return p.alloc(mode, p.spec.Address, label)
	case modeAllocIPv6:
		return p.alloc(mode, p.spec.AddressIPv6, label)
	}
	return "", 0, fmt.Errorf("invalid address mode %q", mode)
}

func (p addressSource) host(label string) (string, int, error) {
	if m, ok := p.mapping(label); ok {
		return m.HostIP, m.Value, nil
	}
	ip := p.spec.HostIP
	if n, ok := p.spec.TaskNets[p.task]; ok && p.task != "" {
		ip = n.IP
	}
	port, err := literalPort(label)
	return ip, port, err
}

func (p addressSource) driver(label string) (string, int, error) {
	if m, ok := p.mapping(label); ok && m.To > 0 {
		return p.network.Addr, m.To, nil
	}
	if port, ok := p.network.PortMap[label]; ok {
		return p.network.Addr, port, nil
	}
	if m, ok := p.mapping(label); ok {
		return p.network.Addr, m.Value, nil
	}
	port, err := literalPort(label)
	return p.network.Addr, port, err
}

func (p addressSource) alloc(mode, ip, label string) (string, int, error) {
	if ip == "" {
		return "", 0, fmt.Errorf("cannot use address_mode=%q: no allocation network status reported", mode)
	}
	if m, ok := p.mapping(label); ok {
		if m.To > 0 {
			return ip, m.To, nil
		}
		return ip, m.Value, nil
	}
	port, err := literalPort(label)
	return ip, port, err
}

// mapping returns the port with a label from the ports of the group and of the task.
func (p addressSource) mapping(label string) (taskenv.Port, bool) {
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

// literalPort parses a label that is a port number.
func literalPort(label string) (int, error) {
	if label == "" {
		return 0, nil
	}
	port, err := strconv.ParseUint(label, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("invalid port %q: port label not found", label)
	}
	return int(port), nil
}

// checkAddress returns the address that a check of a service connects to.
func (p addressSource) checkAddress(s *Service, c *Check) (string, error) {
	label, mode := c.Port, c.AddressMode
	if label == "" {
		label = s.Port
	}
	if mode == "" {
		mode = modeHost
		if p.custom != "" {
			mode = modeAuto
		}
	}
	ip, port, err := p.address(mode, label)
	if err != nil {
		return "", err
	}
	if port == 0 {
		return "", fmt.Errorf("check %q has no port", c.Name)
	}
	return net.JoinHostPort(ip, strconv.Itoa(port)), nil
}
