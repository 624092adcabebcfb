package keeper

import "github.com/nomad-lite/nomad-lite/internal/osprocess"

// Numbers of stored exit statuses. Session leaders have a separate ring, because drivers
// request their statuses: each task has its own session. A task with thousands of orphans
// cannot evict them. Each ring evicts its oldest entry.
const (
	maxSessionLeaderStatuses    = 4096
	maxNonSessionLeaderStatuses = 512
)

// exitStatusCache stores exit statuses in bounded memory.
type exitStatusCache struct {
	sessionLeaders, nonSessionLeaders exitStatusRing
}

func (s *exitStatusCache) add(p osprocess.ID, status osprocess.ExitStatus, isSessionLeader bool) {
	if isSessionLeader {
		s.sessionLeaders.add(p, status, maxSessionLeaderStatuses)
	} else {
		s.nonSessionLeaders.add(p, status, maxNonSessionLeaderStatuses)
	}
}

func (s *exitStatusCache) get(p osprocess.ID) (osprocess.ExitStatus, bool) {
	if status, ok := s.sessionLeaders.get(p); ok {
		return status, true
	}
	return s.nonSessionLeaders.get(p)
}

// exitStatusRing stores a limited number of exit statuses, and drops the oldest status when it is full.
type exitStatusRing struct {
	processes   []osprocess.ID
	oldestIndex int // index of the oldest process in processes once the ring is full
	statuses    map[osprocess.ID]osprocess.ExitStatus
}

func (r *exitStatusRing) add(p osprocess.ID, status osprocess.ExitStatus, limit int) {
	if r.statuses == nil {
		r.statuses = map[osprocess.ID]osprocess.ExitStatus{}
	}
	if _, ok := r.statuses[p]; ok {
		return
	}
	r.statuses[p] = status
	if len(r.processes) < limit {
		r.processes = append(r.processes, p)
		return
	}
	delete(r.statuses, r.processes[r.oldestIndex])
	r.processes[r.oldestIndex] = p
	r.oldestIndex = (r.oldestIndex + 1) % limit
}

func (r *exitStatusRing) get(p osprocess.ID) (osprocess.ExitStatus, bool) {
	status, ok := r.statuses[p]
	return status, ok
}
