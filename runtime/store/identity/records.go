package identity

import (
	"context"
	"errors"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func recordName(allocID, task string) string { return state.IdentityPrefix + allocID + "/" + task }

// Tokens returns the tokens that were issued to a task, by the name of the identity. The result is nil
// if there are none, or if they cannot be read.
func (i *Issuer) Tokens(allocID, task string) map[string]*state.IdentityToken {
	var tokens state.TaskTokens
	if known, err := i.Store.Snapshot().Meta(recordName(allocID, task), &tokens); err != nil || !known {
		return nil // the store reports an unreadable record
	}
	return tokens
}

// PutTokens stores the tokens of a task for the next agent. They are on disk when it returns without an error.
func (i *Issuer) PutTokens(ctx context.Context, allocID, task string, tokens map[string]*state.IdentityToken) error {
	_, err := i.Store.Update(ctx, func(tx *store.Txn) error {
		tx.PutMeta(recordName(allocID, task), state.TaskTokens(tokens))
		return nil
	})
	return err
}

// DeleteTokens removes the record of the tokens of a task, if there is one.
func (i *Issuer) DeleteTokens(ctx context.Context, allocID, task string) error {
	if !i.Store.Snapshot().HasMeta(recordName(allocID, task)) {
		return nil
	}
	_, err := i.Store.Update(ctx, func(tx *store.Txn) error {
		tx.DeleteMeta(recordName(allocID, task))
		return nil
	})
	return err
}

// DeleteOrphanedTokens removes the records of tasks whose allocation no longer exists.
func (i *Issuer) DeleteOrphanedTokens(ctx context.Context) error {
	snapshot := i.Store.Snapshot()
	var orphans []string
	for _, name := range snapshot.MetaKeys(state.IdentityPrefix) {
		allocID, _, _ := strings.Cut(strings.TrimPrefix(name, state.IdentityPrefix), "/")
		if snapshot.Allocation(nil, allocID) == nil {
			orphans = append(orphans, name)
		}
	}
	if len(orphans) == 0 {
		return nil
	}
	_, err := i.Store.Update(ctx, func(tx *store.Txn) error {
		for _, name := range orphans {
			tx.DeleteMeta(name)
		}
		return nil
	})
	return err
}

// CountTokens returns how many tasks have a token that was signed with a key and has not expired. An error means
// that some records cannot be read.
func (i *Issuer) CountTokens(keyID string) (int, error) {
	snapshot, now := i.Store.Snapshot(), i.Now()
	tasks, errs := 0, []error(nil)
	for _, name := range snapshot.MetaKeys(state.IdentityPrefix) {
		var tokens state.TaskTokens
		if _, err := snapshot.Meta(name, &tokens); err != nil {
			errs = append(errs, err)
		}
		for _, t := range tokens {
			if t.KeyID == keyID && (t.ExpiresAt.IsZero() || now.Before(t.ExpiresAt)) {
				tasks++
				break
			}
		}
	}
	return tasks, errors.Join(errs...)
}
