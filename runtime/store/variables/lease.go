package variables

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// lockLease is the remaining time of a lock. At expires the holder loses the lock; from acquirable on,
// after the delay, another client can acquire it.
type lockLease struct {
	id                         string
	expireTime, acquirableTime time.Time
}

func newLease(lock *api.VariableLock) lockLease {
	ttl, _ := time.ParseDuration(lock.TTL) // no error is possible, because newLock has formatted both durations
	delay, _ := time.ParseDuration(lock.LockDelay)
	lost := time.Now().Add(ttl)
	return lockLease{lock.ID, lost, lost.Add(delay)}
}

func (vs *Variables) startLease(at variableKey, lock *api.VariableLock) {
	vs.mu.Lock()
	vs.leases[at] = newLease(lock)
	vs.mu.Unlock()
	select {
	case vs.leaseAdded <- struct{}{}:
	default:
	}
}

// renewLease extends the lease of a lock, and reports whether it was still valid.
func (vs *Variables) renewLease(at variableKey, lock *api.VariableLock) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	l, known := vs.leases[at]
	if !known || l.id != lock.ID || !time.Now().Before(l.expireTime) {
		return false
	}
	vs.leases[at] = newLease(lock)
	return true
}

// Run releases locks that were not renewed, and blocks until ctx ends. Holders cannot
// renew their locks while no agent runs, so each stored lock first gets a new lease of
// its full TTL.
func (vs *Variables) Run(ctx context.Context) {
	snapshot := vs.store.Snapshot()
	for _, v := range snapshot.Variables(nil, store.AnyNamespace, "") {
		if v.Lock != nil && snapshot.VariableErr(v) == nil { // a lock in a variable that cannot be read cannot be released
			vs.startLease(variableKeyOf(v), v.Lock)
		}
	}
	for {
		select {
		case <-vs.leaseAdded:
		case <-time.After(vs.untilNextRelease()):
			vs.releaseExpired(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// untilNextRelease returns the time until the first lock may be released, an hour at most.
func (vs *Variables) untilNextRelease() time.Duration {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	first := time.Hour
	for _, l := range vs.leases {
		first = min(first, time.Until(l.acquirableTime))
	}
	return first
}

// releaseExpired releases the locks whose lease and delay have passed.
func (vs *Variables) releaseExpired(ctx context.Context) {
	vs.mu.Lock()
	var due []variableKey
	for at, l := range vs.leases {
		if !time.Now().Before(l.acquirableTime) {
			due = append(due, at)
		}
	}
	vs.mu.Unlock()
	for _, at := range due {
		vs.releaseLock(ctx, at)
	}
}

var errNotLocked = errors.New("no longer locked")

func (vs *Variables) releaseLock(ctx context.Context, at variableKey) {
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
	case now.id != l.id: // another client has acquired the lock
	case err == nil, errors.Is(err, errNotLocked):
		delete(vs.leases, at)
	default:
		vs.logger.Warn("lock not ended", "namespace", at.namespace, "path", at.path, "error", err)
		l.acquirableTime = time.Now().Add(releaseRetryDelay)
		vs.leases[at] = l
	}
}

// releaseRetryDelay is the time between two attempts to release a lock.
const releaseRetryDelay = time.Second
