package localnode

import (
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// pathTimeout is how long a check of paths waits for the kernel. A local disk answers within milliseconds.
const pathTimeout = time.Second

// errPathTimeout is the result of checkPaths for a path whose check has not ended within pathTimeout.
var errPathTimeout = fmt.Errorf("its file system has not answered within %v", pathTimeout)

// pathChecker resolves the symbolic links of paths with a timeout. The system call for a path on a network file system
// blocks if the server does not answer, and cannot be cancelled. Therefore each check runs in a separate goroutine, at most
// one for each path.
type pathChecker struct {
	locate func(path string) (*safepath.Location, error) // safepath.Locate, or a fake in tests
	// onLateAnswer is called after a check that was reported with errPathTimeout has ended. It must not block.
	onLateAnswer func()

	mu            sync.Mutex
	pendingChecks map[string]*pathCheck
}

// pathResult is the location of a path, or the reason why the path is not usable.
type pathResult struct {
	location       *safepath.Location
	unusableReason error
}

// pathCheck is the check of one path.
type pathCheck struct {
	done   chan struct{} // closed when result is set
	result pathResult

	hasTimedOut bool // checkPaths has returned errPathTimeout for the path; guarded by pathChecker.mu
}

func newPathChecker(onLateAnswer func()) *pathChecker {
	return &pathChecker{locate: safepath.Locate, onLateAnswer: onLateAnswer, pendingChecks: map[string]*pathCheck{}}
}

// checkPaths returns the results for paths; the keys are the paths. It blocks for pathTimeout at most. It does not wait for a
// check that an earlier call has started and reported as errPathTimeout.
func (c *pathChecker) checkPaths(paths []string) map[string]pathResult {
	checks := make(map[string]*pathCheck, len(paths))
	var toWait []*pathCheck
	for _, path := range paths {
		p, timedOut := c.startCheck(path)
		checks[path] = p
		if !timedOut {
			toWait = append(toWait, p)
		}
	}
	waitForChecks(toWait, pathTimeout)
	results := make(map[string]pathResult, len(checks))
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, p := range checks {
		select {
		case <-p.done:
			results[path] = p.result
		default:
			p.hasTimedOut = true
			results[path] = pathResult{unusableReason: errPathTimeout}
		}
	}
	return results
}

// waitForChecks waits until all checks are done, or the timeout has passed.
func waitForChecks(checks []*pathCheck, timeout time.Duration) {
	expired := time.NewTimer(timeout)
	defer expired.Stop()
	for _, p := range checks {
		select {
		case <-p.done:
		case <-expired.C:
			return
		}
	}
}

// startCheck starts the check of a path unless one is in progress. timedOut reports that an earlier call of checkPaths has returned
// errPathTimeout for the check.
func (c *pathChecker) startCheck(path string) (p *pathCheck, timedOut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pendingChecks[path]; p != nil {
		return p, p.hasTimedOut
	}
	p = &pathCheck{done: make(chan struct{})}
	c.pendingChecks[path] = p
	go func() { // no function waits for this goroutine, because the file system may never answer
		location, err := c.locate(path)
		c.mu.Lock()
		p.result = pathResult{location, err}
		close(p.done)
		delete(c.pendingChecks, path)
		late := p.hasTimedOut
		c.mu.Unlock()
		if late {
			c.onLateAnswer()
		}
	}()
	return p, false
}
