package variables

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// lockLease has the times for a lock that is not renewed: at expireTime, the holder can no longer renew it; at releaseTime,
// after the lock delay, the lock is released and another client can acquire it.
type lockLease struct {
	lockID                  string
	expireTime, releaseTime time.Time
}

func newLockLease(lock *api.VariableLock) lockLease {
	ttl, _ := time.ParseDuration(lock.TTL) // no error is possible, because newLock has formatted both durations
	delay, _ := time.ParseDuration(lock.LockDelay)
	lost := time.Now().Add(ttl)
	return lockLease{lock.ID, lost, lost.Add(delay)}
}

func (va *Variables) startLease(key variableKey, lock *api.VariableLock) {
	va.leasesMu.Lock()
	va.leasesByVariable[key] = newLockLease(lock)
	va.leasesMu.Unlock()
	wait.Notify(va.leaseAdded)
}

// renewUnexpiredLease replaces a lock's lease with a new one. It returns false if the lease has expired.
func (va *Variables) renewUnexpiredLease(key variableKey, lock *api.VariableLock) bool {
	va.leasesMu.Lock()
	defer va.leasesMu.Unlock()
	l, known := va.leasesByVariable[key]
	if !known || l.lockID != lock.ID || !time.Now().Before(l.expireTime) {
		return false
	}
	va.leasesByVariable[key] = newLockLease(lock)
	return true
}

// RunLockExpiration releases locks that their holders have not renewed, until ctx ends. At the start, each stored lock gets a
// new lease with its full TTL, because holders could not renew their locks while no agent ran.
func (va *Variables) RunLockExpiration(ctx context.Context) {
	snapshot := va.store.Snapshot()
	for _, v := range snapshot.Variables(nil, store.AnyNamespace, "") {
		if v.Lock != nil && snapshot.VariableDecryptErr(v) == nil { // a lock in an unreadable variable cannot be released
			va.startLease(variableKeyOf(v), v.Lock)
		}
	}
	for {
		select {
		case <-va.leaseAdded:
		case <-time.After(va.timeUntilNextLockRelease()):
			va.releaseExpiredLocks(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// timeUntilNextLockRelease returns the time until the first lock must be released, but at most an hour.
func (va *Variables) timeUntilNextLockRelease() time.Duration {
	va.leasesMu.Lock()
	defer va.leasesMu.Unlock()
	first := time.Hour
	for _, l := range va.leasesByVariable {
		first = min(first, time.Until(l.releaseTime))
	}
	return first
}

// releaseExpiredLocks releases locks after their lease and delay have passed.
func (va *Variables) releaseExpiredLocks(ctx context.Context) {
	va.leasesMu.Lock()
	var due []variableKey
	for at, l := range va.leasesByVariable {
		if !time.Now().Before(l.releaseTime) {
			due = append(due, at)
		}
	}
	va.leasesMu.Unlock()
	for _, at := range due {
		va.releaseExpiredLock(ctx, at)
	}
}

var errNotLocked = errors.New("no longer locked")

func (va *Variables) releaseExpiredLock(ctx context.Context, key variableKey) {
	va.leasesMu.Lock()
	l := va.leasesByVariable[key]
	va.leasesMu.Unlock()
	_, err := va.store.Update(ctx, func(tx *store.Txn) error {
		old := tx.Variable(nil, key.namespace, key.path)
		if old == nil || old.LockID() != l.lockID {
			return errNotLocked
		}
		next := *old
		next.Lock, next.ModifyTime = nil, time.Now().UnixNano()
		tx.PutVariable(&next)
		return nil
	})
	va.leasesMu.Lock()
	defer va.leasesMu.Unlock()
	switch now := va.leasesByVariable[key]; {
	case now.lockID != l.lockID: // another client has acquired the lock
	case err == nil, errors.Is(err, errNotLocked):
		delete(va.leasesByVariable, key)
	default:
		va.logger.Warn("lock not ended", "namespace", key.namespace, "path", key.path, "error", err)
		l.releaseTime = time.Now().Add(releaseRetryDelay)
		va.leasesByVariable[key] = l
	}
}

// releaseRetryDelay is the time between two attempts to release a lock.
const releaseRetryDelay = time.Second
