package keeper

import "github.com/nomad-lite/nomad-lite/plugins/process"

// How many exit statuses are kept. Drivers ask for session leaders, because each task has its
// own session. Session leaders have a ring of their own, so that a task with thousands of
// orphans cannot evict them. Each ring evicts its oldest entry.
const (
	maxLeaderStatuses = 4096
	maxOtherStatuses  = 512
)

// statuses stores exit statuses in bounded memory.
type statuses struct {
	leaders, others statusRing
}

func (s *statuses) add(p process.ID, status process.ExitStatus, leader bool) {
	if leader {
		s.leaders.add(p, status, maxLeaderStatuses)
	} else {
		s.others.add(p, status, maxOtherStatuses)
	}
}

func (s *statuses) get(p process.ID) (process.ExitStatus, bool) {
	if status, ok := s.leaders.get(p); ok {
		return status, true
	}
	return s.others.get(p)
}

// statusRing stores the newest entries, with an index.
type statusRing struct {
	entries  []process.ID
	oldest   int // index of the oldest entry once the ring is full
	statuses map[process.ID]process.ExitStatus
}

func (r *statusRing) add(p process.ID, status process.ExitStatus, limit int) {
	if r.statuses == nil {
		r.statuses = map[process.ID]process.ExitStatus{}
	}
	if _, ok := r.statuses[p]; ok {
		return
	}
	r.statuses[p] = status
	if len(r.entries) < limit {
		r.entries = append(r.entries, p)
		return
	}
	delete(r.statuses, r.entries[r.oldest])
	r.entries[r.oldest] = p
	r.oldest = (r.oldest + 1) % limit
}

func (r *statusRing) get(p process.ID) (process.ExitStatus, bool) {
	status, ok := r.statuses[p]
	return status, ok
}
