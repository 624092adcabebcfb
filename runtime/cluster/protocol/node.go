package protocol

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// Node is a node's record in "Node.Register". Fields that only servers set are missing.
type Node struct {
	ID                    string // UUID
	SecretID              string // UUID that only this node and the servers know
	Datacenter            string
	Name                  string
	NodePool              string
	NodeClass             string
	HTTPAddr              string // host and port of this node's HTTP API; empty if other machines cannot reach it
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

// NodeStatusInitializing is a registering node's status, NodeStatusReady the status in each heartbeat.
const (
	NodeStatusInitializing = "initializing"
	NodeStatusReady        = "ready"
)

// DriverInfo describes a driver. Servers evaluate all the node's jobs when it changes, UpdateTime included.
type DriverInfo struct {
	Attributes        map[string]string
	Detected          bool
	Healthy           bool
	HealthDescription string
	UpdateTime        time.Time
}

// HostVolume is a static host volume.
type HostVolume struct {
	ID       string // empty for volumes in the configuration
	Name     string
	Path     string
	ReadOnly bool
}

// HostNetwork is a configured network.
type HostNetwork struct {
	Name          string
	CIDR          string
	Interface     string
	ReservedPorts string
}

// NodeResources are a node's resources.
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

// Processors has a node's processors.
type Processors struct{ Topology *Topology }

// Topology lists the logical processors.
type Topology struct {
	Cores                  []Core
	Nodes                  []uint8          // NUMA node IDs
	Distances              [][]uint16       // between NUMA nodes; one-byte elements would be encoded as text
	BusAssociativity       map[string]uint8 // a PCI bus's NUMA node
	OverrideTotalCompute   uint64           // MHz; zero means the sum of the cores
	OverrideWitholdCompute uint64           // reserved MHz
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

// MemoryResources is a memory size.
type MemoryResources struct{ MemoryMB int64 }

// DiskResources is a disk size.
type DiskResources struct{ DiskMB int64 }

// NetworkResource is one of the node's networks by mode. As servers do, it leaves out empty fields.
type NetworkResource struct {
	Mode   string `codec:",omitempty"` // host, bridge, or cni/<name>
	Device string `codec:",omitempty"`
	CIDR   string `codec:",omitempty"`
	IP     string `codec:",omitempty"`
	MBits  int    `codec:",omitempty"`
}

// NodeNetwork is one of the node's network interfaces.
type NodeNetwork struct {
	Mode       string
	Device     string
	MacAddress string
	Speed      int // MBits
	Addresses  []NodeNetworkAddress
}

// NodeNetworkAddress is one of an interface's addresses.
type NodeNetworkAddress struct {
	Family        string // ipv4 or ipv6
	Alias         string // the host network's name
	Address       string
	ReservedPorts string
	Gateway       string
}

// DeviceGroup lists devices with one vendor, type and name.
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

// DeviceLocality is a device's place in the machine.
type DeviceLocality struct{ PciBusID string }

// Attribute is a typed value: one field is not nil.
type Attribute struct {
	Int    *int64
	Float  *float64
	Bool   *bool
	String *string
	Unit   string
}

// ReservedResources are resources servers do not assign to allocations.
type ReservedResources struct {
	Cpu      ReservedCPU
	Memory   MemoryResources
	Disk     DiskResources
	Networks ReservedNetworks
}

// ReservedCPU is the processors' reserved part.
type ReservedCPU struct {
	CpuShares        int64
	ReservedCpuCores []uint16
}

// ReservedNetworks has the reserved ports, such as "22,80,8000-8010".
type ReservedNetworks struct{ ReservedHostPorts string }

// RegisterNodeRequest is the "Node.Register" request.
type RegisterNodeRequest struct {
	Node *Node
	WriteOptions
}

// UpdateNodeStatusRequest is a heartbeat, the "Node.UpdateStatus" request.
type UpdateNodeStatusRequest struct {
	NodeID               string
	Status               string // always NodeStatusReady
	ForceIdentityRenewal bool
	WriteOptions
}

// NodeUpdateResponse is the response to "Node.Register" and "Node.UpdateStatus".
type NodeUpdateResponse struct {
	HeartbeatTTL          time.Duration // zero if the server has the node as down
	SignedIdentity        *string       // the node's new identity, a JWT
	Servers               []*Server     // the region's live servers
	LeaderRPCAddr         string        // empty if no leader is known
	NumNodes              int32
	SchedulingEligibility string
	EvalIDs               []string
	EvalCreateIndex       uint64
	NodeModifyIndex       uint64
	ReadMeta
}

// Server is one of the region's servers.
type Server struct {
	RPCAdvertiseAddr string
	Datacenter       string
}

// EmitNodeEventsRequest is the "Node.EmitEvents" request; its response is a WriteMeta.
type EmitNodeEventsRequest struct {
	NodeEvents map[string][]*NodeEvent // by node ID
	WriteOptions
}

// NodeEvent is an event about a node.
type NodeEvent struct {
	Message   string
	Subsystem string
	Details   map[string]string
	Timestamp time.Time
}

// UpdateNodeDrainRequest is the "Node.UpdateDrain" request; its response is a WriteMeta.
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

// GetNodeRequest is the "Node.GetNode" request.
type GetNodeRequest struct {
	NodeID string
	ReadOptions
}

// GetNodeResponse is the "Node.GetNode" response. Node is nil if the node does not exist.
type GetNodeResponse struct {
	Node *api.Node
	ReadMeta
}
