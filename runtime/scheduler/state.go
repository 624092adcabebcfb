package scheduler

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// JobKey identifies a job.
type JobKey struct{ Namespace, ID string }

// KeyOf returns the key of a stored job.
func KeyOf(job *api.Job) JobKey { return JobKey{*job.Namespace, *job.ID} }

// Store is the part of a [store.Store] that a scheduler uses.
type Store interface {
	Snapshot() *store.Snapshot
	Update(ctx context.Context, fn func(*store.Txn) error) (uint64, error)
	CheckSpace() error // returns an error if the disk of the state is full, see [store.Store.CheckSpace]
}

// namespaceNames returns the names of the stored namespaces. The default namespace may be
// missing.
func namespaceNames(state store.Reader) (names []string) {
	for _, n := range state.Namespaces(nil, "") {
		names = append(names, n.Name)
	}
	return names
}

// lastLaunch returns the time of the latest launch of a periodic job, or zero.
func lastLaunch(state store.Reader, key JobKey) time.Time {
	if launch := state.PeriodicLaunch(nil, key.Namespace, key.ID); launch != nil {
		return launch.Launch
	}
	return zeroTime
}
