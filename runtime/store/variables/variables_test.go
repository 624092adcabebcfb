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

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func openVariables(t *testing.T) (*Variables, *store.Store) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(t.TempDir(), "state.db"), Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return New(s, hclog.NewNullLogger()), s
}

func testVariable(path string, items ...string) *api.Variable {
	v := &api.Variable{Namespace: "default", Path: path}
	if len(items) > 0 {
		v.Items = api.VariableItems{}
	}
	for i := 0; i+1 < len(items); i += 2 {
		v.Items[items[i]] = items[i+1]
	}
	return v
}

func (va *Variables) mustSucceed(t *testing.T) func(*api.Variable, error) *api.Variable {
	return func(v *api.Variable, err error) *api.Variable {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func expectConflict(t *testing.T, what, text string, err error) {
	t.Helper()
	var conflictErr *ConflictError
	if !errors.As(err, &conflictErr) || conflictErr.Text != text {
		t.Errorf("%s: error %v, want %q", what, err, text)
	}
}

func TestPutRejects(t *testing.T) {
	vs, s := openVariables(t)
	elsewhere := testVariable("p", "k", "v")
	elsewhere.Namespace = "*"
	for _, c := range []struct {
		name string
		v    *api.Variable
		want string // want is a prefix of the error
	}{
		{"no items", testVariable("p"), "variable missing required Items object"},
		{"a space in the path", testVariable("a b", "k", "v"), `invalid path "a b"`},
		{"no path", testVariable("", "k", "v"), `invalid path ""`},
		{"a path that is too long", testVariable(strings.Repeat("x", 129), "k", "v"), `invalid path "xxx`},
		{"a reserved path", testVariable("nomad/x", "k", "v"), `only paths at "nomad/jobs" or "nomad/job-templates"`},
		{"all of the reserved path", testVariable("nomad", "k", "v"), `only paths at "nomad/jobs" or "nomad/job-templates"`},
		{"no namespace", elsewhere, `invalid name "*"`},
		{"too much", testVariable("p", "key", strings.Repeat("s3cret", model.MaxVariableSize/5)), "the keys and values of a variable must not be longer than 65536 bytes in all"},
	} {
		_, err := vs.Put(t.Context(), c.v, nil)
		var invalidErr InvalidRequestError
		if !errors.As(err, &invalidErr) || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	for _, path := range []string{"nomad/jobs", "nomad/jobs/web/group/task", "nomad/job-templates/x", "nomads", "a/~b_c-1", strings.Repeat("x", 128)} {
		vs.mustSucceed(t)(vs.Put(t.Context(), testVariable(path, "k", "v"), nil))
	}
	if n := len(s.Snapshot().Variables(nil, "*", "")); n != 6 {
		t.Errorf("%d variables", n)
	}
}

func TestCheckAndSet(t *testing.T) {
	vs, s := openVariables(t)
	none := new(uint64(0))
	first := vs.mustSucceed(t)(vs.Put(t.Context(), testVariable("p", "n", "1"), none))
	if first.CreateIndex == 0 || first.CreateIndex != first.ModifyIndex || first.CreateTime != first.ModifyTime {
		t.Errorf("%+v", first.Metadata())
	}
	_, err := vs.Put(t.Context(), testVariable("p", "n", "2"), none)
	expectConflict(t, "there is one", indexConflictText, err)
	_, err = vs.Put(t.Context(), testVariable("q", "n", "2"), new(uint64(7)))
	expectConflict(t, "there is none", indexConflictText, err)
	second := vs.mustSucceed(t)(vs.Put(t.Context(), testVariable("p", "n", "2"), &first.ModifyIndex))
	if second.CreateIndex != first.CreateIndex || second.CreateTime != first.CreateTime || second.ModifyIndex <= first.ModifyIndex {
		t.Errorf("%+v after %+v", second.Metadata(), first.Metadata())
	}
	_, err = vs.Delete(t.Context(), "default", "p", &first.ModifyIndex)
	expectConflict(t, "it has changed", indexConflictText, err)
	var conflictErr *ConflictError
	if errors.As(err, &conflictErr); conflictErr.CurrentVariable.Items["n"] != "2" {
		t.Error("the conflict does not show what is there")
	}
	for _, check := range []ExpectedModifyIndex{&second.ModifyIndex, nil, none} { // the second deletion finds no variable
		if _, err := vs.Delete(t.Context(), "default", "p", check); err != nil {
			t.Error(err)
		}
	}
	if s.Snapshot().Variable(nil, "default", "p") != nil {
		t.Error("it is there")
	}
}

// Among many concurrent changes with the same index, one succeeds.
func TestConcurrentCheckAndSet(t *testing.T) {
	vs, _ := openVariables(t)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() { _, errs[i] = vs.Put(t.Context(), testVariable("p", "k", "v"), new(uint64(0))) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			expectConflict(t, "a loser", indexConflictText, err)
		}
	}
	if won != 1 {
		t.Errorf("%d have won", won)
	}
}

func TestLock(t *testing.T) {
	vs, s := openVariables(t)
	ctx, must := t.Context(), vs.mustSucceed(t)
	must(vs.Put(ctx, testVariable("p", "k", "before"), nil))
	mine := must(vs.AcquireLock(ctx, testVariable("p")))
	if mine.LockID() == "" || mine.Lock.TTL != "15s" || mine.Lock.LockDelay != "15s" || mine.Items["k"] != "before" {
		t.Fatalf("%+v", mine)
	}
	other := testVariable("p", "k", "other")
	_, err := vs.AcquireLock(ctx, other)
	expectConflict(t, "acquire of another", lockedConflictText, err)
	_, err = vs.Put(ctx, other, nil)
	expectConflict(t, "put of another", lockedConflictText, err)
	_, err = vs.Delete(ctx, "default", "p", nil)
	expectConflict(t, "delete", lockedConflictText, err)
	other.Lock = &api.VariableLock{ID: "guessed"}
	for name, do := range map[string]func() (*api.Variable, error){
		"release": func() (*api.Variable, error) { return vs.ReleaseLock(ctx, other) },
		"renew":   func() (*api.Variable, error) { return vs.RenewLock(ctx, other) },
		"put":     func() (*api.Variable, error) { return vs.Put(ctx, other, nil) },
	} {
		_, err := do()
		expectConflict(t, name+" with a guessed id", lockedConflictText, err)
	}
	if _, err := vs.AcquireLock(ctx, mine); err == nil || err.Error() != "variable already holds a lock" {
		t.Errorf("acquire of the holder: %v", err)
	}
	holder := testVariable("p", "k", "mine")
	holder.Lock = &api.VariableLock{ID: mine.LockID()}
	if v := must(vs.Put(ctx, holder, nil)); v.Items["k"] != "mine" || v.Lock.TTL != "15s" {
		t.Errorf("%+v", v)
	}
	index := s.Index()
	if v := must(vs.RenewLock(ctx, holder)); v.Items != nil || v.LockID() != mine.LockID() || s.Index() != index {
		t.Errorf("%+v at %d", v, s.Index())
	}
	if v := must(vs.ReleaseLock(ctx, &api.Variable{Namespace: "default", Path: "p", Lock: holder.Lock})); v.Lock != nil || v.Items["k"] != "mine" {
		t.Errorf("%+v", v)
	}
	for name, do := range map[string]func() (*api.Variable, error){
		"release":      func() (*api.Variable, error) { return vs.ReleaseLock(ctx, holder) },
		"renew":        func() (*api.Variable, error) { return vs.RenewLock(ctx, holder) },
		"renew of nil": func() (*api.Variable, error) { return vs.RenewLock(ctx, testVariable("nowhere")) },
	} {
		_, err := do()
		expectConflict(t, name+" without a lock", unlockedConflictText, err)
	}
	if v := must(vs.AcquireLock(ctx, testVariable("new", "k", "v"))); v.Items["k"] != "v" {
		t.Errorf("%+v", v)
	}
}

func TestLockTimes(t *testing.T) {
	vs, _ := openVariables(t)
	for _, c := range []struct {
		ttl, delay, want string
	}{
		{"9s", "", "lock TTL 9s: it must be between 10s and 24h0m0s"},
		{"25h", "", "lock TTL 25h: it must be between 10s and 24h0m0s"},
		{"x", "", `lock TTL: time: invalid duration "x"`},
		{"", "-1s", "lock LockDelay -1s: it must be between 0s and 24h0m0s"},
	} {
		v := testVariable("p")
		v.Lock = &api.VariableLock{TTL: c.ttl, LockDelay: c.delay}
		if _, err := vs.AcquireLock(t.Context(), v); err == nil || err.Error() != c.want {
			t.Errorf("TTL %q, delay %q: error %v, want %q", c.ttl, c.delay, err, c.want)
		}
	}
}

// A lock that is not renewed expires after its TTL; after the delay it can be acquired again.
func TestLockExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		vs, s := openVariables(t)
		must := vs.mustSucceed(t)
		var runningWG sync.WaitGroup
		ctx := t.Context()
		runningWG.Go(func() { vs.RunLockExpiration(ctx) })
		v := testVariable("p", "k", "v")
		v.Lock = &api.VariableLock{TTL: "10s", LockDelay: "5s"}
		mine := must(vs.AcquireLock(ctx, v))
		for range 3 { // a renewed lock cannot be acquired by another client
			time.Sleep(9 * time.Second)
			must(vs.RenewLock(ctx, mine))
		}
		time.Sleep(10 * time.Second)
		_, err := vs.RenewLock(ctx, mine)
		expectConflict(t, "renew after the TTL", unlockedConflictText, err)
		_, err = vs.AcquireLock(ctx, testVariable("p"))
		expectConflict(t, "acquire within the delay", lockedConflictText, err)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := s.Snapshot().Variable(nil, "default", "p"); got.Lock != nil || got.Items["k"] != "v" || got.ModifyIndex == mine.ModifyIndex {
			t.Fatalf("after the delay: %+v", got)
		}
		// The end of an old lease does not affect the next holder's lock.
		next := must(vs.AcquireLock(ctx, testVariable("p")))
		must(vs.ReleaseLock(ctx, next))
		next = must(vs.AcquireLock(ctx, testVariable("p")))
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if got := s.Snapshot().Variable(nil, "default", "p"); got.LockID() != next.LockID() {
			t.Error("the lock of the next holder has gone")
		}
	})
}

// After an agent restart, locks get their full TTL again, and then expire.
func TestLockExpiresAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, s := openVariables(t)
		mine := before.mustSucceed(t)(before.AcquireLock(t.Context(), testVariable("p")))
		time.Sleep(14 * time.Second)
		vs := New(s, hclog.NewNullLogger())
		go vs.RunLockExpiration(t.Context())
		synctest.Wait()
		time.Sleep(14 * time.Second)
		vs.mustSucceed(t)(vs.RenewLock(t.Context(), mine))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if s.Snapshot().Variable(nil, "default", "p").Lock != nil {
			t.Error("it is locked for ever")
		}
	})
}
