package agent

import (
	"path/filepath"
	"strconv"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/users"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// newUserPool returns the pool of user ids for tasks. The ids of an earlier agent's tasks are in use. newUserPool returns nil if
// the range is the zero value.
func newUserPool(s *store.Store, ids idrange.Range, logger hclog.Logger) *users.UIDPool {
	if ids == (idrange.Range{}) {
		return nil
	}
	pool := users.NewPool(ids)
	snapshot := s.Snapshot()
	for _, allocID := range snapshot.AllocIDsWithLocalRecords() {
		if snapshot.AllocationEnded(allocID) {
			continue
		}
		for _, task := range snapshot.TaskNamesWithLocalRecords(allocID) {
			data, err := snapshot.TaskHookData(allocID, task, hooks.WorkloadUserHookName)
			if err != nil {
				logger.Warn("another task may get the user id of this task", "alloc_id", allocID, "task", task, "error", err)
				continue
			}
			if id := hooks.StoredWorkloadUserID(data); id != 0 {
				pool.RestoreUnlessTaken(users.Task{AllocID: allocID, Name: task}, id)
			}
		}
	}
	return pool
}

// reserveUserOfProcess marks the user id of an unknown task's process as in use, so that no other task gets it. pool may be nil.
func reserveUserOfProcess(pool *users.UIDPool, allocID, task string, p osprocess.ID) {
	var st unix.Stat_t
	if pool != nil && unix.Stat(filepath.Join("/proc", strconv.Itoa(p.PID)), &st) == nil {
		pool.RestoreUnlessTaken(users.Task{AllocID: allocID, Name: task}, st.Uid)
	}
}
