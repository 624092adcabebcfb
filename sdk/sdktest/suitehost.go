package sdktest

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// suiteHost implements hook.Host, the host that hooks call, for the suite, and checks capability tokens. All of its tasks are running, and calls for
// them succeed. It has no variables and no services.
type suiteHost struct {
	mu                  sync.Mutex
	isTokenActive       map[string]bool              // by capability token; false after the token has expired
	storedStates        map[string]map[string]string // by capability token
	callsByUnknownToken map[string]int               // number of calls by capability token, for tokens that addToken was not called for
}

var _ hook.Host = (*suiteHost)(nil)

func (f *suiteHost) addToken(token string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isTokenActive == nil {
		f.isTokenActive = map[string]bool{}
	}
	f.isTokenActive[token] = true
}

func (f *suiteHost) expireToken(token string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isTokenActive[token] = false
}

// serveOnSocket serves the host on a new unix socket in dir. stop blocks until the server has stopped.
func (f *suiteHost) serveOnSocket(dir string) (socketPath string, stop func(), err error) {
	socketPath = filepath.Join(dir, newUUID()[:8]+".sock")
	listener, err := net.Listen("unix", socketPath)
	if err != nil {
		return "", nil, err
	}
	server := grpc.NewServer()
	hookwire.RegisterHost(server, f)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // blocks until the server is stopped
	}()
	return socketPath, func() { server.Stop(); <-served }, nil
}

// checkToken returns an error if the capability token of a call is unknown or
// has expired.
func (f *suiteHost) checkToken(s hook.Scope) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	good, known := f.isTokenActive[s.Token]
	if !known {
		if f.callsByUnknownToken == nil {
			f.callsByUnknownToken = map[string]int{}
		}
		f.callsByUnknownToken[s.Token]++
	}
	switch {
	case !good:
		return hook.ErrPermissionDenied
	case s.Task != "" && s.Task != scenarioTaskName:
		return fmt.Errorf("%w: there is no %q", hook.ErrTaskNotRunning, s.Task)
	}
	return nil
}

func (f *suiteHost) Exec(_ context.Context, s hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error) {
	if err := f.checkToken(s); err != nil {
		return nil, err
	}
	if len(req.Command) == 0 {
		return nil, fmt.Errorf("exec: there is no command")
	}
	return &driver.ExecResult{}, nil
}

func (f *suiteHost) Stats(ctx context.Context, s hook.Scope, interval time.Duration) (<-chan hook.Usage, error) {
	if err := f.checkToken(s); err != nil {
		return nil, err
	}
	if interval <= 0 {
		interval = time.Second
	}
	samples := make(chan hook.Usage)
	go func() {
		defer close(samples)
		for {
			select {
			case samples <- hook.Usage{Time: time.Now(), CPUPercent: 1, MemoryRSS: 1 << 20, MemoryUsage: 1 << 20}:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(interval):
			case <-ctx.Done():
				return
			}
		}
	}()
	return samples, nil
}

func (f *suiteHost) State(_ context.Context, s hook.Scope) (*hook.AllocState, error) {
	if err := f.checkToken(s); err != nil {
		return nil, err
	}
	return &hook.AllocState{
		ClientStatus: "running", DesiredStatus: "run",
		Tasks: map[string]hook.TaskState{scenarioTaskName: {State: "running", StartedAt: time.Now()}},
	}, nil
}

func (f *suiteHost) Interpolate(_ context.Context, s hook.Scope, text string) (string, error) {
	return text, f.checkToken(s)
}

func (f *suiteHost) EmitEvent(_ context.Context, s hook.Scope, event hook.Event) error {
	if err := f.checkToken(s); err != nil {
		return err
	}
	return event.Validate()
}

func (f *suiteHost) Restart(_ context.Context, s hook.Scope, _ hook.RestartRequest) error {
	return f.checkToken(s)
}

func (f *suiteHost) Signal(_ context.Context, s hook.Scope, _ hook.SignalRequest) error {
	return f.checkToken(s)
}

func (f *suiteHost) Kill(_ context.Context, s hook.Scope, _ hook.KillRequest) error {
	return f.checkToken(s)
}

func (f *suiteHost) SetHealth(_ context.Context, s hook.Scope, _ hook.SetHealthRequest) error {
	return f.checkToken(s)
}

// StoreState implements hook.Host.
func (f *suiteHost) StoreState(_ context.Context, s hook.Scope, state map[string]string) error {
	if err := f.checkToken(s); err != nil {
		return err
	}
	if err := hook.ValidateState(state); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.storedStates == nil {
		f.storedStates = map[string]map[string]string{}
	}
	f.storedStates[s.Token] = state
	return nil
}

// takeStoredState returns and removes the state that was stored last with a token.
func (f *suiteHost) takeStoredState(token string) (state map[string]string, stored bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state, stored = f.storedStates[token]
	delete(f.storedStates, token)
	return state, stored
}

// suiteHostDataIndex is the constant index in the responses of suiteHost.
const suiteHostDataIndex = 1

// blockIfIndexIsCurrent blocks until the data has a higher index than afterIndex, as a blocking query does. The data of
// suiteHost never changes, so that a call with the current index blocks until ctx ends.
func (f *suiteHost) blockIfIndexIsCurrent(ctx context.Context, s hook.Scope, afterIndex uint64) error {
	if err := f.checkToken(s); err != nil {
		return err
	}
	if afterIndex >= suiteHostDataIndex {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (f *suiteHost) Variable(ctx context.Context, s hook.Scope, req hook.VariableRequest) (hook.VariableResponse, error) {
	return hook.VariableResponse{Index: suiteHostDataIndex}, f.blockIfIndexIsCurrent(ctx, s, req.AfterIndex)
}

func (f *suiteHost) Variables(ctx context.Context, s hook.Scope, req hook.VariablesRequest) (hook.VariablesResponse, error) {
	return hook.VariablesResponse{Index: suiteHostDataIndex}, f.blockIfIndexIsCurrent(ctx, s, req.AfterIndex)
}

func (f *suiteHost) Services(ctx context.Context, s hook.Scope, req hook.ServicesRequest) (hook.ServicesResponse, error) {
	return hook.ServicesResponse{Index: suiteHostDataIndex}, f.blockIfIndexIsCurrent(ctx, s, req.AfterIndex)
}
