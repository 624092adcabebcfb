package pluginhooks

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// fakeRemoteHook is a hook plugin without a process. It implements the hook points called by the tests.
type fakeRemoteHook struct {
	RemoteHook
	onCall func(hook.Point, hook.RequestMeta, hook.Alloc) error
}

func (*fakeRemoteHook) Done() <-chan struct{} { return nil }

func (r *fakeRemoteHook) Prerun(_ context.Context, req hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, r.onCall(hook.Prerun, req.RequestMeta, req.Alloc)
}

func (r *fakeRemoteHook) Postrun(_ context.Context, req hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, r.onCall(hook.Postrun, req.RequestMeta, req.Alloc)
}

func (r *fakeRemoteHook) Destroy(_ context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, r.onCall(hook.Destroy, req.RequestMeta, req.Alloc)
}

func (r *fakeRemoteHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	return hook.TaskPrestartResponse{State: map[string]string{"new": "x"}}, r.onCall(hook.Prestart, req.RequestMeta, req.Alloc)
}

func (r *fakeRemoteHook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	if err := r.onCall(hook.Poststart, req.RequestMeta, req.Alloc); err != nil {
		return hook.TaskPoststartResponse{}, err
	}
	<-ctx.Done() // the call hangs
	return hook.TaskPoststartResponse{}, ctx.Err()
}

func (r *fakeRemoteHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, r.onCall(hook.Stop, req.RequestMeta, req.Alloc)
}

// memoryStore is a CleanupStore in memory.
type memoryStore map[string]state.PendingCleanup

func (m memoryStore) ListDeletingExpired() (list []state.PendingCleanup) {
	for _, d := range m {
		list = append(list, d)
	}
	return list
}
func (m memoryStore) Put(d state.PendingCleanup) error    { m[d.ID()] = d; return nil }
func (m memoryStore) Delete(d state.PendingCleanup) error { delete(m, d.ID()); return nil }

// pluginFixture is a hook plugin attached by an operator's rule to one task or allocation.
type pluginFixture struct {
	description *hook.Description
	onCall      func(n int, m hook.Point, g hook.RequestMeta, a hook.Alloc) error
	callCount   atomic.Int64
	events      []string
	cleanups    memoryStore

	expectedHooks []string
}

func (p *pluginFixture) newSet(rules ...OperatorRule) *HookPluginSet {
	p.cleanups = memoryStore{}
	return New(Config{
		FindOrLaunchHook: func(_ context.Context, name string, _ time.Time) (RemoteHook, *hook.Description, error) {
			if name != "stamp" {
				return nil, nil, errors.New("no such hook")
			}
			return &fakeRemoteHook{onCall: func(m hook.Point, g hook.RequestMeta, a hook.Alloc) error {
				return p.onCall(int(p.callCount.Add(1)), m, g, a)
			}}, p.description, nil
		},
		LaunchedHooksByName:      func() map[string]*hook.Description { return map[string]*hook.Description{"stamp": p.description} },
		UnlaunchedAllAllocsHooks: func() []string { return p.expectedHooks },
		Rules:                    rules,
		NewCapabilityToken:       func(alloc, task, hook string) string { return alloc + "/" + task + "/" + hook },
		CleanupStore:             p.cleanups,
		Logger:                   hclog.NewNullLogger(),
	})
}

func (p *pluginFixture) target(task string) hooks.AttachTarget {
	return hooks.AttachTarget{
		AllocID: "a", TaskName: task,
		AllocJSON: func() ([]byte, error) { return []byte("whole"), nil },
		EmitEvent: func(e *api.TaskEvent) { p.events = append(p.events, e.Message) },
	}
}

func descriptionOfPoints(points ...hook.Point) *hook.Description {
	d := &hook.Description{}
	for _, m := range points {
		d.Subscriptions = append(d.Subscriptions, hook.Subscription{Point: m})
	}
	return d
}

var allPointsDescription = descriptionOfPoints(hook.Prerun, hook.Postrun, hook.Prestart, hook.Poststart, hook.Stop)

func newTestHook(s *pluginFixture, task string, rules ...OperatorRule) *Hook {
	p := s.newSet(rules...)
	return p.newAttachedHook("stamp", attachment{isExplicit: true}, s.target(task))
}

func TestCallIsRepeatedOnceAfterPluginDeath(t *testing.T) {
	for _, c := range []struct {
		deaths int
		calls  int
		err    string
	}{
		{0, 1, ""}, {1, 2, ""}, {2, 2, "prerun: plugin is shut down: it died at this call, twice; the agent's log has its last words"},
	} {
		s := &pluginFixture{description: allPointsDescription, onCall: func(n int, _ hook.Point, g hook.RequestMeta, _ hook.Alloc) error {
			if g.Token != "a//stamp" {
				t.Errorf("capability %q", g.Token)
			}
			if n <= c.deaths {
				return hook.ErrPluginDown
			}
			return nil
		}}
		_, err := newTestHook(s, "").Prerun(t.Context(), hook.AllocPrerunRequest{})
		if fmt.Sprint(err) != c.err && (err != nil || c.err != "") || int(s.callCount.Load()) != c.calls {
			t.Errorf("%d deaths: %d calls, %v", c.deaths, s.callCount.Load(), err)
		}
	}
}

// One allocation kills the plugin with each of its calls, early or late. Other allocations' concurrent calls succeed.
func TestCallThatKillsPluginFailsNoOtherCall(t *testing.T) {
	for what, c := range map[string]struct {
		kills, takes time.Duration
		calls        int64
	}{
		"soon":                      {10 * time.Millisecond, 50 * time.Millisecond, 10},
		"after the turn of a call":  {8 * time.Second, 9 * time.Second, 0}, // as many calls as overlap
		"after the turns of others": {12 * time.Second, 30 * time.Second, 0},
	} {
		t.Run(what, func(t *testing.T) { checkPluginKillingCall(t, c.kills, c.takes, c.calls) })
	}
}

func checkPluginKillingCall(t *testing.T, kills, takes time.Duration, want int64) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		died := make(chan struct{}) // died is replaced at each plugin death
		s := &pluginFixture{description: allPointsDescription, onCall: func(_ int, _ hook.Point, g hook.RequestMeta, _ hook.Alloc) error {
			mu.Lock()
			death := died
			mu.Unlock()
			wait := takes
			if g.Token == "poison//stamp" {
				wait = kills
			}
			select {
			case <-time.After(wait):
			case <-death:
				return hook.ErrPluginDown
			}
			if g.Token == "poison//stamp" {
				mu.Lock()
				close(died)
				died = make(chan struct{})
				mu.Unlock()
				return hook.ErrPluginDown
			}
			return nil
		}}
		plugins := s.newSet()
		var callsWG sync.WaitGroup
		for _, alloc := range []string{"a", "b", "poison", "c", "d"} {
			callsWG.Go(func() {
				c := s.target("")
				c.AllocID = alloc
				p := plugins.newAttachedHook("stamp", attachment{isExplicit: true}, c)
				if err := callPrerun(t.Context(), p); (err != nil) != (alloc == "poison") {
					t.Errorf("%s: %v", alloc, err)
				}
			})
		}
		callsWG.Wait()
		if n := s.callCount.Load(); n > 15 || want > 0 && n != want {
			t.Errorf("%d calls", n)
		}
	})
}

// A slow repeated call does not delay the others for long.
func TestSlowRepeatedCallDelaysOthersBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pluginFixture{description: allPointsDescription, onCall: func(n int, _ hook.Point, _ hook.RequestMeta, _ hook.Alloc) error {
			if n <= 2 {
				time.Sleep(time.Second)
				return hook.ErrPluginDown
			}
			time.Sleep(30 * time.Second)
			return nil
		}}
		p, began := newTestHook(s, ""), time.Now()
		var callsWG sync.WaitGroup
		for range 2 {
			callsWG.Go(func() {
				if err := callPrerun(t.Context(), p); err != nil {
					t.Error(err)
				}
			})
		}
		callsWG.Wait()
		if took := time.Since(began); took != 36*time.Second {
			t.Errorf("after %v", took)
		}
	})
}

func TestErrorsOfCalls(t *testing.T) {
	refusal, again := errors.New("no"), driver.Recoverable(errors.New("not yet"))
	for _, c := range []struct {
		what        string
		rule        OperatorRule
		fails       error
		call        func(context.Context, *Hook) error
		err         string
		recoverable bool
		event       string
	}{
		{"a refusal at Prestart is final", OperatorRule{}, refusal, callPrestart, "prestart: no", false, ""},
		{"unless the hook says otherwise", OperatorRule{}, again, callPrestart, "prestart: not yet", true, ""},
		{"a death is not", OperatorRule{}, hook.ErrPluginDown, callPrestart, "prestart: plugin is shut down: it died at this call, twice; the agent's log has its last words", true, ""},
		{"with warn it is told", OperatorRule{WarnOnError: true}, refusal, callPrestart, "", false, "stamp: prestart: no (on_error is warn)"},
		{"Prerun fails the allocation", OperatorRule{}, refusal, callPrerun, "prerun: no", false, ""},
		{"or does not", OperatorRule{WarnOnError: true}, refusal, callPrerun, "", false, "stamp: prerun: no (on_error is warn)"},
		{"the runner tells of a task", OperatorRule{}, refusal, callStop, "stop: no; it is tried again until it succeeds", false, ""},
		{"of an allocation the plugin does", OperatorRule{}, refusal, callPostrun, "postrun: no; it is tried again until it succeeds", false, "stamp: postrun: no; it is tried again until it succeeds"},
	} {
		s := &pluginFixture{description: allPointsDescription, onCall: func(int, hook.Point, hook.RequestMeta, hook.Alloc) error { return c.fails }}
		c.rule.Name = "stamp"
		err := c.call(t.Context(), newTestHook(s, "t", c.rule))
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != c.err || driver.IsRecoverable(err) != c.recoverable || strings.Join(s.events, "|") != c.event {
			t.Errorf("%s: %q, recoverable %v, events %q", c.what, text, driver.IsRecoverable(err), s.events)
		}
	}
}

func callPrerun(ctx context.Context, p *Hook) error {
	return discardResult(p.Prerun(ctx, hook.AllocPrerunRequest{}))
}
func callStop(ctx context.Context, p *Hook) error {
	return discardResult(p.Stop(ctx, hook.TaskStopRequest{}))
}
func callPostrun(ctx context.Context, p *Hook) error {
	return discardResult(p.Postrun(ctx, hook.AllocPostrunRequest{}))
}

// callPrestart also checks that a failure does not lose the state.
func callPrestart(ctx context.Context, p *Hook) error {
	answer, err := p.Prestart(ctx, hook.TaskPrestartRequest{PreviousState: map[string]string{"old": "x"}})
	if len(answer.State) != 1 {
		return fmt.Errorf("state %v is lost: %w", answer.State, err)
	}
	return err
}

// A failed Destroy is retried for a day, because the allocation's record, which would end the retries, is gone. It comes after
// the other pending cleanups.
func TestFailedDestroyIsRetriedForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calledPoints []string
		s := &pluginFixture{description: descriptionOfPoints(hook.Destroy, hook.Stop, hook.Postrun), onCall: func(n int, m hook.Point, _ hook.RequestMeta, _ hook.Alloc) error {
			if n <= 3 {
				return errors.New("busy")
			}
			calledPoints = append(calledPoints, m.String())
			return nil
		}}
		p := newTestHook(s, "")
		if _, err := p.Destroy(t.Context(), hook.AllocDestroyRequest{Alloc: hook.Alloc{ID: "a"}}); err != nil {
			t.Errorf("the removal fails: %v", err)
		}
		d := s.cleanups["a//stamp/destroy"]
		if d.Destroy == nil || d.Destroy.Alloc.ID != "a" || d.Destroy.Token != "" || time.Until(d.RetryUntil) != 24*time.Hour {
			t.Fatalf("pending %+v", s.cleanups)
		}
		if err := errors.Join(discardResult(p.Stop(t.Context(), hook.TaskStopRequest{})), discardResult(p.Postrun(t.Context(), hook.AllocPostrunRequest{}))); err == nil {
			t.Error("no error")
		}
		p.hookSet.RetryCleanupsUntilNoneLeft(t.Context())
		slices.Sort(calledPoints[:2])
		if !slices.Equal(calledPoints, []string{"postrun", "stop", "destroy"}) || len(s.cleanups) > 0 {
			t.Errorf("called %q, pending %v", calledPoints, s.cleanups)
		}
	})
}

// A Destroy call follows a pending Postrun call, even if the plugin is up again when the allocation is removed.
func TestDestroyFollowsPendingPostrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calledPoints []string
		d := descriptionOfPoints(hook.Destroy, hook.Postrun)
		d.IncludeAllocJSON = true
		s := &pluginFixture{description: d, onCall: func(n int, m hook.Point, _ hook.RequestMeta, a hook.Alloc) error {
			if n == 1 {
				return errors.New("busy")
			}
			calledPoints = append(calledPoints, m.String()+" "+string(a.JSON))
			return nil
		}}
		p := newTestHook(s, "")
		if _, err := p.Postrun(t.Context(), hook.AllocPostrunRequest{Alloc: hook.Alloc{ID: "a"}}); err == nil {
			t.Error("no error")
		}
		if _, err := p.Destroy(t.Context(), hook.AllocDestroyRequest{Alloc: hook.Alloc{ID: "a"}}); err != nil {
			t.Errorf("the removal fails: %v", err)
		}
		p.hookSet.RetryCleanupsUntilNoneLeft(t.Context())
		if !slices.Equal(calledPoints, []string{"postrun whole", "destroy whole"}) || len(s.cleanups) > 0 {
			t.Errorf("called %q, pending %v", calledPoints, s.cleanups)
		}
	})
}

// RetryCleanupsUntilNoneLeft returns when its context ends, even if the retries fail.
func TestRetryAllCleanupsEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pluginFixture{description: descriptionOfPoints(hook.Destroy), onCall: func(int, hook.Point, hook.RequestMeta, hook.Alloc) error { return errors.New("busy") }}
		p := newTestHook(s, "")
		if _, err := p.Destroy(t.Context(), hook.AllocDestroyRequest{}); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		p.hookSet.RetryCleanupsUntilNoneLeft(ctx)
		if ctx.Err() == nil || s.callCount.Load() < 3 || len(s.cleanups) != 1 {
			t.Errorf("after %d calls: %v, pending %v", s.callCount.Load(), ctx.Err(), s.cleanups)
		}
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := descriptionOfPoints(hook.Poststart)
		own.Subscriptions[0].Timeout = 3 * time.Second
		for _, c := range []struct {
			takes *hook.Description
			rule  OperatorRule
			want  time.Duration
		}{
			{allPointsDescription, OperatorRule{}, 10 * time.Second},
			{own, OperatorRule{}, 3 * time.Second},
			{own, OperatorRule{Name: "stamp", Timeout: time.Minute}, time.Minute},
		} {
			s := &pluginFixture{description: c.takes, onCall: func(int, hook.Point, hook.RequestMeta, hook.Alloc) error { return nil }}
			p, began := newTestHook(s, "t", c.rule), time.Now()
			_, err := p.Poststart(t.Context(), hook.TaskPoststartRequest{})
			if took := time.Since(began); took != c.want || err == nil || err.Error() != "poststart: no answer within "+c.want.String() {
				t.Errorf("after %v: %v", took, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := p.Poststart(ctx, hook.TaskPoststartRequest{}); !errors.Is(err, context.DeadlineExceeded) || len(s.events) > 0 {
				t.Errorf("a call that the runner ends: %v, %q", err, s.events)
			}
			cancel()
		}
	})
}

// A call's trace context is in its request, and not in a pending cleanup's record.
func TestTraceparent(t *testing.T) {
	var received []string
	s := &pluginFixture{description: allPointsDescription, onCall: func(_ int, _ hook.Point, g hook.RequestMeta, _ hook.Alloc) error {
		received = append(received, g.Traceparent)
		return errors.New("the database is away")
	}}
	p := newTestHook(s, "t")
	for _, ctx := range []context.Context{base.WithTraceparent(t.Context(), "00-1-2-01"), t.Context()} {
		if _, err := p.Stop(ctx, hook.TaskStopRequest{}); err == nil {
			t.Fatal("no error")
		}
	}
	if !slices.Equal(received, []string{"00-1-2-01", ""}) {
		t.Errorf("the plugin got %q", received)
	}
	if d := s.cleanups["a/t/stamp/stop"]; d.Stop == nil || d.Stop.Traceparent != "" {
		t.Errorf("pending %+v", s.cleanups)
	}
}

func TestPendingCleanupIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pluginBroken atomic.Bool
		pluginBroken.Store(true)
		var hookStates []string
		s := &pluginFixture{description: allPointsDescription, onCall: func(_ int, m hook.Point, g hook.RequestMeta, _ hook.Alloc) error {
			if pluginBroken.Load() {
				return errors.New("the database is away")
			}
			hookStates = append(hookStates, fmt.Sprint(m, " ", g.Token))
			return nil
		}}
		p := newTestHook(s, "t")
		if _, err := p.Stop(t.Context(), hook.TaskStopRequest{PreviousState: map[string]string{"x": "y"}}); err == nil {
			t.Fatal("no error")
		}
		if d := s.cleanups["a/t/stamp/stop"]; d.Stop == nil || d.Stop.PreviousState["x"] != "y" || d.Stop.Token != "" {
			t.Fatalf("pending %+v", s.cleanups)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.hookSet.RetryCleanupsUntilCanceled(ctx)
		}()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := s.callCount.Load(); n < 10 || n > 30 {
			t.Errorf("tried %d times in ten minutes", n)
		}
		pluginBroken.Store(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !slices.Equal(hookStates, []string{"stop a/t/stamp"}) || len(s.cleanups) > 0 {
			t.Errorf("called %q, pending %v", hookStates, s.cleanups)
		}
		cancel()
		<-done
	})
}

// Another agent version may read the state. A pending cleanup has the whole allocation, because no other record is left.
func TestPendingCleanupIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := descriptionOfPoints(hook.Postrun)
		d.IncludeAllocJSON = true
		var receivedRequests []string
		s := &pluginFixture{description: d, onCall: func(n int, _ hook.Point, g hook.RequestMeta, a hook.Alloc) error {
			receivedRequests = append(receivedRequests, g.Token+" "+string(a.JSON))
			if n == 1 {
				return errors.New("busy")
			}
			return nil
		}}
		p := newTestHook(s, "")
		if _, err := p.Postrun(t.Context(), hook.AllocPostrunRequest{Alloc: hook.Alloc{ID: "a"}}); err == nil {
			t.Error("no error")
		}
		want := state.PendingCleanup{
			Hook: "stamp", AllocID: "a", Point: hook.Postrun, JobAttachmentJSON: "{}",
			Postrun: &hook.AllocPostrunRequest{Alloc: hook.Alloc{ID: "a", JSON: []byte("whole")}},
		}
		if record := s.cleanups["a//stamp/postrun"]; !reflect.DeepEqual(record, want) {
			t.Errorf("the record is\n%+v, want\n%+v", record, want)
		}
		s.cleanups[want.ID()] = want
		p.hookSet.RetryCleanupsUntilNoneLeft(t.Context())
		if !slices.Equal(receivedRequests, []string{"a//stamp whole", "a//stamp whole"}) || len(s.cleanups) > 0 {
			t.Errorf("told %q, pending %v", receivedRequests, s.cleanups)
		}
	})
}

// A hanging hook's pending cleanups do not delay another hook's cleanups, new ones included.
func TestHangingHookDoesNotDelayOtherCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pluginFixture{description: allPointsDescription, onCall: func(_ int, _ hook.Point, g hook.RequestMeta, _ hook.Alloc) error {
			if g.Token == "a/t/stamp" {
				time.Sleep(time.Hour)
			}
			return nil
		}}
		plugins := s.newSet()
		plugins.config.FindOrLaunchHook = func(_ context.Context, name string, _ time.Time) (RemoteHook, *hook.Description, error) {
			return &fakeRemoteHook{onCall: func(m hook.Point, g hook.RequestMeta, a hook.Alloc) error {
				return s.onCall(0, m, g, a)
			}}, allPointsDescription, nil
		}
		cleanups := &lockedMemoryStore{memoryStore: s.cleanups}
		plugins.config.CleanupStore = cleanups
		for i := range 5 {
			if err := cleanups.Put(state.PendingCleanup{Hook: "stamp", AllocID: "a", Task: "t", Point: hook.Point(i), Stop: &hook.TaskStopRequest{}}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			plugins.RetryCleanupsUntilCanceled(ctx)
		}()
		synctest.Wait()
		p := plugins.newAttachedHook("other", attachment{isExplicit: true}, s.target("t"))
		if err := p.enqueueCleanup(state.PendingCleanup{Point: hook.Stop, Stop: &hook.TaskStopRequest{}}, errors.New("away")); err == nil {
			t.Error("no error")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for _, d := range cleanups.ListDeletingExpired() {
			if d.Hook == "other" {
				t.Error("it waits for a hook that hangs")
			}
		}
		cancel()
		time.Sleep(2 * time.Hour) // this test's plugin ignores its context
		<-done
	})
}

// lockedMemoryStore is a memoryStore for several goroutines.
type lockedMemoryStore struct {
	mu sync.Mutex
	memoryStore
}

func (l *lockedMemoryStore) ListDeletingExpired() []state.PendingCleanup {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memoryStore.ListDeletingExpired()
}

func (l *lockedMemoryStore) Put(d state.PendingCleanup) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memoryStore.Put(d)
}

func (l *lockedMemoryStore) Delete(d state.PendingCleanup) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memoryStore.Delete(d)
}

// formatEntries returns the attached hooks with their orders.
func formatEntries(list []hooks.OrderedHook) string {
	var entryTexts []string
	for _, o := range list {
		entryTexts = append(entryTexts, fmt.Sprintf("%s@%d", o.Hook.Name(), o.Order))
	}
	return strings.Join(entryTexts, " ")
}

func TestAttachedHooks(t *testing.T) {
	group := "g"
	alloc := func(job, groupMeta, taskMeta map[string]string) *api.Allocation {
		return &api.Allocation{ID: "a", JobID: "web-1", TaskGroup: group, Job: &api.Job{Meta: job, TaskGroups: []*api.TaskGroup{{
			Name: &group, Meta: groupMeta, Tasks: []*api.Task{{Name: "t", Driver: "exec", Meta: taskMeta}, {Name: "u", Driver: "docker"}},
		}}}}
	}
	child := func(a *api.Allocation) *api.Allocation {
		a.JobID, a.Job.ParentID = "cron/periodic-1", new("cron")
		return a
	}
	on := map[string]string{"lite_hook_stamp": ""}
	every := descriptionOfPoints(hook.Prerun)
	every.AllAllocs = true
	for _, c := range []struct {
		what        string
		takes       *hook.Description
		alloc       *api.Allocation
		rules       []OperatorRule
		ofAlloc, of string // expected hooks for the allocation and for its task t
	}{
		{"nobody", allPointsDescription, alloc(nil, nil, nil), nil, "", ""},
		{"the job attaches", allPointsDescription, alloc(on, nil, nil), nil, "stamp@300", "stamp@300"},
		{"the group", allPointsDescription, alloc(nil, on, nil), nil, "stamp@300", "stamp@300"},
		{"the task", allPointsDescription, alloc(nil, nil, on), nil, "", "stamp@300"},
		{"the plugin wants all", every, alloc(nil, nil, nil), nil, "stamp@300", "stamp@300"},
		{"a rule without match leaves it at that", allPointsDescription, alloc(nil, nil, nil), []OperatorRule{{Name: "stamp"}}, "", ""},
		{"an empty match attaches to all", allPointsDescription, alloc(nil, nil, nil), []OperatorRule{{Name: "stamp", Match: &RuleMatch{}, Order: 650}}, "stamp@650", "stamp@650"},
		{"a match by driver", allPointsDescription, alloc(nil, nil, nil), []OperatorRule{{Name: "stamp", Match: &RuleMatch{JobPattern: "web-*", DriverPattern: "docker"}}}, "stamp@300", ""},
		{"one that does not match takes from who wants all", every, alloc(nil, nil, nil), []OperatorRule{{Name: "stamp", Match: &RuleMatch{JobPattern: "db"}}}, "", ""},
		{"but not from jobs", allPointsDescription, alloc(on, nil, nil), []OperatorRule{{Name: "stamp", Match: &RuleMatch{JobPattern: "db"}}}, "stamp@300", "stamp@300"},
		{"a match by meta", allPointsDescription, alloc(map[string]string{"team": "red"}, nil, nil), []OperatorRule{{Name: "stamp", Match: &RuleMatch{PatternByMetaKey: map[string]string{"team": "r*"}}}}, "stamp@300", "stamp@300"},
		{"a match by a name with a slash", allPointsDescription, alloc(map[string]string{"team": "red/left"}, nil, nil), []OperatorRule{{Name: "stamp", Match: &RuleMatch{PatternByMetaKey: map[string]string{"team": "r*"}}}}, "stamp@300", "stamp@300"},
		{"a match of the job that has made the job", allPointsDescription, child(alloc(nil, nil, nil)), []OperatorRule{{Name: "stamp", Match: &RuleMatch{JobPattern: "cron"}}}, "stamp@300", "stamp@300"},
		{"and of the job itself", allPointsDescription, child(alloc(nil, nil, nil)), []OperatorRule{{Name: "stamp", Match: &RuleMatch{JobPattern: "cron/periodic-[0-9]*"}}}, "stamp@300", "stamp@300"},
		{"rules go first, in their order", allPointsDescription, alloc(on, nil, nil), []OperatorRule{{Name: "z", Match: &RuleMatch{}}, {Name: "b", Match: &RuleMatch{}}}, "z@300 b@300 stamp@300", "z@300 b@300 stamp@300"},
	} {
		p := (&pluginFixture{description: c.takes}).newSet(c.rules...)
		ofAlloc, of := formatEntries(p.NewAllocHooks(c.alloc, hooks.AttachTarget{})), formatEntries(p.NewTaskHooks(c.alloc, c.alloc.GetTaskGroup().Tasks[0], hooks.AttachTarget{}))
		if ofAlloc != c.ofAlloc || of != c.of {
			t.Errorf("%s: of the allocation %q, of the task %q", c.what, ofAlloc, of)
		}
	}
}

func TestAttachment(t *testing.T) {
	schema := hclspec.Object(map[string]*hclspec.Spec{
		"url":   hclspec.Attr("url", "string", true),
		"count": hclspec.Default(hclspec.Attr("count", "number", false), hclspec.Literal("3")),
		"words": hclspec.Attr("words", "list(string)", false),
	})
	labels := hclspec.Object(map[string]*hclspec.Spec{"labels": hclspec.Attr("labels", "map(string)", false)})
	for _, c := range []struct {
		what     string
		job      string
		operator map[string]any
		schema   *hclspec.Spec
		want     string // want is the result, or part of the error
	}{
		{"defaults", `{"url": "u"}`, nil, schema, `{"count":3,"url":"u","words":null}`},
		{"the operator has the last word", `{"url": "job", "count": 9007199254740993}`, map[string]any{"url": "operator"}, schema, `{"count":9007199254740993,"url":"operator","words":null}`},
		{"what looks like a template stays", `{"url": "${env.X} %{if}", "words": ["$${x}"]}`, nil, schema, `{"count":3,"url":"${env.X} %{if}","words":["$${x}"]}`},
		{"in a key, too", `{"labels": {"${x}": "y"}}`, nil, labels, `{"labels":{"${x}":"y"}}`},
		{"nothing", "", nil, nil, ""},
		{"an unknown key", `{"url": "u", "ulr": 1}`, nil, schema, "ulr"},
		{"a missing key", `{}`, nil, schema, "url"},
		{"no JSON", `{"url": `, nil, schema, "not a JSON object"},
		{"no object", `[1]`, nil, schema, `not a JSON object such as {"key": "value"}: it is of type array`},
		{"null", `null`, nil, schema, "not one JSON object"},
		{"two", `{} {}`, nil, schema, "not one JSON object"},
		{"something for a hook that takes nothing", `{"x": 1}`, nil, nil, "takes no configuration"},
	} {
		got, err := attachment{jobAttachmentJSON: c.job}.encodeForPlugin(c.schema, c.operator)
		if err != nil && strings.Contains(err.Error(), c.want) && c.want != "" {
			continue
		}
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v", c.what, got, err)
		}
	}
	if got, err := (attachment{builtinBlocksJSON: []byte("as it is")}).encodeForPlugin(nil, nil); err != nil || string(got) != "as it is" {
		t.Errorf("of the runner: %s, %v", got, err)
	}
}

func TestAllocJSONOnRequest(t *testing.T) {
	whole := *allPointsDescription
	whole.IncludeAllocJSON = true
	for _, d := range []*hook.Description{allPointsDescription, &whole} {
		s := &pluginFixture{description: d, onCall: func(_ int, _ hook.Point, _ hook.RequestMeta, a hook.Alloc) error {
			if got := string(a.JSON); (got == "whole") != d.IncludeAllocJSON {
				t.Errorf("got %q", got)
			}
			return nil
		}}
		if err := callPrerun(t.Context(), newTestHook(s, "")); err != nil {
			t.Error(err)
		}
	}
	if s := (&pluginFixture{description: descriptionOfPoints(hook.Stop)}); callPrerun(t.Context(), newTestHook(s, "")) != nil || s.callCount.Load() != 0 {
		t.Error("called for a hook point that it takes no part in")
	}
}

func TestBuiltinHooksOfBlocks(t *testing.T) {
	s := &pluginFixture{description: allPointsDescription}
	group := "g"
	task := &api.Task{Name: "t", Artifacts: []*api.TaskArtifact{{}}, Templates: []*api.Template{{}}}
	a := &api.Allocation{ID: "a", TaskGroup: group, Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{task}}}}}
	if got := formatEntries(s.newSet().NewTaskHooks(a, task, hooks.AttachTarget{})); got != "artifact@600 template@800" {
		t.Errorf("got %q", got)
	}
	if got := BuiltinHooksUsedByBlocks(a.Job); !reflect.DeepEqual(got, []string{"artifact", "template"}) {
		t.Errorf("got %q", got)
	}
}

// fakeProcess is a hook plugin's process.
type fakeProcess struct {
	RemoteHook
	done          chan struct{}
	onPoststart   func(hook.TaskPoststartRequest) error
	repeatedFlags []bool // repeatedFlags are the flags in calls to Poststart
}

func (p *fakeProcess) Done() <-chan struct{} { return p.done }

func (p *fakeProcess) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	p.repeatedFlags = append(p.repeatedFlags, req.Repeated)
	if p.onPoststart != nil {
		return hook.TaskPoststartResponse{}, p.onPoststart(req)
	}
	return hook.TaskPoststartResponse{}, nil
}

// PoststartPluginExited works for each hook, builtin or not, over several plugin processes.
func TestPluginProcessIsFollowedAfterPoststart(t *testing.T) {
	for name, attached := range map[string]attachment{
		"builtin":  {isExplicit: true, builtinBlocksJSON: []byte("{}")},
		"of a job": {isExplicit: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &pluginFixture{description: allPointsDescription}
				plugins := s.newSet()
				w := &fakeProcess{done: make(chan struct{})}
				var brokenUntil time.Time // launches fail until brokenUntil
				plugins.config.FindOrLaunchHook = func(context.Context, string, time.Time) (RemoteHook, *hook.Description, error) {
					if time.Now().Before(brokenUntil) {
						return nil, nil, errors.New("it cannot be started")
					}
					return w, s.description, nil
				}
				p := plugins.newAttachedHook("stamp", attached, s.target("t"))
				if p.PoststartPluginExited() != nil {
					t.Error("there is a process before the first call")
				}
				if _, err := p.Poststart(t.Context(), hook.TaskPoststartRequest{}); err != nil || p.PoststartPluginExited() != w.Done() {
					t.Fatalf("%v, exited %v", err, p.PoststartPluginExited())
				}
				close(w.done)
				began := time.Now()
				brokenUntil, w = began.Add(2*time.Second), &fakeProcess{done: make(chan struct{})}
				if err := p.WaitPluginUp(t.Context()); err != nil || time.Since(began) != 3*time.Second {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				if _, err := p.Poststart(t.Context(), hook.TaskPoststartRequest{}); err != nil || p.PoststartPluginExited() != w.Done() {
					t.Errorf("%v, and it is not the new one that is followed", err)
				}
				brokenUntil = time.Now().Add(time.Hour)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := p.WaitPluginUp(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v", err)
				}
				if _, err := p.Poststart(t.Context(), hook.TaskPoststartRequest{}); err == nil || !wait.IsClosed(p.PoststartPluginExited()) {
					t.Errorf("%v; a plugin that was not up is not waited for", err)
				}
			})
		})
	}
}

// A call repeated after the process exit has Repeated set. A call that ends its process each time is not repeated again.
func TestPoststartThatEndsItsProcess(t *testing.T) {
	for _, test := range []struct {
		name     string
		deaths   int
		followed bool
		repeated string
	}{
		{"once", 1, true, "[[false] [true]]"},
		{"always", 9, false, "[[false] [true]]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &pluginFixture{description: allPointsDescription}
				plugins := s.newSet()
				var processes []*fakeProcess
				plugins.config.FindOrLaunchHook = func(context.Context, string, time.Time) (RemoteHook, *hook.Description, error) {
					if n := len(processes); n == 0 || wait.IsClosed(processes[n-1].done) {
						p := &fakeProcess{done: make(chan struct{})}
						p.onPoststart = func(hook.TaskPoststartRequest) error {
							if len(processes) <= test.deaths {
								close(p.done)
								return hook.ErrPluginDown
							}
							return nil
						}
						processes = append(processes, p)
					}
					return processes[len(processes)-1], s.description, nil
				}
				p := plugins.newAttachedHook("stamp", attachment{isExplicit: true}, s.target("t"))
				_, err := p.Poststart(t.Context(), hook.TaskPoststartRequest{})
				if (err == nil) != test.followed || (p.PoststartPluginExited() != nil) != test.followed {
					t.Errorf("%v, followed: %t", err, p.PoststartPluginExited() != nil)
				}
				var repeatedFlags [][]bool
				for _, p := range processes {
					repeatedFlags = append(repeatedFlags, p.repeatedFlags)
				}
				if fmt.Sprint(repeatedFlags) != test.repeated {
					t.Errorf("repeated %v, want %s", repeatedFlags, test.repeated)
				}
			})
		})
	}
}

// PoststartPluginExited is nil for a hook without Poststart.
func TestHookWithoutPoststartIsNotFollowed(t *testing.T) {
	s := &pluginFixture{description: &hook.Description{Subscriptions: []hook.Subscription{{Point: hook.Stop}}}}
	plugins := s.newSet()
	plugins.config.FindOrLaunchHook = func(context.Context, string, time.Time) (RemoteHook, *hook.Description, error) {
		return &fakeProcess{done: make(chan struct{})}, s.description, nil
	}
	p := plugins.newAttachedHook("stamp", attachment{isExplicit: true}, s.target("t"))
	if _, err := p.Poststart(t.Context(), hook.TaskPoststartRequest{}); err != nil || p.PoststartPluginExited() != nil {
		t.Errorf("%v, followed: %t", err, p.PoststartPluginExited() != nil)
	}
}

// An allocation waiting for a plugin emits one event with the reason.
func TestWaitForPluginEmitsEvent(t *testing.T) {
	prestart := func(ctx context.Context, p *Hook) error {
		_, err := p.Prestart(ctx, hook.TaskPrestartRequest{})
		return err
	}
	stop := func(ctx context.Context, p *Hook) error { return discardResult(p.Stop(ctx, hook.TaskStopRequest{})) }
	for _, c := range []struct {
		takes time.Duration
		call  func(context.Context, *Hook) error
		told  []string
	}{
		{time.Second, callPrerun, nil},
		{3 * time.Second, callPrerun, []string{"waiting for hook plugin stamp to start"}},
		{30 * time.Second, prestart, []string{"waiting for hook plugin stamp to start"}},
		{3 * time.Second, stop, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &pluginFixture{description: allPointsDescription, onCall: func(int, hook.Point, hook.RequestMeta, hook.Alloc) error {
				time.Sleep(10 * time.Second) // the plugin runs, so the duration of the hook's own work emits no event
				return nil
			}}
			p := newTestHook(s, "t", OperatorRule{Name: "stamp", Timeout: time.Minute})
			find := p.hookSet.config.FindOrLaunchHook
			p.hookSet.config.FindOrLaunchHook = func(ctx context.Context, name string, until time.Time) (RemoteHook, *hook.Description, error) {
				time.Sleep(c.takes)
				return find(ctx, name, until)
			}
			if err := c.call(t.Context(), p); err != nil {
				t.Error(err)
			}
			if fmt.Sprint(s.events) != fmt.Sprint(c.told) {
				t.Errorf("%s: told %q, want %q", c.takes, s.events, c.told)
			}
		})
	}
}

// Prerun and Prestart wait for a plugin in a long back-off, with one event for the reason. The wait has a limit if on_error is
// warn or the tasks already run. A plugin that is not launched again is not awaited.
func TestStartWaitsForPluginInBackOff(t *testing.T) {
	const (
		backOff    = 2 * time.Minute
		reason     = `hook "stamp": not available: exit status 2 (next try in 2m0s)`
		waitEvent  = "waiting for the plugin of a hook: " + reason
		errorEvent = "stamp: prerun: " + reason + " (on_error is warn)"
	)
	for _, c := range []struct {
		name             string
		call             func(context.Context, *Hook) error
		warnOnError      bool
		tasksRun         bool
		notLaunchedAgain bool
		stoppedAfter     time.Duration // 0 means that the allocation is not stopped
		waits            time.Duration
		err              string
		events           []string
	}{
		{name: "Prerun", call: callPrerun, waits: backOff, events: []string{waitEvent}},
		{name: "Prestart", call: callPrestart, waits: backOff, events: []string{waitEvent}},
		{name: "stopped during the wait", call: callPrerun, stoppedAfter: time.Minute, waits: time.Minute, err: reason + ": context canceled", events: []string{waitEvent}},
		{name: "on_error is warn", call: callPrerun, warnOnError: true, events: []string{errorEvent}},
		{name: "a task runs", call: callPrerun, tasksRun: true, err: "prerun: " + reason},
		{name: "not launched again", call: callPrerun, notLaunchedAgain: true, err: "prerun: " + reason},
		{name: "Stop", call: callStop, err: "stop: " + reason + "; it is tried again until it succeeds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &pluginFixture{description: allPointsDescription, onCall: func(int, hook.Point, hook.RequestMeta, hook.Alloc) error { return nil }}
				plugins := s.newSet(OperatorRule{Name: "stamp", WarnOnError: c.warnOnError})
				find, available := plugins.config.FindOrLaunchHook, make(chan struct{})
				time.AfterFunc(backOff, func() { close(available) })
				plugins.config.FindOrLaunchHook = func(ctx context.Context, name string, until time.Time) (RemoteHook, *hook.Description, error) {
					if wait.IsClosed(available) {
						return find(ctx, name, until)
					}
					return nil, nil, &driver.UnavailableError{Plugin: "stamp", NotLaunchedAgain: c.notLaunchedAgain, Err: errors.New(reason), RetryOnClose: available}
				}
				target := s.target("t")
				target.TasksRun = func() bool { return c.tasksRun }
				p := plugins.newAttachedHook("stamp", attachment{isExplicit: true}, target)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.stoppedAfter > 0 {
					time.AfterFunc(c.stoppedAfter, cancel)
				}
				began := time.Now()
				err := c.call(ctx, p)
				if text := fmt.Sprint(err); time.Since(began) != c.waits || text != c.err && (err != nil || c.err != "") {
					t.Errorf("after %v: %v, want %q after %v", time.Since(began), err, c.err, c.waits)
				}
				if !slices.Equal(s.events, c.events) {
					t.Errorf("events %q, want %q", s.events, c.events)
				}
			})
		})
	}
}

// A repeated call that waits for its plugin lets other allocations' repeated calls continue.
func TestWaitForPluginEndsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pluginFixture{description: allPointsDescription, onCall: func(n int, _ hook.Point, _ hook.RequestMeta, _ hook.Alloc) error {
			if n <= 2 {
				time.Sleep(time.Second)
				return hook.ErrPluginDown
			}
			return nil
		}}
		plugins := s.newSet()
		began, find, available := time.Now(), plugins.config.FindOrLaunchHook, make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(available) })
		plugins.config.FindOrLaunchHook = func(ctx context.Context, name string, until time.Time) (RemoteHook, *hook.Description, error) {
			if time.Since(began) < time.Second || wait.IsClosed(available) {
				return find(ctx, name, until)
			}
			return nil, nil, &driver.UnavailableError{Plugin: "stamp", Err: errors.New("exit status 2"), RetryOnClose: available}
		}
		var callsWG sync.WaitGroup
		callsWG.Go(func() {
			if err := callPrerun(t.Context(), plugins.newAttachedHook("stamp", attachment{isExplicit: true}, s.target(""))); err != nil {
				t.Error(err)
			}
		})
		callsWG.Go(func() {
			time.Sleep(100 * time.Millisecond) // the Prerun call has the first turn
			stopped := s.target("t")
			stopped.EmitEvent = func(*api.TaskEvent) {}
			if err := callStop(t.Context(), plugins.newAttachedHook("stamp", attachment{isExplicit: true}, stopped)); err == nil || time.Since(began) != 1100*time.Millisecond {
				t.Errorf("Stop after %v: %v", time.Since(began), err)
			}
		})
		callsWG.Wait()
	})
}

// discardResult returns a hook point's error.
func discardResult[R any](_ R, err error) error { return err }
