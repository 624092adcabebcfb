package network

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// repairInterval is the time between two HostNamespaces.Repair calls, and reconnectTimeout limits how long a namespace may take
// to be connected again.
const repairInterval, reconnectTimeout = 10 * time.Second, time.Minute

// repairRegularly repairs the networks in use at each repairInterval until ctx is done. It logs an error once while its text stays the
// same.
func (m *Manager) repairRegularly(ctx context.Context, replace ReplaceNetworkFunc) {
	ticker := time.NewTicker(repairInterval)
	defer ticker.Stop()
	lastLogged := make(map[string]string) // allocation ID, or "" for an error that concerns all -> text
	for {
		select {
		case <-ticker.C:
			current := m.repair(ctx, replace)
			for allocID, text := range current {
				if lastLogged[allocID] != text && ctx.Err() == nil {
					m.logger.Warn("networks of allocations are damaged", "alloc_id", allocID, "error", text)
				}
			}
			lastLogged = current
		case <-ctx.Done():
			return
		}
	}
}

// repair repairs the networks in use, and reconnects the namespaces that the host could not repair. It returns its errors' texts
// by allocation ID; the ID is "" for an error that concerns all.
func (m *Manager) repair(ctx context.Context, replace ReplaceNetworkFunc) (errorTextByAllocID map[string]string) {
	repairs := m.startRepairs()
	defer repairs.endExcept(nil)
	if len(repairs) == 0 {
		return nil
	}
	var networks []state.AllocNetwork
	for _, r := range repairs {
		networks = append(networks, *r.network)
	}
	damages, err := m.host.Repair(networks)
	errorTextByAllocID = make(map[string]string)
	if err != nil {
		errorTextByAllocID[""] = err.Error()
	}
	lost := make(map[string]bool)
	for _, d := range damages {
		lost[d.AllocID] = !d.IsRepaired
	}
	repairs.endExcept(lost)
	for _, d := range damages {
		if d.IsRepaired {
			m.logger.Info("network of an allocation repaired", "alloc_id", d.AllocID, "reason", d.Reason)
		} else if err := m.reconnect(ctx, repairs[d.AllocID].network, d.Reason, replace); err != nil {
			errorTextByAllocID[d.AllocID] = fmt.Sprintf("%s, and it cannot be connected again: %v", d.Reason, err)
		}
	}
	return errorTextByAllocID
}

// networkRepairs has the networks under repair, by allocation ID.
type networkRepairs map[string]networkRepair

type networkRepair struct {
	network *state.AllocNetwork
	end     func()
}

// startRepairs starts repairing the networks in use, unless another operation changes them.
func (m *Manager) startRepairs() networkRepairs {
	repairs := make(networkRepairs)
	for _, n := range m.store.Networks() {
		o, other := m.operations.start(n.AllocID, false)
		if other != nil {
			continue
		}
		record := m.store.Network(n.AllocID) // read again, because an operation can have ended after the list was read
		if record == nil || record.Isolation == nil || record.Status == nil || !m.isInUse(record) {
			m.operations.end(o)
			continue
		}
		repairs[n.AllocID] = networkRepair{record, func() { m.operations.end(o) }}
	}
	return repairs
}

// endExcept ends and removes all repairs except those for the given allocations.
func (r networkRepairs) endExcept(allocIDs map[string]bool) {
	for id, repair := range r {
		if !allocIDs[id] {
			repair.end()
			delete(r, id)
		}
	}
}

// reconnect disconnects a network's namespace, connects it once more, and stores its new addresses, which it passes to replace.
func (m *Manager) reconnect(ctx context.Context, record *state.AllocNetwork, reason string, replace ReplaceNetworkFunc) error {
	ctx, cancel := context.WithTimeout(ctx, reconnectTimeout)
	defer cancel()
	// The record is stored first to find out whether it can be: new addresses would be lost otherwise.
	if err := m.store.PutNetwork(*record); err != nil {
		return fmt.Errorf("store the network: %w", err)
	}
	if err := m.host.DisconnectNamespace(ctx, record); err != nil {
		return err
	}
	status, err := m.host.CheckPortsAndConnectNamespace(ctx, record, record.Isolation.Path)
	if err != nil {
		return err
	}
	former := record.Status
	record.Isolation, record.Status = withHostsAddress(record.Isolation, former, status), status
	if err := m.store.PutNetwork(*record); err != nil {
		return fmt.Errorf("store the network: %w", err)
	}
	m.logger.Info("network of an allocation connected again", "alloc_id", record.AllocID, "reason", reason)
	if former.Address != status.Address || former.AddressIPv6 != status.AddressIPv6 || former.Interface != status.Interface {
		replace(record, reason)
	}
	return nil
}

// withHostsAddress returns the isolation with the current address for /etc/hosts, if its address is from the former status.
func withHostsAddress(isolation *driver.NetworkIsolation, former, current *state.NetworkStatus) *driver.NetworkIsolation {
	if isolation.Hosts == nil || isolation.Hosts.Address != former.PrimaryAddress() {
		return isolation
	}
	changed := *isolation
	changed.Hosts = &driver.HostsConfig{Hostname: isolation.Hosts.Hostname, Address: current.PrimaryAddress()}
	return &changed
}
