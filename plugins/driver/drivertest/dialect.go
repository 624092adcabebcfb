package drivertest

import (
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
)

// ProtocolDialect is a kind of driver for Nomad. The kinds differ in the part of the driver protocol that they use, and
// in what they need from the host.
type ProtocolDialect string

const (
	// Old is a driver that was built for the first versions of the protocol. It has neither Init, Shutdown nor networks,
	// omits optional messages, and returns errors without details, one of which
	// has the same text as driver.ErrPluginDown.
	Old ProtocolDialect = "old"
	// Skeleton is a driver that was made from a template for authors. It panics if the host sends no driver
	// configuration, and runs each task with an executor, a process of its own, which listens in
	// the host's port range and outlives the plugin.
	Skeleton ProtocolDialect = "skeleton"
	// Plain is a driver that uses go-plugin and the usual part of the protocol.
	Plain ProtocolDialect = "plain"
	// Chroot is a driver whose tasks have the task directory as their root directory, which the
	// host must have filled.
	Chroot ProtocolDialect = "chroot"
	// Newest is a driver of the current protocol. It depends on Init and on the topology, collects
	// the output of its tasks itself, and runs them as the users nomad-UID.
	Newest ProtocolDialect = "newest"
)

// Dialects returns all dialects.
func Dialects() []ProtocolDialect { return []ProtocolDialect{Old, Skeleton, Plain, Chroot, Newest} }

// DriverName returns the name of the driver, which jobs use.
func (d ProtocolDialect) DriverName() string { return "wire-" + string(d) }

func (d ProtocolDialect) capabilities() *driverpb.DriverCapabilities {
	c := &driverpb.DriverCapabilities{SendSignals: true, Exec: true}
	switch d {
	case Chroot:
		c.FsIsolation = driverpb.DriverCapabilities_CHROOT
	case Newest:
		c.FsIsolation = driverpb.DriverCapabilities_UNVEIL
		c.DisableLogCollection = true
		c.DynamicWorkloadUsers = true
		c.NetworkIsolationModes = []driverpb.NetworkIsolationSpec_NetworkIsolationMode{driverpb.NetworkIsolationSpec_HOST, driverpb.NetworkIsolationSpec_GROUP}
	}
	return c
}
