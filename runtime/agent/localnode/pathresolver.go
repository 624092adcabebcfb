package localnode

import (
	"fmt"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// pathTimeout is how long resolvePathsWithTimeout waits for the kernel. A local disk answers within milliseconds.
const pathTimeout = time.Second

// errPathTimeout is the result of resolvePathsWithTimeout for a path not resolved within pathTimeout.
var errPathTimeout = fmt.Errorf("its file system has not answered within %v", pathTimeout)

// pathResolver resolves paths' symbolic links with a timeout. The system call for a path on a network file system blocks if the
// server does not answer, and cannot be cancelled. Therefore each resolution runs in a separate goroutine, at most one for each
// path.
type pathResolver struct {
	locate func(path string) (*safepath.Location, error) // safepath.Locate, or a fake in tests
	// onLateResolution is called after a resolution reported with errPathTimeout has ended. It must not block.
	onLateResolution func()

	mu                      sync.Mutex
	pendingResolutionByPath map[string]*pathResolution
}

// pathResult is a path's location, or the reason why the path is not usable.
type pathResult struct {
	location       *safepath.Location
	unusableReason error
}

// pathResolution is one path's resolution.
type pathResolution struct {
	done   chan struct{} // closed when result is set
	result pathResult

	hasTimedOut bool // resolvePathsWithTimeout has returned errPathTimeout for the path; guarded by pathResolver.mu
}

func newPathResolver(onLateResolution func()) *pathResolver {
	return &pathResolver{locate: safepath.Locate, onLateResolution: onLateResolution, pendingResolutionByPath: map[string]*pathResolution{}}
}

// resolvePathsWithTimeout returns the results for paths; the keys are the paths. It blocks for pathTimeout at most. It does not
// wait for a resolution already reported as errPathTimeout by an earlier call.
func (c *pathResolver) resolvePathsWithTimeout(paths []string) map[string]pathResult {
	resolutions := make(map[string]*pathResolution, len(paths))
	var toWait []*pathResolution
	for _, path := range paths {
		p, timedOut := c.startOrJoinResolution(path)
		resolutions[path] = p
		if !timedOut {
			toWait = append(toWait, p)
		}
	}
	waitForResolutions(toWait, pathTimeout)
	results := make(map[string]pathResult, len(resolutions))
	c.mu.Lock()
	defer c.mu.Unlock()
	for path, p := range resolutions {
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

// waitForResolutions waits until all resolutions are done, or the timeout has passed.
func waitForResolutions(resolutions []*pathResolution, timeout time.Duration) {
	expired := time.NewTimer(timeout)
	defer expired.Stop()
	for _, p := range resolutions {
		select {
		case <-p.done:
		case <-expired.C:
			return
		}
	}
}

// startOrJoinResolution starts a path's resolution unless one is in progress. timedOut reports that an earlier
// resolvePathsWithTimeout call has returned errPathTimeout for the resolution.
func (c *pathResolver) startOrJoinResolution(path string) (p *pathResolution, timedOut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pendingResolutionByPath[path]; p != nil {
		return p, p.hasTimedOut
	}
	p = &pathResolution{done: make(chan struct{})}
	c.pendingResolutionByPath[path] = p
	go func() { // no function waits for this goroutine, because the file system may never answer
		location, err := c.locate(path)
		c.mu.Lock()
		p.result = pathResult{location, err}
		close(p.done)
		delete(c.pendingResolutionByPath, path)
		late := p.hasTimedOut
		c.mu.Unlock()
		if late {
			c.onLateResolution()
		}
	}()
	return p, false
}
