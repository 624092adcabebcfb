package template

import (
	"context"
	"reflect"
	"sync"
	"time"
)

// source names something that a template reads and that may change.
type source struct{ kind, name string }

// String is how Nomad names what it waits for.
func (s source) String() string { return s.kind + "(" + s.name + ")" }

// fetch reads a source, and waits until its index is higher than after, unless
// that is 0. A source that is missing has a nil value.
type fetch func(ctx context.Context, after uint64) (value any, index uint64, err error)

// watcher keeps what the templates of one task have read, and follows it.
type watcher struct {
	changed chan struct{} // has an element when something has changed
	wg      sync.WaitGroup

	mu    sync.Mutex
	known map[source]*dependency
}

type dependency struct {
	fetch fetch
	value any
	turn  int // counts the values
	index uint64
	stop  context.CancelFunc // nil: not followed
}

func newWatcher() *watcher {
	return &watcher{changed: make(chan struct{}, 1), known: map[source]*dependency{}}
}

// get returns the value of a source, and which one it is. It is read the first
// time.
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

// current reports whether the sources have the values that were seen.
func (f *watcher) current(seen map[source]int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s, turn := range seen {
		if r := f.known[s]; r == nil || r.turn != turn {
			return false
		}
	}
	return true
}

// follow keeps up with the sources that are used, and forgets the others.
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

// keepUp reads a source again and again, each time when it has changed. One that
// cannot be read keeps its value: the task has what it needs to go on.
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
			f.poke()
		}
	}
}

// poke lets the templates be rendered again.
func (f *watcher) poke() {
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
