package keeper

import "github.com/nomad-lite/nomad-lite/plugins/process"

// How many exit statuses are kept. Drivers ask for session leaders, because each task has its
// own session. Session leaders have a ring of their own, so that a task with thousands of
// orphans cannot evict them. Each ring evicts its oldest entry.
const (
	leadersKept = 4096
	othersKept  = 512
)

// statuses stores exit statuses in bounded memory.
type statuses struct {
	leaders, others ring
}

func (s *statuses) add(p process.ID, status process.ExitStatus, leader bool) {
	if leader {
		s.leaders.add(p, status, leadersKept)
	} else {
		s.others.add(p, status, othersKept)
	}
}

func (s *statuses) get(p process.ID) (process.ExitStatus, bool) {
	if status, ok := s.leaders.get(p); ok {
		return status, true
	}
	return s.others.get(p)
}

// ring stores the newest entries, with an index.
type ring struct {
	entries []process.ID
	next    int // index of the oldest entry once the ring is full
	byProc  map[process.ID]process.ExitStatus
}

func (r *ring) add(p process.ID, status process.ExitStatus, limit int) {
	if r.byProc == nil {
		r.byProc = map[process.ID]process.ExitStatus{}
	}
	if _, ok := r.byProc[p]; ok {
		return
	}
	r.byProc[p] = status
	if len(r.entries) < limit {
		r.entries = append(r.entries, p)
		return
	}
	delete(r.byProc, r.entries[r.next])
	r.entries[r.next] = p
	r.next = (r.next + 1) % limit
}

func (r *ring) get(p process.ID) (process.ExitStatus, bool) {
	status, ok := r.byProc[p]
	return status, ok
}
