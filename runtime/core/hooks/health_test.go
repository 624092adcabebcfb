package hooks

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/health"
)

// fakeAlloc is an allocation with a health that the test decides.
type fakeAlloc struct {
	created time.Time

	mu            sync.Mutex
	hasParams     bool
	snapshot      health.Snapshot
	tasksChanged  chan struct{}
	checksChanged chan struct{}
	verdicts      []string
}

func newFakeAlloc() *fakeAlloc {
	return &fakeAlloc{
		created: time.Now(), hasParams: true, tasksChanged: make(chan struct{}), checksChanged: make(chan struct{}),
		snapshot: health.Snapshot{Tasks: []health.Task{{Name: "t", Pending: true}}},
	}
}

func (f *fakeAlloc) newHealth() *HealthHook {
	return NewHealthHook(HealthHookConfig{
		NewParams: func() (health.Params, bool) {
			return health.Params{MinHealthyTime: 10 * time.Second, HealthyDeadline: time.Minute, RequirePassingChecks: true}, f.hasParams
		},
		Snapshot: func() (health.Snapshot, <-chan struct{}, <-chan struct{}) {
			f.mu.Lock()
			defer f.mu.Unlock()
			s := f.snapshot
			s.Now = time.Now()
			return s, f.tasksChanged, f.checksChanged
		},
		OnVerdict: func(v health.Verdict) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.verdicts = append(f.verdicts, fmt.Sprintf("+%v %d", time.Since(f.created), v.State))
		},
	})
}

// startTask marks the task as running.
func (f *fakeAlloc) startTask() {
	f.snapshot.Tasks = []health.Task{{Name: "t", LastStart: time.Now()}}
	close(f.tasksChanged)
	f.tasksChanged = make(chan struct{})
}

func TestHealth(t *testing.T) {
	var (
		callPrerun = func(t *testing.T, h *HealthHook) error {
			return discardResult(h.Prerun(t.Context(), hook.AllocPrerunRequest{}))
		}
		callUpdateAlloc = func(t *testing.T, h *HealthHook) error {
			return errors.Join(discardResult(h.UpdateAlloc(t.Context(), hook.AllocUpdateRequest{})), discardResult(h.WatchRestartHook().(hook.AllocUpdate).UpdateAlloc(t.Context(), hook.AllocUpdateRequest{})))
		}
		callPostrun = func(t *testing.T, h *HealthHook) error {
			return discardResult(h.Postrun(t.Context(), hook.AllocPostrunRequest{}))
		}
		callShutdownAlloc = func(t *testing.T, h *HealthHook) error {
			return discardResult(h.ShutdownAlloc(t.Context(), hook.AllocShutdownRequest{}))
		}
		healthyVerdict = fmt.Sprint(health.Healthy)
	)
	type step struct {
		at int
		do func(*testing.T, *HealthHook, *fakeAlloc) error
	}
	point := func(at int, f func(*testing.T, *HealthHook) error) step {
		return step{at, func(t *testing.T, h *HealthHook, _ *fakeAlloc) error { return f(t, h) }}
	}
	change := func(at int, f func(*fakeAlloc)) step {
		return step{at, func(_ *testing.T, _ *HealthHook, p *fakeAlloc) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			f(p)
			return nil
		}}
	}
	for _, c := range []struct {
		name  string
		steps []step
		want  []string
	}{
		{"a task that starts is healthy after its time", []step{point(0, callPrerun), change(5, (*fakeAlloc).startTask), point(90, callPostrun)}, []string{"+15s " + healthyVerdict}},
		{"nothing starts", []step{point(0, callPrerun), point(90, callPostrun)}, []string{fmt.Sprintf("+1m0s %d", health.Unhealthy)}},
		{"an update begins anew", []step{point(0, callPrerun), point(50, callUpdateAlloc), point(200, callPostrun)}, []string{fmt.Sprintf("+1m50s %d", health.Unhealthy)}},
		{"after an update comes no other beginning", []step{point(0, callUpdateAlloc), point(50, callPrerun), point(90, callPostrun)}, []string{fmt.Sprintf("+1m0s %d", health.Unhealthy)}},
		{"each version has its verdict", []step{point(0, callPrerun), change(0, (*fakeAlloc).startTask), point(20, callUpdateAlloc), point(90, callPostrun)}, []string{"+10s " + healthyVerdict, "+20s " + healthyVerdict}},
		{"what can be said at the end is said", []step{point(0, callPrerun), change(5, (*fakeAlloc).startTask), change(7, func(p *fakeAlloc) { p.snapshot.StopRequested = true }), point(8, callPostrun), point(9, callPostrun), point(9, callUpdateAlloc)}, []string{fmt.Sprintf("+8s %d", health.Stopped)}},
		{"a shutdown leaves it open", []step{point(0, callPrerun), change(5, (*fakeAlloc).startTask), point(8, callShutdownAlloc), point(90, callUpdateAlloc)}, nil},
		{"nobody wants to know", []step{change(0, func(p *fakeAlloc) { p.hasParams = false }), point(0, callPrerun), point(90, callPostrun)}, nil},
		{"it was never watched", []step{point(0, callPostrun)}, nil},
		{"news of the checks", []step{
			change(0, func(p *fakeAlloc) { p.snapshot.CheckResultsMissing = true }), point(0, callPrerun), change(5, (*fakeAlloc).startTask),
			change(30, func(p *fakeAlloc) {
				p.snapshot.CheckResultsMissing = false
				close(p.checksChanged)
				p.checksChanged = make(chan struct{})
			}), point(90, callPostrun),
		}, []string{"+30s " + healthyVerdict}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFakeAlloc()
				h := p.newHealth()
				for _, s := range c.steps {
					time.Sleep(time.Duration(s.at)*time.Second - time.Since(p.created))
					synctest.Wait()
					if err := s.do(t, h, p); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if !slices.Equal(p.verdicts, c.want) {
					t.Errorf("verdicts %q, want %q", p.verdicts, c.want)
				}
			})
		})
	}
}

// discardResult returns a hook point's error.
func discardResult[R any](_ R, err error) error { return err }
