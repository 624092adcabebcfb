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

// NodeConfig is the operator's configuration of the node. The zero value is valid.
type NodeConfig struct {
	Name             string // default: the host name
	Datacenter       string // default: dc1
	Region           string // default: global
	Class            string
	Pool             string // default: default
	Meta             map[string]string
	Reserved         Reserved
	CPU              int    // MHz, overrides the fingerprint
	MemoryMB, DiskMB int    // override the fingerprint
	NetworkInterface string // its address is the node's address
	MinDynamicPort   int    // default: 20000
	MaxDynamicPort   int    // default: 32000
	ClientMinPort    int    // default: 14000; first port for helper processes of drivers
	ClientMaxPort    int    // default: 14512; last port for helper processes of drivers
	HTTPAddr         string // advertised address of the API; empty if it has only the unix socket
	TLS              bool   // the API uses TLS
}

// Reserved are resources that allocations do not get.
type Reserved struct {
	CPU, MemoryMB, DiskMB uint64
	Ports                 string // a list like "22,80,8000-8010"
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

// loadNodeID returns the id that earlier agents used, as far as a node or an
// allocation is stored, or a new id.
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

// attributes returns the attributes of the machine and its drivers.
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

// Node returns the facts about the node as tasks see them. Before the node is
// registered, missing driver attributes are taken from the stored node.
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
			Attributes: a.shareAttributes(attributes), Meta: c.Meta,
		},
		ParentCgroup: a.host.ParentCgroup,
	}
}

// shareAttributes returns the map of the previous call if the attributes are equal, to save
// memory: each allocation keeps the map.
func (a *Agent) shareAttributes(attributes map[string]string) map[string]string {
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

// record returns the current record of the node. Drain, eligibility and events are
// copied from old, which may be nil.
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

// opNodeEvent is the operation name, for the event stream, of a change that adds
// node events.
const opNodeEvent = "NodeStreamEvent"

// addEvents adds node events for changes of the drivers' health. It reports whether
// it added any.
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

// same reports whether two records are equal apart from the update times of
// drivers.
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

// keepNode keeps the stored node up to date until ctx ends. The first update waits
// for the drivers.
func (a *Agent) keepNode(ctx context.Context) {
	if err := a.supervisor.Ready(ctx); err != nil {
		return
	}
	a.orphans.clear(ctx, a.supervisor) // before the node exists, so that nothing is placed beside orphans
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
				a.orphans.closeEnded()
				a.orphans.removeEmptyCgroups()
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

// errSame cancels an update that would change nothing.
var errSame = errors.New("nothing has changed")

// putNode stores a changed node with its events. The old node is nil if there was
// none.
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
		// Damage of the store becomes an event with the first change of the node.
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

// Advertise sets the address of the API if it was not known at Open.
func (a *Agent) Advertise(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.config.Node.HTTPAddr = address
}
