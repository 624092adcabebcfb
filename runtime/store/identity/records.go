package identity

import (
	"context"
	"errors"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func tokenRecordName(allocID, task string) string { return state.IdentityPrefix + allocID + "/" + task }

// StoredTokensByIdentity returns a task's stored tokens, by identity name. The result is nil if there are none, or if the
// record cannot be read.
func (i *Issuer) StoredTokensByIdentity(allocID, task string) map[string]*state.IdentityToken {
	var tokens state.TokenByIdentityName
	if known, err := i.Store.Snapshot().ReadAgentRecord(tokenRecordName(allocID, task), &tokens); err != nil || !known {
		return nil // the store reports an unreadable record
	}
	return tokens
}

// PutTokens stores a task's tokens for the next agent. When it returns without an error, the tokens are on disk.
func (i *Issuer) PutTokens(ctx context.Context, allocID, task string, tokenByIdentity map[string]*state.IdentityToken) error {
	_, err := i.Store.Update(ctx, func(tx *store.Txn) error {
		tx.PutAgentRecord(tokenRecordName(allocID, task), state.TokenByIdentityName(tokenByIdentity))
		return nil
	})
	return err
}

// DeleteTokens removes a task's token record, if there is one.
func (i *Issuer) DeleteTokens(ctx context.Context, allocID, task string) error {
	if !i.Store.Snapshot().HasAgentRecord(tokenRecordName(allocID, task)) {
		return nil
	}
	_, err := i.Store.Update(ctx, func(tx *store.Txn) error {
		tx.DeleteAgentRecord(tokenRecordName(allocID, task))
		return nil
	})
	return err
}

// DeleteOrphanedTokens removes the stored tokens for tasks without a stored allocation. It must be called after adopting
// allocations that the state has lost.
func (i *Issuer) DeleteOrphanedTokens(ctx context.Context) error {
	snapshot := i.Store.Snapshot()
	var orphans []string
	for _, name := range snapshot.AgentRecordNames(state.IdentityPrefix) {
		allocID, _, _ := strings.Cut(strings.TrimPrefix(name, state.IdentityPrefix), "/")
		if !snapshot.HasAllocationOrItsTasks(allocID) {
			orphans = append(orphans, name)
		}
	}
	if len(orphans) == 0 {
		return nil
	}
	_, err := i.Store.Update(ctx, func(tx *store.Txn) error {
		for _, name := range orphans {
			tx.DeleteAgentRecord(name)
		}
		return nil
	})
	return err
}

// CountTasksWithTokenSignedBy returns how many tasks have an unexpired token signed by the key with the id keyID. An error
// means that some records cannot be read, and their tasks are not counted.
func (i *Issuer) CountTasksWithTokenSignedBy(keyID string) (int, error) {
	snapshot, now := i.Store.Snapshot(), i.Now()
	tasks, errs := 0, []error(nil)
	for _, name := range snapshot.AgentRecordNames(state.IdentityPrefix) {
		var tokens state.TokenByIdentityName
		if _, err := snapshot.ReadAgentRecord(name, &tokens); err != nil {
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
