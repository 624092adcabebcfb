package state

import (
	"cmp"
	"errors"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// AllocNetwork is the network of an allocation that does not use the machine's network. The agent stores the record before it
// creates anything for the network, and deletes the record when it has destroyed the network.
type AllocNetwork struct {
	AllocID string
	// NamespaceDriver is the driver that creates the namespace; empty means that the agent does.
	NamespaceDriver string
	Hostname        string
	Mode            string // network mode
	Ports           []NetworkPort
	CNIArgs         map[string]string
	// CNIConfig is the network configuration for a mode cni/…, used for disconnecting it, too.
	CNIConfig []byte
	// Isolation is passed to the tasks; nil until the namespace is created and connected.
	Isolation *driver.NetworkIsolation
	// Status has the addresses; nil until the namespace is connected, and if it has none.
	Status *NetworkStatus
	// MustBeDestroyed: no task uses the network, so it must be destroyed.
	MustBeDestroyed bool
}

// NetworkPort is a machine port forwarded to a network.
type NetworkPort struct {
	Label string `store:"label"`
	// HostIP is the only machine address on which the port is forwarded; empty means all addresses.
	HostIP   string `store:"host_ip"`
	HostPort int    `store:"host_port"`
	To       int    `store:"to"`
}

// NetworkStatus describes a connected network namespace.
type NetworkStatus struct {
	Interface   string
	Address     string
	AddressIPv6 string
	// DNS are the settings from a CNI plugin, or those of the machine that work in the namespace; nil if there are none.
	DNS *driver.DNSConfig
	// Links are the interfaces that CNI plugins had created for the namespace when it was connected.
	Links []NetworkLink
}

// PrimaryAddress returns the address by which the tasks are reached; "" if the namespace has none.
func (s *NetworkStatus) PrimaryAddress() string { return cmp.Or(s.Address, s.AddressIPv6) }

// NetworkLink is an interface that connects a namespace.
type NetworkLink struct {
	Name        string `store:"name"`
	InNamespace bool   `store:"in_namespace"` // false means the machine's interface
	IsPort      bool   `store:"is_port"`      // the interface is a port, for example of a bridge
}

// NetworkRecord is an [AllocNetwork]'s stored form.
type NetworkRecord struct {
	AllocID         string                  `store:"alloc_id"`
	NamespaceDriver string                  `store:"driver"`
	Hostname        string                  `store:"hostname"`
	Mode            string                  `store:"mode"`
	Ports           []NetworkPort           `store:"ports"`
	CNIArgs         map[string]string       `store:"cni_args"`
	CNIConfig       []byte                  `store:"cni_config,secret"`
	Isolation       *NetworkIsolationRecord `store:"isolation"`
	Status          *NetworkStatusRecord    `store:"status"`
	MustBeDestroyed bool                    `store:"released"`
}

// NetworkStatusRecord is a [NetworkStatus]'s stored form.
type NetworkStatusRecord struct {
	Interface   string        `store:"interface"`
	Address     string        `store:"address"`
	AddressIPv6 string        `store:"address_ipv6"`
	DNS         *DNSRecord    `store:"dns"`
	Links       []NetworkLink `store:"links"`
}

// NewNetworkRecord returns a network's record.
func NewNetworkRecord(n AllocNetwork) *NetworkRecord {
	r := &NetworkRecord{
		AllocID: n.AllocID, NamespaceDriver: n.NamespaceDriver, Hostname: n.Hostname, Mode: n.Mode, Ports: n.Ports,
		CNIArgs: n.CNIArgs, CNIConfig: n.CNIConfig, Isolation: newNetworkIsolationRecord(n.Isolation), MustBeDestroyed: n.MustBeDestroyed,
	}
	if s := n.Status; s != nil {
		r.Status = &NetworkStatusRecord{Interface: s.Interface, Address: s.Address, AddressIPv6: s.AddressIPv6, DNS: (*DNSRecord)(s.DNS), Links: s.Links}
	}
	return r
}

// AllocNetwork returns a record's network.
func (r *NetworkRecord) AllocNetwork() AllocNetwork {
	n := AllocNetwork{
		AllocID: r.AllocID, NamespaceDriver: r.NamespaceDriver, Hostname: r.Hostname, Mode: r.Mode, Ports: r.Ports,
		CNIArgs: r.CNIArgs, CNIConfig: r.CNIConfig, Isolation: r.Isolation.networkIsolation(), MustBeDestroyed: r.MustBeDestroyed,
	}
	if s := r.Status; s != nil {
		n.Status = &NetworkStatus{Interface: s.Interface, Address: s.Address, AddressIPv6: s.AddressIPv6, DNS: (*driver.DNSConfig)(s.DNS), Links: s.Links}
	}
	return n
}

// CheckRecord returns an error if the record lacks its allocation or its mode.
func (r *NetworkRecord) CheckRecord() error {
	if r.AllocID == "" || r.Mode == "" {
		return errors.New("the record of a network lacks its allocation or its mode")
	}
	return nil
}
