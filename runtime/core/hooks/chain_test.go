package hooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// recorderHook is a hook that takes part in a few hook points and records its calls.
type recorderHook struct {
	BuiltinHookDefaults
	name       string
	noDeadline bool
	attachment string // AttachmentJSON result
	calls      *[]string
	err        error
	exited     <-chan struct{}
}

func (r *recorderHook) Name() string                           { return r.name }
func (r *recorderHook) NoDeadline() bool                       { return r.noDeadline }
func (r *recorderHook) AttachmentJSON() string                 { return r.attachment }
func (r *recorderHook) PoststartPluginExited() <-chan struct{} { return r.exited }
func (r *recorderHook) WaitPluginUp(context.Context) error     { return nil }

func (r *recorderHook) record(ctx context.Context, point string) error {
	limit := ""
	if deadline, ok := ctx.Deadline(); ok {
		limit = " " + time.Until(deadline).String()
	}
	*r.calls = append(*r.calls, r.name+" "+point+limit)
	return r.err
}

func (r *recorderHook) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, r.record(ctx, "prerun")
}

func (r *recorderHook) PreKill(ctx context.Context, _ hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, r.record(ctx, "pre_kill")
}

func (r *recorderHook) Prestart(ctx context.Context, _ hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	return hook.TaskPrestartResponse{}, r.record(ctx, "prestart")
}

func (r *recorderHook) Exited(ctx context.Context, _ hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, r.record(ctx, "exited")
}

func (r *recorderHook) Stop(ctx context.Context, _ hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, r.record(ctx, "stop")
}

// hookWithoutPoints is a hook without hook points.
type hookWithoutPoints struct{ BuiltinHookDefaults }

func (hookWithoutPoints) Name() string { return "none" }

// newTestChain returns a chain of recorders, with their calls and events.
func newTestChain(hooks ...*recorderHook) (c *Chain, calls, events *[]string) {
	calls, events = new([]string), new([]string)
	list := []OrderedHook{{OrderFirst, hookWithoutPoints{}}}
	for _, h := range hooks {
		h.calls = calls
		list = append(list, OrderedHook{OrderPlugin, h})
	}
	return NewChain(ChainConfig{
		Limits:    CallLimits{StartHookPointTimeout: time.Minute, OtherHookPointTimeout: time.Second},
		EmitEvent: func(e *api.TaskEvent) { *events = append(*events, e.Type+": "+e.Message) },
		Logger:    hclog.NewNullLogger(),
	}, list), calls, events
}

func callPrerun(ctx context.Context, _ Hook, h hook.AllocPrerun) (hook.AllocPrerunResponse, error) {
	return h.Prerun(ctx, hook.AllocPrerunRequest{})
}

func callPrestart(ctx context.Context, _ Hook, h hook.TaskPrestart) (hook.TaskPrestartResponse, error) {
	return h.Prestart(ctx, hook.TaskPrestartRequest{})
}

func callExited(ctx context.Context, _ Hook, h hook.TaskExited) (hook.TaskExitedResponse, error) {
	return h.Exited(ctx, hook.TaskExitedRequest{})
}

func TestChainSortsByOrder(t *testing.T) {
	entry := func(order int, name string) OrderedHook { return OrderedHook{order, &recorderHook{name: name}} }
	list := []OrderedHook{entry(OrderLast, "d"), entry(OrderPlugin, "b"), entry(OrderFirst, "a"), entry(OrderPlugin, "c")}
	names := ""
	for _, h := range NewChain(ChainConfig{}, list).Hooks() {
		names += h.Name()
	}
	if names != "abcd" {
		t.Errorf("order %q, want abcd", names)
	}
	if list[0].Order != OrderLast {
		t.Error("NewChain has changed the list of its caller")
	}
}

func TestStartEndsWithTheFirstError(t *testing.T) {
	no := errors.New("no")
	for _, c := range []struct {
		name      string
		point     hook.Point
		tolerated bool
		err       string
		calls     []string
		events    []string
	}{
		{"prerun: the runner reports the error", hook.Prerun, false, `pre-run hook "bad" failed: no`, []string{"bad prerun 1m0s"}, nil},
		{"tolerated prerun", hook.Prerun, true, "<nil>", []string{"bad prerun 1m0s", "last prerun 1m0s"}, []string{"Task hook failed: bad: no"}},
		{"prestart", hook.Prestart, false, `prestart hook "bad" failed: no`, []string{"bad prestart 1m0s"}, []string{"Task hook failed: bad: no"}},
		{"tolerated prestart", hook.Prestart, true, "<nil>", []string{"bad prestart 1m0s", "last prestart 1m0s"}, []string{"Task hook failed: bad: no"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				chain, calls, events := newTestChain(&recorderHook{name: "bad", err: no}, &recorderHook{name: "last"})
				tolerate := func(error) bool { return c.tolerated }
				var err error
				if c.point == hook.Prerun {
					err = CallStartHooksUntilError(t.Context(), chain, c.point, callPrerun, tolerate)
				} else {
					err = CallStartHooksUntilError(t.Context(), chain, c.point, callPrestart, tolerate)
				}
				if fmt.Sprint(err) != c.err || !slices.Equal(*calls, c.calls) || !slices.Equal(*events, c.events) {
					t.Errorf("error %v, calls %q, events %q; want %s, %q, %q", err, *calls, *events, c.err, c.calls, c.events)
				}
				if err != nil && !errors.Is(err, no) {
					t.Error("the error of the hook is not in the chain of errors")
				}
			})
		})
	}
}

// The error from a canceled hook is neither tolerated nor an event.
func TestStartEndsWithItsContext(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	chain, calls, events := newTestChain(&recorderHook{name: "a", err: errors.New("no")}, &recorderHook{name: "b"})
	tolerate := func(error) bool { return true }
	err := CallStartHooksUntilError(ctx, chain, hook.Prestart, func(ctx context.Context, h Hook, at hook.TaskPrestart) (hook.TaskPrestartResponse, error) {
		cancel(stopped)
		return callPrestart(ctx, h, at)
	}, tolerate)
	if err == nil || len(*calls) != 1 || len(*events) > 0 {
		t.Errorf("error %v, calls %q, events %q", err, *calls, *events)
	}
	if err := CallStartHooksUntilError(ctx, chain, hook.Prestart, callPrestart, tolerate); err != stopped || len(*calls) != 1 {
		t.Errorf("when ctx is done: error %v, calls %q", err, *calls)
	}
}

func TestCallEachCallsAllHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eventErr := &EventError{errors.New("no"), &api.TaskEvent{Type: "Own"}}
		chain, calls, events := newTestChain(&recorderHook{name: "a", err: errors.New("no")}, &recorderHook{name: "b", err: eventErr, noDeadline: true}, &recorderHook{name: "c"})
		CallEachAndReportErrors(t.Context(), chain, hook.Exited, callExited)
		if want := []string{"a exited 1s", "b exited", "c exited 1s"}; !slices.Equal(*calls, want) {
			t.Errorf("calls %q, want %q", *calls, want)
		}
		if want := []string{"Task hook failed: a: no", "Own: "}; !slices.Equal(*events, want) {
			t.Errorf("events %q, want %q", *events, want)
		}
		*events = nil
		CallEachAndReportErrors(t.Context(), chain, hook.PreKill, func(ctx context.Context, _ Hook, h hook.AllocPreKill) (hook.AllocPreKillResponse, error) {
			return h.PreKill(ctx, hook.AllocPreKillRequest{})
		})
		if len(*events) > 0 {
			t.Errorf("events %q of a hook point of the allocation, want none", *events)
		}
	})
}

// Stop and an allocation's hook points clean up, so they are called in any case.
func TestCallEachAfterContextIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	chain, calls, events := newTestChain(&recorderHook{name: "a", err: errors.New("no"), noDeadline: true})
	CallEachAndReportErrors(ctx, chain, hook.Exited, callExited)
	CallEachAndReportErrors(ctx, chain, hook.Stop, func(ctx context.Context, _ Hook, h hook.TaskStop) (hook.TaskStopResponse, error) {
		return h.Stop(ctx, hook.TaskStopRequest{})
	})
	CallEachAndReportErrors(ctx, chain, hook.PreKill, func(ctx context.Context, _ Hook, h hook.AllocPreKill) (hook.AllocPreKillResponse, error) {
		return h.PreKill(ctx, hook.AllocPreKillRequest{})
	})
	if want := []string{"a stop", "a pre_kill"}; !slices.Equal(*calls, want) || len(*events) > 0 {
		t.Errorf("calls %q, events %q; want %q and no event", *calls, *events, want)
	}
}

func TestCallAndJoinErrorsReturnsAllErrors(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	chain, calls, _ := newTestChain(&recorderHook{name: "x", err: a}, &recorderHook{name: "y"}, &recorderHook{name: "z", err: b})
	err := CallAndJoinErrors(t.Context(), chain, hook.Prerun, callPrerun)
	if !errors.Is(err, a) || !errors.Is(err, b) || len(*calls) != 3 {
		t.Errorf("error %v after %q", err, *calls)
	}
}

func TestCallAfterPluginRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := make(chan struct{}), make(chan struct{})
		h := &recorderHook{name: "plugin", exited: first}
		chain, calls, _ := newTestChain(h, &recorderHook{name: "builtin"})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		StartCallsAfterPluginRestarts(ctx, &wg, chain, hook.Exited, func(ctx context.Context, _ Hook, at hook.TaskExited) (hook.TaskExitedResponse, error) {
			h.exited = second
			return callExited(ctx, h, at)
		})
		synctest.Wait()
		if len(*calls) > 0 {
			t.Errorf("calls %q before the plugin process has exited", *calls)
		}
		close(first)
		synctest.Wait()
		if want := []string{"plugin exited 1s"}; !slices.Equal(*calls, want) {
			t.Errorf("calls %q, want %q", *calls, want)
		}
		cancel()
		wg.Wait()
	})
}

func TestChainWithoutHooks(t *testing.T) {
	var nilChain *Chain
	if err := CallStartHooksUntilError(t.Context(), nilChain.WithoutHooks(func(Hook) bool { return false }), hook.Prerun, callPrerun, nil); err != nil {
		t.Error(err)
	}
	if nilChain.Hooks() != nil || nilChain.AttachmentByHookName() != nil {
		t.Error("a nil chain has hooks")
	}
	chain, calls, _ := newTestChain(&recorderHook{name: "a", attachment: `{"x": 1}`}, &recorderHook{name: "b"})
	if got := fmt.Sprint(chain.AttachmentByHookName()); got != `map[a:{"x": 1}]` {
		t.Errorf("attachments %s", got)
	}
	CallEachAndReportErrors(t.Context(), chain.WithoutHooks(func(h Hook) bool { return h.Name() == "a" }), hook.Exited, callExited)
	if len(*calls) != 1 || (*calls)[0][0] != 'b' {
		t.Errorf("calls %q, want one of b", *calls)
	}
}

// exhaustedHook finds no free descriptor in its first calls.
type exhaustedHook struct {
	recorderHook
	failures int
}

func (h *exhaustedHook) result(ctx context.Context, point string) error {
	if err := h.record(ctx, point); h.failures == 0 {
		return err
	}
	h.failures--
	return fmt.Errorf("open: %w", unix.EMFILE)
}

func (h *exhaustedHook) Prerun(ctx context.Context, _ hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, h.result(ctx, "prerun")
}

func (h *exhaustedHook) Stop(ctx context.Context, _ hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, h.result(ctx, "stop")
}

func newExhaustedChain(failures int) (c *Chain, calls, events *[]string) {
	c, _, events = newTestChain()
	calls = new([]string)
	h := &exhaustedHook{recorderHook{name: "a", calls: calls}, failures}
	return NewChain(c.config, []OrderedHook{{OrderPlugin, h}}), calls, events
}

func TestStartWaitsForDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain, calls, events := newExhaustedChain(3)
		err := CallStartHooksUntilError(t.Context(), chain, hook.Prerun, callPrerun, func(error) bool { return false })
		if err != nil || len(*calls) != 4 {
			t.Errorf("error %v after %d calls, want no error after 4", err, len(*calls))
		}
		if want := []string{"Task hook message: waiting for file descriptors: a: open: too many open files"}; !slices.Equal(*events, want) {
			t.Errorf("events %q, want %q", *events, want)
		}
	})
}

// A task that already runs does not wait.
func TestToleratedLackOfDescriptorsIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain, calls, _ := newExhaustedChain(3)
		if err := CallStartHooksUntilError(t.Context(), chain, hook.Prerun, callPrerun, func(error) bool { return true }); err != nil || len(*calls) != 1 {
			t.Errorf("error %v after %d calls, want no error after 1", err, len(*calls))
		}
	})
}

func TestCleanupIsRepeatedWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for failures, want := range map[int]int{3: 4, 1000: 36} { // 36 calls take a minute
			chain, calls, events := newExhaustedChain(failures)
			CallEachAndReportErrors(t.Context(), chain, hook.Stop, func(ctx context.Context, _ Hook, h hook.TaskStop) (hook.TaskStopResponse, error) {
				return h.Stop(ctx, hook.TaskStopRequest{})
			})
			if len(*calls) != want || len(*events) != min(1, failures/1000) {
				t.Errorf("%d failures: %d calls and events %q, want %d calls", failures, len(*calls), *events, want)
			}
		}
	})
}

func TestStartsOfBuiltinHooksAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		var wg sync.WaitGroup
		chain, _, _ := newTestChain(&recorderHook{name: "a"})
		chain.config.Limits.BuiltinCallLimiter = descriptors.NewLimiter(0)
		for range 3 {
			wg.Go(func() {
				_ = CallStartHooksUntilError(t.Context(), chain, hook.Prerun, func(context.Context, Hook, hook.AllocPrerun) (hook.AllocPrerunResponse, error) {
					most.Store(max(most.Load(), running.Add(1)))
					time.Sleep(time.Second)
					running.Add(-1)
					return hook.AllocPrerunResponse{}, nil
				}, func(error) bool { return false })
			})
		}
		wg.Wait()
		if most.Load() != 1 {
			t.Errorf("%d hooks were called at one time, want 1", most.Load())
		}
	})
}
