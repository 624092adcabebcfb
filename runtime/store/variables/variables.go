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

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// InvalidRequestError: a request is invalid, independently of the stored variables.
type InvalidRequestError string

func (e InvalidRequestError) Error() string { return string(e) }

// ConflictError: a request conflicts with the stored variable.
type ConflictError struct {
	Text string
	// CurrentVariable is the stored variable. If none is stored, it has only namespace and path.
	CurrentVariable *api.Variable
}

func (e *ConflictError) Error() string { return e.Text }

// ConflictError's texts, the same as in Nomad.
const (
	indexConflictText    = "cas error: the index of the variable is another one"
	lockedConflictText   = "attempting to modify locked variable"
	unlockedConflictText = "variable doesn't hold a lock"
)

// ExpectedModifyIndex is the ModifyIndex that the stored variable must have, for check-and-set. 0 means that the variable must
// not exist, nil that every index is accepted.
type ExpectedModifyIndex = *uint64

// Variables changes a store's variables and manages their locks. Its methods may be called concurrently.
type Variables struct {
	store      *store.Store
	logger     hclog.Logger
	leaseAdded chan struct{} // the channel has a value when there is a new lease

	leasesMu         sync.Mutex
	leasesByVariable map[variableKey]lockLease
}

type variableKey struct{ namespace, path string }

func variableKeyOf(v *api.Variable) variableKey { return variableKey{v.Namespace, v.Path} }

// New returns a store's Variables. Locks expire only while RunLockExpiration runs.
func New(s *store.Store, logger hclog.Logger) *Variables {
	return &Variables{store: s, logger: logger.Named("variables"), leaseAdded: make(chan struct{}, 1), leasesByVariable: make(map[variableKey]lockLease)}
}

// Put stores a variable's items. If the stored variable is locked, v must have the lock's ID, and the variable stays locked.
func (va *Variables) Put(ctx context.Context, v *api.Variable, expectedIndex ExpectedModifyIndex) (*api.Variable, error) {
	if len(v.Items) == 0 {
		return nil, InvalidRequestError("variable missing required Items object")
	}
	if err := va.store.CheckDiskSpaceForNewObjects(); err != nil {
		return nil, err
	}
	return va.changeVariable(ctx, v, expectedIndex, func(old *api.Variable) (*api.Variable, error) {
		if old.Lock != nil && old.LockID() != v.LockID() {
			return nil, &ConflictError{lockedConflictText, old}
		}
		return &api.Variable{Items: v.Items, Lock: old.Lock}, nil
	})
}

// Delete removes a variable. It is not an error if there is none.
func (va *Variables) Delete(ctx context.Context, namespace, path string, expectedIndex ExpectedModifyIndex) (index uint64, err error) {
	return va.store.Update(ctx, func(tx *store.Txn) error {
		old, err := currentVariableIfIndexMatches(tx, variableKey{namespace, path}, expectedIndex)
		switch {
		case err != nil:
			return err
		case old.Lock != nil:
			return &ConflictError{lockedConflictText, old}
		}
		tx.DeleteVariable(namespace, path)
		return nil
	})
}

// AcquireLock locks a variable, and creates it if it does not exist. It stores v's items, if there are any. The holder must
// present the returned lock's ID.
func (va *Variables) AcquireLock(ctx context.Context, v *api.Variable) (*api.Variable, error) {
	lock, err := newLock(v.Lock)
	if err != nil {
		return nil, err
	}
	got, err := va.changeVariable(ctx, v, nil, func(old *api.Variable) (*api.Variable, error) {
		if old.Lock != nil {
			return nil, &ConflictError{lockedConflictText, old}
		}
		next := &api.Variable{Items: v.Items, Lock: lock}
		if next.Items == nil {
			next.Items = old.Items
		}
		return next, nil
	})
	if err == nil {
		va.startLease(variableKeyOf(got), lock)
	}
	return got, err
}

// RenewLock renews the lease for the lock ID in v.Lock. It stores nothing, and returns the variable without its items.
func (va *Variables) RenewLock(_ context.Context, v *api.Variable) (*api.Variable, error) {
	at := variableKeyOf(v)
	old := va.store.Snapshot().Variable(nil, at.namespace, at.path)
	if err := checkLockHeldBy(old, v); err != nil {
		return nil, err
	}
	if !va.renewUnexpiredLease(at, old.Lock) { // renewUnexpiredLease also works for a variable with items that cannot be decrypted
		return nil, &ConflictError{unlockedConflictText, old}
	}
	c := *old
	c.Items = nil
	return &c, nil
}

// ReleaseLock removes the lock with the ID in v.Lock from the variable.
func (va *Variables) ReleaseLock(ctx context.Context, v *api.Variable) (*api.Variable, error) {
	return va.changeVariable(ctx, v, nil, func(old *api.Variable) (*api.Variable, error) {
		if err := checkLockHeldBy(old, v); err != nil {
			return nil, err
		}
		return &api.Variable{Items: old.Items}, nil
	})
}

func checkLockHeldBy(stored, holder *api.Variable) error {
	switch {
	case stored == nil || stored.Lock == nil:
		return &ConflictError{unlockedConflictText, stored}
	case stored.LockID() != holder.LockID():
		return &ConflictError{lockedConflictText, stored}
	}
	return nil
}

// changeVariable sets the namespace, path and times in the variable returned by edit, and stores it. The store sets the
// indexes.
func (va *Variables) changeVariable(ctx context.Context, v *api.Variable, expectedIndex ExpectedModifyIndex, edit func(old *api.Variable) (*api.Variable, error)) (*api.Variable, error) {
	if err := errors.Join(model.ValidateVariablePath(v.Path), model.ValidateNamespaceName(v.Namespace), model.CheckVariableSize(v.Items)); err != nil {
		return nil, InvalidRequestError(err.Error())
	}
	var nextVariable *api.Variable
	_, err := va.store.Update(ctx, func(tx *store.Txn) error {
		old, err := currentVariableIfIndexMatches(tx, variableKeyOf(v), expectedIndex)
		if err == nil {
			nextVariable, err = edit(old)
		}
		if err != nil {
			return err
		}
		nextVariable.Namespace, nextVariable.Path = v.Namespace, v.Path
		nextVariable.ModifyTime = time.Now().UnixNano()
		nextVariable.CreateTime = nextVariable.ModifyTime
		if old.CreateIndex != 0 {
			nextVariable.CreateTime = old.CreateTime
		}
		tx.PutVariable(nextVariable)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return nextVariable, nil
}

// currentVariableIfIndexMatches returns the stored variable, or a variable with only namespace and path if none is
// stored. It returns a ConflictError if the index is not the expected one.
func currentVariableIfIndexMatches(tx *store.Txn, key variableKey, expectedIndex ExpectedModifyIndex) (*api.Variable, error) {
	old := tx.Variable(nil, key.namespace, key.path)
	if old == nil {
		old = &api.Variable{Namespace: key.namespace, Path: key.path}
	}
	if expectedIndex != nil && *expectedIndex != old.ModifyIndex {
		return nil, &ConflictError{indexConflictText, old}
	}
	return old, nil
}

// Limits and defaults for a lock's TTL and delay.
const (
	minTTL     = 10 * time.Second
	maxTTL     = 24 * time.Hour
	defaultTTL = 15 * time.Second
)

// newLock returns a new lock with the request's TTL and delay, or the default ones.
func newLock(requested *api.VariableLock) (*api.VariableLock, error) {
	lock := &api.VariableLock{ID: uuid.NewString(), TTL: defaultTTL.String(), LockDelay: defaultTTL.String()}
	if requested == nil {
		return lock, nil
	}
	if requested.ID != "" {
		return nil, InvalidRequestError("variable already holds a lock")
	}
	for _, t := range []struct {
		name, want string
		min        time.Duration
		field      *string
	}{
		{"TTL", requested.TTL, minTTL, &lock.TTL},
		{"LockDelay", requested.LockDelay, 0, &lock.LockDelay},
	} {
		if t.want == "" {
			continue
		}
		d, err := time.ParseDuration(t.want)
		switch {
		case err != nil:
			return nil, InvalidRequestError(fmt.Sprintf("lock %s: %v", t.name, err))
		case d < t.min || d > maxTTL:
			return nil, InvalidRequestError(fmt.Sprintf("lock %s %s: it must be between %s and %s", t.name, t.want, t.min, maxTTL))
		}
		*t.field = d.String()
	}
	return lock, nil
}
