package workload

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// fakeVariable is a variable on the fake servers.
type fakeVariable struct {
	mu      sync.Mutex
	items   map[string]string // nil if it does not exist
	index   uint64
	err     error
	changed chan struct{}
	blocked int // calls waiting for a change
}

func newFakeVariable(value string) *fakeVariable {
	return &fakeVariable{items: map[string]string{"k": value}, index: 20, changed: make(chan struct{})}
}

func (f *fakeVariable) set(index uint64, items map[string]string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index, f.items, f.err = index, items, err
	close(f.changed)
	f.changed = make(chan struct{})
}

// answer answers Variables.Read as servers do.
func (f *fakeVariable) answer(ctx context.Context, _ string, request, response any) error {
	r, out := request.(*protocol.ReadVariableRequest), response.(*protocol.ReadVariableResponse)
	timeout := time.NewTimer(5 * time.Minute)
	defer timeout.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for over := false; f.err == nil && r.MinQueryIndex > 0 && f.index <= r.MinQueryIndex && !over; {
		changed := f.changed
		f.blocked++
		f.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-timeout.C:
			over = true
		case <-ctx.Done():
			err = ctx.Err()
		}
		f.mu.Lock()
		f.blocked--
		if err != nil {
			return err
		}
	}
	if f.err != nil {
		return f.err
	}
	out.Index = f.index
	if f.items != nil {
		out.Data = &api.Variable{Path: r.Path, ModifyIndex: f.index, Items: f.items}
	}
	return nil
}

func (f *fakeVariable) blockedCalls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.blocked
}

// readOnce reads a variable without a wait for changes.
func readOnce(t *testing.T, d *Data, task, path string) (map[string]string, uint64, error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	v, index, err := d.Variable(ctx, store.NewWatchSet(), workloadOf(task), "", path)
	if v == nil {
		return nil, index, err
	}
	return v.Items, index, err
}

// No call is made without a task's token, whatever the allocation's record has.
func TestNoCallWithoutTaskToken(t *testing.T) {
	for _, c := range []struct {
		name, token string
	}{
		{"no token", ""},
		{"secret of the node", "11111111-2222-3333-4444-555555555555"},
		{"identity of the node", fakeJWT(`{"nomad_node_id":"node"}`)},
		{"token of another allocation", fakeJWT(`{"nomad_allocation_id":"other"}`)},
		{"no claims", "a.%.c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := &fakePool{answer: func(context.Context, string, any, any) error { return nil }}
				d := newData(t, pool, newStore(t, state.ClusterAlloc{IdentityByTask: map[string]string{"t": c.token}}))
				for name, read := range map[string]func(context.Context, store.WatchSet) error{
					"variable": func(ctx context.Context, ws store.WatchSet) error {
						_, _, err := d.Variable(ctx, ws, workloadOf("t"), "", "p")
						return err
					},
					"list": func(ctx context.Context, ws store.WatchSet) error {
						_, _, err := d.Variables(ctx, ws, workloadOf("t"), "", "p")
						return err
					},
					"service": func(ctx context.Context, ws store.WatchSet) error {
						_, _, err := d.Services(ctx, ws, workloadOf("t"), "s")
						return err
					},
					"services": func(ctx context.Context, ws store.WatchSet) error {
						_, _, err := d.Services(ctx, ws, workloadOf("t"), "")
						return err
					},
					"of the alloc": func(ctx context.Context, ws store.WatchSet) error {
						_, _, err := d.Variable(ctx, ws, workloadOf(""), "", "p")
						return err
					},
				} {
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					if err := read(ctx, store.NewWatchSet()); err == nil || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: error %v, want one about the token", name, err)
					}
					cancel()
				}
				if n := pool.callCount(); n > 0 {
					t.Errorf("%d calls to the servers", n)
				}
			})
		})
	}
}

func TestCallsHaveTokenOfTheirTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tokens := make(map[string]bool)
		pool := &fakePool{answer: func(ctx context.Context, _ string, request, _ any) error {
			mu.Lock()
			defer mu.Unlock()
			tokens[tokenOf(request)] = true
			return nil
		}}
		d := newData(t, pool, newStore(t, signedTasks()))
		for _, task := range []string{"t", "u", ""} {
			if _, _, err := readOnce(t, d, task, "p"); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if want := map[string]bool{taskJWT("t"): true, taskJWT("u"): true}; !reflect.DeepEqual(tokens, want) {
			t.Errorf("tokens %v, want %v", tokens, want)
		}
	})
}

func TestReadersShareOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVariable("one")
		d := newData(t, &fakePool{answer: v.answer}, newStore(t, signedTasks()))
		const readers = 50
		var wg sync.WaitGroup
		values := make(chan string, readers)
		for range readers {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ws := store.NewWatchSet()
				if _, _, err := d.Variable(ctx, ws, workloadOf("t"), "", "p"); err != nil {
					t.Error(err)
				}
				if err := ws.WatchCtx(ctx); err != nil {
					t.Error(err)
				}
				items, _, err := d.Variable(ctx, store.NewWatchSet(), workloadOf("t"), "", "p")
				if err != nil {
					t.Error(err)
				}
				values <- items.Items["k"]
			})
		}
		synctest.Wait()
		if n := v.blockedCalls(); n != 1 {
			t.Errorf("%d blocking calls for %d readers, want 1", n, readers)
		}
		time.Sleep(3 * time.Hour) // the calls end without a change several times
		v.set(21, map[string]string{"k": "two"}, nil)
		wg.Wait()
		for range readers {
			if got := <-values; got != "two" {
				t.Errorf("value %q, want the changed one", got)
			}
		}
		time.Sleep(watchLinger + time.Second)
		d.mu.Lock()
		defer d.mu.Unlock()
		if n := v.blockedCalls(); n != 0 || len(d.watches) > 0 {
			t.Errorf("%d blocking calls and %d watches without readers", n, len(d.watches))
		}
	})
}

// A reader that reads again in time keeps the watch.
func TestWatchSurvivesShortPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVariable("one")
		pool := &fakePool{answer: v.answer}
		d := newData(t, pool, newStore(t, signedTasks()))
		for range 20 {
			if items, index, err := readOnce(t, d, "t", "p"); err != nil || items["k"] != "one" || index != 20 {
				t.Fatalf("%v at %d: %v", items, index, err)
			}
			time.Sleep(watchLinger / 2)
		}
		if n := pool.callCount(); n != 2 {
			t.Errorf("%d calls, want one for the value and one that blocks", n)
		}
	})
}

func TestLastValueStaysWhileServersAreAway(t *testing.T) {
	for _, away := range []error{errUnreachable, wire.ServerError("Permission denied"), wire.ServerError("No cluster leader")} {
		t.Run(away.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newFakeVariable("one")
				pool := &fakePool{answer: v.answer}
				d := newData(t, pool, newStore(t, signedTasks()))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ws := store.NewWatchSet()
				if _, _, err := d.Variable(ctx, ws, workloadOf("t"), "", "p"); err != nil {
					t.Fatal(err)
				}
				v.set(20, nil, away)
				before := pool.callCount()
				time.Sleep(time.Hour)
				if items, _, err := readOnce(t, d, "t", "p"); err != nil || items["k"] != "one" {
					t.Errorf("items %v, error %v, want the last value", items, err)
				}
				if n := pool.callCount() - before; n < 30 || n > 200 {
					t.Errorf("%d calls in an hour, want about one per minute", n)
				}
				v.set(30, map[string]string{"k": "two"}, nil)
				if err := ws.WatchCtx(ctx); err != nil {
					t.Fatal(err)
				}
				if items, index, err := readOnce(t, d, "t", "p"); err != nil || items["k"] != "two" || index != 30 {
					t.Errorf("items %v at %d, error %v, want the changed value", items, index, err)
				}
			})
		})
	}
}

func TestFirstReadWaitsForServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVariable("one")
		v.err = errUnreachable
		d := newData(t, &fakePool{answer: v.answer}, newStore(t, signedTasks()))
		time.AfterFunc(time.Hour, func() { v.set(20, map[string]string{"k": "one"}, nil) })
		if items, _, err := readOnce(t, d, "t", "p"); err != nil || items["k"] != "one" {
			t.Errorf("items %v, error %v", items, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		v.set(20, nil, errUnreachable)
		if _, _, err := d.Variable(ctx, store.NewWatchSet(), workloadOf("t"), "", "other"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that of the context", err)
		}
	})
}

// A refusal of the first read is the readers' error, and the next read calls again.
func TestRefusedFirstReadIsRepeatedByNextReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVariable("one")
		v.err = wire.ServerError("Permission denied")
		d := newData(t, &fakePool{answer: v.answer}, newStore(t, signedTasks()))
		if _, _, err := readOnce(t, d, "t", "p"); err == nil || !strings.Contains(err.Error(), `variable "p"`) || errors.Is(err, hook.ErrPermissionDenied) {
			t.Errorf("error %v, want one that names the variable, and that does not mean the token of the hook", err)
		}
		v.set(20, map[string]string{"k": "one"}, nil)
		if items, _, err := readOnce(t, d, "t", "p"); err != nil || items["k"] != "one" {
			t.Errorf("items %v, error %v", items, err)
		}
		// One denial can be an accident.
		v.set(20, nil, wire.ServerError("Permission denied"))
		time.AfterFunc(100*time.Millisecond, func() { v.set(20, map[string]string{"k": "one"}, nil) })
		if items, _, err := readOnce(t, d, "t", "other"); err != nil || items["k"] != "one" {
			t.Errorf("items %v, error %v after one denial", items, err)
		}
	})
}

// A reader's index increases with each change, also after the servers have restored an earlier state.
func TestIndexIncreases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVariable("one")
		d := newData(t, &fakePool{answer: v.answer}, newStore(t, signedTasks()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		last := uint64(0)
		for i, step := range []struct {
			index uint64
			items map[string]string
		}{
			{20, map[string]string{"k": "one"}}, {21, map[string]string{"k": "two"}}, {25, nil}, {26, map[string]string{}}, {3, map[string]string{"k": "old"}},
		} {
			v.set(step.index, step.items, nil)
			time.Sleep(time.Hour)
			found, index, err := d.Variable(ctx, store.NewWatchSet(), workloadOf("t"), "", "p")
			if err != nil || (found == nil) != (step.items == nil) || found != nil && !maps.Equal(found.Items, step.items) || index <= last {
				t.Errorf("step %d: variable %v at %d after %d: %v", i, found, index, last, err)
			}
			last = index
		}
	})
}

// Restoring the servers ends no blocked call.
func TestReadAgainAfterRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVariable("one")
		d := newData(t, &fakePool{answer: v.answer}, newStore(t, signedTasks()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ws := store.NewWatchSet()
		if _, _, err := d.Variable(ctx, ws, workloadOf("t"), "", "p"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		v.mu.Lock()
		v.index, v.items = 3, map[string]string{"k": "old"}
		v.mu.Unlock()
		restored := time.Now()
		d.ReadAgain()
		if err := ws.WatchCtx(ctx); err != nil {
			t.Fatal(err)
		}
		items, _, err := d.Variable(ctx, store.NewWatchSet(), workloadOf("t"), "", "p")
		if after := time.Since(restored); err != nil || items.Items["k"] != "old" || after > 0 {
			t.Errorf("items %v, error %v after %v", items, err, after)
		}
	})
}

func TestClosedDataBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeVariable("one")
		d := newData(t, &fakePool{answer: v.answer}, newStore(t, signedTasks()))
		if _, _, err := readOnce(t, d, "t", "p"); err != nil {
			t.Fatal(err)
		}
		d.Close()
		if n := v.blockedCalls(); n > 0 {
			t.Errorf("%d calls after Close", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		if _, _, err := d.Variable(ctx, store.NewWatchSet(), workloadOf("t"), "", "p"); err == nil || time.Since(start) < time.Hour {
			t.Errorf("error %v after %v, want that of the context", err, time.Since(start))
		}
	})
}

func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &fakePool{answer: func(ctx context.Context, _ string, request, response any) error {
			switch out := response.(type) {
			case *protocol.GetServiceResponse:
				if r := request.(*protocol.GetServiceRequest); r.MinQueryIndex > 0 {
					<-ctx.Done()
					return ctx.Err()
				}
				out.Index = 7
				out.Services = []*api.ServiceRegistration{
					{ID: "b", ServiceName: "db", Address: "192.0.2.2", Port: 1}, {ID: "a", ServiceName: "db", Address: "192.0.2.1", Port: 2, NodeID: "n", Tags: []string{"x"}},
				}
			case *protocol.ListServicesResponse:
				if r := request.(*protocol.ListServicesRequest); r.MinQueryIndex > 0 {
					<-ctx.Done()
					return ctx.Err()
				}
				out.Index = 8
				out.Services = []*api.ServiceRegistrationListStub{{Namespace: "prod", Services: []*api.ServiceRegistrationStub{{ServiceName: "web"}, {ServiceName: "db", Tags: []string{"x"}}}}}
			case *protocol.ListVariablesResponse:
				if r := request.(*protocol.ListVariablesRequest); r.MinQueryIndex > 0 {
					<-ctx.Done()
					return ctx.Err()
				}
				out.Index = 9
				out.Data = []*api.VariableMetadata{{Path: request.(*protocol.ListVariablesRequest).Prefix + "/b"}, {Path: "a"}}
			}
			return nil
		}}
		d := newData(t, pool, newStore(t, signedTasks()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, c := range []struct {
			name  string
			index uint64
			want  []hook.Service
		}{
			{"db", 7, []hook.Service{{ID: "a", Name: "db", Address: "192.0.2.1", Port: 2, NodeID: "n", Tags: []string{"x"}}, {ID: "b", Name: "db", Address: "192.0.2.2", Port: 1}}},
			{"", 8, []hook.Service{{Name: "db", Tags: []string{"x"}}, {Name: "web"}}},
		} {
			got, index, err := d.Services(ctx, store.NewWatchSet(), workloadOf("t"), c.name)
			if err != nil || index != c.index || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%q: %v at %d, error %v, want %v at %d", c.name, got, index, err, c.want, c.index)
			}
		}
		list, index, err := d.Variables(ctx, store.NewWatchSet(), workloadOf("t"), "", "p")
		if err != nil || index != 9 || len(list) != 2 || list[0].Path != "a" || list[1].Path != "p/b" {
			t.Errorf("variables %v at %d, error %v", list, index, err)
		}
	})
}

// TestOldAnswersAreReadAgain checks that the leader's answer replaces one from a server that has lost its leader, and that the
// delays after failures come from the settings.
func TestOldAnswersAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxStale = time.Minute
		var mu sync.Mutex
		var failures []time.Time
		calls := 0
		pool := &fakePool{answer: func(ctx context.Context, _ string, request, response any) error {
			r, out := request.(*protocol.ReadVariableRequest), response.(*protocol.ReadVariableResponse)
			mu.Lock()
			calls++
			call := calls
			mu.Unlock()
			answer := func(index uint64, value string, lastContact time.Duration) error {
				out.Index, out.LastContact = index, lastContact
				out.Data = &api.Variable{Path: r.Path, ModifyIndex: index, Items: map[string]string{"k": value}}
				return nil
			}
			switch {
			case call == 1:
				return answer(5, "first", 0)
			case call == 2 && r.AllowStale && r.MaxQueryTime == 20*time.Second:
				return answer(6, "of a lost server", 2*maxStale)
			case call == 3 && !r.AllowStale && r.MinQueryIndex == 5:
				return answer(8, "of the leader", 0)
			case call < 9 && call > 3:
				mu.Lock()
				failures = append(failures, time.Now())
				mu.Unlock()
				return errors.New("some error")
			}
			if call < 9 {
				t.Errorf("call %d: %+v", call, r.ReadOptions)
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		d := newData(t, pool, newStore(t, signedTasks()), ReadSettings{
			MaxBlock: 20 * time.Second, MaxStale: new(maxStale), RetryDelay: 4 * time.Second, MaxRetryDelay: 8 * time.Second,
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for value := ""; value != "of the leader"; {
			ws := store.NewWatchSet()
			v, _, err := d.Variable(ctx, ws, workloadOf("t"), "", "p")
			if err != nil {
				t.Fatal(err)
			}
			if value = v.Items["k"]; value == "of a lost server" {
				t.Errorf("the value is %q", value)
			}
			if value != "of the leader" {
				if err := ws.WatchCtx(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(failures) != 5 {
			t.Fatalf("%d failed calls", len(failures))
		}
		for i, limit := range []time.Duration{4 * time.Second, 8 * time.Second, 8 * time.Second, 8 * time.Second} {
			if delay := failures[i+1].Sub(failures[i]); delay < limit/2 || delay > limit {
				t.Errorf("delay %d is %v, want %v or up to half of it less", i, delay, limit)
			}
		}
	})
}
