package state

import (
	"errors"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// AllocNetwork is the network that a driver creates for an allocation. The record is stored before
// the driver is called, and deleted when the driver has destroyed the network.
type AllocNetwork struct {
	AllocID  string
	Driver   string
	Hostname string
	// Isolation is the driver's answer; nil until the driver has answered.
	Isolation *driver.NetworkIsolation
	// Released means that no task uses the network, so that it must be destroyed.
	Released bool
}

// CheckRecord returns an error if the record lacks its allocation or its driver.
func (n *AllocNetwork) CheckRecord() error {
	if n.AllocID == "" || n.Driver == "" {
		return errors.New("the record of a network lacks its allocation or its driver")
	}
	return nil
}
