package localnode

import (
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// pathTimeout is how long a check of paths waits for the kernel. A local disk answers within milliseconds.
const pathTimeout = time.Second

// errPathTimeout is the result for a path whose check has not ended within pathTimeout.
var errPathTimeout = fmt.Errorf("its file system has not answered within %v", pathTimeout)

// pathChecker finds out where paths lead. The system call for a path of a network file system whose server does not
// answer blocks, and cannot be cancelled, so each runs in a goroutine of its own. There is at most one for each path.
type pathChecker struct {
	locate func(path string) (*safepath.Location, error) // safepath.Locate, which tests replace
	// onLateAnswer is called after a check that was reported with errPathTimeout has ended. It must not block.
	onLateAnswer func()

	mu      sync.Mutex
	pending map[string]*pathCheck
}

// pathResult is the location of a path, or the reason why the path is not usable.
type pathResult struct {
	location *safepath.Location
	err      error
}

// pathCheck is the check of one path.
type pathCheck struct {
	done   chan struct{} // closed when result is set
	result pathResult

	late bool // check has returned errPathTimeout for the path; guarded by pathChecker.mu
}

func newPathChecker(onLateAnswer func()) *pathChecker {
	return &pathChecker{locate: safepath.Locate, onLateAnswer: onLateAnswer, pending: map[string]*pathCheck{}}
}

// check returns the results of paths. It blocks for pathTimeout at most, and
// does not wait for a path that was too late before and has not answered since.
func (c *pathChecker) check(paths []string) map[string]pathResult {
	checks := make(map[string]*pathCheck, len(paths))
	var toWait []*pathCheck
	for _, path := range paths {
		p, late := c.start(path)
		checks[path] = p
		if !late {
			toWait = append(toWait, p)
		}
	}
	waitAll(toWait, pathTimeout)
	results := make(map[string]pathResult, len(checks))
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, p := range checks {
		select {
		case <-p.done:
			results[path] = p.result
		default:
			p.late = true
			results[path] = pathResult{err: errPathTimeout}
		}
	}
	return results
}

// waitAll waits until all checks are done, or the timeout has passed.
func waitAll(checks []*pathCheck, timeout time.Duration) {
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

// start starts the check of a path unless one is in progress. late reports that it was too late for an earlier call of check.
func (c *pathChecker) start(path string) (p *pathCheck, late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pending[path]; p != nil {
		return p, p.late
	}
	p = &pathCheck{done: make(chan struct{})}
	c.pending[path] = p
	go func() { // no function waits for this goroutine, because the file system may never answer
		location, err := c.locate(path)
		c.mu.Lock()
		p.result = pathResult{location, err}
		close(p.done)
		delete(c.pending, path)
		late := p.late
		c.mu.Unlock()
		if late {
			c.onLateAnswer()
		}
	}()
	return p, false
}
