package state

import (
	"errors"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// AllocNetwork is the network of an allocation that does not use the network of the machine. The record is
// stored before anything is created, and deleted when all has been destroyed.
type AllocNetwork struct {
	AllocID string
	// Driver is the driver that creates the namespace; empty means that the agent does.
	Driver   string
	Hostname string
	// Mode is the network mode. It is empty in records of earlier versions, which connect no namespace.
	Mode    string
	Ports   []NetworkPort
	CNIArgs map[string]string
	// CNIConfig is the configuration of the network of a mode cni/…, with which it is disconnected, too.
	CNIConfig []byte
	// Isolation is passed to the tasks; nil until the namespace is created and connected.
	Isolation *driver.NetworkIsolation
	// Status has the addresses; nil until the namespace is connected, and if it has none.
	Status *NetworkStatus
	// Released means that no task uses the network, so that it must be destroyed.
	Released bool
}

// NetworkPort is a port of the machine that is forwarded to a network.
type NetworkPort struct {
	Label string
	// HostIP is the only address of the machine on which the port is forwarded; empty means all addresses.
	HostIP   string
	HostPort int
	To       int
}

// NetworkStatus describes a connected network namespace.
type NetworkStatus struct {
	Interface   string
	Address     string
	AddressIPv6 string
	// DNS are the settings of a CNI plugin, or those of the machine that work in the namespace; nil if there are none.
	DNS *driver.DNSConfig
}

// CheckRecord returns an error if the record lacks its allocation, or both its driver and its mode.
func (n *AllocNetwork) CheckRecord() error {
	if n.AllocID == "" || n.Driver == "" && n.Mode == "" {
		return errors.New("the record of a network lacks its allocation, or its driver and its mode")
	}
	return nil
}
