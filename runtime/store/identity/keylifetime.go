package identity

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// KeyLifetime states when the keys of the store are replaced and removed. The zero value keeps them.
type KeyLifetime struct {
	// RotateAfter is the age at which the active key is replaced; 0 means never.
	RotateAfter time.Duration
	// RemoveAfter is how long a replaced key stays at least. It stays longer while a record is sealed with it, or a task has an
	// unexpired token that it has signed. 0 means an hour if RotateAfter is set, and forever otherwise.
	RemoveAfter time.Duration
	// CheckInterval is the time between two checks of the keys; 0 means ten minutes.
	CheckInterval time.Duration
}

// ReplaceAndRemoveKeys applies a lifetime to the keys of the store, until ctx ends. Errors are logged, and the next check tries again.
func (i *Issuer) ReplaceAndRemoveKeys(ctx context.Context, l KeyLifetime, logger hclog.Logger) {
	if l.RotateAfter == 0 && l.RemoveAfter == 0 {
		return
	}
	for ctx.Err() == nil {
		if err := i.replaceAndRemoveKeysOnce(ctx, l, logger); err != nil && ctx.Err() == nil {
			logger.Warn("keys not replaced or removed", "error", err)
		}
		_ = wait.Sleep(ctx, cmp.Or(l.CheckInterval, 10*time.Minute)) // the loop reads the error from ctx
	}
}

func (i *Issuer) replaceAndRemoveKeysOnce(ctx context.Context, l KeyLifetime, logger hclog.Logger) error {
	keys, err := i.Store.Keys()
	if err != nil || len(keys) == 0 {
		return err
	}
	if active := keys[len(keys)-1]; l.RotateAfter > 0 && i.age(active) >= l.RotateAfter {
		// All records are sealed again, so that the old key can be removed.
		key, err := i.Store.RotateKeys(ctx, true)
		if err != nil {
			return err
		}
		logger.Info("key of variables rotated, because it had reached its age", "key_id", key.KeyID, "age", l.RotateAfter)
		keys = append(keys, key)
	}
	var errs []error
	for n, key := range keys[:len(keys)-1] {
		if i.age(keys[n+1]) < cmp.Or(l.RemoveAfter, time.Hour) { // the next key is as old as this one is replaced
			continue
		}
		if tasks, err := i.CountTasksWithTokenSignedBy(key.KeyID); err != nil || tasks > 0 {
			errs = append(errs, err)
			continue
		}
		var inUse *store.KeyInUseError
		switch err := i.Store.RemoveKey(ctx, key.KeyID, false); {
		case err == nil:
			logger.Info("key of variables removed, because nothing needs it any longer", "key_id", key.KeyID)
		case !errors.As(err, &inUse): // a user has rotated the keys without sealing the records again
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// age returns how long ago a key was made.
func (i *Issuer) age(key *api.RootKeyMeta) time.Duration {
	return i.Now().Sub(time.Unix(0, key.CreateTime))
}
