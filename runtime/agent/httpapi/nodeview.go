package httpapi

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// nodeView is a node in the server's JSON format. It adds the fields about the machine that the client's type lacks.
type nodeView struct {
	*api.Node
	NodeResources     *nodeResourcesView
	ReservedResources *nodeReservedResourcesView
	HostVolumes       map[string]hostVolumeView
}

// newNodeView returns the view of the node of this machine.
func newNodeView(n *api.Node, host fingerprint.Host) nodeView {
	return nodeView{n, newNodeResourcesView(n.NodeResources, host), newNodeReservedResourcesView(n.ReservedResources, host), newHostVolumeViews(n.HostVolumes)}
}

type hostVolumeView struct {
	Name string
	*api.HostVolumeInfo
}

func newHostVolumeViews(volumes map[string]*api.HostVolumeInfo) map[string]hostVolumeView {
	views := make(map[string]hostVolumeView, len(volumes))
	for name, v := range volumes {
		views[name] = hostVolumeView{name, v}
	}
	return views
}

type nodeResourcesView struct {
	*api.NodeResources
	Networks     []*api.NetworkResource // without addresses that only host networks have, which are in NodeNetworks
	NodeNetworks []fingerprint.NodeNetwork
	Processors   struct{ Topology *topologyView }
}

// topologyView is the processor topology in the server's JSON format.
type topologyView struct {
	Nodes     []uint32
	Distances [][]uint32
	Cores     []coreView

	OverrideTotalCompute   uint64
	OverrideWitholdCompute uint64 // spelled as in Nomad
}

type coreView struct {
	ID, NodeID, SocketID            uint32
	Grade                           bool // true for a performance core
	Disable                         bool
	BaseSpeed, MaxSpeed, GuessSpeed uint64
}

// newNodeResourcesView returns nil if r is nil.
func newNodeResourcesView(r *api.NodeResources, host fingerprint.Host) *nodeResourcesView {
	if r == nil {
		return nil
	}
	view := &nodeResourcesView{NodeResources: r, NodeNetworks: host.NodeNetworks}
	for _, n := range r.Networks {
		if !host.IsOnlyOfHostNetworks(n.Mode, n.Device) {
			view.Networks = append(view.Networks, n)
		}
	}
	if t := host.Topology; t != nil {
		view.Processors.Topology = newTopologyView(t)
	}
	return view
}

func newTopologyView(t *base.Topology) *topologyView {
	view := &topologyView{Nodes: t.NodeIDs, OverrideTotalCompute: t.OverrideTotalCompute, OverrideWitholdCompute: t.OverrideWithholdCompute}
	if len(t.NodeIDs) > 1 { // Nomad sends no distances for a single memory node
		view.Distances = t.Distances
	}
	for _, c := range t.Cores {
		view.Cores = append(view.Cores, coreView{
			ID: c.CoreID, NodeID: c.NodeID, SocketID: c.SocketID, Grade: c.Grade == base.CorePerformance, Disable: c.Disable,
			BaseSpeed: c.BaseSpeed, MaxSpeed: c.MaxSpeed, GuessSpeed: c.GuessSpeed,
		})
	}
	return view
}

type nodeReservedResourcesView struct {
	*api.NodeReservedResources
	Cpu struct {
		CpuShares        uint64
		ReservedCpuCores []uint16
	}
}

// newNodeReservedResourcesView returns nil if r is nil.
func newNodeReservedResourcesView(r *api.NodeReservedResources, host fingerprint.Host) *nodeReservedResourcesView {
	if r == nil {
		return nil
	}
	view := &nodeReservedResourcesView{NodeReservedResources: r}
	view.Cpu.CpuShares, view.Cpu.ReservedCpuCores = r.Cpu.CpuShares, host.ReservedCoreIDs
	return view
}
