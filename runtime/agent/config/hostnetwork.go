package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

const hostNetworkExample = `host_network "public" { cidr = "203.0.113.0/24" }`

// setHostNetworks reads the host_network blocks.
func setHostNetworks(c *Config, i configItem) error {
	if !i.isBlock() {
		return errors.New("must be a block with a name: " + hostNetworkExample)
	}
	for _, block := range i.children {
		n, err := parseHostNetwork(*block)
		if err == nil && block.name == model.DefaultHostNetwork {
			err = fmt.Errorf("the network of the node's own address has this name: set network_interface in place of it")
		}
		if err != nil {
			return &errorWithRange{block.sourceRange, fmt.Errorf("host_network %q: %w", block.name, err)}
		}
		if c.Node.Networks.HostNetworks == nil {
			c.Node.Networks.HostNetworks = make(map[string]hostnet.HostNetwork)
		}
		c.Node.Networks.HostNetworks[block.name] = n
	}
	return nil
}

func parseHostNetwork(block configItem) (n hostnet.HostNetwork, err error) {
	if !block.isBlock() {
		return n, errors.New("must be a block: " + hostNetworkExample)
	}
	for _, s := range block.children {
		switch s.name {
		// Network whose address of the machine the host network has. [type: string]
		case "cidr":
			n.CIDR, err = parseCIDR(*s)
		// Interface whose address the host network has. [type: string]
		case "interface":
			n.Interface, err = s.parseScalarAsString()
		// Ports of the addresses that jobs do not get. [type: string]
		case "reserved_ports":
			if n.ReservedPorts, err = s.parseScalarAsString(); err == nil {
				_, err = scheduler.ParsePortRanges(n.ReservedPorts)
			}
		default:
			err = fmt.Errorf("is not a setting of a host_network block: it has %s%s", joinNames(hostNetworkSettingNames), didYouMean(s.name, slices.Values(hostNetworkSettingNames)))
		}
		if err != nil {
			return n, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if !n.CIDR.IsValid() && n.Interface == "" {
		return n, errors.New("cidr or interface must say which address the network has")
	}
	return n, nil
}

func parseCIDR(i configItem) (netip.Prefix, error) {
	text, err := i.parseScalarAsString()
	if err != nil || text == "" {
		return netip.Prefix{}, err
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a network such as 203.0.113.0/24", text)
	}
	return prefix.Masked(), nil
}
