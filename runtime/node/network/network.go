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
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Store stores the records of networks. The methods may be called concurrently.
type Store interface {
	// Networks returns all readable records.
	Networks() []state.AllocNetwork
	// Network returns the record of an allocation, nil if there is none.
	Network(allocID string) *state.AllocNetwork
	// PutNetwork and DeleteNetwork return when the change is on the disk.
	PutNetwork(state.AllocNetwork) error
	DeleteNetwork(allocID string) error
	// HasAllocation reports whether the allocation exists.
	HasAllocation(allocID string) bool
}

// Drivers finds a driver by name. The call may block while the driver's plugin is starting.
type Drivers interface {
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// Host creates network namespaces of this machine, and connects them to networks. The methods may be
// called concurrently, for one allocation one at a time. They can be repeated: the result of an earlier call,
// also of one that an agent which has died did not complete, is no error.
type Host interface {
	CreateNamespace(allocID string) (path string, err error)
	// RemoveNamespace does nothing if the namespace does not exist.
	RemoveNamespace(allocID string) error
	// Prepare completes the record of a network with what Disconnect needs.
	Prepare(*state.AllocNetwork) error
	// Connect connects the namespace at a path. The result is nil if the mode connects it to nothing.
	Connect(ctx context.Context, network *state.AllocNetwork, path string) (*state.NetworkStatus, error)
	// Disconnect does nothing if the namespace is not connected.
	Disconnect(ctx context.Context, network *state.AllocNetwork) error
	// Repair restores what others have removed from the networks of connected namespaces.
	Repair([]state.AllocNetwork) error
}

// Manager creates and destroys the networks of allocations. Its methods may be called
// concurrently, for one allocation one at a time, except Run.
type Manager struct {
	store   Store
	drivers Drivers
	host    Host
	logger  hclog.Logger

	released chan struct{} // the channel has a value when a network must be destroyed

	mu   sync.Mutex
	busy map[string]bool // ids of allocations whose network is being destroyed
}

// New returns a Manager of the networks in the store.
func New(store Store, drivers Drivers, host Host, logger hclog.Logger) *Manager {
	return &Manager{
		store: store, drivers: drivers, host: host, logger: logger.Named("network"),
		released: make(chan struct{}, 1), busy: make(map[string]bool),
	}
}

// Existing returns the network that was created for an allocation, nil if there is none.
func (m *Manager) Existing(allocID string) *state.AllocNetwork {
	record := m.store.Network(allocID)
	if record == nil || record.Released || record.Isolation == nil {
		return nil
	}
	return record
}

// driverTimeout limits how long a driver may take to start.
const driverTimeout = time.Minute

// Create creates the network of an allocation: a driver or the host creates a namespace, and the host
// connects it. If it exists already, it is kept or replaced. The request has the fields up to CNIArgs; the
// result is complete. The result is nil if the tasks need no isolation. Create blocks as long as the
// driver needs, or until ctx is done. If it fails, Destroy must be called nevertheless.
func (m *Manager) Create(ctx context.Context, request state.AllocNetwork) (*state.AllocNetwork, error) {
	record := &request
	if former := m.store.Network(record.AllocID); former != nil {
		// The machine was booted, or an agent has died while it created the network.
		if err := m.host.Disconnect(ctx, former); err != nil {
			return nil, err
		}
	}
	if err := m.host.Prepare(record); err != nil {
		return nil, err
	}
	if err := m.store.PutNetwork(*record); err != nil {
		return nil, fmt.Errorf("store the network: %w", err)
	}
	isolation, err := m.createNamespace(ctx, record)
	switch {
	case err != nil && (record.Driver == "" || isUncertain(err)):
		return nil, err // the namespace may exist
	case err != nil || isolation == nil:
		return nil, errors.Join(err, m.store.DeleteNetwork(record.AllocID))
	}
	if record.Status, err = m.host.Connect(ctx, record, isolation.Path); err != nil {
		return nil, err
	}
	record.Isolation = withHosts(isolation, record)
	if err := m.store.PutNetwork(*record); err != nil {
		return nil, fmt.Errorf("store the network: %w", err)
	}
	return record, nil
}

// createNamespace creates the namespace of an allocation.
func (m *Manager) createNamespace(ctx context.Context, record *state.AllocNetwork) (*driver.NetworkIsolation, error) {
	if record.Driver != "" {
		return m.callCreate(ctx, record)
	}
	if record.Mode == "none" && os.Geteuid() != 0 {
		return &driver.NetworkIsolation{Mode: driver.NetworkNone}, nil // each driver makes a namespace for its task
	}
	point := failpoint.EnterStep(failpoint.StepNamespace)
	path, err := m.host.CreateNamespace(record.AllocID)
	point.Leave()
	if err != nil {
		return nil, err
	}
	return &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: path}, nil
}

// callCreate calls CreateNetwork, and once more if the plugin exits during the call.
func (m *Manager) callCreate(ctx context.Context, record *state.AllocNetwork) (isolation *driver.NetworkIsolation, err error) {
	for range 2 {
		var d driver.Driver
		if d, err = m.driver(ctx, record.Driver); err != nil {
			return nil, err
		}
		isolation, _, err = d.CreateNetwork(ctx, record.AllocID, record.Hostname)
		if !errors.Is(err, driver.ErrPluginDown) || ctx.Err() != nil {
			break
		}
	}
	if errors.Is(err, driver.ErrCreateNetworkNotSupported) {
		return nil, fmt.Errorf("driver %q declares must_create_network and does not implement CreateNetwork: its plugin must be fixed, or the group use the network of the host: %w", record.Driver, err)
	}
	if err != nil {
		return nil, fmt.Errorf("driver %q: create network: %w", record.Driver, err)
	}
	return isolation, nil
}

// isUncertain reports whether the driver may have created a network although its call failed.
func isUncertain(err error) bool {
	return errors.Is(err, driver.ErrPluginDown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (m *Manager) driver(ctx context.Context, name string) (driver.Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	d, err := m.drivers.Driver(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("driver %q: %w", name, err)
	}
	return d, nil
}

// These labels of a network have the id and the hostname of the container that holds it.
const (
	sandboxHostnameLabel    = "docker_sandbox_hostname"
	sandboxContainerIDLabel = "docker_sandbox_container_id"

	containerHostnameSize = 12 // size of the hostname that a container gets from its id
)

// withHosts returns the isolation with the hostname that its labels name, or that the job asks for, or else that of
// the machine, and with its address, unless the driver has set them itself.
func withHosts(isolation *driver.NetworkIsolation, record *state.AllocNetwork) *driver.NetworkIsolation {
	if isolation.Hosts != nil {
		return isolation
	}
	containerID := isolation.Labels[sandboxContainerIDLabel]
	hostname := cmp.Or(isolation.Labels[sandboxHostnameLabel], containerID[:min(len(containerID), containerHostnameSize)])
	if record.Driver == "" {
		hostname = cmp.Or(record.Hostname, machineHostname())
	}
	if hostname == "" {
		return isolation
	}
	named := *isolation
	named.Hosts = &driver.HostsConfig{Hostname: hostname}
	if record.Status != nil {
		named.Hosts.Address = cmp.Or(record.Status.Address, record.Status.AddressIPv6)
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

// Destroy destroys the network of an allocation whose tasks have ended. It does
// nothing if the allocation has none. After an error Run repeats the call until it succeeds, also
// under the next agent.
func (m *Manager) Destroy(ctx context.Context, allocID string) error {
	record := m.store.Network(allocID)
	if record == nil || !m.setBusy(allocID) {
		return nil
	}
	defer m.clearBusy(allocID)
	if !record.Released {
		record.Released = true
		if err := m.store.PutNetwork(*record); err != nil {
			return fmt.Errorf("store that the network is released: %w", err)
		}
	}
	err := m.destroy(ctx, record)
	if err != nil {
		select {
		case m.released <- struct{}{}:
		default:
		}
	}
	return err
}

func (m *Manager) setBusy(allocID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[allocID] {
		return false
	}
	m.busy[allocID] = true
	return true
}

func (m *Manager) clearBusy(allocID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.busy, allocID)
}

// destroy disconnects and removes the namespace of a network, and deletes the record.
func (m *Manager) destroy(ctx context.Context, record *state.AllocNetwork) error {
	if err := m.host.Disconnect(ctx, record); err != nil {
		return err
	}
	var err error
	if record.Driver != "" {
		err = m.callDestroy(ctx, record)
	} else {
		err = m.host.RemoveNamespace(record.AllocID)
	}
	if err != nil {
		return err
	}
	return m.store.DeleteNetwork(record.AllocID)
}

// callDestroy calls DestroyNetwork of the driver that has created a network.
func (m *Manager) callDestroy(ctx context.Context, record *state.AllocNetwork) error {
	d, err := m.driver(ctx, record.Driver)
	if err != nil {
		return err
	}
	isolation := record.Isolation
	if isolation == nil {
		// The agent does not know whether the network was created. Only CreateNetwork returns the
		// isolation that DestroyNetwork needs.
		if isolation, _, err = d.CreateNetwork(ctx, record.AllocID, record.Hostname); errors.Is(err, driver.ErrCreateNetworkNotSupported) {
			return nil
		} else if err != nil {
			return fmt.Errorf("driver %q: find the network: %w", record.Driver, err)
		}
	}
	err = d.DestroyNetwork(ctx, record.AllocID, isolation)
	if errors.Is(err, driver.ErrDestroyNetworkNotSupported) {
		m.logger.Warn("driver creates networks and cannot destroy them, network left behind", "driver", record.Driver, "alloc_id", record.AllocID)
		return nil
	}
	if err != nil {
		return fmt.Errorf("driver %q: destroy network: %w", record.Driver, err)
	}
	return nil
}

// repairInterval is the time between two checks whether others have removed rules or interfaces of
// connected networks.
const repairInterval = 10 * time.Second

// repair lets the host repair the networks in use. It logs each error once.
func (m *Manager) repair(lastErr string) string {
	var connected []state.AllocNetwork
	for _, record := range m.store.Networks() {
		if record.Status != nil && !record.Released && m.store.HasAllocation(record.AllocID) {
			connected = append(connected, record)
		}
	}
	if len(connected) == 0 {
		return ""
	}
	err := m.host.Repair(connected)
	if err == nil {
		return ""
	}
	if text := err.Error(); text != lastErr {
		m.logger.Warn("networks of allocations are damaged", "error", err)
		return text
	}
	return lastErr
}

const minRetryDelay, maxRetryDelay = time.Second, 5 * time.Minute

// Run destroys the networks that Destroy could not destroy, and those of allocations that no
// longer exist. It retries with growing delays until ctx is done. Meanwhile it repairs the networks in use.
func (m *Manager) Run(ctx context.Context) {
	repaired := make(chan struct{})
	defer func() { <-repaired }()
	go func() {
		defer close(repaired)
		m.repairRegularly(ctx)
	}()
	delay := minRetryDelay
	for ctx.Err() == nil {
		var retry <-chan time.Time
		if m.DestroyReleased(ctx) > 0 {
			retry = time.After(delay)
			delay = min(2*delay, maxRetryDelay)
		} else {
			delay = minRetryDelay
		}
		select {
		case <-m.released:
			delay = minRetryDelay
			select {
			case <-time.After(delay): // the call has failed just now
			case <-ctx.Done():
			}
		case <-retry:
		case <-ctx.Done():
		}
	}
}

func (m *Manager) repairRegularly(ctx context.Context) {
	ticker := time.NewTicker(repairInterval)
	defer ticker.Stop()
	lastErr := ""
	for {
		select {
		case <-ticker.C:
			lastErr = m.repair(lastErr)
		case <-ctx.Done():
			return
		}
	}
}

// destroyTimeout limits one attempt of DestroyReleased for one network.
const destroyTimeout = time.Minute

// maxParallelDestroys limits how many networks DestroyReleased destroys at one time. After a crash of the
// agent there can be hundreds, and each waits for the kernel or a driver.
const maxParallelDestroys = 16

// DestroyReleased tries once to destroy each network that no task uses, and returns the number of
// those that remain.
func (m *Manager) DestroyReleased(ctx context.Context) (remaining int) {
	var failed atomic.Int64
	var destroyWG sync.WaitGroup
	running := make(chan struct{}, maxParallelDestroys)
	for _, record := range m.store.Networks() {
		if !record.Released && m.store.HasAllocation(record.AllocID) || !m.setBusy(record.AllocID) {
			continue
		}
		running <- struct{}{}
		destroyWG.Go(func() {
			defer func() { <-running }()
			defer m.clearBusy(record.AllocID)
			limited, cancel := context.WithTimeout(ctx, destroyTimeout)
			defer cancel()
			err := m.destroy(limited, &record)
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
