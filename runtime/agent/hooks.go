package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/hookhost"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// hookSocket is the path at which hook plugins reach this agent and later ones.
func (a *Agent) hookSocket() string { return filepath.Join(a.sockets.path(), hookSocketName) }

// nodeForHooks returns the facts about the node that hook plugins get.
func (a *Agent) nodeForHooks() hook.Node {
	n := a.config.Node
	return hook.Node{ID: a.nodeID, Name: n.Name, Datacenter: n.Datacenter, Region: n.Region, Class: n.Class, Pool: n.Pool}
}

// hookKeyKey is the record of the key for the hooks' capability tokens.
const hookKeyKey = "hook_key"

// hookKey returns the stored key. It creates a key on the first start, and when the
// store has quarantined the stored one.
func (a *Agent) hookKey() (hookhost.Key, error) {
	var stored state.HookKey
	known, err := a.store.Snapshot().Meta(hookKeyKey, &stored)
	if err == nil && known {
		return hookhost.Key(stored), nil
	}
	if err != nil {
		a.logger.Warn("the key of the hooks' capability tokens is replaced; hooks use their old tokens in vain until the next call", "error", err)
	}
	key := make(hookhost.Key, state.HookKeySize)
	rand.Read(key) // never fails
	_, err = a.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(hookKeyKey, key)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("store key for hooks: %w", err)
	}
	return key, nil
}

// makeHooks creates the set of hook plugins and starts the host service that hooks
// call.
func (a *Agent) makeHooks() error {
	key, err := a.hookKey()
	if err != nil {
		return err
	}
	a.hooks = hookplugin.New(hookplugin.Config{
		FindPlugin: func(ctx context.Context, name string, until time.Time) (hookplugin.Remote, *hook.Description, error) {
			client, takes, err := a.supervisor.Hook(ctx, name, until)
			if err != nil {
				return nil, nil, err
			}
			return client, takes, nil
		},
		KnownHooks: func() map[string]*hook.Description {
			known := make(map[string]*hook.Description)
			for _, p := range a.supervisor.Plugins() {
				if p.Serves.Type == base.TypeHook && p.Hook != nil && p.Superseded == "" {
					known[p.Serves.Name] = p.Hook
				}
			}
			return known
		},
		ExpectedHooks:  a.knownPlugins.expectedHooks,
		UnknownPlugins: a.knownPlugins.unknown,
		Rules:          a.config.Hooks,
		BuiltinLimits:  a.config.HookLimits,
		Token:          key.Token,
		Cleanups:       cleanupStore{a.store, a.logger},
		Logger:         a.logger,
	})
	listener, err := a.sockets.listenForHooks()
	if err != nil {
		return err
	}
	a.hookHost = hookhost.Serve(hookhost.Config{
		Listener: listener, Key: key, AllocRunner: a.Alloc, Ready: a.known, Store: a.store, Logger: a.logger.Named("hookhost"),
	})
	return nil
}

// HookUsers returns the sorted ids of the running allocations that use a hook.
func (a *Agent) HookUsers(name string) []string {
	nodes := a.running()
	if nodes == nil {
		return nil
	}
	return slices.Sorted(slices.Values(nodes.PluginUsers(supervisor.PluginKey{Type: base.TypeHook, Name: name})))
}

// missingHookHint tells users how to provide a hook that is not found.
const missingHookHint = "give the directory of its program with -plugin-dir, for an agent name it in a plugin block too"

// CheckAttachments checks the hook attachments of a canonical job. The faults are
// attachments of a hook that does not exist, that is never called there, or that
// rejects the configuration. The errors in trouble are about hooks that were not
// reachable. CheckAttachments waits for plugins that are being started.
func (a *Agent) CheckAttachments(ctx context.Context, job *api.Job) (faults []model.Unsupported, trouble []error) {
	for _, at := range model.HookAttachments(job) {
		if at.Hook == "" {
			faults = append(faults, attachmentFault(at, fmt.Errorf("the name of a hook is missing: write %sNAME", model.HookPrefix)))
			continue
		}
		if err := hookplugin.CheckHookName(at.Hook); err != nil {
			faults = append(faults, attachmentFault(at, err))
			continue
		}
		_, takes, err := a.supervisor.Hook(ctx, at.Hook, time.Now().Add(launchTimeout))
		switch {
		case errors.Is(err, supervisor.ErrNoHook):
			err = fmt.Errorf("%w; %s, or remove meta %s%s", err, missingHookHint, model.HookPrefix, at.Hook)
		case err != nil:
			trouble = append(trouble, err)
			err = hookplugin.CheckAttachmentSyntax(at.Config)
		default:
			err = a.hooks.CheckAttachment(at.Hook, at.Config, takes.Schema)
			if err == nil && at.Task != "" {
				err = hookplugin.CheckTaskAttachment(at.Hook, at.Config, takes)
			}
		}
		if err != nil {
			faults = append(faults, attachmentFault(at, err))
		}
	}
	return faults, trouble
}

func attachmentFault(at model.HookAttachment, err error) model.Unsupported {
	return model.Unsupported{Path: at.Path, Reason: fmt.Sprintf("meta %s%s: %v", model.HookPrefix, at.Hook, err)}
}

// pendingCleanupKey is the prefix of the records of the hooks' pending cleanups.
const pendingCleanupKey = "hook_debt/"

// cleanupStore keeps the pending cleanups of hooks in the state.
type cleanupStore struct {
	store  *store.Store
	logger hclog.Logger
}

// List implements hookplugin.CleanupStore.
func (d cleanupStore) List() (list []state.PendingCleanup) {
	snapshot := d.store.Snapshot()
	for _, name := range snapshot.MetaKeys(pendingCleanupKey) {
		var cleanup state.PendingCleanup
		known, err := snapshot.Meta(name, &cleanup)
		if err != nil || !known {
			continue // quarantined and reported by the store, or deleted meanwhile
		}
		if snapshot.Allocation(nil, cleanup.AllocID) != nil || time.Now().Before(cleanup.Until) {
			list = append(list, cleanup)
			continue
		}
		if !cleanup.Until.IsZero() {
			d.logger.Warn("cleanup of a hook abandoned", "hook", cleanup.Hook, "alloc_id", cleanup.AllocID, "hook_point", cleanup.Point)
		}
		_, _ = d.store.Update(context.Background(), func(tx *store.Txn) error { // if it fails, the next call repeats it
			tx.DeleteMeta(name)
			return nil
		})
	}
	return list
}

// Put implements hookplugin.CleanupStore.
func (d cleanupStore) Put(cleanup state.PendingCleanup) error {
	_, err := d.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutMeta(pendingCleanupKey+cleanup.ID(), cleanup)
		return nil
	})
	return err
}

// Delete implements hookplugin.CleanupStore.
func (d cleanupStore) Delete(cleanup state.PendingCleanup) error {
	_, err := d.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteMeta(pendingCleanupKey + cleanup.ID())
		return nil
	})
	return err
}
