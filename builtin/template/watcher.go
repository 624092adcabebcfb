package template

import (
	"context"
	"reflect"
	"sync"
	"time"
)

// source identifies changeable data that a template reads.
type source struct{ kind, name string }

// String returns the name that Nomad uses for missing data.
func (s source) String() string { return s.kind + "(" + s.name + ")" }

// fetch reads a source, and blocks until its index is higher than after, unless
// after is 0. The value of a missing source is nil.
type fetch func(ctx context.Context, after uint64) (value any, index uint64, err error)

// watcher caches the sources that the templates of one task have read, and keeps
// them up to date.
type watcher struct {
	changed chan struct{} // has an element after a change
	wg      sync.WaitGroup

	mu    sync.Mutex
	known map[source]*dependency
}

type dependency struct {
	fetch fetch
	value any
	turn  int // number of changes of the value since the first read
	index uint64
	stop  context.CancelFunc // nil means not followed
}

func newWatcher() *watcher {
	return &watcher{changed: make(chan struct{}, 1), known: map[source]*dependency{}}
}

// get returns the value of a source, and its turn. The first call reads the
// source.
func (f *watcher) get(ctx context.Context, s source, read fetch) (value any, turn int, err error) {
	f.mu.Lock()
	known := f.known[s]
	if known != nil {
		defer f.mu.Unlock()
		return known.value, known.turn, nil
	}
	f.mu.Unlock()
	value, index, err := read(ctx, 0)
	if err != nil {
		return nil, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[s] = &dependency{fetch: read, value: value, index: index}
	return value, 0, nil
}

// isCurrent reports whether no source in seen has changed since the turn that
// seen has for it.
func (f *watcher) isCurrent(seen map[source]int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s, turn := range seen {
		if r := f.known[s]; r == nil || r.turn != turn {
			return false
		}
	}
	return true
}

// follow keeps the used sources up to date, and drops all other sources.
func (f *watcher) follow(ctx context.Context, used map[source]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s, r := range f.known {
		switch _, used := used[s]; {
		case used && r.stop == nil:
			var live context.Context
			live, r.stop = context.WithCancel(ctx)
			f.wg.Go(func() { f.keepUp(live, r) })
		case !used:
			if r.stop != nil {
				r.stop()
			}
			delete(f.known, s)
		}
	}
}

// keepUp reads a source whenever it has changed. After an error the source keeps
// its value, so that the task can continue.
func (f *watcher) keepUp(ctx context.Context, r *dependency) {
	const first, longest = 250 * time.Millisecond, time.Minute
	delay, after := first, r.index
	for {
		value, index, err := r.fetch(ctx, max(after, 1))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if sleep(ctx, delay) != nil {
				return
			}
			delay = min(2*delay, longest)
			continue
		}
		delay, after = first, index
		f.mu.Lock()
		same := reflect.DeepEqual(value, r.value)
		r.index = index
		if !same {
			r.value, r.turn = value, r.turn+1
		}
		f.mu.Unlock()
		if !same {
			f.notify()
		}
	}
}

// notify makes the task render its templates again.
func (f *watcher) notify() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
