package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent/hostservice"
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/workloaddata"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// loadOrCreateHookTokenKey returns the key for hooks' capability tokens, which is stored in the state. It creates a new key if
// none is stored, or if the stored key is unreadable and the store has therefore quarantined it.
func loadOrCreateHookTokenKey(s *store.Store, logger hclog.Logger) hostservice.CapabilityTokenKey {
	var storedKey state.HookTokenSigningKey
	known, err := s.Snapshot().ReadAgentRecord(state.HookKeyName, &storedKey)
	if err == nil && known {
		return hostservice.CapabilityTokenKey(storedKey)
	}
	if err != nil {
		logger.Warn("the key of the hooks' capability tokens is replaced; hooks use their old tokens in vain until the next call", "error", err)
	}
	key := make(hostservice.CapabilityTokenKey, state.HookKeySize)
	rand.Read(key) // never fails
	s.UpdateInNextTransaction(func(tx *store.Txn) error {
		tx.PutAgentRecord(state.HookKeyName, state.HookTokenSigningKey(key))
		return nil
	})
	if _, err := s.Update(context.Background(), func(*store.Txn) error { return nil }); err != nil {
		logger.Error("key of the hooks' capability tokens not stored yet", "error", err)
	}
	return key
}

// createHookPlugins creates the set of hook plugins.
func (p *PluginManager) createHookPlugins(c *Config, key hostservice.CapabilityTokenKey, cleanups hookCleanupStore) {
	p.hookPlugins = pluginhooks.New(pluginhooks.Config{
		FindOrLaunchHook: func(ctx context.Context, name string, until time.Time) (pluginhooks.RemoteHook, *hook.Description, error) {
			client, takes, err := p.supervisor.Hook(ctx, name, until)
			if err != nil {
				return nil, nil, err
			}
			return client, takes, nil
		},
		LaunchedHooksByName:      p.supervisor.HookDescriptionByName,
		UnlaunchedAllAllocsHooks: p.pluginInfoTracker.hooksOfAllAllocsStillStarting,
		PluginsOfUnknownType:     p.pluginInfoTracker.neverReportedPlugins,
		Rules:                    c.HookRules,
		LimitsByBuiltinHook:      c.SettingsByBuiltinHook,
		NewCapabilityToken:       key.NewCapabilityToken,
		CleanupStore:             cleanups,
		NoCallTimeouts:           c.NoPluginTimeouts,
		Logger:                   p.logger,
	})
}

// startHostService starts the service that hooks call.
func (p *PluginManager) startHostService(l net.Listener, key hostservice.CapabilityTokenKey, data workloaddata.Source, allocs *noderunner.Runner) {
	p.hookService = hostservice.StartHostService(hostservice.Config{
		Listener: l, CapabilityKey: key, FindAllocRunner: allocs.AllocRunner, PreviousAllocsLoaded: allocs.StoredAllocsLoaded(), Data: data, Logger: p.logger.Named("hostservice"),
	})
}

// missingHookHint explains to users how they provide a missing hook.
const missingHookHint = "give the directory of its program with -plugin-dir, for an agent name it in a plugin block too"

// CheckHookAttachments checks a canonical job's hook attachments. The faults are attachments of a hook that does not exist, is
// never called at this place in a job, or rejects the configuration. The errors in unreachable are about unreachable hooks.
// CheckHookAttachments waits for starting plugins.
func (p *PluginManager) CheckHookAttachments(ctx context.Context, job *api.Job) (faults []admission.HookAttachmentFault, unreachable []error) {
	for _, at := range model.HookAttachments(job) {
		if at.Hook == "" {
			faults = append(faults, admission.HookAttachmentFault{Attachment: at, Err: fmt.Errorf("the name of a hook is missing: write %sNAME", model.HookPrefix)})
			continue
		}
		if err := pluginhooks.CheckNotBuiltinBlockHook(at.Hook); err != nil {
			faults = append(faults, admission.HookAttachmentFault{Attachment: at, Err: err})
			continue
		}
		missing := false
		_, takes, err := p.supervisor.Hook(ctx, at.Hook, time.Now().Add(pluginLaunchTimeout))
		switch {
		case errors.Is(err, supervisor.ErrNoHook):
			missing = true
			err = fmt.Errorf("%w; %s, or remove meta %s%s", err, missingHookHint, model.HookPrefix, at.Hook)
		case err != nil:
			unreachable = append(unreachable, err)
			err = pluginhooks.CheckAttachmentSyntax(at.ConfigJSON)
		default:
			err = p.hookPlugins.ValidateAttachmentConfig(job, at, takes.AttachmentSchema)
			if err == nil && at.Task != "" {
				err = pluginhooks.CheckTaskAttachmentPoints(at.Hook, at.ConfigJSON, takes)
			}
		}
		if err != nil {
			faults = append(faults, admission.HookAttachmentFault{Attachment: at, IsHookMissing: missing, Err: err})
		}
	}
	return faults, unreachable
}

// pluginLaunchTimeout limits how long CheckHookAttachments waits for an exited plugin: it waits only if the plugin's next launch
// follows within this time.
const pluginLaunchTimeout = time.Second

// hookCleanupStore stores pending hook cleanups in the state.
type hookCleanupStore struct {
	store  *store.Store
	logger hclog.Logger
}

// ListDeletingExpired implements pluginhooks.CleanupStore.
func (s hookCleanupStore) ListDeletingExpired() (list []state.PendingCleanup) {
	snapshot := s.store.Snapshot()
	for _, name := range snapshot.AgentRecordNames(state.CleanupPrefix) {
		var record state.CleanupRecord
		known, err := snapshot.ReadAgentRecord(name, &record)
		if err != nil || !known {
			continue // the record is unreadable and the store quarantines it, or it was deleted meanwhile
		}
		cleanup := record.PendingCleanup()
		if snapshot.Allocation(nil, cleanup.AllocID) != nil || time.Now().Before(cleanup.RetryUntil) {
			list = append(list, cleanup)
			continue
		}
		if cleanup.RetryUntil.IsZero() { // the allocation still existed when the cleanup failed, so the record has no deadline
			cleanup.RetryUntil = time.Now().Add(pluginhooks.CleanupTimeout)
			s.storeRetryDeadline(name, cleanup)
			list = append(list, cleanup)
			continue
		}
		s.logger.Warn("cleanup of a hook abandoned", "hook", cleanup.Hook, "alloc_id", cleanup.AllocID, "hook_point", cleanup.Point)
		_, _ = s.store.Update(context.Background(), func(tx *store.Txn) error { // if the deletion fails, the next call repeats it
			tx.DeleteAgentRecord(name)
			return nil
		})
	}
	return list
}

// storeRetryDeadline stores cleanup.Until, the end of a cleanup's retries, unless the record was deleted since the caller has
// read it. If the write fails, the next call of ListDeletingExpired sets a later end.
func (s hookCleanupStore) storeRetryDeadline(name string, cleanup state.PendingCleanup) {
	_, err := s.store.Update(context.Background(), func(tx *store.Txn) error {
		if known, err := tx.ReadAgentRecord(name, new(state.CleanupRecord)); err != nil || !known {
			return err
		}
		tx.PutAgentRecord(name, state.NewCleanupRecord(cleanup))
		return nil
	})
	if err != nil {
		s.logger.Warn("end of the retries of a hook's cleanup not stored", "hook", cleanup.Hook, "alloc_id", cleanup.AllocID, "error", err)
	}
}

// Put implements pluginhooks.CleanupStore.
func (s hookCleanupStore) Put(cleanup state.PendingCleanup) error {
	_, err := s.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.CleanupPrefix+cleanup.ID(), state.NewCleanupRecord(cleanup))
		return nil
	})
	return err
}

// Delete implements pluginhooks.CleanupStore.
func (s hookCleanupStore) Delete(cleanup state.PendingCleanup) error {
	_, err := s.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteAgentRecord(state.CleanupPrefix + cleanup.ID())
		return nil
	})
	return err
}
