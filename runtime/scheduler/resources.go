package scheduler

import (
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// assignResources chooses the ports and devices for a group's new allocation, and returns all its resources.
func (p *allocPlacer) assignResources(g *api.TaskGroup) (*api.AllocatedResources, error) {
	p.chosenPorts = map[HostPort]bool{}
	granted := &api.AllocatedResources{
		Tasks:  make(map[string]*api.AllocatedTaskResources, len(g.Tasks)),
		Shared: api.AllocatedSharedResources{DiskMB: int64(*g.EphemeralDisk.SizeMB)},
	}
	if len(g.Networks) > 0 {
		n, err := p.assignPortsOfNetwork(g.Networks[0])
		if err != nil {
			return nil, err
		}
		granted.Shared.Networks = []*api.NetworkResource{n}
		if granted.Shared.Ports, err = portMappings(n, p.node); err != nil {
			return nil, err
		}
	}
	devices, err := p.assignDevices(g)
	if err != nil {
		return nil, err
	}
	for _, t := range g.Tasks {
		task := &api.AllocatedTaskResources{
			Cpu:    api.AllocatedCpuResources{CpuShares: int64(taskCPUMHz(t, p.nodeUsage.coreMHz))},
			Memory: api.AllocatedMemoryResources{MemoryMB: int64(*t.Resources.MemoryMB)},
		}
		if p.memoryOversubscription {
			task.Memory.MemoryMaxMB = int64(pointer.Value(t.Resources.MemoryMaxMB))
		}
		for _, n := range t.Resources.Networks {
			if err := checkTaskNetworkHasNoHostNetwork(n); err != nil {
				return nil, fmt.Errorf("task %q: %w", t.Name, err)
			}
			n, err := p.assignPortsOfNetwork(n)
			if err != nil {
				return nil, fmt.Errorf("task %q: %w", t.Name, err)
			}
			n.Device = p.node.InterfaceName
			task.Networks = append(task.Networks, n)
		}
		for _, d := range t.Resources.Devices {
			if got := devices[d]; got != nil {
				task.Devices = append(task.Devices, got)
			}
		}
		granted.Tasks[t.Name] = task
	}
	return granted, nil
}

// checkTaskNetworkHasNoHostNetwork returns an error if a port in a task's network names a host network: all ports of a task's
// network have the same address.
func checkTaskNetworkHasNoHostNetwork(n *api.NetworkResource) error {
	for _, port := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
		if !model.IsOnDefaultHostNetwork(port) {
			return fmt.Errorf("port %q: host_network = %q works in the network block of the group only: write the port there", port.Label, port.HostNetwork)
		}
	}
	return nil
}

// legacyResources converts resources to Nomad's older form, which clients still read: the resources of the allocation, and of
// each task by name.
func legacyResources(granted *api.AllocatedResources) (total *api.Resources, byTask map[string]*api.Resources) {
	var cpu, totalMemoryMB int
	byTask = make(map[string]*api.Resources, len(granted.Tasks))
	for name, t := range granted.Tasks {
		cpu += int(t.Cpu.CpuShares)
		totalMemoryMB += int(t.Memory.MemoryMB)
		byTask[name] = &api.Resources{
			CPU:      new(int(t.Cpu.CpuShares)),
			MemoryMB: new(int(t.Memory.MemoryMB)),
			DiskMB:   new(0),
			Networks: t.Networks,
		}
		if t.Memory.MemoryMaxMB != 0 {
			byTask[name].MemoryMaxMB = new(int(t.Memory.MemoryMaxMB))
		}
	}
	return &api.Resources{
		CPU:      &cpu,
		MemoryMB: &totalMemoryMB,
		DiskMB:   new(int(granted.Shared.DiskMB)),
		Networks: granted.Shared.Networks,
	}, byTask
}
