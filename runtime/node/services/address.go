package services

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
)

// Address modes.
const (
	addressModeAuto      = "auto"
	addressModeHost      = "host"
	addressModeDriver    = "driver"
	addressModeAlloc     = "alloc"
	addressModeAllocIPv6 = "alloc_ipv6"
)

// addressResolver resolves a service's or check's address mode and port label to an IP address and a port.
type addressResolver struct {
	spec           *AllocServicesSpec
	task           string                  // the service's task; empty for a group service
	driverNetwork  *driver.NetworkOverride // network made by the driver for the task; nil if none
	serviceAddress string                  // field address in the service block; may be empty
}

// resolveAddress resolves an address mode and a port label. Port 0 means that the label is empty.
func (a addressResolver) resolveAddress(addressMode, portLabel string) (ip string, port int, err error) {
	switch addressMode {
	case "", addressModeAuto:
		switch {
		case a.serviceAddress != "":
			_, port, err := a.resolveHostMode(portLabel)
			return a.serviceAddress, port, err
		case a.driverNetwork != nil && a.driverNetwork.AutoAdvertise:
			return a.resolveDriverMode(portLabel)
		}
		return a.resolveHostMode(portLabel)
	case addressModeHost:
		return a.resolveHostMode(portLabel)
	case addressModeDriver:
		if a.driverNetwork == nil {
			return "", 0, errors.New(`cannot use address_mode="driver": no driver network exists`)
		}
		return a.resolveDriverMode(portLabel)
	case addressModeAlloc:
		return a.resolveAllocMode(addressMode, a.spec.NamespaceIPv4, portLabel)
	case addressModeAllocIPv6:
		return a.resolveAllocMode(addressMode, a.spec.NamespaceIPv6, portLabel)
	}
	return "", 0, fmt.Errorf("invalid address mode %q", addressMode)
}

func (a addressResolver) resolveHostMode(label string) (ip string, port int, err error) {
	if m, ok := a.portByLabel(label); ok {
		return m.HostIP, m.HostPort, nil
	}
	ip = a.spec.GroupHostIP
	if n, ok := a.spec.NetworkByTask[a.task]; ok && a.task != "" {
		ip = n.IP
	}
	port, err = parseLiteralPort(label)
	return ip, port, err
}

func (a addressResolver) resolveDriverMode(label string) (ip string, port int, err error) {
	if m, ok := a.portByLabel(label); ok && m.AllocPort > 0 {
		return a.driverNetwork.Addr, m.AllocPort, nil
	}
	if port, ok := a.driverNetwork.PortMap[label]; ok {
		return a.driverNetwork.Addr, port, nil
	}
	if m, ok := a.portByLabel(label); ok {
		return a.driverNetwork.Addr, m.HostPort, nil
	}
	port, err = parseLiteralPort(label)
	return a.driverNetwork.Addr, port, err
}

func (a addressResolver) resolveAllocMode(mode, namespaceIP, label string) (ip string, port int, err error) {
	if namespaceIP == "" {
		return "", 0, fmt.Errorf("cannot use address_mode=%q: no allocation network status reported", mode)
	}
	if m, ok := a.portByLabel(label); ok {
		if m.AllocPort > 0 {
			return namespaceIP, m.AllocPort, nil
		}
		return namespaceIP, m.HostPort, nil
	}
	port, err = parseLiteralPort(label)
	return namespaceIP, port, err
}

// portByLabel returns the port with this label: the group's, or else the task's.
func (a addressResolver) portByLabel(label string) (taskenv.Port, bool) {
	if label == "" {
		return taskenv.Port{}, false
	}
	for _, ports := range [][]taskenv.Port{a.spec.Ports, a.spec.NetworkByTask[a.task].Ports} {
		if i := slices.IndexFunc(ports, func(m taskenv.Port) bool { return m.Label == label }); i >= 0 {
			return ports[i], true
		}
	}
	return taskenv.Port{}, false
}

// parseLiteralPort parses a numeric label. An empty label is port 0.
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

// resolveCheckAddress returns the address that a service check connects to.
func (a addressResolver) resolveCheckAddress(s *Service, c *Check) (hostPort string, err error) {
	label, mode := c.PortLabel, c.AddressMode
	if label == "" {
		label = s.PortLabel
	}
	if mode == "" {
		mode = addressModeHost
		if a.serviceAddress != "" {
			mode = addressModeAuto
		}
	}
	ip, port, err := a.resolveAddress(mode, label)
	if err != nil {
		return "", err
	}
	if port == 0 {
		return "", fmt.Errorf("check %q has no port", c.Name)
	}
	return net.JoinHostPort(ip, strconv.Itoa(port)), nil
}
