package template

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// dataSource identifies data that a template reads and that can change, such as
// a variable.
type dataSource struct{ kind, name string }

// String returns the name of the source in Nomad's messages about missing data.
func (s dataSource) String() string { return s.kind + "(" + s.name + ")" }

// blockingFetchFunc reads a source, and blocks until its index is higher than afterIndex, unless
// afterIndex is 0. The value of a missing source is nil.
type blockingFetchFunc func(ctx context.Context, afterIndex uint64) (value any, index uint64, err error)

// sourceWatcher caches the sources that the templates of one task have read, and keeps
// them up to date.
type sourceWatcher struct {
	changeNotice chan struct{} // receives an element after the value of a source has changed
	pollers      sync.WaitGroup

	mu             sync.Mutex
	watchedSources map[dataSource]*watchedSource
}

type watchedSource struct {
	fetch            blockingFetchFunc
	value            any
	changeCount      int // number of changes of the value since the first read
	indexOfLastFetch uint64
	stopPolling      context.CancelFunc // nil while no goroutine polls the source
}

func newSourceWatcher() *sourceWatcher {
	return &sourceWatcher{changeNotice: make(chan struct{}, 1), watchedSources: map[dataSource]*watchedSource{}}
}

// getOrFetch returns the value of a source, and its change count. The first call for a
// source fetches the value.
func (w *sourceWatcher) getOrFetch(ctx context.Context, s dataSource, read blockingFetchFunc) (value any, changeCount int, err error) {
	w.mu.Lock()
	known := w.watchedSources[s]
	if known != nil {
		defer w.mu.Unlock()
		return known.value, known.changeCount, nil
	}
	w.mu.Unlock()
	value, index, err := read(ctx, 0)
	if err != nil {
		return nil, 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watchedSources[s] = &watchedSource{fetch: read, value: value, indexOfLastFetch: index}
	return value, 0, nil
}

// areUnchanged reports whether each source in changeCounts still has the change count that the map
// contains for the source.
func (w *sourceWatcher) areUnchanged(changeCounts map[dataSource]int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, changeCount := range changeCounts {
		if r := w.watchedSources[s]; r == nil || r.changeCount != changeCount {
			return false
		}
	}
	return true
}

// pollOnlySources starts polling the sources in used, and removes all other
// sources.
func (w *sourceWatcher) pollOnlySources(ctx context.Context, used map[dataSource]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, r := range w.watchedSources {
		switch _, used := used[s]; {
		case used && r.stopPolling == nil:
			var pollCtx context.Context
			pollCtx, r.stopPolling = context.WithCancel(ctx)
			w.pollers.Go(func() { w.pollSource(pollCtx, r) })
		case !used:
			if r.stopPolling != nil {
				r.stopPolling()
			}
			delete(w.watchedSources, s)
		}
	}
}

// pollSource fetches the value of a source whenever its index changes. After an
// error the source keeps its old value, so that the task can continue.
func (w *sourceWatcher) pollSource(ctx context.Context, r *watchedSource) {
	const minDelay, maxDelay = 250 * time.Millisecond, time.Minute
	delay, after := minDelay, r.indexOfLastFetch
	for {
		value, index, err := r.fetch(ctx, max(after, 1))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if wait.Sleep(ctx, delay) != nil {
				return
			}
			delay = min(2*delay, maxDelay)
			continue
		}
		delay, after = minDelay, index
		w.mu.Lock()
		same := reflect.DeepEqual(value, r.value)
		r.indexOfLastFetch = index
		if !same {
			r.value, r.changeCount = value, r.changeCount+1
		}
		w.mu.Unlock()
		if !same {
			w.triggerRender()
		}
	}
}

// triggerRender triggers a rendering of the task's templates.
func (w *sourceWatcher) triggerRender() {
	select {
	case w.changeNotice <- struct{}{}:
	default:
	}
}
