package hookwire_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// fakeHost is a host that records its calls.
type fakeHost struct {
	lastCall any
	err      error
}

func (f *fakeHost) recordCall(asked ...any) error { f.lastCall = asked; return f.err }

func (f *fakeHost) Exec(_ context.Context, s hook.Scope, req hook.ExecRequest) (*driver.ExecResult, error) {
	return &driver.ExecResult{Stdout: []byte("out"), Stderr: []byte("err"), Exit: driver.ExitResult{ExitCode: 3, Signal: 4}}, f.recordCall(s, req)
}

func (f *fakeHost) Stats(ctx context.Context, s hook.Scope, interval time.Duration) (<-chan hook.Usage, error) {
	if err := f.recordCall(s, interval); err != nil {
		return nil, err
	}
	samples := make(chan hook.Usage, 2)
	samples <- newFilledValue[hook.Usage]()
	samples <- hook.Usage{}
	close(samples)
	return samples, nil
}

func (f *fakeHost) State(_ context.Context, s hook.Scope) (*hook.AllocState, error) {
	state := newFilledValue[hook.AllocState]()
	return &state, f.recordCall(s)
}

func (f *fakeHost) Interpolate(_ context.Context, s hook.Scope, text string) (string, error) {
	return "<" + text + ">", f.recordCall(s, text)
}

func (f *fakeHost) EmitEvent(_ context.Context, s hook.Scope, event hook.Event) error {
	return f.recordCall(s, event)
}

func (f *fakeHost) Restart(_ context.Context, s hook.Scope, req hook.RestartRequest) error {
	return f.recordCall(s, req)
}

func (f *fakeHost) Signal(_ context.Context, s hook.Scope, req hook.SignalRequest) error {
	return f.recordCall(s, req)
}

func (f *fakeHost) Kill(_ context.Context, s hook.Scope, req hook.KillRequest) error {
	return f.recordCall(s, req)
}

func (f *fakeHost) SetHealth(_ context.Context, s hook.Scope, req hook.SetHealthRequest) error {
	return f.recordCall(s, req)
}

func (f *fakeHost) StoreState(_ context.Context, s hook.Scope, state map[string]string) error {
	return f.recordCall(s, state)
}

func (f *fakeHost) Variable(_ context.Context, s hook.Scope, req hook.VariableRequest) (hook.VariableResponse, error) {
	switch err := f.recordCall(s, req); req.Path {
	case "missing":
		return hook.VariableResponse{Index: 8}, err
	case "empty":
		return hook.VariableResponse{Items: map[string]string{}, Index: 8}, err
	default:
		return hook.VariableResponse{Items: map[string]string{"k": "v"}, Index: 9}, err
	}
}

func (f *fakeHost) Variables(_ context.Context, s hook.Scope, req hook.VariablesRequest) (hook.VariablesResponse, error) {
	return hook.VariablesResponse{Paths: []string{"a", "b"}, Index: 9}, f.recordCall(s, req)
}

func (f *fakeHost) Services(_ context.Context, s hook.Scope, req hook.ServicesRequest) (hook.ServicesResponse, error) {
	return newFilledValue[hook.ServicesResponse](), f.recordCall(s, req)
}

func dialFakeHost(t *testing.T, b *fakeHost) *hookwire.HostClient {
	t.Helper()
	host, err := hookwire.DialHost(serveOnSocket(t, func(s *grpc.Server) { hookwire.RegisterHost(s, b) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	return host
}

func TestHostCarriesAllFields(t *testing.T) {
	b := &fakeHost{}
	host := dialFakeHost(t, b)
	ctx := t.Context()
	of := hook.Scope{Token: "key", Task: "web"}
	whole := hook.Scope{Token: "key"}
	event := hook.Event{Type: "Template", Message: "hello", Details: map[string]string{"a": "b"}, OperationID: "x", Ongoing: true}
	for _, test := range []struct {
		name  string
		call  func() (any, error)
		asked []any
		want  any
	}{
		{"exec", func() (any, error) { return host.Exec(ctx, of, newFilledValue[hook.ExecRequest]()) }, []any{of, newFilledValue[hook.ExecRequest]()},
			&driver.ExecResult{Stdout: []byte("out"), Stderr: []byte("err"), Exit: driver.ExitResult{ExitCode: 3, Signal: 4}}},
		{"state", func() (any, error) { return host.State(ctx, whole) }, []any{whole}, func() any { s := newFilledValue[hook.AllocState](); return &s }()},
		{"interpolate", func() (any, error) { return host.Interpolate(ctx, of, "x") }, []any{of, "x"}, "<x>"},
		{"event", func() (any, error) { return nil, host.EmitEvent(ctx, of, event) }, []any{of, event}, nil},
		{"restart", func() (any, error) { return nil, host.Restart(ctx, of, newFilledValue[hook.RestartRequest]()) }, []any{of, newFilledValue[hook.RestartRequest]()}, nil},
		{"signal", func() (any, error) { return nil, host.Signal(ctx, of, newFilledValue[hook.SignalRequest]()) }, []any{of, newFilledValue[hook.SignalRequest]()}, nil},
		{"kill", func() (any, error) { return nil, host.Kill(ctx, of, newFilledValue[hook.KillRequest]()) }, []any{of, newFilledValue[hook.KillRequest]()}, nil},
		{"health", func() (any, error) { return nil, host.SetHealth(ctx, of, newFilledValue[hook.SetHealthRequest]()) }, []any{of, newFilledValue[hook.SetHealthRequest]()}, nil},
		{"store state", func() (any, error) { return nil, host.StoreState(ctx, of, map[string]string{"k": "v"}) }, []any{of, map[string]string{"k": "v"}}, nil},
		{"variable", func() (any, error) { return host.Variable(ctx, whole, newFilledValue[hook.VariableRequest]()) }, []any{whole, newFilledValue[hook.VariableRequest]()}, hook.VariableResponse{Items: map[string]string{"k": "v"}, Index: 9}},
		{"no variable", func() (any, error) { return host.Variable(ctx, whole, hook.VariableRequest{Path: "missing"}) }, []any{whole, hook.VariableRequest{Path: "missing"}}, hook.VariableResponse{Index: 8}},
		{"empty variable", func() (any, error) { return host.Variable(ctx, whole, hook.VariableRequest{Path: "empty"}) }, []any{whole, hook.VariableRequest{Path: "empty"}}, hook.VariableResponse{Items: map[string]string{}, Index: 8}},
		{"variables", func() (any, error) { return host.Variables(ctx, whole, newFilledValue[hook.VariablesRequest]()) }, []any{whole, newFilledValue[hook.VariablesRequest]()}, hook.VariablesResponse{Paths: []string{"a", "b"}, Index: 9}},
		{"services", func() (any, error) { return host.Services(ctx, whole, newFilledValue[hook.ServicesRequest]()) }, []any{whole, newFilledValue[hook.ServicesRequest]()}, newFilledValue[hook.ServicesResponse]()},
	} {
		got, err := test.call()
		if err != nil || !reflect.DeepEqual(got, test.want) || !reflect.DeepEqual(b.lastCall, test.asked) {
			t.Errorf("%s: %v\nasked %+v\nwant  %+v\ngot  %+v\nwant %+v", test.name, err, b.lastCall, test.asked, got, test.want)
		}
		for _, known := range []error{hook.ErrPermissionDenied, hook.ErrTaskNotRunning, context.DeadlineExceeded} {
			b.err = fmt.Errorf("%w: never", known)
			_, err := test.call()
			if !errors.Is(err, known) || known != context.DeadlineExceeded && err.Error() != b.err.Error() {
				t.Errorf("%s: error %v is not %v", test.name, err, b.err)
			}
		}
		b.err = errors.New("no such luck")
		if _, err := test.call(); err == nil || err.Error() != "no such luck" {
			t.Errorf("%s: error %v", test.name, err)
		}
		b.err = status.Error(codes.Unknown, "what a driver says")
		if _, err := test.call(); err == nil || err.Error() != "what a driver says" {
			t.Errorf("%s: error %v", test.name, err)
		}
		b.err = nil
	}
}

// TestInvalidUTF8IsReplaced sends invalid UTF-8 in an event, because a hook's message can
// be the output of any program.
func TestInvalidUTF8IsReplaced(t *testing.T) {
	b := &fakeHost{}
	host := dialFakeHost(t, b)
	event := hook.Event{Message: "a\xffb", Details: map[string]string{"k": "\xff"}}
	if err := host.EmitEvent(t.Context(), hook.Scope{}, event); err != nil {
		t.Fatal(err)
	}
	want := []any{hook.Scope{}, hook.Event{Message: "a\uFFFDb", Details: map[string]string{"k": "\uFFFD"}}}
	if !reflect.DeepEqual(b.lastCall, want) {
		t.Errorf("the host is told %q, want %q", b.lastCall, want)
	}
	if err := host.Kill(t.Context(), hook.Scope{}, hook.KillRequest{Reason: "\xff"}); err != nil {
		t.Error(err)
	}
	client := newClientOf(t, nil, &recordingHook{err: errors.New("it says \xff")})
	if _, err := client.Stop(t.Context(), hook.TaskStopRequest{}); err == nil || err.Error() != "it says \uFFFD" {
		t.Errorf("the failure is %v", err)
	}
}

func TestHostStats(t *testing.T) {
	b := &fakeHost{}
	host := dialFakeHost(t, b)
	samples, err := host.Stats(t.Context(), hook.Scope{}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var got []hook.Usage
	for s := range samples {
		got = append(got, s)
	}
	if want := newFilledValue[hook.Usage](); len(got) != 2 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("got %+v", got)
	}
	b.err = hook.ErrPermissionDenied
	if _, err := host.Stats(t.Context(), hook.Scope{}, 0); !errors.Is(err, hook.ErrPermissionDenied) {
		t.Errorf("error %v", err)
	}
}

// A hook that calls the host while no agent runs waits for the next agent.
func TestCallsWaitForTheHost(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	host, err := hookwire.DialHost(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := host.Interpolate(short, hook.Scope{}, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a host: %v", err)
	}
	for round := range 2 {
		answers := make(chan string)
		go func() {
			text, err := host.Interpolate(t.Context(), hook.Scope{}, "x")
			answers <- fmt.Sprint(text, err)
		}()
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		hookwire.RegisterHost(s, &fakeHost{})
		served := make(chan error)
		go func() { served <- s.Serve(l) }()
		if got := <-answers; got != "<x><nil>" {
			t.Errorf("host %d: %s", round, got)
		}
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// After Move, calls reach the next agent, although the connection to the earlier one has not ended. A call in flight
// ends at the earlier agent.
func TestCallsAfterMoveReachTheNextHost(t *testing.T) {
	for _, sockets := range [][]string{{"a", "b", "c"}, {"a", "a", "a"}} {
		dir := t.TempDir()
		serve := func(name string, impl hook.Host) (socket string) {
			socket = filepath.Join(dir, name)
			_ = os.Remove(socket) // the earlier host can have another socket
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			s := grpc.NewServer()
			hookwire.RegisterHost(s, impl)
			go func() { _ = s.Serve(l) }() // returns when the server is stopped
			t.Cleanup(s.Stop)
			return socket
		}
		first := &blockingHost{execStarted: make(chan struct{}), exitCode: make(chan int)}
		host, err := hookwire.DialHost(serve(sockets[0], first))
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		inFlight := make(chan string)
		go func() {
			result, err := host.Exec(t.Context(), hook.Scope{}, hook.ExecRequest{Command: []string{"x"}})
			inFlight <- fmt.Sprintf("%+v %v", result, err)
		}()
		<-first.execStarted

		for _, socket := range sockets[1:] {
			next := &fakeHost{}
			host.SwitchAgentSocket(serve(socket, next))
			if err := host.Kill(t.Context(), hook.Scope{}, hook.KillRequest{Reason: "why"}); err != nil || next.lastCall == nil {
				t.Errorf("sockets %v: after Move: %v, the next host got %v", sockets, err, next.lastCall)
			}
		}
		first.exitCode <- 3
		if got, want := <-inFlight, fmt.Sprintf("%+v %v", &driver.ExecResult{Exit: driver.ExitResult{ExitCode: 3}}, nil); got != want {
			t.Errorf("sockets %v: the call in flight: %s, want %s", sockets, got, want)
		}
	}
}

// blockingHost is a host whose Exec blocks until the test sends the exit code.
type blockingHost struct {
	fakeHost
	execStarted chan struct{} // closed when Exec is called
	exitCode    chan int
}

func (b *blockingHost) Exec(context.Context, hook.Scope, hook.ExecRequest) (*driver.ExecResult, error) {
	close(b.execStarted)
	return &driver.ExecResult{Exit: driver.ExitResult{ExitCode: <-b.exitCode}}, nil
}

// A stream of samples continues with the next host, and ends when that host ends it.
func TestHostStatsContinueWithTheNextHost(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	host, err := hookwire.DialHost(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	serve := func(impl hook.Host) (stop func()) {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		hookwire.RegisterHost(s, impl)
		served := make(chan error)
		go func() { served <- s.Serve(l) }()
		return func() {
			s.Stop()
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
	}
	first := newStatsHost()
	stop := serve(first)
	first.samples <- hook.Usage{MemoryRSS: 1}
	samples, err := host.Stats(t.Context(), hook.Scope{}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if got := <-samples; got.MemoryRSS != 1 {
		t.Errorf("of the first host: %+v", got)
	}
	stop()
	for _, memory := range []uint64{2, 3} {
		next := newStatsHost()
		stop = serve(next)
		next.samples <- hook.Usage{MemoryRSS: memory}
		if got, ok := <-samples; !ok || got.MemoryRSS != memory {
			t.Fatalf("of the next host: %+v %v", got, ok)
		}
		if memory == 3 {
			close(next.samples)
			if got, ok := <-samples; ok {
				t.Errorf("after the end: %+v", got)
			}
		}
		stop()
	}
}

// statsHost is a host that streams samples.
type statsHost struct {
	hook.Host
	samples chan hook.Usage
}

func newStatsHost() statsHost { return statsHost{samples: make(chan hook.Usage, 1)} }

func (s statsHost) Stats(context.Context, hook.Scope, time.Duration) (<-chan hook.Usage, error) {
	return s.samples, nil
}

func TestHookPointsInOrder(t *testing.T) {
	all := hook.PointsOf(&recordingHook{})
	if !slices.IsSorted(all) || all[0] != hook.Prerun || all[len(all)-1] != hook.Shutdown {
		t.Errorf("%v", all)
	}
	for _, m := range all {
		if got, want := m.IsTask(), m >= hook.Prestart; got != want {
			t.Errorf("%s of a task: %v", m, got)
		}
	}
}
