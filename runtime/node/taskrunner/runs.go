package taskrunner

import "sync"

// processTracker records the processes of the task.
type processTracker struct {
	mu                   sync.Mutex
	lastProcessEnded     bool // the last process of the task was seen to exit, or was destroyed
	lastExitUnobserved   bool // the exit of the last process was not seen
	earlierProcessMayRun bool // a process before the last one may be alive, although the task was started again
}

// allEnded reports whether no process of the task can be alive.
func (r *processTracker) allEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastProcessEnded && !r.earlierProcessMayRun
}

// noteStart records that the task may have another process from now on.
func (r *processTracker) noteStart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastProcessEnded, r.lastExitUnobserved, r.earlierProcessMayRun = false, false, r.earlierProcessMayRun || r.lastExitUnobserved
}

// noteExit records the end of the last process; observed is false if its exit status is
// unknown.
func (r *processTracker) noteExit(observed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastProcessEnded, r.lastExitUnobserved = observed, !observed
}

// noteDestroyed records that nothing is left of the last process, even if its exit
// status is unknown.
func (r *processTracker) noteDestroyed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastProcessEnded, r.lastExitUnobserved = true, false
}
