package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

// NodeConfig is what the operator says about the node. The zero value is good.
type NodeConfig struct {
	Name             string // the name of the host
	Datacenter       string // dc1
	Region           string // global
	Class            string
	Pool             string // default
	Meta             map[string]string
	Reserved         Reserved
	CPU              int    // MHz in place of what was found out
	MemoryMB, DiskMB int    // the same
	NetworkInterface string // whose address is that of the node
	MinDynamicPort   int    // 20000
	MaxDynamicPort   int    // 32000
	ClientMinPort    int    // 14000; the ports of drivers' helper processes
	ClientMaxPort    int    // 14512
	HTTPAddr         string // where clients reach the API; empty if only over the unix socket
	TLS              bool   // they reach it with TLS
}

// Reserved is what is kept from allocations.
type Reserved struct {
	CPU, MemoryMB, DiskMB uint64
	Ports                 string // "22,80,8000-8010"
}

func (c *NodeConfig) fill(host string) {
	c.Name = cmp.Or(c.Name, host)
	c.Datacenter = cmp.Or(c.Datacenter, "dc1")
	c.Region = cmp.Or(c.Region, api.GlobalRegion)
	c.Pool = cmp.Or(c.Pool, api.NodePoolDefault)
	c.MinDynamicPort = cmp.Or(c.MinDynamicPort, scheduler.MinDynamicPort)
	c.MaxDynamicPort = cmp.Or(c.MaxDynamicPort, scheduler.MaxDynamicPort)
	c.ClientMinPort = cmp.Or(c.ClientMinPort, ClientMinPort)
	c.ClientMaxPort = cmp.Or(c.ClientMaxPort, ClientMaxPort)
}

// loadNodeID returns the id that the node has had, as far as anything of it is
// left, or a new one.
func loadNodeID(s *store.Store) string {
	snapshot := s.Snapshot()
	if nodes := snapshot.Nodes(nil, ""); len(nodes) > 0 {
		return nodes[0].ID
	}
	if allocs := snapshot.Allocations(nil, ""); len(allocs) > 0 {
		return allocs[0].NodeID
	}
	return uuid.NewString()
}

// interfaceIP returns the first address of an interface, IPv4 before IPv6.
func interfaceIP(name string) (string, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("network interface %q: %w", name, err)
	}
	addresses, err := i.Addrs()
	if err != nil {
		return "", fmt.Errorf("network interface %q: %w", name, err)
	}
	found := ""
	for _, a := range addresses {
		network, ok := a.(*net.IPNet)
		switch {
		case !ok || network.IP.IsLinkLocalUnicast():
		case network.IP.To4() != nil:
			return network.IP.String(), nil
		case found == "":
			found = network.IP.String()
		}
	}
	if found == "" {
		return "", fmt.Errorf("network interface %q: it has no address", name)
	}
	return found, nil
}

// attributes are the facts about the machine and its drivers.
func (a *Agent) attributes(drivers map[string]supervisor.Info) map[string]string {
	attributes := maps.Clone(a.host.Attributes)
	if c := a.nodeConfig(); c.HTTPAddr != "" {
		attributes["unique.advertise.address"] = c.HTTPAddr
	}
	for name, info := range drivers {
		for key, value := range info.Attributes {
			attributes[key] = value.String()
		}
		if info.Detected && info.Healthy {
			attributes["driver."+name] = "1"
		}
	}
	return attributes
}

// Node returns the facts about the node as tasks see them. As long as drivers
// have not said how they are, that is what they have said to the agent before.
func (a *Agent) Node() taskenv.Node {
	c := a.nodeConfig()
	attributes := a.attributes(a.Drivers())
	select {
	case <-a.registered:
	default:
		if old := a.store.Snapshot().Node(nil, a.nodeID); old != nil {
			for key, value := range old.Attributes {
				if _, known := attributes[key]; !known && strings.HasPrefix(key, "driver.") {
					attributes[key] = value
				}
			}
		}
	}
	return taskenv.Node{
		NodeFacts: model.NodeFacts{
			ID: a.nodeID, Name: c.Name, Datacenter: c.Datacenter, Region: c.Region, Class: c.Class, Pool: c.Pool,
			Attributes: a.share(attributes), Meta: c.Meta,
		},
		ParentCgroup: a.host.ParentCgroup,
	}
}

// share returns the attributes that were given out before, if they are the same: each
// allocation keeps them.
func (a *Agent) share(attributes map[string]string) map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !maps.Equal(a.attributesGiven, attributes) {
		a.attributesGiven = attributes
	}
	return a.attributesGiven
}

func (a *Agent) nodeConfig() NodeConfig {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.config.Node
	c.Meta = mergeMeta(c.Meta, a.dynamicMeta)
	return c
}

// record is the node as it is now. What people have decided about it, and what
// has happened to it, is that of the old one, which may be nil.
func (a *Agent) record(old *api.Node) *api.Node {
	c, drivers := a.nodeConfig(), a.Drivers()
	n := &api.Node{
		ID:           a.nodeID,
		Datacenter:   c.Datacenter,
		Name:         c.Name,
		HTTPAddr:     c.HTTPAddr,
		TLSEnabled:   c.TLS,
		Attributes:   a.attributes(drivers),
		Links:        map[string]string{},
		Meta:         c.Meta,
		NodeClass:    c.Class,
		NodePool:     c.Pool,
		CgroupParent: a.host.ParentCgroup,
		Status:       api.NodeStatusReady,
		Drivers:      make(map[string]*api.DriverInfo, len(drivers)),
		HostVolumes:  map[string]*api.HostVolumeInfo{},
		HostNetworks: map[string]*api.HostNetworkInfo{},

		SchedulingEligibility: api.NodeSchedulingEligible,
	}
	for name, info := range drivers {
		attributes := make(map[string]string, len(info.Attributes))
		for key, value := range info.Attributes {
			attributes[key] = value.String()
		}
		n.Drivers[name] = &api.DriverInfo{
			Attributes: attributes, Detected: info.Detected, Healthy: info.Healthy,
			HealthDescription: info.Description, UpdateTime: info.UpdatedAt,
		}
	}
	cores := make([]uint16, a.host.Cores)
	for i := range cores {
		cores[i] = uint16(i)
	}
	n.NodeResources = &api.NodeResources{
		Cpu:            api.NodeCpuResources{CpuShares: int64(a.host.CPUMHz), TotalCpuCores: uint16(a.host.Cores), ReservableCpuCores: cores},
		Memory:         api.NodeMemoryResources{MemoryMB: int64(a.host.MemoryMB)},
		Disk:           api.NodeDiskResources{DiskMB: int64(a.host.DiskMB)},
		Networks:       []*api.NetworkResource{{Mode: "host", Device: c.NetworkInterface, IP: a.host.IP}},
		MinDynamicPort: c.MinDynamicPort,
		MaxDynamicPort: c.MaxDynamicPort,
	}
	r := c.Reserved
	n.ReservedResources = &api.NodeReservedResources{
		Cpu:      api.NodeReservedCpuResources{CpuShares: r.CPU},
		Memory:   api.NodeReservedMemoryResources{MemoryMB: r.MemoryMB},
		Disk:     api.NodeReservedDiskResources{DiskMB: r.DiskMB},
		Networks: api.NodeReservedNetworkResources{ReservedHostPorts: r.Ports},
	}
	if old != nil {
		n.Drain, n.DrainStrategy, n.LastDrain = old.Drain, old.DrainStrategy, old.LastDrain
		n.SchedulingEligibility = old.SchedulingEligibility
		n.Events, n.StatusUpdatedAt = old.Events, old.StatusUpdatedAt
		n.CreateIndex, n.ModifyIndex = old.CreateIndex, old.ModifyIndex
	}
	return n
}

// opNodeEvent is what followers of events know a change by that gave a node events
// of its own.
const opNodeEvent = "NodeStreamEvent"

// addEvents notes what is different about the drivers. It reports whether there was
// anything.
func addEvents(n, old *api.Node, now time.Time) (added bool) {
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

// same tells whether two records say the same; when a driver has said something
// last is not what counts.
func same(a, b *api.Node) bool {
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

// keepNode keeps the record of the node as the node is, until ctx ends. The
// first one waits for the drivers.
func (a *Agent) keepNode(ctx context.Context) {
	if err := a.supervisor.Ready(ctx); err != nil {
		return
	}
	a.clearOrphans(ctx, a.supervisor) // before there is a node that others could be placed on
	a.orphansCleared.Store(ctx.Err() == nil)
	for {
		changed := a.supervisor.Changed()
		if err := a.storeNode(ctx); err != nil && ctx.Err() == nil {
			a.logger.Error("node not stored", "error", err)
			select {
			case <-time.After(pause):
				continue
			case <-ctx.Done():
			}
		} else if err == nil {
			a.registeredOnce.Do(func() {
				close(a.registered)
				a.closeEnded()
				a.removeEmptyCgroups()
			})
		}
		select {
		case <-changed:
		case <-a.nodeChanged:
		case <-ctx.Done():
			return
		}
	}
}

// errSame ends an update that has nothing to write.
var errSame = errors.New("nothing has changed")

// putNode stores a node that says something else than the old one, which is nil if
// there was none.
func putNode(tx *store.Txn, n, old *api.Node, now time.Time) {
	if addEvents(n, old, now) && old != nil {
		tx.Operation(opNodeEvent)
	}
	if old == nil || old.Status != n.Status {
		n.StatusUpdatedAt = now.Unix()
	}
	tx.PutNode(n)
}

func (a *Agent) storeNode(ctx context.Context) error {
	_, err := a.store.Update(ctx, func(tx *store.Txn) error {
		old := tx.Node(nil, a.nodeID)
		n := a.record(old)
		// What was found damaged becomes an event with the first change of the node.
		if same(n, old) && (a.damageReported || len(a.store.Damage()) == 0) {
			return errSame
		}
		putNode(tx, n, old, time.Now())
		return nil
	})
	if errors.Is(err, errSame) {
		return nil
	}
	if err == nil {
		a.damageReported = true
		a.scheduler.NodeChanged()
	}
	return err
}

// Advertise says where clients reach the API, if that was not known at Open.
func (a *Agent) Advertise(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.config.Node.HTTPAddr = address
}
