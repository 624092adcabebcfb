package variables

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func open(t *testing.T) (*Variables, *store.Store) {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "state.db"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return New(s, hclog.NewNullLogger()), s
}

func at(path string, items ...string) *api.Variable {
	v := &api.Variable{Namespace: "default", Path: path}
	if len(items) > 0 {
		v.Items = api.VariableItems{}
	}
	for i := 0; i+1 < len(items); i += 2 {
		v.Items[items[i]] = items[i+1]
	}
	return v
}

func (vs *Variables) must(t *testing.T) func(*api.Variable, error) *api.Variable {
	return func(v *api.Variable, err error) *api.Variable {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func conflicts(t *testing.T, what, text string, err error) {
	t.Helper()
	var conflict *Conflict
	if !errors.As(err, &conflict) || conflict.Text != text {
		t.Errorf("%s: error %v, want %q", what, err, text)
	}
}

func TestPutRefuses(t *testing.T) {
	vs, s := open(t)
	elsewhere := at("p", "k", "v")
	elsewhere.Namespace = "*"
	for _, c := range []struct {
		name string
		v    *api.Variable
		want string // want is a prefix of the error
	}{
		{"no items", at("p"), "variable missing required Items object"},
		{"a space in the path", at("a b", "k", "v"), `invalid path "a b"`},
		{"no path", at("", "k", "v"), `invalid path ""`},
		{"a path that is too long", at(strings.Repeat("x", 129), "k", "v"), `invalid path "xxx`},
		{"a reserved path", at("nomad/x", "k", "v"), `only paths at "nomad/jobs" or "nomad/job-templates"`},
		{"all of the reserved path", at("nomad", "k", "v"), `only paths at "nomad/jobs" or "nomad/job-templates"`},
		{"no namespace", elsewhere, `invalid name "*"`},
		{"too much", at("p", "key", strings.Repeat("s3cret", model.MaxVariable/5)), "the keys and values of a variable must not be longer than 65536 bytes in all"},
	} {
		_, err := vs.Put(t.Context(), c.v, nil)
		var invalid Invalid
		if !errors.As(err, &invalid) || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	for _, path := range []string{"nomad/jobs", "nomad/jobs/web/group/task", "nomad/job-templates/x", "nomads", "a/~b_c-1", strings.Repeat("x", 128)} {
		vs.must(t)(vs.Put(t.Context(), at(path, "k", "v"), nil))
	}
	if n := len(s.Snapshot().Variables(nil, "*", "")); n != 6 {
		t.Errorf("%d variables", n)
	}
}

func TestCheckAndSet(t *testing.T) {
	vs, s := open(t)
	none := new(uint64(0))
	first := vs.must(t)(vs.Put(t.Context(), at("p", "n", "1"), none))
	if first.CreateIndex == 0 || first.CreateIndex != first.ModifyIndex || first.CreateTime != first.ModifyTime {
		t.Errorf("%+v", first.Metadata())
	}
	_, err := vs.Put(t.Context(), at("p", "n", "2"), none)
	conflicts(t, "there is one", textIndex, err)
	_, err = vs.Put(t.Context(), at("q", "n", "2"), new(uint64(7)))
	conflicts(t, "there is none", textIndex, err)
	second := vs.must(t)(vs.Put(t.Context(), at("p", "n", "2"), &first.ModifyIndex))
	if second.CreateIndex != first.CreateIndex || second.CreateTime != first.CreateTime || second.ModifyIndex <= first.ModifyIndex {
		t.Errorf("%+v after %+v", second.Metadata(), first.Metadata())
	}
	_, err = vs.Delete(t.Context(), "default", "p", &first.ModifyIndex)
	conflicts(t, "it has changed", textIndex, err)
	var conflict *Conflict
	if errors.As(err, &conflict); conflict.Current.Items["n"] != "2" {
		t.Error("the conflict does not show what is there")
	}
	for _, check := range []Check{&second.ModifyIndex, nil, none} { // the second deletion finds no variable
		if _, err := vs.Delete(t.Context(), "default", "p", check); err != nil {
			t.Error(err)
		}
	}
	if s.Snapshot().Variable(nil, "default", "p") != nil {
		t.Error("it is there")
	}
}

// Of many concurrent changes with the same index, one succeeds.
func TestCheckAndSetAtOnce(t *testing.T) {
	vs, _ := open(t)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() { _, errs[i] = vs.Put(t.Context(), at("p", "k", "v"), new(uint64(0))) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			conflicts(t, "a loser", textIndex, err)
		}
	}
	if won != 1 {
		t.Errorf("%d have won", won)
	}
}

func TestLock(t *testing.T) {
	vs, s := open(t)
	ctx, must := t.Context(), vs.must(t)
	must(vs.Put(ctx, at("p", "k", "before"), nil))
	mine := must(vs.Acquire(ctx, at("p")))
	if mine.LockID() == "" || mine.Lock.TTL != "15s" || mine.Lock.LockDelay != "15s" || mine.Items["k"] != "before" {
		t.Fatalf("%+v", mine)
	}
	other := at("p", "k", "other")
	_, err := vs.Acquire(ctx, other)
	conflicts(t, "acquire of another", textLocked, err)
	_, err = vs.Put(ctx, other, nil)
	conflicts(t, "put of another", textLocked, err)
	_, err = vs.Delete(ctx, "default", "p", nil)
	conflicts(t, "delete", textLocked, err)
	other.Lock = &api.VariableLock{ID: "guessed"}
	for name, do := range map[string]func() (*api.Variable, error){
		"release": func() (*api.Variable, error) { return vs.Release(ctx, other) },
		"renew":   func() (*api.Variable, error) { return vs.Reset(ctx, other) },
		"put":     func() (*api.Variable, error) { return vs.Put(ctx, other, nil) },
	} {
		_, err := do()
		conflicts(t, name+" with a guessed id", textLocked, err)
	}
	if _, err := vs.Acquire(ctx, mine); err == nil || err.Error() != "variable already holds a lock" {
		t.Errorf("acquire of the holder: %v", err)
	}
	holder := at("p", "k", "mine")
	holder.Lock = &api.VariableLock{ID: mine.LockID()}
	if v := must(vs.Put(ctx, holder, nil)); v.Items["k"] != "mine" || v.Lock.TTL != "15s" {
		t.Errorf("%+v", v)
	}
	index := s.Index()
	if v := must(vs.Reset(ctx, holder)); v.Items != nil || v.LockID() != mine.LockID() || s.Index() != index {
		t.Errorf("%+v at %d", v, s.Index())
	}
	if v := must(vs.Release(ctx, &api.Variable{Namespace: "default", Path: "p", Lock: holder.Lock})); v.Lock != nil || v.Items["k"] != "mine" {
		t.Errorf("%+v", v)
	}
	for name, do := range map[string]func() (*api.Variable, error){
		"release":      func() (*api.Variable, error) { return vs.Release(ctx, holder) },
		"renew":        func() (*api.Variable, error) { return vs.Reset(ctx, holder) },
		"renew of nil": func() (*api.Variable, error) { return vs.Reset(ctx, at("nowhere")) },
	} {
		_, err := do()
		conflicts(t, name+" without a lock", textUnlocked, err)
	}
	if v := must(vs.Acquire(ctx, at("new", "k", "v"))); v.Items["k"] != "v" {
		t.Errorf("%+v", v)
	}
}

func TestLockTimes(t *testing.T) {
	vs, _ := open(t)
	for _, c := range []struct {
		ttl, delay, want string
	}{
		{"9s", "", "lock TTL 9s: it must be between 10s and 24h0m0s"},
		{"25h", "", "lock TTL 25h: it must be between 10s and 24h0m0s"},
		{"x", "", `lock TTL: time: invalid duration "x"`},
		{"", "-1s", "lock LockDelay -1s: it must be between 0s and 24h0m0s"},
	} {
		v := at("p")
		v.Lock = &api.VariableLock{TTL: c.ttl, LockDelay: c.delay}
		if _, err := vs.Acquire(t.Context(), v); err == nil || err.Error() != c.want {
			t.Errorf("TTL %q, delay %q: error %v, want %q", c.ttl, c.delay, err, c.want)
		}
	}
}

// A lock that is not renewed expires after its TTL; after the delay it can be acquired
// again.
func TestLockEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		vs, s := open(t)
		must := vs.must(t)
		var running sync.WaitGroup
		ctx := t.Context()
		running.Go(func() { vs.Run(ctx) })
		v := at("p", "k", "v")
		v.Lock = &api.VariableLock{TTL: "10s", LockDelay: "5s"}
		mine := must(vs.Acquire(ctx, v))
		for range 3 { // a renewed lock cannot be acquired
			time.Sleep(9 * time.Second)
			must(vs.Reset(ctx, mine))
		}
		time.Sleep(10 * time.Second)
		_, err := vs.Reset(ctx, mine)
		conflicts(t, "renew after the TTL", textUnlocked, err)
		_, err = vs.Acquire(ctx, at("p"))
		conflicts(t, "acquire within the delay", textLocked, err)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := s.Snapshot().Variable(nil, "default", "p"); got.Lock != nil || got.Items["k"] != "v" || got.ModifyIndex == mine.ModifyIndex {
			t.Fatalf("after the delay: %+v", got)
		}
		// The end of an old lease does not affect the lock of the next holder.
		next := must(vs.Acquire(ctx, at("p")))
		must(vs.Release(ctx, next))
		next = must(vs.Acquire(ctx, at("p")))
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if got := s.Snapshot().Variable(nil, "default", "p"); got.LockID() != next.LockID() {
			t.Error("the lock of the next holder has gone")
		}
	})
}

// After a restart of the agent, locks get their whole TTL again, and expire.
func TestLockEndsAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, s := open(t)
		mine := before.must(t)(before.Acquire(t.Context(), at("p")))
		time.Sleep(14 * time.Second)
		vs := New(s, hclog.NewNullLogger())
		go vs.Run(t.Context())
		synctest.Wait()
		time.Sleep(14 * time.Second)
		vs.must(t)(vs.Reset(t.Context(), mine))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if s.Snapshot().Variable(nil, "default", "p").Lock != nil {
			t.Error("it is locked for ever")
		}
	})
}
