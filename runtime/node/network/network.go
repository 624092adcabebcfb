package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// NetworkRecordStore stores a record for each network that was created or may exist. The methods may be called concurrently.
type NetworkRecordStore interface {
	// Networks returns all readable records.
	Networks() []state.AllocNetwork
	// Network returns the record of an allocation's network, nil if there is none.
	Network(allocID string) *state.AllocNetwork
	// PutNetwork and DeleteNetwork return when the change is on the disk.
	PutNetwork(state.AllocNetwork) error
	DeleteNetwork(allocID string) error
	// HasAllocation reports whether the allocation exists, or whether its tasks may run although the state has lost it.
	HasAllocation(allocID string) bool
}

// Drivers finds a driver by name. The call may block while the driver's plugin is starting.
type Drivers interface {
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// HostNamespaces creates network namespaces on this machine, and connects them to networks. Calls for different allocations may
// be concurrent. Each call can be repeated: finding an earlier call's changes is no error, even if the agent died during that
// call.
type HostNamespaces interface {
	// CreateNamespace returns the namespace file's path.
	CreateNamespace(allocID string) (path string, err error)
	// RemoveNamespace does nothing if the namespace does not exist.
	RemoveNamespace(allocID string) error
	// ReadCNIConfigIntoRecord sets the record's copy of the CNI configuration, which DisconnectNamespace needs.
	ReadCNIConfigIntoRecord(*state.AllocNetwork) error
	// CheckPortsAndConnectNamespace connects the namespace at namespacePath to its mode's network, and returns its addresses. The
	// result is nil for a mode without a network, such as none.
	CheckPortsAndConnectNamespace(ctx context.Context, network *state.AllocNetwork, namespacePath string) (*state.NetworkStatus, error)
	// DisconnectNamespace does nothing if the namespace is not connected.
	DisconnectNamespace(ctx context.Context, network *state.AllocNetwork) error
	// Repair restores what connected namespaces need, after other programs have removed it. It returns which namespaces were not
	// connected.
	Repair([]state.AllocNetwork) ([]Damage, error)
}

// Damage describes a namespace that HostNamespaces.Repair has found disconnected.
type Damage struct {
	AllocID    string
	Reason     string
	IsRepaired bool // the namespace is connected again, with the same addresses
}

// ReplaceNetworkFunc passes an allocation's network to its tasks: the Manager has connected the namespace once more, with other
// addresses, because its connection was lost for the given reason. The call must not wait for the network.
type ReplaceNetworkFunc func(connected *state.AllocNetwork, reason string)

// Manager creates and destroys allocations' networks. Calls for different allocations may be concurrent.
// RunDestroyRetriesAndRepairs must be called once.
type Manager struct {
	store   NetworkRecordStore
	drivers Drivers
	host    HostNamespaces
	logger  hclog.Logger

	destroyFailed chan struct{} // receives a value when Destroy has failed, so that RunDestroyRetriesAndRepairs retries
	operations    operations
}

// New returns a Manager for the networks in the store.
func New(store NetworkRecordStore, drivers Drivers, host HostNamespaces, logger hclog.Logger) *Manager {
	return &Manager{
		store: store, drivers: drivers, host: host, logger: logger.Named("network"),
		destroyFailed: make(chan struct{}, 1),
	}
}

// ActiveNetwork returns the network created for an allocation, nil if there is none or it is released.
func (m *Manager) ActiveNetwork(allocID string) *state.AllocNetwork {
	record := m.store.Network(allocID)
	if record == nil || record.MustBeDestroyed || record.Isolation == nil {
		return nil
	}
	return record
}

// driverStartTimeout limits how long the Manager waits for a driver plugin to start.
const driverStartTimeout = time.Minute

// Create creates an allocation's network: a driver or the host creates a namespace, and the host connects it. An existing
// namespace is kept or replaced. The request has the fields up to CNIArgs; the result has all fields. The result is nil if the
// tasks need no isolation. Create blocks as long as the driver needs, also while its plugin is unavailable, or until ctx is done.
// It calls reportOutage once with an unavailable plugin's error. If Create fails, Destroy must be called nevertheless.
func (m *Manager) Create(ctx context.Context, request state.AllocNetwork, reportOutage func(error)) (*state.AllocNetwork, error) {
	record := &request
	create, err := m.operations.startWhenFree(ctx, record.AllocID, false)
	if err != nil {
		return nil, err
	}
	defer m.operations.end(create)
	former := m.store.Network(record.AllocID)
	if former != nil {
		// The machine was booted since the network was created, or an agent has died during Create.
		if err := m.host.DisconnectNamespace(ctx, former); err != nil {
			return nil, err
		}
	}
	if err := m.host.ReadCNIConfigIntoRecord(record); err != nil {
		return nil, err
	}
	if err := m.store.PutNetwork(*record); err != nil {
		return nil, fmt.Errorf("store the network: %w", err)
	}
	isolation, mayExist, err := m.createNamespace(ctx, record, former != nil, reportOutage)
	switch {
	case err != nil && mayExist:
		return nil, err // the record stays, so that Destroy removes the namespace
	case err != nil || isolation == nil:
		return nil, errors.Join(err, m.store.DeleteNetwork(record.AllocID))
	}
	if record.Status, err = m.host.CheckPortsAndConnectNamespace(ctx, record, isolation.Path); err != nil {
		return nil, err
	}
	record.Isolation = withDefaultHostsConfig(isolation, record)
	if err := m.store.PutNetwork(*record); err != nil {
		return nil, fmt.Errorf("store the network: %w", err)
	}
	return record, nil
}

// createNamespace creates an allocation's namespace with the record's driver, or else with the host. After an error, mayExist
// reports whether the namespace may exist. The caller sets mayExistAlready if an earlier agent may have created it.
func (m *Manager) createNamespace(ctx context.Context, record *state.AllocNetwork, mayExistAlready bool, reportOutage func(error)) (isolation *driver.NetworkIsolation, mayExist bool, err error) {
	if record.NamespaceDriver != "" {
		return m.callCreateNetworkWithRetry(ctx, record, mayExistAlready, reportOutage)
	}
	if record.Mode == "none" && os.Geteuid() != 0 {
		return &driver.NetworkIsolation{Mode: driver.NetworkNone}, false, nil // without root, each task's driver makes an empty namespace for it
	}
	point := failpoint.EnterStep(failpoint.StepNamespace)
	path, err := m.host.CreateNamespace(record.AllocID)
	point.Leave()
	if err != nil {
		return nil, true, err
	}
	return &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: path}, true, nil
}

// callCreateNetworkWithRetry calls the driver's CreateNetwork, and blocks while the driver is unavailable. If the plugin exits
// during the call, it calls CreateNetwork once more. For mayExistAlready and mayExist see createNamespace.
func (m *Manager) callCreateNetworkWithRetry(ctx context.Context, record *state.AllocNetwork, mayExistAlready bool, reportOutage func(error)) (isolation *driver.NetworkIsolation, mayExist bool, err error) {
	mayExist = mayExistAlready
	for range 2 {
		var d driver.Driver
		if d, err = m.awaitDriverOfAvailablePlugin(ctx, record.NamespaceDriver, reportOutage); err != nil {
			return nil, mayExist, err
		}
		isolation, _, err = d.CreateNetwork(ctx, record.AllocID, record.Hostname)
		mayExist = err == nil || callMayHaveExecuted(err)
		if !errors.Is(err, driver.ErrPluginDown) || ctx.Err() != nil {
			break
		}
	}
	if errors.Is(err, driver.ErrCreateNetworkNotSupported) {
		return nil, mayExist, fmt.Errorf("driver %q declares must_create_network and does not implement CreateNetwork: its plugin must be fixed, or the group use the network of the host: %w", record.NamespaceDriver, err)
	}
	if err != nil {
		return nil, mayExist, fmt.Errorf("driver %q: create network: %w", record.NamespaceDriver, err)
	}
	return isolation, mayExist, nil
}

// callMayHaveExecuted reports whether the driver may have executed a call although the call failed with err.
func callMayHaveExecuted(err error) bool {
	return errors.Is(err, driver.ErrPluginDown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// awaitDriverOfAvailablePlugin returns a driver. It blocks while a plugin that serves the driver is unavailable, and
// calls reportOutage once.
func (m *Manager) awaitDriverOfAvailablePlugin(ctx context.Context, name string, reportOutage func(error)) (driver.Driver, error) {
	return driver.WaitWhileUnavailable(ctx, func(ctx context.Context) (driver.Driver, error) {
		return m.getDriverWithinTimeout(ctx, name)
	}, reportOutage)
}

// getDriverWithinTimeout returns a driver. It waits for the driver's plugin, but no longer than driverStartTimeout.
func (m *Manager) getDriverWithinTimeout(ctx context.Context, name string) (driver.Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, driverStartTimeout)
	defer cancel()
	d, err := m.drivers.Driver(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("driver %q: %w", name, err)
	}
	return d, nil
}

// A driver reports the id and the hostname of the container that holds the namespace in these network labels.
const (
	sandboxHostnameLabel    = "docker_sandbox_hostname"
	sandboxContainerIDLabel = "docker_sandbox_container_id"

	containerHostnameSize = 12 // characters of the container id in its default hostname
)

// withDefaultHostsConfig returns the isolation with the hostname and the address for the tasks' /etc/hosts, unless the driver has
// set them. The hostname is the container's in the driver's labels; without a driver, the job's or else the machine's.
func withDefaultHostsConfig(isolation *driver.NetworkIsolation, record *state.AllocNetwork) *driver.NetworkIsolation {
	if isolation.Hosts != nil {
		return isolation
	}
	containerID := isolation.Labels[sandboxContainerIDLabel]
	hostname := cmp.Or(isolation.Labels[sandboxHostnameLabel], containerID[:min(len(containerID), containerHostnameSize)])
	if record.NamespaceDriver == "" {
		hostname = cmp.Or(record.Hostname, machineHostname())
	}
	if hostname == "" {
		return isolation
	}
	named := *isolation
	named.Hosts = &driver.HostsConfig{Hostname: hostname}
	if record.Status != nil {
		named.Hosts.Address = record.Status.PrimaryAddress()
	}
	return &named
}

// machineHostname returns the hostname that tasks see if they share it with the machine; empty if it cannot be read.
func machineHostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// Destroy destroys an allocation's network after its tasks have ended. It does nothing if the allocation has no network, or if
// another call is destroying the network. After an error RunDestroyRetriesAndRepairs, in this agent or the next, retries until
// the network is destroyed.
func (m *Manager) Destroy(ctx context.Context, allocID string) error {
	if m.store.Network(allocID) == nil {
		return nil
	}
	destroy, err := m.operations.startWhenFree(ctx, allocID, true)
	if destroy == nil || err != nil {
		return err
	}
	defer m.operations.end(destroy)
	record := m.store.Network(allocID) // read again, because the ended operation can have changed it
	if record == nil {
		return nil
	}
	if !record.MustBeDestroyed {
		record.MustBeDestroyed = true
		if err := m.store.PutNetwork(*record); err != nil {
			return fmt.Errorf("store that the network is released: %w", err)
		}
	}
	err = m.disconnectAndRemoveNetwork(ctx, record)
	if err != nil {
		wait.Notify(m.destroyFailed)
	}
	return err
}

// disconnectAndRemoveNetwork disconnects and removes a network's namespace, and deletes the record.
func (m *Manager) disconnectAndRemoveNetwork(ctx context.Context, record *state.AllocNetwork) error {
	if err := m.host.DisconnectNamespace(ctx, record); err != nil {
		return err
	}
	var err error
	if record.NamespaceDriver != "" {
		err = m.callDestroyNetwork(ctx, record)
	} else {
		err = m.host.RemoveNamespace(record.AllocID)
	}
	if err != nil {
		return err
	}
	return m.store.DeleteNetwork(record.AllocID)
}

// callDestroyNetwork calls DestroyNetwork on the driver that created a network.
func (m *Manager) callDestroyNetwork(ctx context.Context, record *state.AllocNetwork) error {
	d, err := m.getDriverWithinTimeout(ctx, record.NamespaceDriver)
	if err != nil {
		return err
	}
	isolation := record.Isolation
	if isolation == nil {
		// An agent has died during Create, so the network may exist. DestroyNetwork needs the isolation, which CreateNetwork returns
		// also for an existing network.
		if isolation, _, err = d.CreateNetwork(ctx, record.AllocID, record.Hostname); errors.Is(err, driver.ErrCreateNetworkNotSupported) {
			return nil
		} else if err != nil {
			return fmt.Errorf("driver %q: find the network: %w", record.NamespaceDriver, err)
		}
	}
	err = d.DestroyNetwork(ctx, record.AllocID, isolation)
	if errors.Is(err, driver.ErrDestroyNetworkNotSupported) {
		m.logger.Warn("driver creates networks and cannot destroy them, network left behind", "driver", record.NamespaceDriver, "alloc_id", record.AllocID)
		return nil
	}
	if err != nil {
		return fmt.Errorf("driver %q: destroy network: %w", record.NamespaceDriver, err)
	}
	return nil
}

const minRetryDelay, maxRetryDelay = time.Second, 5 * time.Minute

// RunDestroyRetriesAndRepairs destroys the networks left by a failed Destroy, and those without an allocation. It retries with
// growing delays until ctx is done. Meanwhile it repairs the networks in use, and passes those with other addresses to replace.
func (m *Manager) RunDestroyRetriesAndRepairs(ctx context.Context, replace ReplaceNetworkFunc) {
	repaired := make(chan struct{})
	defer func() { <-repaired }()
	go func() {
		defer close(repaired)
		m.repairRegularly(ctx, replace)
	}()
	delay := minRetryDelay
	for ctx.Err() == nil {
		var retry <-chan time.Time
		if m.DestroyUnused(ctx) > 0 {
			retry = time.After(delay)
			delay = min(2*delay, maxRetryDelay)
		} else {
			delay = minRetryDelay
		}
		select {
		case <-m.destroyFailed:
			delay = minRetryDelay
			select {
			case <-time.After(delay): // no immediate retry, because Destroy has just failed
			case <-ctx.Done():
			}
		case <-retry:
		case <-ctx.Done():
		}
	}
}

// destroyTimeout limits how long DestroyUnused tries to destroy one network.
const destroyTimeout = time.Minute

// maxParallelDestroys is how many networks DestroyUnused destroys at a time. After an agent crash there can be hundreds, each of
// which takes time in the kernel or in a driver.
const maxParallelDestroys = 16

// DestroyUnused tries once to destroy each network that is released or has lost its allocation. It returns how many networks are
// left.
func (m *Manager) DestroyUnused(ctx context.Context) (failedCount int) {
	var failed atomic.Int64
	var destroyWG sync.WaitGroup
	running := make(chan struct{}, maxParallelDestroys)
	for _, record := range m.store.Networks() {
		if m.isInUse(&record) {
			continue
		}
		running <- struct{}{}
		destroyWG.Go(func() {
			defer func() { <-running }()
			limited, cancel := context.WithTimeout(ctx, destroyTimeout)
			defer cancel()
			err := m.destroyIfUnused(limited, record.AllocID)
			if err == nil {
				return
			}
			failed.Add(1)
			if ctx.Err() == nil {
				m.logger.Warn("network not destroyed, trying again", "alloc_id", record.AllocID, "error", err)
			}
		})
	}
	destroyWG.Wait()
	return int(failed.Load())
}

func (m *Manager) isInUse(record *state.AllocNetwork) bool {
	return !record.MustBeDestroyed && m.store.HasAllocation(record.AllocID)
}

// destroyIfUnused destroys a network unless it is in use or another call is destroying it.
func (m *Manager) destroyIfUnused(ctx context.Context, allocID string) error {
	destroy, err := m.operations.startWhenFree(ctx, allocID, true)
	if destroy == nil || err != nil {
		return err
	}
	defer m.operations.end(destroy)
	record := m.store.Network(allocID)
	if record == nil || m.isInUse(record) {
		return nil
	}
	return m.disconnectAndRemoveNetwork(ctx, record)
}
