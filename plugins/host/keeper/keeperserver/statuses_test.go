package keeperserver

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

func TestExitStatusCacheIsLimited(t *testing.T) {
	t.Parallel()
	var s exitStatusCache
	s.add(osprocess.ID{PID: 1}, recordedExit{status: osprocess.ExitStatus{ExitCode: 1}}, true)
	for i := range 10 * maxNonSessionLeaderStatuses { // orphans of one task
		s.add(osprocess.ID{PID: 100 + i}, recordedExit{}, false)
	}
	if st, ok := s.get(osprocess.ID{PID: 1}); !ok || st.ExitCode != 1 {
		t.Error("orphans push out the status of a session leader")
	}
	if _, ok := s.get(osprocess.ID{PID: 100}); ok {
		t.Error("orphans are remembered without a limit")
	}
	if _, ok := s.get(osprocess.ID{PID: 100 + 10*maxNonSessionLeaderStatuses - 1}); !ok {
		t.Error("the last orphan is forgotten")
	}
	if s.sessionLeaders.completeSince != 0 {
		t.Error("a status was dropped before the ring was full")
	}
	for i := range maxSessionLeaderStatuses {
		s.add(osprocess.ID{PID: 100_000 + i, StartTime: 1000 - uint64(i)%10}, recordedExit{}, true)
	}
	for i := range 20 {
		s.add(osprocess.ID{PID: 200_000 + i, StartTime: 2000}, recordedExit{}, true)
	}
	if got := s.sessionLeaders.completeSince; got != 1000 {
		t.Errorf("latest start time of a dropped status: %d, want 1000", got)
	}
	if _, ok := s.get(osprocess.ID{PID: 1}); ok {
		t.Error("leaders are remembered without a limit")
	}
	if n := len(s.sessionLeaders.exitByProc) + len(s.nonSessionLeaders.exitByProc); n != maxSessionLeaderStatuses+maxNonSessionLeaderStatuses {
		t.Errorf("%d statuses are kept, want %d", n, maxSessionLeaderStatuses+maxNonSessionLeaderStatuses)
	}
}
