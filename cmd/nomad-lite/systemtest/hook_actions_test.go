package systemtest

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

// actingHook is a plugin that performs the action of a variable on its task, and writes
// down the result.
func actingHook() { sdk.ServeHook(&actingPlugin{}) }

// actingPlugin performs the actions that the variable "orders" names.
type actingPlugin struct {
	host   hook.Host
	begins sync.Once
}

func (*actingPlugin) Info() sdk.HookInfo { return sdk.HookInfo{Name: "acting", Version: "1.0.0"} }

func (a *actingPlugin) SetHost(host hook.Host, _ hook.Node) { a.host = host }

func (a *actingPlugin) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	if req.Repeated {
		note("poststart repeated")
	} else {
		note("poststart")
	}
	a.begins.Do(func() { go a.follow(req.Scope()) })
	return hook.TaskPoststartResponse{}, nil
}

// follow performs actions until the task has exited.
func (a *actingPlugin) follow(s hook.Scope) {
	ctx := context.Background()
	for after := uint64(0); ; {
		items, index, err := a.host.Variable(ctx, s, "orders", after)
		if err != nil && strings.Contains(err.Error(), "end one first") {
			time.Sleep(10 * time.Millisecond) // the agent may still count calls that obey has canceled
			continue
		}
		if err != nil {
			_, late := a.host.Exec(ctx, s, []string{"true"}, time.Second)
			note("over: denied=%v, a late call: %v", errors.Is(err, hook.ErrPermissionDenied), late)
			return
		}
		after = index
		if order := items["do"]; order != "" {
			note("%s: %v", order, a.obey(ctx, s, order))
		}
	}
}

func (a *actingPlugin) obey(ctx context.Context, s hook.Scope, order string) any {
	switch order {
	case "signal":
		return a.host.Signal(ctx, s, "SIGUSR1", "the hook wants it")
	case "no signal":
		return a.host.Signal(ctx, s, "SIGNOTHING", "")
	case "restart":
		return a.host.Restart(ctx, s, "the hook wants it again", false)
	case "kill":
		return a.host.Kill(ctx, s, "the hook has had enough")
	case "list":
		paths, _, err := a.host.Variables(ctx, s, "o", 0)
		note("variables: %q", paths)
		return err
	case "services":
		return a.services(ctx, s)
	case "stats":
		return a.stats(ctx, s)
	case "flood":
		return a.flood(ctx, s)
	case "execs":
		return a.crowd(ctx, 17, func(ctx context.Context) error {
			_, err := a.host.Exec(ctx, s, []string{"sleep", "1000"}, 0)
			return err
		})
	case "watches":
		return a.crowd(ctx, 1001, func(ctx context.Context) error {
			_, _, err := a.host.Services(ctx, s, "nobody", 1<<60)
			return err
		})
	}
	return "what?"
}

// flood emits events until all calls of a crowd are rejected: a single caller can be slower
// than the rate limit.
func (a *actingPlugin) flood(ctx context.Context, s hook.Scope) error {
	var crowd sync.WaitGroup
	var taken atomic.Int64
	refusals := make(chan error, 100)
	begun := time.Now()
	for range cap(refusals) {
		crowd.Go(func() {
			for {
				if err := a.host.EmitEvent(ctx, s, hook.Event{Message: "flood"}); err != nil {
					refusals <- err
					return
				}
				taken.Add(1)
			}
		})
	}
	crowd.Wait()
	n, most := taken.Load(), 100+10*time.Since(begun).Seconds()
	note("events: as many as may be at once %v, no more than may be in that time %v", n >= 100, float64(n) <= most)
	return <-refusals
}

// crowd makes n callers repeat a call until it is rejected.
func (a *actingPlugin) crowd(ctx context.Context, n int, call func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	refusals := make(chan error, n)
	for range n {
		calls.Go(func() {
			if err := call(ctx); ctx.Err() == nil {
				refusals <- err
			}
		})
	}
	refusal := <-refusals
	cancel()
	calls.Wait()
	return refusal
}

// services waits for a service that does not exist yet.
func (a *actingPlugin) services(ctx context.Context, s hook.Scope) error {
	for after := uint64(0); ; {
		list, index, err := a.host.Services(ctx, s, "shop", after)
		if err != nil {
			return err
		}
		note("services: %d", len(list))
		if len(list) > 0 {
			return nil
		}
		after = index
	}
}

// stats samples until the task ends.
func (a *actingPlugin) stats(ctx context.Context, s hook.Scope) error {
	samples, err := a.host.Stats(ctx, s, 100*time.Millisecond)
	if err != nil {
		return err
	}
	first, second := <-samples, <-samples
	note("samples: in order %v", second.Time.After(first.Time))
	go func() {
		for range samples {
		}
		note("samples: no more")
	}()
	return nil
}
