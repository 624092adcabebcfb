package services

import "time"

// restartWatch decides when a check has been unhealthy for too long. It is a
// value without clock or timer: whoever holds it looks when Next says so, and
// after each result.
//
// It is armed when the workload of the check is registered. Until the grace
// period is over nothing counts. The first time that the check is seen
// unhealthy sets a deadline; if it is unhealthy still when that comes, the
// workload is to be restarted, and the watch is over until it is armed again.
type restartWatch struct {
	armed    bool
	since    time.Time // what was found in an earlier run is about another process
	grace    time.Time // nothing counts before
	deadline time.Time // zero unless the check is unhealthy
}

func (w *restartWatch) arm(now time.Time, r Restart) {
	*w = restartWatch{armed: r.Limit > 0, since: now, grace: now.Add(r.Grace)}
}

func (w *restartWatch) disarm() { *w = restartWatch{} }

// look takes note of what the check is now. It says whether the restart is due,
// and else when to look again: zero if only another result can matter.
func (w *restartWatch) look(now time.Time, unhealthy bool, interval time.Duration, limit int) (due bool, next time.Time) {
	switch {
	case !w.armed:
		return false, time.Time{}
	case now.Before(w.grace):
		return false, w.grace
	case !unhealthy:
		w.deadline = time.Time{}
		return false, time.Time{}
	case w.deadline.IsZero():
		w.deadline = now.Add(interval * time.Duration(limit-1))
	}
	if now.Before(w.deadline) {
		return false, w.deadline
	}
	w.disarm()
	return true, time.Time{}
}
