package localnode

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// collectNodeAttributes returns the attributes of the machine and its drivers.
func (n *Node) collectNodeAttributes(drivers map[string]supervisor.DriverInfo) map[string]string {
	attributes := maps.Clone(n.config.Host.Attributes)
	if c := n.currentSettings(); c.AdvertisedHTTPAddr != "" {
		attributes["unique.advertise.address"] = c.AdvertisedHTTPAddr
	}
	for name, info := range drivers {
		for key, value := range info.Attributes {
			attributes[key] = value.String()
		}
		if info.Detected { // even if the driver is unhealthy: its health is in the node's field Drivers
			attributes["driver."+name] = "1"
		}
	}
	if total := n.config.Host.UsableCPUMHz; total > 0 {
		attributes["cpu.usablecompute"] = strconv.Itoa(max(1, total-n.reservedCPUMHz())) // the scheduler reads 0 as no limit
	}
	model.SetHostVolumeOptions(attributes, n.currentSettings().HostVolumeOptions)
	if n.volumes != nil {
		for name, version := range n.volumes.PluginVersionByName() {
			attributes["plugins.host_volume."+name+".version"] = version
		}
	}
	for name, reason := range n.config.Plugins.DeviceFailureReasonByPlugin() {
		attributes[model.DeviceFailurePrefix+name+model.FailureSuffix] = reason
	}
	for name, reason := range n.config.Plugins.LaunchFailureReasonByPlugin() {
		attributes[model.LaunchFailurePrefix+name+model.FailureSuffix] = reason
	}
	return attributes
}

// reservedCPUMHz returns the CPU not available to tasks: the reserved cores' MHz plus the CPU reserved by the operator.
func (n *Node) reservedCPUMHz() int {
	host := n.config.Host
	return int(n.currentSettings().Reserved.CPUMHz) + host.UsableCPUMHz*len(host.ReservedCoreIDs)/max(1, host.UsableCores)
}

// newNodeRecord returns the current node record with the given host volumes. Drain, eligibility and events are copied from old,
// which may be nil.
func (n *Node) newNodeRecord(old *api.Node, volumes map[string]*api.HostVolumeInfo) *api.Node {
	c, drivers := n.currentSettings(), n.config.Plugins.NotStartedDriverInfoByName()
	maps.Copy(drivers, n.config.Plugins.DriverInfoByName())
	record := &api.Node{
		ID:            n.config.ID,
		Datacenter:    c.Datacenter,
		Name:          c.Name,
		HTTPAddr:      c.AdvertisedHTTPAddr,
		TLSEnabled:    c.APIUsesTLS,
		Attributes:    n.collectNodeAttributes(drivers),
		Links:         map[string]string{},
		Meta:          c.Meta,
		NodeClass:     c.Class,
		NodePool:      c.Pool,
		CgroupParent:  n.config.Host.ParentCgroup,
		Status:        api.NodeStatusReady,
		Drivers:       make(map[string]*api.DriverInfo, len(drivers)),
		HostVolumes:   volumes,
		NodeMaxAllocs: c.MaxAllocs,
		HostNetworks:  hostNetworkInfos(c.Networks.HostNetworks),

		CSIControllerPlugins: map[string]*api.CSIInfo{},
		CSINodePlugins:       map[string]*api.CSIInfo{},

		SchedulingEligibility: api.NodeSchedulingEligible,
	}
	for name, info := range drivers {
		attributes := make(map[string]string, len(info.Attributes))
		for key, value := range info.Attributes {
			attributes[key] = value.String()
		}
		record.Drivers[name] = &api.DriverInfo{
			Attributes: attributes, Detected: info.Detected, Healthy: info.Healthy,
			HealthDescription: info.Description, UpdateTime: info.UpdatedAt,
		}
	}
	host := n.config.Host
	record.NodeResources = &api.NodeResources{
		Cpu:            api.NodeCpuResources{CpuShares: int64(host.UsableCPUMHz), TotalCpuCores: uint16(len(host.ReservableCoreIDs)), ReservableCpuCores: host.ReservableCoreIDs},
		Memory:         api.NodeMemoryResources{MemoryMB: int64(host.MemoryMB)},
		Disk:           api.NodeDiskResources{DiskMB: int64(host.DataDirFileSystemMB)},
		Networks:       newNetworkResources(host, c.Interface.MBits),
		Devices:        devices.ToAPINodeDevices(n.config.Plugins.DeviceGroups()),
		MinDynamicPort: c.MinDynamicPort,
		MaxDynamicPort: c.MaxDynamicPort,
	}
	reserved := c.Reserved
	record.ReservedResources = &api.NodeReservedResources{
		Cpu:      api.NodeReservedCpuResources{CpuShares: uint64(n.reservedCPUMHz())},
		Memory:   api.NodeReservedMemoryResources{MemoryMB: reserved.MemoryMB},
		Disk:     api.NodeReservedDiskResources{DiskMB: reserved.DiskMB},
		Networks: api.NodeReservedNetworkResources{ReservedHostPorts: reserved.Ports},
	}
	if old != nil {
		record.Drain, record.DrainStrategy, record.LastDrain = old.Drain, old.DrainStrategy, old.LastDrain
		record.SchedulingEligibility = old.SchedulingEligibility
		record.Events, record.StatusUpdatedAt = old.Events, old.StatusUpdatedAt
		record.CreateIndex, record.ModifyIndex = old.CreateIndex, old.ModifyIndex
	}
	return record
}

// hostNetworkInfos converts host networks to the API's type. It returns nil if there are none.
func hostNetworkInfos(networks map[string]hostnet.HostNetwork) map[string]*api.HostNetworkInfo {
	if len(networks) == 0 {
		return nil
	}
	infos := make(map[string]*api.HostNetworkInfo, len(networks))
	for name, n := range networks {
		info := &api.HostNetworkInfo{Name: name, Interface: n.Interface, ReservedPorts: n.ReservedPorts}
		if n.CIDR.IsValid() {
			info.CIDR = n.CIDR.String()
		}
		infos[name] = info
	}
	return infos
}

// opNodeEvent is the event stream's type for a change that only adds node events.
const opNodeEvent = "NodeStreamEvent"

// AddNodeEvent adds an event to the stored node. Without a stored node it does nothing.
func AddNodeEvent(ctx context.Context, s *store.Store, nodeID, subsystem, message string) error {
	_, err := s.Update(ctx, func(tx *store.Txn) error {
		old := tx.Node(nil, nodeID)
		if old == nil {
			return nil
		}
		n := *old
		model.AppendNodeEvent(&n, subsystem, message, nil, time.Now())
		tx.SetEventOperation(opNodeEvent)
		tx.PutNodeWithStorageEvents(&n)
		return nil
	})
	return err
}

// addChangeEvents adds node events for the registration and for driver health changes to n. The result reports whether it has
// added an event.
func addChangeEvents(n, old *api.Node, now time.Time) (added bool) {
	add := func(subsystem, message string, details map[string]string) {
		added = true
		model.AppendNodeEvent(n, subsystem, message, details, now)
	}
	if old == nil {
		add("Cluster", "Node registered", nil)
		old = &api.Node{}
	}
	for _, name := range slices.Sorted(maps.Keys(n.Drivers)) {
		is, was := n.Drivers[name], old.Drivers[name]
		if was == nil || is.Healthy == was.Healthy && is.HealthDescription == was.HealthDescription {
			continue
		}
		add("Driver", "Driver "+name+": "+is.HealthDescription, map[string]string{"driver": name})
	}
	return added
}

// equalNodesIgnoringDriverTimes reports whether two records are equal. It ignores the drivers' update times.
func equalNodesIgnoringDriverTimes(a, b *api.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	timeless := func(n *api.Node) api.Node {
		c := *n
		c.Drivers = make(map[string]*api.DriverInfo, len(n.Drivers))
		for name, d := range n.Drivers {
			copied := *d
			copied.UpdateTime = time.Time{}
			c.Drivers[name] = &copied
		}
		return c
	}
	return reflect.DeepEqual(timeless(a), timeless(b))
}

// putNodeWithEvents adds node events for the changes since old to n, and stores n. old is nil if no node was stored.
func putNodeWithEvents(tx *store.Txn, n, old *api.Node, now time.Time) {
	if addChangeEvents(n, old, now) && old != nil {
		tx.SetEventOperation(opNodeEvent)
	}
	if old == nil || old.Status != n.Status {
		n.StatusUpdatedAt = now.Unix()
	}
	tx.PutNodeWithStorageEvents(n)
}
