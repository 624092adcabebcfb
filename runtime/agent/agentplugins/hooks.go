package agentplugins

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

// LoadOrCreateHookTokenKey returns the key for hooks' capability tokens, which is stored in the state. It creates a new key if
// none is stored, or if the stored key is unreadable and the store has therefore quarantined it. A new key is stored with the next
// change.
func LoadOrCreateHookTokenKey(s *store.Store, logger hclog.Logger) hostservice.CapabilityTokenKey {
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
	return key
}

// HooksConfig is the argument of Manager.CreateHooks.
type HooksConfig struct {
	Rules               []pluginhooks.OperatorRule // the operator's rules for hook plugins, in configuration order
	LimitsByBuiltinHook map[string]map[string]any
	NoCallTimeouts      bool // hook calls have no timeout
	TokenKey            hostservice.CapabilityTokenKey
	Cleanups            CleanupStore
}

// CreateHooks creates the set of hook plugins.
func (p *Manager) CreateHooks(c HooksConfig) {
	p.Hooks = pluginhooks.New(pluginhooks.Config{
		FindOrLaunchHook: func(ctx context.Context, name string, until time.Time) (pluginhooks.RemoteHook, *hook.Description, error) {
			client, takes, err := p.Supervisor.Hook(ctx, name, until)
			if err != nil {
				return nil, nil, err
			}
			return client, takes, nil
		},
		LaunchedHooksByName:      p.Supervisor.HookDescriptionByName,
		UnlaunchedAllAllocsHooks: p.pluginInfoTracker.hooksOfAllAllocsStillStarting,
		PluginsOfUnknownType:     p.pluginInfoTracker.neverReportedPlugins,
		Rules:                    c.Rules,
		LimitsByBuiltinHook:      c.LimitsByBuiltinHook,
		NewCapabilityToken:       c.TokenKey.NewCapabilityToken,
		CleanupStore:             c.Cleanups,
		NoCallTimeouts:           c.NoCallTimeouts,
		Logger:                   p.logger,
	})
}

// StartHostService starts the service that hooks call.
func (p *Manager) StartHostService(l net.Listener, key hostservice.CapabilityTokenKey, data workloaddata.Source, allocs *noderunner.Runner) {
	p.hookService = hostservice.StartHostService(hostservice.Config{
		Listener: l, CapabilityKey: key, FindAllocRunner: allocs.AllocRunner, PreviousAllocsLoaded: allocs.StoredAllocsLoaded(), Data: data, Logger: p.logger.Named("hostservice"),
	})
}

// missingHookHint explains to users how they provide a missing hook.
const missingHookHint = "give the directory of its program with -plugin-dir, for an agent name it in a plugin block too"

// CheckHookAttachments checks a canonical job's hook attachments. The faults are attachments of a hook that does not exist, is
// never called at this place in a job, or rejects the configuration. The errors in unreachable are about unreachable hooks.
// CheckHookAttachments waits for starting plugins.
func (p *Manager) CheckHookAttachments(ctx context.Context, job *api.Job) (faults []admission.HookAttachmentFault, unreachable []error) {
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
		_, takes, err := p.Supervisor.Hook(ctx, at.Hook, time.Now().Add(pluginLaunchTimeout))
		switch {
		case errors.Is(err, supervisor.ErrNoHook):
			missing = true
			err = fmt.Errorf("%w; %s, or remove meta %s%s", err, missingHookHint, model.HookPrefix, at.Hook)
		case err != nil:
			unreachable = append(unreachable, err)
			err = pluginhooks.CheckAttachmentSyntax(at.ConfigJSON)
		default:
			err = p.Hooks.ValidateAttachmentConfig(job, at, takes.AttachmentSchema)
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

// CleanupStore stores pending hook cleanups in the state.
type CleanupStore struct {
	Store  *store.Store
	Logger hclog.Logger
}

// ListDeletingExpired implements pluginhooks.CleanupStore.
func (s CleanupStore) ListDeletingExpired() (list []state.PendingCleanup) {
	snapshot := s.Store.Snapshot()
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
		s.Logger.Warn("cleanup of a hook abandoned", "hook", cleanup.Hook, "alloc_id", cleanup.AllocID, "hook_point", cleanup.Point)
		_, _ = s.Store.Update(context.Background(), func(tx *store.Txn) error { // if the deletion fails, the next call repeats it
			tx.DeleteAgentRecord(name)
			return nil
		})
	}
	return list
}

// storeRetryDeadline stores cleanup.Until, the end of a cleanup's retries, unless the record was deleted since the caller has
// read it. If the write fails, the next call of ListDeletingExpired sets a later end.
func (s CleanupStore) storeRetryDeadline(name string, cleanup state.PendingCleanup) {
	_, err := s.Store.Update(context.Background(), func(tx *store.Txn) error {
		if known, err := tx.ReadAgentRecord(name, new(state.CleanupRecord)); err != nil || !known {
			return err
		}
		tx.PutAgentRecord(name, state.NewCleanupRecord(cleanup))
		return nil
	})
	if err != nil {
		s.Logger.Warn("end of the retries of a hook's cleanup not stored", "hook", cleanup.Hook, "alloc_id", cleanup.AllocID, "error", err)
	}
}

// Put implements pluginhooks.CleanupStore.
func (s CleanupStore) Put(cleanup state.PendingCleanup) error {
	_, err := s.Store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutAgentRecord(state.CleanupPrefix+cleanup.ID(), state.NewCleanupRecord(cleanup))
		return nil
	})
	return err
}

// Delete implements pluginhooks.CleanupStore.
func (s CleanupStore) Delete(cleanup state.PendingCleanup) error {
	_, err := s.Store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteAgentRecord(state.CleanupPrefix + cleanup.ID())
		return nil
	})
	return err
}
