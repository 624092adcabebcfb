package protocol

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// Node is the record of a node in "Node.Register". Fields that only servers set are missing.
type Node struct {
	ID                    string // UUID
	SecretID              string // UUID that only this node and the servers know
	Datacenter            string
	Name                  string
	NodePool              string
	NodeClass             string
	HTTPAddr              string // host and port of the HTTP API of this node; empty if other machines cannot reach it
	TLSEnabled            bool   // the HTTP API requires TLS
	CgroupParent          string
	Status                string // always NodeStatusInitializing
	SchedulingEligibility string // used at the first registration only
	NodeMaxAllocs         int    // zero means no limit
	Attributes            map[string]string
	Meta                  map[string]string
	Links                 map[string]string
	Drivers               map[string]*DriverInfo
	HostVolumes           map[string]*HostVolume
	HostNetworks          map[string]*HostNetwork
	NodeResources         *NodeResources
	ReservedResources     *ReservedResources
}

// NodeStatusInitializing is the status of a node that registers, NodeStatusReady that of each heartbeat.
const (
	NodeStatusInitializing = "initializing"
	NodeStatusReady        = "ready"
)

// DriverInfo describes a driver. Servers evaluate all jobs of a node when it changes, UpdateTime included.
type DriverInfo struct {
	Attributes        map[string]string
	Detected          bool
	Healthy           bool
	HealthDescription string
	UpdateTime        time.Time
}

// HostVolume is a static host volume.
type HostVolume struct {
	ID       string // empty for volumes of the configuration
	Name     string
	Path     string
	ReadOnly bool
}

// HostNetwork is a network of the configuration.
type HostNetwork struct {
	Name          string
	CIDR          string
	Interface     string
	ReservedPorts string
}

// NodeResources are the resources of a node.
type NodeResources struct {
	Cpu                            CPUResources
	Processors                     *Processors // nil for servers before 1.7, which use Cpu
	Memory                         MemoryResources
	Disk                           DiskResources
	Networks                       []*NetworkResource
	NodeNetworks                   []*NodeNetwork
	Devices                        []*DeviceGroup
	MinDynamicPort, MaxDynamicPort int // both can be assigned
}

// CPUResources are the old form of Processors.
type CPUResources struct {
	CpuShares          int64 // MHz
	TotalCpuCores      uint16
	ReservableCpuCores []uint16
}

// Processors has the processors of a node.
type Processors struct{ Topology *Topology }

// Topology lists the logical processors.
type Topology struct {
	Cores                  []Core
	Nodes                  []uint8          // ids of NUMA nodes
	Distances              [][]uint16       // between NUMA nodes; elements of one byte would be encoded as text
	BusAssociativity       map[string]uint8 // NUMA node of a PCI bus
	OverrideTotalCompute   uint64           // MHz; zero means the sum of the cores
	OverrideWitholdCompute uint64           // MHz that are reserved
}

// Core is one logical processor.
type Core struct {
	ID         uint16
	SocketID   uint8
	NodeID     uint8
	Grade      bool   // a performance core
	Disable    bool   // not available for tasks
	BaseSpeed  uint64 // MHz, like the others; the first speed that is not zero counts
	MaxSpeed   uint64
	GuessSpeed uint64
}

// MemoryResources is an amount of memory.
type MemoryResources struct{ MemoryMB int64 }

// DiskResources is an amount of disk space.
type DiskResources struct{ DiskMB int64 }

// NetworkResource is a network of the node by mode. As servers do, it leaves out empty fields.
type NetworkResource struct {
	Mode   string `codec:",omitempty"` // host, bridge, or cni/<name>
	Device string `codec:",omitempty"`
	CIDR   string `codec:",omitempty"`
	IP     string `codec:",omitempty"`
	MBits  int    `codec:",omitempty"`
}

// NodeNetwork is a network interface of the node.
type NodeNetwork struct {
	Mode       string
	Device     string
	MacAddress string
	Speed      int // MBits
	Addresses  []NodeNetworkAddress
}

// NodeNetworkAddress is an address of an interface.
type NodeNetworkAddress struct {
	Family        string // ipv4 or ipv6
	Alias         string // name of the host network
	Address       string
	ReservedPorts string
	Gateway       string
}

// DeviceGroup lists devices of one vendor, type and name.
type DeviceGroup struct {
	Vendor, Type, Name string
	Instances          []*Device
	Attributes         map[string]*Attribute
}

// Device is one device.
type Device struct {
	ID                string
	Healthy           bool
	HealthDescription string
	Locality          *DeviceLocality
}

// DeviceLocality is the place of a device in the machine.
type DeviceLocality struct{ PciBusID string }

// Attribute is a typed value of which one is not nil.
type Attribute struct {
	Int    *int64
	Float  *float64
	Bool   *bool
	String *string
	Unit   string
}

// ReservedResources are resources that servers do not assign to allocations.
type ReservedResources struct {
	Cpu      ReservedCPU
	Memory   MemoryResources
	Disk     DiskResources
	Networks ReservedNetworks
}

// ReservedCPU is the reserved part of the processors.
type ReservedCPU struct {
	CpuShares        int64
	ReservedCpuCores []uint16
}

// ReservedNetworks has the reserved ports, such as "22,80,8000-8010".
type ReservedNetworks struct{ ReservedHostPorts string }

// RegisterNodeRequest is the request of "Node.Register".
type RegisterNodeRequest struct {
	Node *Node
	WriteOptions
}

// UpdateNodeStatusRequest is a heartbeat, the request of "Node.UpdateStatus".
type UpdateNodeStatusRequest struct {
	NodeID               string
	Status               string // always NodeStatusReady
	ForceIdentityRenewal bool
	WriteOptions
}

// NodeUpdateResponse is the response to "Node.Register" and "Node.UpdateStatus".
type NodeUpdateResponse struct {
	HeartbeatTTL          time.Duration // zero if the server has the node as down
	SignedIdentity        *string       // new identity of the node, a JWT
	Servers               []*Server     // live servers of the region
	LeaderRPCAddr         string        // empty if no leader is known
	NumNodes              int32
	SchedulingEligibility string
	EvalIDs               []string
	EvalCreateIndex       uint64
	NodeModifyIndex       uint64
	ReadMeta
}

// Server is a server of the region.
type Server struct {
	RPCAdvertiseAddr string
	Datacenter       string
}

// EmitNodeEventsRequest is the request of "Node.EmitEvents"; its response is a WriteMeta.
type EmitNodeEventsRequest struct {
	NodeEvents map[string][]*NodeEvent // by the id of the node
	WriteOptions
}

// NodeEvent is an event of a node.
type NodeEvent struct {
	Message   string
	Subsystem string
	Details   map[string]string
	Timestamp time.Time
}

// UpdateNodeDrainRequest is the request of "Node.UpdateDrain"; its response is a WriteMeta.
type UpdateNodeDrainRequest struct {
	NodeID        string
	DrainStrategy *DrainStrategy // nil ends the drain
	MarkEligible  bool
	Meta          map[string]string
	WriteOptions
}

// DrainStrategy says how a node is drained.
type DrainStrategy struct {
	Deadline         time.Duration // negative forces the drain; zero means no deadline
	IgnoreSystemJobs bool
}

// GetNodeRequest is the request of "Node.GetNode".
type GetNodeRequest struct {
	NodeID string
	ReadOptions
}

// GetNodeResponse is the response of "Node.GetNode". Node is nil if the node does not exist.
type GetNodeResponse struct {
	Node *api.Node
	ReadMeta
}
