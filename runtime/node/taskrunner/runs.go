package taskrunner

import "sync"

// processTracker records whether processes of the task can still be alive. Its methods may be called concurrently.
type processTracker struct {
	mu                   sync.Mutex
	lastProcessEnded     bool // the exit of the last process was observed, or the process was destroyed
	lastExitUnobserved   bool // the last process has ended with an unknown exit status
	earlierProcessMayRun bool // a process before the last one ended with an unknown exit status, and was not destroyed
}

// allProcessesEnded reports whether no process of the task can be alive.
func (p *processTracker) allProcessesEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastProcessEnded && !p.earlierProcessMayRun
}

// recordStartAttempt records that the driver may start a new process of the task from now on.
func (p *processTracker) recordStartAttempt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastProcessEnded, p.lastExitUnobserved, p.earlierProcessMayRun = false, false, p.earlierProcessMayRun || p.lastExitUnobserved
}

// recordProcessEnd records the end of the last process; observed is false if its exit status is
// unknown.
func (p *processTracker) recordProcessEnd(observed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastProcessEnded, p.lastExitUnobserved = observed, !observed
}

// recordProcessDestroyed records that the last process was destroyed, so it cannot be alive even if its exit status is unknown.
func (p *processTracker) recordProcessDestroyed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastProcessEnded, p.lastExitUnobserved = true, false
}
