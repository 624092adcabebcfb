package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestCouplingsAreCounted(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"go.mod": "module example.org/m\n\ngo 1.26.0\n",
		"heart/heart.go": `package heart

import (
	"context"
	"sync"
	"sync/atomic"

	"example.org/m/tracker"
)

var mu sync.Mutex

type names []string

type list []list

type Runner struct {
	mu       sync.RWMutex
	cancel   context.CancelFunc
	hooks    map[string]func()
	tracker  *tracker.Tracker
	state    atomic.Pointer[state]
	waiter   waiter
	parent   *Runner // a reference to itself does not count
	names    names
	list     list
	done     chan struct{}
	pending  struct {
		states []state
		onEnd  func()
	}
}

type state struct{ text string }

type alias = state

type waiter interface{ wait(func()) }

type callback func(state)

type calls struct {
	callback
	locks map[string]*sync.Mutex
}
`,
		"heart/heart_test.go": "package heart\n\ntype fake struct{ f func() }\n",
		"tracker/tracker.go":  "package tracker\n\ntype Tracker struct{ N int }\n",
	} {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const both = `heart/heart.go:11: mutex: mu
heart/heart.go:18: mutex: Runner.mu
heart/heart.go:19: function field: Runner.cancel
heart/heart.go:20: function field: Runner.hooks
heart/heart.go:21: reference: Runner.tracker
heart/heart.go:22: reference: Runner.state
heart/heart.go:23: reference: Runner.waiter
heart/heart.go:29: reference: Runner.pending.states
heart/heart.go:30: function field: Runner.pending.onEnd
heart/heart.go:43: function field: calls.callback
heart/heart.go:44: mutex: calls.locks
  structs  mutexes  function fields  references                package
        3        3                4           4    example.org/m/heart
        1        0                0           0  example.org/m/tracker
        4        3                4           4                  total
`
	const one = `  structs  mutexes  function fields  references              package
        3        3                4           3  example.org/m/heart
        3        3                4           3                total
`
	for _, c := range []struct {
		list     bool
		patterns []string
		want     string
	}{
		{true, []string{"./..."}, both},
		{false, []string{"./heart"}, one},
	} {
		var out bytes.Buffer
		if err := run(root, c.list, c.patterns, &out); err != nil || out.String() != c.want {
			t.Errorf("%v: %v, got\n%s\nwant\n%s", c.patterns, err, out.String(), c.want)
		}
	}
	if err := run(root, false, []string{"./missing"}, &bytes.Buffer{}); err == nil {
		t.Error("a package that does not exist gives no error")
	}
}
