package taskrunner

import "sync"

// runs records the processes of the task.
type runs struct {
	mu      sync.Mutex
	ended   bool // the last process was seen to exit, or was destroyed
	unknown bool // the exit of the last process was not seen
	lost    bool // an earlier process may be alive, although the task was started again
}

// allEnded reports whether no process of the task can be alive.
func (r *runs) allEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended && !r.lost
}

// noteStart records that the task may have another process from now on.
func (r *runs) noteStart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.unknown, r.lost = false, false, r.lost || r.unknown
}

// noteExit records the end of the last process; observed is false if its exit status is
// unknown.
func (r *runs) noteExit(observed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.unknown = observed, !observed
}

// noteDestroyed records that nothing is left of the last process, even if its exit
// status is unknown.
func (r *runs) noteDestroyed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.unknown = true, false
}
