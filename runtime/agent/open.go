package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/membership"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// openStore opens a data directory's state.
func openStore(ctx context.Context, d *datadirectory.Directory, c *Config, logger hclog.Logger) (*store.Store, error) {
	config := store.Config{StateFilePath: d.StatePath(), BuildVersion: c.Version, MaxFeedChanges: c.MaxEventChanges, Logger: logger, TemporaryKeys: d.IsStateEphemeral, OnWrite: metrics.ObserveStoreWrite}
	// An agent also removes a killed foreground run's state file: datadirectory.MakeAndLock, which the next foreground run calls,
	// would take the agent's tasks for tasks of the killed run.
	if err := os.Remove(filepath.Join(d.Path, datadirectory.RunStateFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old state: %w", err)
	}
	if !d.IsStateEphemeral {
		config.KeyFile, config.ReserveDiskSpace = filepath.Join(d.Path, datadirectory.KeyringFile), true
	}
	s, err := store.Open(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	return s, nil
}

// detectAndRecordReboot reports whether the machine was booted since the last agent ran. The boot is stored with the next change.
func detectAndRecordReboot(s *store.Store, logger hclog.Logger) (rebooted bool) {
	now, err := osprocess.BootID()
	if err != nil {
		logger.Warn("a reboot cannot be told from a restart of the agent", "error", err)
		return false
	}
	before := ""
	known, err := s.Snapshot().ReadAgentRecord(state.BootIDName, &before)
	if err == nil && known && before == now {
		return false
	}
	// If a later task start were stored without this boot's id, the next agent would start the task twice.
	s.UpdateInNextTransaction(func(tx *store.Txn) error {
		tx.PutAgentRecord(state.BootIDName, now)
		return nil
	})
	return known
}

// machine has this machine's properties, and the node's settings with their defaults on it.
type machine struct {
	settings localnode.Settings
	host     fingerprint.Host
	sampler  hoststats.Sampler
}

// fingerprinting is a fingerprint in progress.
type fingerprinting struct {
	cancel context.CancelFunc
	wait   func() *machine // blocks until the fingerprint is complete; may be called several times
}

// startFingerprinting starts reading the machine's properties.
func startFingerprinting(ctx context.Context, settings localnode.Settings, version, cgroupParent string, d *datadirectory.Directory, logger hclog.Logger) *fingerprinting {
	ctx, cancel := context.WithCancel(ctx)
	var m *machine
	done := make(chan struct{})
	go func() {
		defer close(done)
		m = readMachine(ctx, settings, version, cgroupParent, d, logger)
	}()
	return &fingerprinting{cancel, func() *machine { <-done; return m }}
}

func readMachine(ctx context.Context, settings localnode.Settings, version, cgroupParent string, d *datadirectory.Directory, logger hclog.Logger) *machine {
	m := new(machine)
	m.host = settings.Fingerprint(fingerprint.Options{DataDir: d.Path, AgentVersion: version, CgroupParent: cgroupParent}, logger)
	m.sampler.Dir, m.sampler.MHz = d.AllocDirRoot(), m.host.UsableCPUMHz
	m.settings = settings.WithDefaults(m.host.Hostname)
	m.settings.Networks.CNICacheDir = d.CNICacheDir()
	m.settings.FingerprintNetworks(ctx, &m.host, logger)
	m.settings.Networks.Bridge.AddressesForwardingOnlyHostIPPorts = m.host.HostNetworkAddressesExceptIP()
	return m
}

func newScheduler(s *store.Store, nodeID string, ports *hostPortChecker, cleaner *orphans.Cleaner, firstPluginReports <-chan struct{}, gc scheduler.GCConfig, jobs model.JobLimits, onAllocsChanged func(), logger hclog.Logger) *scheduler.Scheduler {
	opened := time.Now()
	return scheduler.New(scheduler.Config{
		Store:  s,
		NodeID: nodeID,
		HostEnv: scheduler.Env{
			NewID:                 uuid.NewString,
			IsPortFree:            ports.IsPortFree,
			DescribePortListeners: hostport.Listeners,
			RandIntN:              rand.IntN,
			Now:                   time.Now,
			MonotonicUptime:       func() time.Duration { return time.Since(opened) },
			FirstPluginReports:    firstPluginReports,
			FindUnknownInstance:   cleaner.FindUnknownInstance,
		},
		GC:                     gc,
		Jobs:                   jobs,
		Logger:                 logger,
		OnDesiredAllocsChanged: onAllocsChanged,
	})
}

// putInitialSchedulerConfig stores the scheduler's configuration from the configuration of the agent, unless one is stored: then a
// request has changed it, or the agent has started before.
func putInitialSchedulerConfig(ctx context.Context, s *store.Store, initial *api.SchedulerConfiguration) error {
	if initial == nil || s.Snapshot().SchedulerConfig(nil).ModifyIndex > 0 {
		return nil
	}
	_, err := s.Update(ctx, func(tx *store.Txn) error {
		tx.PutSchedulerConfig(initial)
		return nil
	})
	return err
}

// hostPortChecker checks this machine's ports.
type hostPortChecker struct {
	orphanCleaner *orphans.Cleaner
	addresses     []netip.Addr // addresses of host networks other than the default one
}

// IsPortFree reports whether a task could listen on a port. A default network port is free even if another program listens on it
// at another network's address.
func (c *hostPortChecker) IsPortFree(p scheduler.HostPort) bool {
	if c.orphanCleaner.UnknownTaskUsesHostPort(p.Port) {
		return false
	}
	if address, err := netip.ParseAddr(p.Address); err == nil {
		return hostport.IsFreeAt(address, p.Port)
	}
	return hostport.IsFree(p.Port, c.addresses...)
}

// loadOrNewNodeID returns the node id under earlier agents, or a new one.
func loadOrNewNodeID(s *store.Store, dataDir string, joinsCluster bool) string {
	var credentials membership.Credentials
	if joinsCluster {
		// membership.New logs an error.
		credentials, _ = membership.ReadCredentials(filepath.Join(dataDir, membership.CredentialsFile))
	}
	return localnode.LoadOrNewNodeID(s, credentials.NodeID)
}

// driverConfig returns the machine's properties that SetConfig sends to drivers. No field is nil, because drivers made from
// Nomad's public driver skeleton read them without a check.
func driverConfig(s localnode.Settings, host fingerprint.Host) *base.ClientDriverConfig {
	return &base.ClientDriverConfig{
		ClientMinPort: uint32(s.ClientMinPort),
		ClientMaxPort: uint32(s.ClientMaxPort),
		Topology:      host.Topology,
	}
}

// newHookNode returns the node's properties for hook plugins.
func newHookNode(id string, s localnode.Settings) hook.Node {
	return hook.Node{ID: id, Name: s.Name, Datacenter: s.Datacenter, Region: s.Region, Class: s.Class, Pool: s.Pool}
}
