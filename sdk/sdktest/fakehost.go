package sdktest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// FakeHost is a [hook.Host] for unit tests, which call the methods of a hook without a process and without an agent: a test
// passes a pointer to the SetHost of the hook. With the zero value, each call succeeds: commands exit with code 0, and
// there are no variables and no services. The values of scopes are not checked.
//
// The fields are set before the first call. All methods may be called concurrently.
type FakeHost struct {
	// OnCall is called for each call of the hook, after FakeHost has recorded it and without a lock. Its error becomes the
	// error of the call. It may be nil.
	OnCall func(ctx context.Context, call HostCall) error
	// OnExec returns the result of Exec. It may be nil.
	OnExec func(ctx context.Context, s hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error)
	// AllocState is the result of State.
	AllocState hook.AllocState
	// References are the values that Interpolate knows, by reference, such as "${meta.owner}".
	References map[string]string
	// Samples are what each channel of Stats returns, without a delay. The channel is closed when ctx ends.
	Samples []hook.Usage

	mu        sync.Mutex
	calls     []HostCall
	variables map[string]map[string]string // by path
	services  []hook.Service
	index     uint64        // number of changes of variables and services
	changed   chan struct{} // closed by the next change; nil if no call waits for it
}

var _ hook.Host = (*FakeHost)(nil)

// HostCall is a call of a hook that [FakeHost] has recorded.
type HostCall struct {
	Method string // name of the method of hook.Host, such as "Exec"
	Scope  hook.Scope
	// Request is the last argument of the method: a request, the event of EmitEvent, the text of Interpolate, the interval
	// of Stats, the state of StoreState. It is nil for State.
	Request any
}

// Calls returns the calls so far, in their order. The calls of several goroutines have no defined order.
func (f *FakeHost) Calls() []HostCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// SetVariable sets the items of a variable; nil deletes the variable. Calls that wait for a change return.
func (f *FakeHost) SetVariable(path string, items map[string]string) {
	f.change(func() {
		if f.variables == nil {
			f.variables = make(map[string]map[string]string)
		}
		f.variables[path] = maps.Clone(items)
		if items == nil {
			delete(f.variables, path)
		}
	})
}

// SetServices replaces the instances of all services. Calls that wait for a change return.
func (f *FakeHost) SetServices(instances ...hook.Service) {
	f.change(func() { f.services = slices.Clone(instances) })
}

func (f *FakeHost) change(set func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set()
	f.index++
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

func (f *FakeHost) record(ctx context.Context, method string, s hook.Scope, request any) error {
	call := HostCall{method, s, request}
	f.mu.Lock()
	f.calls = append(f.calls, call)
	f.mu.Unlock()
	if err := ctx.Err(); err != nil || f.OnCall == nil {
		return err
	}
	return f.OnCall(ctx, call)
}

// readWhenNewer records the call, waits until the index is higher than after, unless after is 0, and calls read, which
// runs with the lock held. The index is the same for all variables and services.
func (f *FakeHost) readWhenNewer(ctx context.Context, method string, s hook.Scope, request any, after uint64, read func()) (index uint64, err error) {
	if err := f.record(ctx, method, s, request); err != nil {
		return 0, err
	}
	for {
		f.mu.Lock()
		index := f.index + 1
		if after == 0 || index > after {
			read()
			f.mu.Unlock()
			return index, nil
		}
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Exec implements [hook.Host]. It calls OnExec.
func (f *FakeHost) Exec(ctx context.Context, s hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error) {
	err := f.record(ctx, "Exec", s, req)
	switch {
	case err != nil:
		return nil, err
	case len(req.Command) == 0:
		return nil, errors.New("there is no command to be run")
	case f.OnExec == nil:
		return &driver.ExecResult{}, nil
	}
	return f.OnExec(ctx, s, req)
}

// Stats implements [hook.Host]. It returns Samples.
func (f *FakeHost) Stats(ctx context.Context, s hook.Scope, interval time.Duration) (<-chan hook.Usage, error) {
	if err := f.record(ctx, "Stats", s, interval); err != nil {
		return nil, err
	}
	samples := make(chan hook.Usage)
	go func() {
		defer close(samples)
		for _, sample := range f.Samples {
			select {
			case samples <- sample:
			case <-ctx.Done():
				return
			}
		}
		<-ctx.Done()
	}()
	return samples, nil
}

// State implements [hook.Host]. It returns AllocState.
func (f *FakeHost) State(ctx context.Context, s hook.Scope) (*hook.AllocState, error) {
	if err := f.record(ctx, "State", s, nil); err != nil {
		return nil, err
	}
	state := f.AllocState
	state.Tasks = maps.Clone(state.Tasks)
	return &state, nil
}

// Interpolate implements [hook.Host]. It replaces References.
func (f *FakeHost) Interpolate(ctx context.Context, s hook.Scope, text string) (string, error) {
	if err := f.record(ctx, "Interpolate", s, text); err != nil {
		return "", err
	}
	for reference, value := range f.References {
		text = strings.ReplaceAll(text, reference, value)
	}
	return text, nil
}

// EmitEvent implements [hook.Host]. It rejects the events that an agent rejects.
func (f *FakeHost) EmitEvent(ctx context.Context, s hook.Scope, event hook.Event) error {
	if err := f.record(ctx, "EmitEvent", s, event); err != nil {
		return err
	}
	return event.Validate()
}

// Restart implements [hook.Host].
func (f *FakeHost) Restart(ctx context.Context, s hook.Scope, req hook.RestartRequest) error {
	return f.record(ctx, "Restart", s, req)
}

// Signal implements [hook.Host].
func (f *FakeHost) Signal(ctx context.Context, s hook.Scope, req hook.SignalRequest) error {
	return f.record(ctx, "Signal", s, req)
}

// Kill implements [hook.Host].
func (f *FakeHost) Kill(ctx context.Context, s hook.Scope, req hook.KillRequest) error {
	return f.record(ctx, "Kill", s, req)
}

// SetHealth implements [hook.Host].
func (f *FakeHost) SetHealth(ctx context.Context, s hook.Scope, req hook.SetHealthRequest) error {
	return f.record(ctx, "SetHealth", s, req)
}

// StoreState implements [hook.Host]. It rejects a state that is too large, and only records the others: a test passes the
// state in the PreviousState of its next request.
func (f *FakeHost) StoreState(ctx context.Context, s hook.Scope, state map[string]string) error {
	if err := f.record(ctx, "StoreState", s, maps.Clone(state)); err != nil {
		return err
	}
	return hook.ValidateState(state)
}

// Variable implements [hook.Host]. It returns what SetVariable has set.
func (f *FakeHost) Variable(ctx context.Context, s hook.Scope, req hook.VariableRequest) (r hook.VariableResponse, err error) {
	r.Index, err = f.readWhenNewer(ctx, "Variable", s, req, req.AfterIndex, func() {
		if r.Items = maps.Clone(f.variables[req.Path]); r.Items != nil {
			r.Metadata = hook.VariableMetadata{Namespace: req.Namespace, Path: req.Path}
		}
	})
	return r, err
}

// Variables implements [hook.Host]. It returns what SetVariable has set.
func (f *FakeHost) Variables(ctx context.Context, s hook.Scope, req hook.VariablesRequest) (r hook.VariablesResponse, err error) {
	r.Index, err = f.readWhenNewer(ctx, "Variables", s, req, req.AfterIndex, func() {
		for _, path := range slices.Sorted(maps.Keys(f.variables)) {
			if strings.HasPrefix(path, req.Prefix) {
				r.Paths = append(r.Paths, path)
				r.Variables = append(r.Variables, hook.VariableMetadata{Namespace: req.Namespace, Path: path})
			}
		}
	})
	return r, err
}

// Services implements [hook.Host]. It returns what SetServices has set.
func (f *FakeHost) Services(ctx context.Context, s hook.Scope, req hook.ServicesRequest) (r hook.ServicesResponse, err error) {
	r.Index, err = f.readWhenNewer(ctx, "Services", s, req, req.AfterIndex, func() {
		for _, instance := range f.services {
			if req.Name == "" || instance.Name == req.Name {
				r.Services = append(r.Services, instance)
			}
		}
	})
	return r, err
}
