package programs

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveTaskActionHook serves a hook that performs the actions which a Nomad variable names on its task, and records the
// results.
func serveTaskActionHook() { sdk.ServeHook(&taskActionHook{}) }

// taskActionHook is a hook that performs the actions which the Nomad variable "orders" names.
type taskActionHook struct {
	host             hook.Host
	startActionsOnce sync.Once
}

func (*taskActionHook) Info() sdk.HookInfo { return sdk.HookInfo{Name: "acting", Version: "1.0.0"} }

func (a *taskActionHook) SetHost(host hook.Host, _ hook.Node) { a.host = host }

func (a *taskActionHook) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	if req.Repeated {
		appendToAnswersFile("poststart repeated")
	} else {
		appendToAnswersFile("poststart")
	}
	a.startActionsOnce.Do(func() { go a.performActionsFromNomadVariable(req.Scope()) })
	return hook.TaskPoststartResponse{}, nil
}

// performActionsFromNomadVariable performs each action that the variable names on the task, until the task has exited.
func (a *taskActionHook) performActionsFromNomadVariable(s hook.Scope) {
	ctx := context.Background()
	for after := uint64(0); ; {
		orders, err := a.host.Variable(ctx, s, hook.VariableRequest{Path: "orders", AfterIndex: after})
		if err != nil && strings.Contains(err.Error(), "end one first") {
			time.Sleep(10 * time.Millisecond) // the agent still counts earlier calls, which were canceled
			continue
		}
		if err != nil {
			_, late := a.host.Exec(ctx, s, hook.ExecRequest{Command: []string{"true"}, Timeout: time.Second})
			appendToAnswersFile("over: denied=%v, a late call: %v", errors.Is(err, hook.ErrPermissionDenied), late)
			return
		}
		after = orders.Index
		if order := orders.Items["do"]; order != "" {
			appendToAnswersFile("%s: %v", order, a.performAction(ctx, s, order))
		}
	}
}

func (a *taskActionHook) performAction(ctx context.Context, s hook.Scope, action string) any {
	switch action {
	case "signal":
		return a.host.Signal(ctx, s, hook.SignalRequest{Signal: "SIGUSR1", Reason: "the hook wants it"})
	case "no signal":
		return a.host.Signal(ctx, s, hook.SignalRequest{Signal: "SIGNOTHING"})
	case "restart":
		return a.host.Restart(ctx, s, hook.RestartRequest{Reason: "the hook wants it again"})
	case "kill":
		return a.host.Kill(ctx, s, hook.KillRequest{Reason: "the hook has had enough"})
	case "list":
		list, err := a.host.Variables(ctx, s, hook.VariablesRequest{Prefix: "o"})
		appendToAnswersFile("variables: %q", list.Paths)
		return err
	case "services":
		return a.watchServiceUntilRegistered(ctx, s)
	case "stats":
		return a.recordStatsSampleOrder(ctx, s)
	case "flood":
		return a.emitEventsUntilRateLimited(ctx, s)
	case "execs":
		return a.callConcurrentlyUntilFirst(ctx, 17, func(ctx context.Context) error {
			_, err := a.host.Exec(ctx, s, hook.ExecRequest{Command: []string{"sleep", "1000"}})
			return err
		})
	case "watches":
		return a.callConcurrentlyUntilFirst(ctx, 1001, func(ctx context.Context) error {
			_, err := a.host.Services(ctx, s, hook.ServicesRequest{Name: "nobody", AfterIndex: 1 << 60})
			return err
		})
	}
	return "what?"
}

// emitEventsUntilRateLimited emits events from 100 goroutines until the agent rejects a call of each. A single goroutine
// could be slower than the rate limit.
func (a *taskActionHook) emitEventsUntilRateLimited(ctx context.Context, s hook.Scope) error {
	var callersWG sync.WaitGroup
	var acceptedCalls atomic.Int64
	refusals := make(chan error, 100)
	begun := time.Now()
	for range cap(refusals) {
		callersWG.Go(func() {
			for {
				if err := a.host.EmitEvent(ctx, s, hook.Event{Message: "flood"}); err != nil {
					refusals <- err
					return
				}
				acceptedCalls.Add(1)
			}
		})
	}
	callersWG.Wait()
	n, most := acceptedCalls.Load(), 100+10*time.Since(begun).Seconds()
	appendToAnswersFile("events: as many as may be at once %v, no more than may be in that time %v", n >= 100, float64(n) <= most)
	return <-refusals
}

// callConcurrentlyUntilFirst makes the same call in n goroutines. When the first call returns, it cancels the others
// and returns the result of the first.
func (a *taskActionHook) callConcurrentlyUntilFirst(ctx context.Context, n int, call func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var callsWG sync.WaitGroup
	refusals := make(chan error, n)
	for range n {
		callsWG.Go(func() {
			if err := call(ctx); ctx.Err() == nil {
				refusals <- err
			}
		})
	}
	refusal := <-refusals
	cancel()
	callsWG.Wait()
	return refusal
}

// watchServiceUntilRegistered watches a service that does not exist yet, until an instance is registered.
func (a *taskActionHook) watchServiceUntilRegistered(ctx context.Context, s hook.Scope) error {
	for after := uint64(0); ; {
		shop, err := a.host.Services(ctx, s, hook.ServicesRequest{Name: "shop", AfterIndex: after})
		if err != nil {
			return err
		}
		appendToAnswersFile("services: %d", len(shop.Services))
		if len(shop.Services) > 0 {
			return nil
		}
		after = shop.Index
	}
}

// recordStatsSampleOrder records whether the first two samples of the task's resource usage have increasing times, and
// later the end of the samples.
func (a *taskActionHook) recordStatsSampleOrder(ctx context.Context, s hook.Scope) error {
	samples, err := a.host.Stats(ctx, s, 100*time.Millisecond)
	if err != nil {
		return err
	}
	first, second := <-samples, <-samples
	appendToAnswersFile("samples: in order %v", second.Time.After(first.Time))
	go func() {
		for range samples {
		}
		appendToAnswersFile("samples: no more")
	}()
	return nil
}
