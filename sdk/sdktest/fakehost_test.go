package sdktest_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

// farewellHook emits an event when a task has exited.
type farewellHook struct{ host hook.Host }

func (h *farewellHook) SetHost(host hook.Host, _ hook.Node) { h.host = host }

func (h *farewellHook) Exited(ctx context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, h.host.EmitEvent(ctx, req.Scope(), hook.Event{Message: fmt.Sprintf("exit code %d", req.Exit.ExitCode)})
}

// A unit test passes a FakeHost to the hook, calls a method of the hook, and reads the calls of the hook.
func ExampleFakeHost() {
	host := &sdktest.FakeHost{}
	h := &farewellHook{}
	h.SetHost(host, hook.Node{})
	_, err := h.Exited(context.Background(), hook.TaskExitedRequest{
		RequestMeta: hook.RequestMeta{Token: "token"},
		Exit:        driver.ExitResult{ExitCode: 3},
	})
	for _, call := range host.Calls() {
		fmt.Println(call.Method, call.Scope.Token, call.Request.(hook.Event).Message)
	}
	fmt.Println(err)
	// Output:
	// EmitEvent token exit code 3
	// <nil>
}

func TestFakeHostReturnsWhatTheTestSets(t *testing.T) {
	denied := errors.New("denied")
	host := &sdktest.FakeHost{
		OnCall: func(_ context.Context, call sdktest.HostCall) error {
			if call.Method == "Kill" {
				return denied
			}
			return nil
		},
		OnExec: func(context.Context, hook.Scope, hook.ExecRequest) (*driver.ExecResult, error) {
			return &driver.ExecResult{Exit: driver.ExitResult{ExitCode: 3}}, nil
		},
		AllocState: hook.AllocState{ClientStatus: "running"},
		References: map[string]string{"${meta.owner}": "me"},
		Samples:    []hook.Usage{{MemoryRSS: 1}},
	}
	host.SetVariable("a/b", map[string]string{"k": "v"})
	host.SetServices(hook.Service{ID: "1", Name: "web"}, hook.Service{ID: "2", Name: "db"})
	ctx, s := t.Context(), hook.Scope{Token: "t"}
	check := func(method string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", method, got, err, want)
		}
	}
	result, err := host.Exec(ctx, s, hook.ExecRequest{Command: []string{"true"}})
	check("Exec", result, err, &driver.ExecResult{Exit: driver.ExitResult{ExitCode: 3}})
	state, err := host.State(ctx, s)
	check("State", state, err, &hook.AllocState{ClientStatus: "running"})
	text, err := host.Interpolate(ctx, s, "of ${meta.owner}")
	check("Interpolate", text, err, "of me")
	samples, err := host.Stats(ctx, s, 0)
	check("Stats", <-samples, err, hook.Usage{MemoryRSS: 1})
	variable, err := host.Variable(ctx, s, hook.VariableRequest{Path: "a/b"})
	check("Variable", variable.Items, err, map[string]string{"k": "v"})
	paths, err := host.Variables(ctx, s, hook.VariablesRequest{Prefix: "a/"})
	check("Variables", paths.Paths, err, []string{"a/b"})
	web, err := host.Services(ctx, s, hook.ServicesRequest{Name: "web"})
	check("Services", web.Services, err, []hook.Service{{ID: "1", Name: "web"}})
	if err := host.Kill(ctx, s, hook.KillRequest{}); err != denied {
		t.Errorf("Kill: %v", err)
	}
	if err := host.EmitEvent(ctx, s, hook.Event{Type: "Killed"}); err == nil {
		t.Error("EmitEvent accepts an event that an agent rejects")
	}
	if n := len(host.Calls()); n != 9 {
		t.Errorf("%d calls recorded", n)
	}
}

func TestFakeHostBlocksUntilAChange(t *testing.T) {
	host := &sdktest.FakeHost{}
	before, err := host.Variable(t.Context(), hook.Scope{}, hook.VariableRequest{Path: "a"})
	if err != nil || before.Items != nil {
		t.Fatal(before, err)
	}
	got := make(chan hook.VariableResponse)
	go func() {
		after, _ := host.Variable(t.Context(), hook.Scope{}, hook.VariableRequest{Path: "a", AfterIndex: before.Index})
		got <- after
	}()
	select {
	case after := <-got:
		t.Fatalf("returned without a change: %+v", after)
	default:
	}
	host.SetVariable("a", map[string]string{"k": "v"})
	if after := <-got; after.Items["k"] != "v" || after.Index <= before.Index {
		t.Errorf("got %+v", after)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := host.Services(ctx, hook.Scope{}, hook.ServicesRequest{AfterIndex: 99}); err != context.Canceled {
		t.Errorf("after the end of ctx: %v", err)
	}
}
