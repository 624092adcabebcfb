package keeperserver

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

// recordedExit is what exitStatusCache stores about a process that has ended.
type recordedExit struct {
	status osprocess.ExitStatus
	cgroup string // see EndedProcess.Cgroup
}

func (s *exitStatusCache) add(p osprocess.ID, exit recordedExit, isSessionLeader bool) {
	if isSessionLeader {
		s.sessionLeaders.add(p, exit, maxSessionLeaderStatuses)
	} else {
		s.nonSessionLeaders.add(p, exit, maxNonSessionLeaderStatuses)
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
	exitByProc  map[osprocess.ID]recordedExit

	// completeSince is the start of the keeper, or the latest start time of a process whose status was dropped: a process that
	// was started later is in the ring if the keeper has recorded its exit.
	completeSince uint64
}

func (r *exitStatusRing) add(p osprocess.ID, exit recordedExit, limit int) {
	if r.exitByProc == nil {
		r.exitByProc = map[osprocess.ID]recordedExit{}
	}
	if _, ok := r.exitByProc[p]; ok {
		return
	}
	r.exitByProc[p] = exit
	if len(r.processes) < limit {
		r.processes = append(r.processes, p)
		return
	}
	evicted := r.processes[r.oldestIndex]
	delete(r.exitByProc, evicted)
	r.completeSince = max(r.completeSince, evicted.StartTime)
	r.processes[r.oldestIndex] = p
	r.oldestIndex = (r.oldestIndex + 1) % limit
}

func (r *exitStatusRing) get(p osprocess.ID) (osprocess.ExitStatus, bool) {
	exit, ok := r.exitByProc[p]
	return exit.status, ok
}
