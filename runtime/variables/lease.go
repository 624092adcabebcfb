package variables

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// lease is the time that the holder of a lock has left. When it has run out, the
// lock is lost, and after the delay others may have it.
type lease struct {
	id         string
	lost, free time.Time
}

func leaseOf(lock *api.VariableLock) lease {
	ttl, _ := time.ParseDuration(lock.TTL) // newLock has written both
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

// renew reports whether the lease was there to be renewed.
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

// Run ends the locks of those who do not renew them, until ctx ends. Nobody could
// renew a lock while there was no agent: all locks begin anew.
func (vs *Variables) Run(ctx context.Context) {
	snapshot := vs.store.Snapshot()
	for _, v := range snapshot.Variables(nil, store.AnyNamespace, "") {
		if v.Lock != nil && snapshot.VariableErr(v) == nil { // else nobody could end it
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

// untilFirst returns the time until the first lock may be free.
func (vs *Variables) untilFirst() time.Duration {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	first := time.Hour
	for _, l := range vs.leases {
		first = min(first, time.Until(l.free))
	}
	return first
}

// free ends the locks whose time is over.
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
	case now.id != l.id: // somebody has it again
	case err == nil, errors.Is(err, errNotLocked):
		delete(vs.leases, at)
	default:
		vs.logger.Warn("lock not ended", "namespace", at.namespace, "path", at.path, "error", err)
		l.free = time.Now().Add(pause)
		vs.leases[at] = l
	}
}

// pause is the time between two tries to end a lock.
const pause = time.Second
