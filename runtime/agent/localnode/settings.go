package localnode

import (
	"cmp"
	"context"
	"fmt"
	"maps"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// Settings are the operator's node settings. The zero value is valid. It is large because a configuration's client block has as
// many.
type Settings struct {
	Name                             string // default: the host name
	Datacenter                       string // default: dc1
	Region                           string // default: global
	Class                            string
	Pool                             string // default: default
	Meta                             map[string]string
	Reserved                         ReservedResources
	CPUMHzOverride                   int   // overrides the fingerprint if it is not 0
	MemoryMBOverride, DiskMBOverride int   // override the fingerprint if they are not 0
	FreeDiskMBOverride               int   // disk space for jobs; overrides DiskMBOverride if it is not 0
	ReservableCoreIDs                []int // cores that tasks can reserve; nil: all except the reserved ones
	Interface                        InterfaceSettings
	MaxAllocs                        int    // largest number of allocations at one time; 0 means no limit
	MinDynamicPort                   int    // default: 20000
	MaxDynamicPort                   int    // default: 32000
	ClientMinPort                    int    // default: 14000; first port for drivers' helper processes
	ClientMaxPort                    int    // default: 14512; last port for drivers' helper processes
	AdvertisedHTTPAddr               string // API's advertised address; empty if it has only the unix socket
	APIUsesTLS                       bool
	RefuseConsulServices             bool // jobs with consul services are not placed
	Networks                         hostnet.Config
	// HostVolumes are the configured host volumes, by name. The node does not offer a volume with a missing path.
	HostVolumes       map[string]*api.HostVolumeInfo
	HostVolumeOptions map[string]model.HostVolumeOptions // by the name of a configured host volume
}

// InterfaceSettings select the network interface with the node's address.
type InterfaceSettings struct {
	Name  string // default: the default route's interface
	MBits int    // overrides the interface's speed if it is not 0

	AddressFamily string // family of the node's address, ipv4 or ipv6, if the interface has one; default: ipv4
}

// ReservedResources are resources not available to allocations.
type ReservedResources struct {
	CPUMHz, MemoryMB, DiskMB uint64
	Ports                    string // reserved ports, a list like "22,80,8000-8010"
	CoreIDs                  []int  // reserved core ids
}

// ClientMinPort and ClientMaxPort are the default port range for drivers' helper processes.
const ClientMinPort, ClientMaxPort = 14000, 14512

// WithDefaults returns a copy of the settings in which zero values are replaced by defaults. The default name is hostname.
func (s Settings) WithDefaults(hostname string) Settings {
	s.Name = cmp.Or(s.Name, hostname)
	s.Datacenter = cmp.Or(s.Datacenter, "dc1")
	s.Region = cmp.Or(s.Region, api.GlobalRegion)
	s.Pool = cmp.Or(s.Pool, api.NodePoolDefault)
	s.MinDynamicPort = cmp.Or(s.MinDynamicPort, scheduler.MinDynamicPort)
	s.MaxDynamicPort = cmp.Or(s.MaxDynamicPort, scheduler.MaxDynamicPort)
	s.ClientMinPort = cmp.Or(s.ClientMinPort, ClientMinPort)
	s.ClientMaxPort = cmp.Or(s.ClientMaxPort, ClientMaxPort)
	s.Networks = s.Networks.WithDefaults()
	return s
}

// FingerprintNetworks adds the machine's network modes, and its host networks' addresses, to host.
func (s Settings) FingerprintNetworks(ctx context.Context, host *fingerprint.Host, logger hclog.Logger) {
	capabilities, err := hostnet.New(s.Networks).Fingerprint(ctx)
	addresses, addressErr := s.Networks.SelectHostAddressByNetworkName(addressesOwnInterfaceFirst(*host))
	for _, err := range []error{err, addressErr} {
		if err != nil {
			logger.Info("degraded", "reason", err.Error())
			host.Degradations = append(host.Degradations, err.Error())
		}
	}
	host.HostNetworks = make(map[string]fingerprint.HostNetwork, len(addresses))
	for name, a := range addresses {
		host.HostNetworks[name] = fingerprint.HostNetwork{Interface: a.Interface, IP: a.Address.String()}
	}
	host.NetworkModes = capabilities.NetworkModes
	host.NodeNetworks = newNodeNetworks(*host, s.Networks.HostNetworks)
	maps.Copy(host.Attributes, capabilities.NodeAttributes)
}

// Fingerprint reads the machine's properties. The operator's settings override them.
func (s Settings) Fingerprint(o fingerprint.Options, logger hclog.Logger) fingerprint.Host {
	o.ReservedCoreIDs, o.ReservableCoreIDs = s.Reserved.CoreIDs, s.ReservableCoreIDs
	o.NetworkInterface, o.PreferIPv6 = s.Interface.Name, s.Interface.AddressFamily == "ipv6"
	host := fingerprint.ReadHost(o)
	for _, o := range []struct {
		value     int
		field     *int
		attribute string
		unit      int
	}{
		{s.CPUMHzOverride, &host.UsableCPUMHz, "cpu.totalcompute", 1},
		{s.MemoryMBOverride, &host.MemoryMB, "memory.totalbytes", 1 << 20},
		{s.DiskMBOverride, &host.DataDirFileSystemMB, "unique.storage.bytestotal", 1 << 20},
		{s.FreeDiskMBOverride, &host.DataDirFileSystemMB, "unique.storage.bytesfree", 1 << 20},
	} {
		if o.value > 0 {
			*o.field = o.value
			host.Attributes[o.attribute] = fmt.Sprint(o.value * o.unit)
		}
	}
	if s.RefuseConsulServices {
		host.Attributes[admission.AttributeConsulServices] = admission.ConsulServicesRefused
	}
	host.Topology.OverrideTotalCompute, host.Topology.OverrideWithholdCompute = uint64(s.CPUMHzOverride), s.Reserved.CPUMHz
	for _, lack := range host.Degradations {
		logger.Info("degraded", "reason", lack)
	}
	return host
}
