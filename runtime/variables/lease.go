package variables

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// lease is the remaining time of a lock. At lost the holder loses the lock; from free on,
// after the delay, another client can acquire it.
type lease struct {
	id         string
	lost, free time.Time
}

func leaseOf(lock *api.VariableLock) lease {
	ttl, _ := time.ParseDuration(lock.TTL) // newLock has formatted both durations
	delay, _ := time.ParseDuration(lock.LockDelay)
	lost := time.Now().Add(ttl)
	return lease{lock.ID, lost, lost.Add(delay)}
}

func (vs *Variables) lease(at key, lock *api.VariableLock) {
	vs.mu.Lock()
	vs.leases[at] = leaseOf(lock)
	vs.mu.Unlock()
	select {
	case vs.wake <- struct{}{}:
	default:
	}
}

// renew extends the lease of a lock, and reports whether it was still valid.
func (vs *Variables) renew(at key, lock *api.VariableLock) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	l, known := vs.leases[at]
	if !known || l.id != lock.ID || !time.Now().Before(l.lost) {
		return false
	}
	vs.leases[at] = leaseOf(lock)
	return true
}

// Run releases locks that were not renewed, and blocks until ctx ends. Locks cannot be
// renewed without an agent, so each stored lock first gets a whole new lease.
func (vs *Variables) Run(ctx context.Context) {
	snapshot := vs.store.Snapshot()
	for _, v := range snapshot.Variables(nil, store.AnyNamespace, "") {
		if v.Lock != nil && snapshot.VariableErr(v) == nil { // a lock that cannot be read cannot be released either
			vs.lease(keyOf(v), v.Lock)
		}
	}
	for {
		select {
		case <-vs.wake:
		case <-time.After(vs.untilFirst()):
			vs.free(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// untilFirst returns the time until the first lock may be released, an hour at most.
func (vs *Variables) untilFirst() time.Duration {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	first := time.Hour
	for _, l := range vs.leases {
		first = min(first, time.Until(l.free))
	}
	return first
}

// free releases the locks whose lease and delay have passed.
func (vs *Variables) free(ctx context.Context) {
	vs.mu.Lock()
	var due []key
	for at, l := range vs.leases {
		if !time.Now().Before(l.free) {
			due = append(due, at)
		}
	}
	vs.mu.Unlock()
	for _, at := range due {
		vs.end(ctx, at)
	}
}

var errNotLocked = errors.New("not locked any more")

func (vs *Variables) end(ctx context.Context, at key) {
	vs.mu.Lock()
	l := vs.leases[at]
	vs.mu.Unlock()
	_, err := vs.store.Update(ctx, func(tx *store.Txn) error {
		old := tx.Variable(nil, at.namespace, at.path)
		if old == nil || old.LockID() != l.id {
			return errNotLocked
		}
		next := *old
		next.Lock, next.ModifyTime = nil, time.Now().UnixNano()
		tx.PutVariable(&next)
		return nil
	})
	vs.mu.Lock()
	defer vs.mu.Unlock()
	switch now := vs.leases[at]; {
	case now.id != l.id: // the lock was acquired again
	case err == nil, errors.Is(err, errNotLocked):
		delete(vs.leases, at)
	default:
		vs.logger.Warn("lock not ended", "namespace", at.namespace, "path", at.path, "error", err)
		l.free = time.Now().Add(pause)
		vs.leases[at] = l
	}
}

// pause is the time between two attempts to release a lock.
const pause = time.Second
