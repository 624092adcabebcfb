package services

import "time"

// restartWatch decides by the check_restart rules when a check was unhealthy for too long. It has no clock and no timer: the
// checkRunner calls updateRestartDueTime at the returned time and after each result.
//
// The checkRunner arms the watch when the check's workload is registered. Results during the grace period are ignored. The first
// unhealthy result sets a deadline; if the check is still unhealthy then, a restart is due, and the watch disarms itself.
type restartWatch struct {
	isArmed      bool
	armedAt      time.Time // results of runs started before this time are for an earlier process
	graceEnd     time.Time // results before this time are ignored
	restartDueAt time.Time // time when a restart is due; zero unless the check is unhealthy
}

func (w *restartWatch) arm(now time.Time, r CheckRestart) {
	*w = restartWatch{isArmed: r.Limit > 0, armedAt: now, graceEnd: now.Add(r.Grace)}
}

func (w *restartWatch) disarm() { *w = restartWatch{} }

// updateRestartDueTime updates the deadline with the check's present state. It reports whether a restart is due. Otherwise
// nextCallAt is the time of the next required call; zero means after the next result.
func (w *restartWatch) updateRestartDueTime(now time.Time, unhealthy bool, checkInterval time.Duration, unhealthyLimit int) (due bool, nextCallAt time.Time) {
	switch {
	case !w.isArmed:
		return false, time.Time{}
	case now.Before(w.graceEnd):
		return false, w.graceEnd
	case !unhealthy:
		w.restartDueAt = time.Time{}
		return false, time.Time{}
	case w.restartDueAt.IsZero():
		w.restartDueAt = now.Add(checkInterval * time.Duration(unhealthyLimit-1)) // this unhealthy result is the first of unhealthyLimit results
	}
	if now.Before(w.restartDueAt) {
		return false, w.restartDueAt
	}
	w.disarm()
	return true, time.Time{}
}
