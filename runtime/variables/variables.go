package variables

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Invalid is an error of a request that is invalid whatever is stored.
type Invalid string

func (e Invalid) Error() string { return string(e) }

// Conflict means that a request conflicts with the stored variable.
type Conflict struct {
	Text string
	// Current is the stored variable, or has only the name if there is none.
	Current *api.Variable
}

func (e *Conflict) Error() string { return e.Text }

// The texts of conflicts are Nomad's.
const (
	textIndex    = "cas error: the index of the variable is another one"
	textLocked   = "attempting to modify locked variable"
	textUnlocked = "variable doesn't hold a lock"
)

// Check is the ModifyIndex that a variable must have to be changed. 0 means that
// it must not exist, nil that any index is accepted.
type Check = *uint64

// Variables changes the variables of a store. Its methods may be called concurrently.
type Variables struct {
	store  *store.Store
	logger hclog.Logger
	wake   chan struct{} // wake holds a tick when there is a new lease

	mu     sync.Mutex
	leases map[key]lease
}

type key struct{ namespace, path string }

func keyOf(v *api.Variable) key { return key{v.Namespace, v.Path} }

// New returns the variables of a store. Locks expire only while Run runs.
func New(s *store.Store, logger hclog.Logger) *Variables {
	return &Variables{store: s, logger: logger.Named("variables"), wake: make(chan struct{}, 1), leases: make(map[key]lease)}
}

// Put stores the items of a variable. If the variable is locked, v must have the lock's
// ID, and the variable stays locked.
func (vs *Variables) Put(ctx context.Context, v *api.Variable, check Check) (*api.Variable, error) {
	if len(v.Items) == 0 {
		return nil, Invalid("variable missing required Items object")
	}
	return vs.change(ctx, v, check, func(old *api.Variable) (*api.Variable, error) {
		if old.Lock != nil && old.LockID() != v.LockID() {
			return nil, &Conflict{textLocked, old}
		}
		return &api.Variable{Items: v.Items, Lock: old.Lock}, nil
	})
}

// Delete removes a variable. It is not an error if there is none.
func (vs *Variables) Delete(ctx context.Context, namespace, path string, check Check) (index uint64, err error) {
	return vs.store.Update(ctx, func(tx *store.Txn) error {
		old, err := currentVariable(tx, key{namespace, path}, check)
		switch {
		case err != nil:
			return err
		case old.Lock != nil:
			return &Conflict{textLocked, old}
		}
		tx.DeleteVariable(namespace, path)
		return nil
	})
}

// Acquire locks a variable, and creates it if it does not exist. It stores the items of
// v, if there are any. The holder must present the ID of the returned lock.
func (vs *Variables) Acquire(ctx context.Context, v *api.Variable) (*api.Variable, error) {
	lock, err := newLock(v.Lock)
	if err != nil {
		return nil, err
	}
	got, err := vs.change(ctx, v, nil, func(old *api.Variable) (*api.Variable, error) {
		if old.Lock != nil {
			return nil, &Conflict{textLocked, old}
		}
		next := &api.Variable{Items: v.Items, Lock: lock}
		if next.Items == nil {
			next.Items = old.Items
		}
		return next, nil
	})
	if err == nil {
		vs.lease(keyOf(got), lock)
	}
	return got, err
}

// Reset renews the lease of a lock. It stores nothing, and returns the variable without
// items.
func (vs *Variables) Reset(_ context.Context, v *api.Variable) (*api.Variable, error) {
	at := keyOf(v)
	old := vs.store.Snapshot().Variable(nil, at.namespace, at.path)
	if err := checkLockHeld(old, v); err != nil {
		return nil, err
	}
	if !vs.renew(at, old.Lock) { // renew also works for a variable whose items cannot be opened
		return nil, &Conflict{textUnlocked, old}
	}
	c := *old
	c.Items = nil
	return &c, nil
}

// Release releases a lock.
func (vs *Variables) Release(ctx context.Context, v *api.Variable) (*api.Variable, error) {
	return vs.change(ctx, v, nil, func(old *api.Variable) (*api.Variable, error) {
		if err := checkLockHeld(old, v); err != nil {
			return nil, err
		}
		return &api.Variable{Items: old.Items}, nil
	})
}

func checkLockHeld(old, by *api.Variable) error {
	switch {
	case old == nil || old.Lock == nil:
		return &Conflict{textUnlocked, old}
	case old.LockID() != by.LockID():
		return &Conflict{textLocked, old}
	}
	return nil
}

// change stores the variable that edit returns, with its names and times filled in. The
// store sets the indexes.
func (vs *Variables) change(ctx context.Context, v *api.Variable, check Check, edit func(old *api.Variable) (*api.Variable, error)) (*api.Variable, error) {
	if err := errors.Join(model.VariablePathFault(v.Path), model.NamespaceNameFault(v.Namespace), model.VariableItemsFault(v.Items)); err != nil {
		return nil, Invalid(err.Error())
	}
	var next *api.Variable
	_, err := vs.store.Update(ctx, func(tx *store.Txn) error {
		old, err := currentVariable(tx, keyOf(v), check)
		if err == nil {
			next, err = edit(old)
		}
		if err != nil {
			return err
		}
		next.Namespace, next.Path = v.Namespace, v.Path
		next.ModifyTime = time.Now().UnixNano()
		next.CreateTime = next.ModifyTime
		if old.CreateIndex != 0 {
			next.CreateTime = old.CreateTime
		}
		tx.PutVariable(next)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return next, nil
}

// currentVariable returns the stored variable, or a variable that has only the name.
func currentVariable(tx *store.Txn, at key, check Check) (*api.Variable, error) {
	old := tx.Variable(nil, at.namespace, at.path)
	if old == nil {
		old = &api.Variable{Namespace: at.namespace, Path: at.path}
	}
	if check != nil && *check != old.ModifyIndex {
		return nil, &Conflict{textIndex, old}
	}
	return old, nil
}

// The limits and the default for the TTL and the delay of a lock.
const (
	minTTL     = 10 * time.Second
	maxTTL     = 24 * time.Hour
	defaultTTL = 15 * time.Second
)

// newLock returns a lock with the TTL and delay of the request.
func newLock(want *api.VariableLock) (*api.VariableLock, error) {
	lock := &api.VariableLock{ID: uuid.NewString(), TTL: defaultTTL.String(), LockDelay: defaultTTL.String()}
	if want == nil {
		return lock, nil
	}
	if want.ID != "" {
		return nil, Invalid("variable already holds a lock")
	}
	for _, t := range []struct {
		name, want string
		min        time.Duration
		field      *string
	}{
		{"TTL", want.TTL, minTTL, &lock.TTL},
		{"LockDelay", want.LockDelay, 0, &lock.LockDelay},
	} {
		if t.want == "" {
			continue
		}
		d, err := time.ParseDuration(t.want)
		switch {
		case err != nil:
			return nil, Invalid(fmt.Sprintf("lock %s: %v", t.name, err))
		case d < t.min || d > maxTTL:
			return nil, Invalid(fmt.Sprintf("lock %s %s: it must be between %s and %s", t.name, t.want, t.min, maxTTL))
		}
		*t.field = d.String()
	}
	return lock, nil
}
