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
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// hookSocket is where hook plugins find the agent, this one and those that come
// after it.
func (a *Agent) hookSocket() string { return filepath.Join(a.sockets.path(), hookSocketName) }

// nodeForHooks is what hook plugins are told about the machine.
func (a *Agent) nodeForHooks() hook.Node {
	n := a.config.Node
	return hook.Node{ID: a.nodeID, Name: n.Name, Datacenter: n.Datacenter, Region: n.Region, Class: n.Class, Pool: n.Pool}
}

// hookKeyFact is the record of the key of what hooks show to the host.
const hookKeyFact = "hook_key"

// hookKeySize is the size of a hook key in bytes.
const hookKeySize = 32

// hookKeyRecord is a hookhost.Key as it is read from the state.
type hookKeyRecord hookhost.Key

// CheckRecord implements what [store.Reader.Fact] calls.
func (k *hookKeyRecord) CheckRecord() error {
	if len(*k) != hookKeySize {
		return fmt.Errorf("the key has %d bytes, want %d", len(*k), hookKeySize)
	}
	return nil
}

// hookKey returns the key. It makes one the first time, and when the store has
// quarantined the one of an earlier agent.
func (a *Agent) hookKey() (hookhost.Key, error) {
	var stored hookKeyRecord
	known, err := a.store.Snapshot().Fact(hookKeyFact, &stored)
	if err == nil && known {
		return hookhost.Key(stored), nil
	}
	if err != nil {
		a.logger.Warn("the key of the hooks' capability tokens is replaced; hooks use their old tokens in vain until the next call", "error", err)
	}
	key := make(hookhost.Key, hookKeySize)
	rand.Read(key) // never fails
	_, err = a.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutFact(hookKeyFact, key)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("store key for hooks: %w", err)
	}
	return key, nil
}

// makeHooks makes what makes the hooks of allocations that are in plugins, and
// answers these.
func (a *Agent) makeHooks() error {
	key, err := a.hookKey()
	if err != nil {
		return err
	}
	a.hooks = hookplugin.New(hookplugin.Config{
		Find: func(ctx context.Context, name string, until time.Time) (hookplugin.Remote, *hook.Description, error) {
			client, takes, err := a.supervisor.Hook(ctx, name, until)
			if err != nil {
				return nil, nil, err
			}
			return client, takes, nil
		},
		Known: func() map[string]*hook.Description {
			known := make(map[string]*hook.Description)
			for _, p := range a.supervisor.Plugins() {
				if p.Serves.Type == base.TypeHook && p.Takes != nil && p.Retired == "" {
					known[p.Serves.Name] = p.Takes
				}
			}
			return known
		},
		Expected:   a.expectedHooks,
		Unknown:    a.unknownPlugins,
		Rules:      a.config.Hooks,
		Limits:     a.config.HookLimits,
		Capability: key.Capability,
		Debts:      debts{a.store, a.logger},
		Logger:     a.logger,
	})
	listener, err := a.sockets.listenForHooks()
	if err != nil {
		return err
	}
	a.hookHost = hookhost.Serve(hookhost.Config{
		Listener: listener, Key: key, Alloc: a.Alloc, Ready: a.known, Store: a.store, Logger: a.logger.Named("hookhost"),
	})
	return nil
}

// HookUsers returns the ids of the allocations that run and in which a hook takes
// part, in order.
func (a *Agent) HookUsers(name string) []string {
	nodes := a.running()
	if nodes == nil {
		return nil
	}
	return slices.Sorted(slices.Values(nodes.Users(supervisor.Served{Type: base.TypeHook, Name: name})))
}

// howToBring is the way out for who names a hook that is not there.
const howToBring = "give the directory of its program with -plugin-dir, for an agent name it in a plugin block too"

// CheckAttachments tells at which places a canonical job attaches a hook that is
// not there, at which it is never called, or with a configuration that it does not
// take; trouble tells which hooks could not be asked. It waits for plugins that are being started.
func (a *Agent) CheckAttachments(ctx context.Context, job *api.Job) (faults []model.Refusal, trouble []error) {
	for _, at := range model.HookAttachments(job) {
		if at.Hook == "" {
			faults = append(faults, attachmentFault(at, fmt.Errorf("the name of a hook is missing: write %sNAME", model.HookPrefix)))
			continue
		}
		if err := hookplugin.CheckName(at.Hook); err != nil {
			faults = append(faults, attachmentFault(at, err))
			continue
		}
		_, takes, err := a.supervisor.Hook(ctx, at.Hook, time.Now().Add(launchPatience))
		switch {
		case errors.Is(err, supervisor.ErrNoHook):
			err = fmt.Errorf("%w; %s, or remove meta %s%s", err, howToBring, model.HookPrefix, at.Hook)
		case err != nil:
			trouble = append(trouble, err)
			err = hookplugin.CheckSyntax(at.Config)
		default:
			err = a.hooks.CheckAttachment(at.Hook, at.Config, takes.Schema)
			if err == nil && at.Task != "" {
				err = hookplugin.CheckPlace(at.Hook, at.Config, takes)
			}
		}
		if err != nil {
			faults = append(faults, attachmentFault(at, err))
		}
	}
	return faults, trouble
}

func attachmentFault(at model.HookAttachment, err error) model.Refusal {
	return model.Refusal{Path: at.Path, Reason: fmt.Sprintf("meta %s%s: %v", model.HookPrefix, at.Hook, err)}
}

// debtFact begins the names of the records of moments that hooks owe.
const debtFact = "hook_debt/"

// debts keeps in the state what hooks owe.
type debts struct {
	store  *store.Store
	logger hclog.Logger
}

// Debts implements hookplugin.Debts.
func (d debts) Debts() (list []hookplugin.Debt) {
	snapshot := d.store.Snapshot()
	for _, name := range snapshot.Facts(debtFact) {
		var debt hookplugin.Debt
		known, err := snapshot.Fact(name, &debt)
		if err != nil || !known {
			continue // quarantined and reported by the store, or settled meanwhile
		}
		if snapshot.Allocation(nil, debt.AllocID) != nil || time.Now().Before(debt.Until) {
			list = append(list, debt)
			continue
		}
		if !debt.Until.IsZero() {
			d.logger.Warn("hook has not cleaned up, and is not told again", "hook", debt.Hook, "alloc_id", debt.AllocID, "moment", debt.Moment)
		}
		_, _ = d.store.Update(context.Background(), func(tx *store.Txn) error { // or the next time
			tx.DeleteFact(name)
			return nil
		})
	}
	return list
}

// PutDebt implements hookplugin.Debts.
func (d debts) PutDebt(debt hookplugin.Debt) error {
	_, err := d.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutFact(debtFact+debt.ID(), debt)
		return nil
	})
	return err
}

// DeleteDebt implements hookplugin.Debts.
func (d debts) DeleteDebt(debt hookplugin.Debt) error {
	_, err := d.store.Update(context.Background(), func(tx *store.Txn) error {
		tx.DeleteFact(debtFact + debt.ID())
		return nil
	})
	return err
}
