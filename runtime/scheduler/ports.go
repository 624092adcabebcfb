package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// The default dynamic port range, inclusive.
const (
	MinDynamicPort = 20000
	MaxDynamicPort = 32000
)

const maxPort = 65535

// staticPorts returns a job's static ports. The job's dynamic ports must differ from all of them.
func staticPorts(job *api.Job) map[int]bool {
	static := map[int]bool{}
	for _, g := range job.TaskGroups {
		for _, n := range groupAndTaskNetworks(g) {
			for _, port := range n.ReservedPorts {
				static[port.Value] = true
			}
		}
	}
	return static
}

// groupAndTaskNetworks returns the networks in a group and its tasks.
func groupAndTaskNetworks(g *api.TaskGroup) []*api.NetworkResource {
	networks := slices.Clone(g.Networks)
	for _, t := range g.Tasks {
		networks = append(networks, t.Resources.Networks...)
	}
	return networks
}

// dynamicPortRange returns a node's first dynamic port and its dynamic port count.
func dynamicPortRange(node PlacementNode) (first, count int) {
	first = cmp.Or(node.MinDynamicPort, MinDynamicPort)
	return first, cmp.Or(node.MaxDynamicPort, MaxDynamicPort) - first + 1
}

// assignPortsOfNetwork returns a network copy with assigned ports.
func (p *allocPlacer) assignPortsOfNetwork(n *api.NetworkResource) (*api.NetworkResource, error) {
	out := *n
	out.IP = p.node.IP
	out.ReservedPorts = slices.Clone(n.ReservedPorts)
	out.DynamicPorts = slices.Clone(n.DynamicPorts)
	for _, port := range out.ReservedPorts {
		if err := p.checkAndTakeStaticPort(port); err != nil {
			return nil, fmt.Errorf("port %q: %w", port.Label, err)
		}
	}
	for i := range out.DynamicPorts {
		port := &out.DynamicPorts[i]
		value, err := p.takeDynamicPort(*port)
		if err != nil {
			return nil, fmt.Errorf("port %q: %w", port.Label, err)
		}
		port.Value = value
		if port.To == -1 {
			port.To = value
		}
	}
	return &out, nil
}

func (p *allocPlacer) checkAndTakeStaticPort(port api.Port) error {
	wanted, err := p.hostPortOf(port, port.Value)
	switch {
	case err != nil:
		return err
	case port.Value < 1 || port.Value > maxPort:
		return fmt.Errorf("%d is not between 1 and %d", port.Value, maxPort)
	case port.IgnoreCollision:
		return nil
	}
	collision := func(format string, args ...any) error {
		dimension := fmt.Sprintf("network: reserved port collision %s=%d", port.Label, port.Value)
		return &nodeExhaustedError{dimension, fmt.Errorf(format, args...)}
	}
	conflict, heldByOwnName := p.nodeUsage.portHolders.findConflict(p.currentAllocNameKey, wanted, portsOf)
	switch {
	case conflict != nil && conflict.key.jobID == p.currentAllocNameKey.jobID && conflict.key.namespace == p.currentAllocNameKey.namespace, p.chosenPorts[wanted]:
		return collision("another allocation of this job has the static port %d on this node: leave out static, or lower the count", port.Value)
	case conflict != nil:
		return collision("reserved port collision %s=%d: allocation %q of job %q has it. Stop it, or leave out static", port.Label, port.Value, conflict.key.allocName, conflict.key.jobID)
	case p.nodeUsage.isPortReservedByConfig(wanted):
		return collision("reserved port collision %s=%d: the configuration of the agent reserves it", port.Label, port.Value)
	case !heldByOwnName && !p.nodeUsage.preemptedPorts[wanted] && !p.env.IsPortFree(wanted):
		return collision("reserved port collision %s=%d: %s listens there. Stop it, or leave out static", port.Label, port.Value, p.env.describePortListener(port.Value))
	}
	p.chosenPorts[wanted] = true
	return nil
}

// describePortListener returns a text about the process listening on a port.
func (e *Env) describePortListener(port int) string {
	listener := ""
	if e.DescribePortListeners != nil {
		listener = e.DescribePortListeners([]int{port})[port]
	}
	return cmp.Or(listener, "a process")
}

func (p *allocPlacer) takeDynamicPort(port api.Port) (int, error) {
	wanted, err := p.hostPortOf(port, 0)
	if err != nil {
		return 0, err
	}
	first, n := dynamicPortRange(p.node)
	start := p.env.RandIntN(n)
	for i := range n {
		number := first + (start+i)%n
		wanted.Port = number
		if p.chosenPorts[wanted] || p.staticPortsOfJob[number] || p.nodeUsage.isPortReservedOrHeld(wanted) || !p.env.IsPortFree(wanted) {
			continue
		}
		p.chosenPorts[wanted] = true
		return number, nil
	}
	return 0, &nodeExhaustedError{"network: dynamic port selection failed", fmt.Errorf("no port between %d and %d is free", first, first+n-1)}
}

// hostPortOf returns the port with the given number on the host network named by a job's port.
func (p *allocPlacer) hostPortOf(port api.Port, number int) (HostPort, error) {
	if model.IsOnDefaultHostNetwork(port) {
		return HostPort{Port: number}, nil
	}
	address, err := hostNetworkAddress(port, p.node)
	return newHostPort(address, number, p.node.IP), err
}

// hostNetworkAddress returns the address of the host network named by a job's port.
func hostNetworkAddress(port api.Port, node PlacementNode) (string, error) {
	if model.IsOnDefaultHostNetwork(port) {
		return node.IP, nil
	}
	if unmet := node.CheckHostNetwork(port); unmet != nil {
		return "", unmet
	}
	return node.HostNetworks[port.HostNetwork].Address, nil
}

// portMappings returns a network's assigned ports with the host addresses on which they are mapped.
func portMappings(n *api.NetworkResource, node PlacementNode) ([]api.PortMapping, error) {
	var all []api.PortMapping
	for _, port := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
		address, err := hostNetworkAddress(port, node)
		if err != nil {
			return nil, err
		}
		all = append(all, api.PortMapping{Label: port.Label, Value: port.Value, To: port.To, HostIP: address})
	}
	return all, nil
}
