package scheduler

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// JobKey identifies a job.
type JobKey struct{ Namespace, ID string }

// JobKeyOf returns a stored job's key.
func JobKeyOf(job *api.Job) JobKey { return JobKey{*job.Namespace, *job.ID} }

// Store is the part of a [store.Store] used by a scheduler.
type Store interface {
	Snapshot() *store.Snapshot
	Update(ctx context.Context, fn func(*store.Txn) error) (index uint64, err error)
	CheckDiskSpaceForNewObjects() error // returns an error if the disk with the state file is almost full, see [store.Store.CheckDiskSpaceForNewObjects]
}

// lastPeriodicLaunchTime returns a periodic job's latest launch time, or zero.
func lastPeriodicLaunchTime(state store.Reader, key JobKey) time.Time {
	if launch := state.PeriodicLaunch(nil, key.Namespace, key.ID); launch != nil {
		return launch.LaunchTime
	}
	return zeroTime
}
