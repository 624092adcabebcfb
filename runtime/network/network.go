package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/state"
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

// Manager creates and destroys the networks of allocations. Its methods may be called
// concurrently, for one allocation one at a time, except Run.
type Manager struct {
	store   Store
	drivers Drivers
	logger  hclog.Logger

	released chan struct{} // the channel has a value when a network must be destroyed

	mu   sync.Mutex
	busy map[string]bool // ids of allocations whose network is being destroyed
}

// New returns a Manager of the networks in the store.
func New(store Store, drivers Drivers, logger hclog.Logger) *Manager {
	return &Manager{
		store: store, drivers: drivers, logger: logger.Named("network"),
		released: make(chan struct{}, 1), busy: make(map[string]bool),
	}
}

// Existing returns the network that was created for an allocation, nil if there is none.
func (m *Manager) Existing(allocID string) *driver.NetworkIsolation {
	record := m.store.Network(allocID)
	if record == nil || record.Released {
		return nil
	}
	return record.Isolation
}

// driverTimeout limits how long a driver may take to start.
const driverTimeout = time.Minute

// Create makes a driver create the network of an allocation. If it exists already, the driver
// returns it again. The result is nil if the tasks need no isolation. Create blocks as long as the
// driver needs, or until ctx is done. If it fails, Destroy must be called nevertheless.
func (m *Manager) Create(ctx context.Context, allocID, driverName, hostname string) (*driver.NetworkIsolation, error) {
	record := state.AllocNetwork{AllocID: allocID, Driver: driverName, Hostname: hostname}
	if err := m.store.PutNetwork(record); err != nil {
		return nil, fmt.Errorf("store the network: %w", err)
	}
	isolation, err := m.callCreate(ctx, &record)
	switch {
	case err == nil && isolation != nil:
		record.Isolation = withHosts(isolation)
		if err := m.store.PutNetwork(record); err != nil {
			return nil, fmt.Errorf("store the network: %w", err)
		}
		return record.Isolation, nil
	case err != nil && isUncertain(err):
		return nil, err // the driver may have created the network
	}
	return nil, errors.Join(err, m.store.DeleteNetwork(allocID))
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

// withHosts returns the network with the hostname that its labels name, unless the driver has set
// one itself.
func withHosts(isolation *driver.NetworkIsolation) *driver.NetworkIsolation {
	if isolation.Hosts != nil {
		return isolation
	}
	hostname := isolation.Labels[sandboxHostnameLabel]
	if hostname == "" {
		hostname = isolation.Labels[sandboxContainerIDLabel]
		hostname = hostname[:min(len(hostname), containerHostnameSize)]
	}
	if hostname == "" {
		return isolation
	}
	named := *isolation
	named.Hosts = &driver.HostsConfig{Hostname: hostname}
	return &named
}

// Destroy makes the driver destroy the network of an allocation whose tasks have ended. It does
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

// destroy calls DestroyNetwork, and deletes the record.
func (m *Manager) destroy(ctx context.Context, record *state.AllocNetwork) error {
	d, err := m.driver(ctx, record.Driver)
	if err != nil {
		return err
	}
	isolation := record.Isolation
	if isolation == nil {
		// The agent does not know whether the network was created. Only CreateNetwork returns the
		// isolation that DestroyNetwork needs.
		if isolation, _, err = d.CreateNetwork(ctx, record.AllocID, record.Hostname); errors.Is(err, driver.ErrCreateNetworkNotSupported) {
			return m.store.DeleteNetwork(record.AllocID)
		} else if err != nil {
			return fmt.Errorf("driver %q: find the network: %w", record.Driver, err)
		}
	}
	err = d.DestroyNetwork(ctx, record.AllocID, isolation)
	if errors.Is(err, driver.ErrDestroyNetworkNotSupported) {
		m.logger.Warn("driver creates networks and cannot destroy them, network left behind", "driver", record.Driver, "alloc_id", record.AllocID)
		err = nil
	}
	if err != nil {
		return fmt.Errorf("driver %q: destroy network: %w", record.Driver, err)
	}
	return m.store.DeleteNetwork(record.AllocID)
}

const minRetryDelay, maxRetryDelay = time.Second, 5 * time.Minute

// Run destroys the networks that Destroy could not destroy, and those of allocations that no
// longer exist. It retries with growing delays until ctx is done.
func (m *Manager) Run(ctx context.Context) {
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

// destroyTimeout limits one attempt of DestroyReleased for one network.
const destroyTimeout = time.Minute

// DestroyReleased tries once to destroy each network that no task uses, and returns the number of
// those that remain.
func (m *Manager) DestroyReleased(ctx context.Context) (remaining int) {
	for _, record := range m.store.Networks() {
		if !record.Released && m.store.HasAllocation(record.AllocID) || !m.setBusy(record.AllocID) {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, destroyTimeout)
		err := m.destroy(limited, &record)
		cancel()
		m.clearBusy(record.AllocID)
		if err != nil && ctx.Err() == nil {
			m.logger.Warn("network not destroyed, trying again", "alloc_id", record.AllocID, "error", err)
		}
		if err != nil {
			remaining++
		}
	}
	return remaining
}
