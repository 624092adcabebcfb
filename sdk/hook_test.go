package sdk_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// envServeHook makes this binary serve the hook instead of the driver.
const envServeHook = "SDK_TEST_HOOK"

// hostCallingHook is a hook whose Prestart and Stop call the host.
type hostCallingHook struct {
	host hook.Host
	node hook.Node
}

var (
	_ sdk.HostSetter    = (*hostCallingHook)(nil)
	_ hook.TaskPrestart = (*hostCallingHook)(nil)
	_ hook.TaskStop     = (*hostCallingHook)(nil)
)

func (*hostCallingHook) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name: "valet",
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
			"drink": hclspec.Attr("drink", "string", true),
			"cubes": hclspec.Attr("cubes", "number", false),
		}),
	}
}

func (h *hostCallingHook) SetHost(host hook.Host, node hook.Node) { h.host, h.node = host, node }

func (h *hostCallingHook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	var config struct {
		Drink string `codec:"drink"`
		Cubes int    `codec:"cubes"`
	}
	state := map[string]string{"calls": req.PreviousState["calls"] + "I"}
	if err := req.DecodeConfig(&config); err != nil {
		return hook.TaskPrestartResponse{State: state}, err
	}
	if config.Cubes > 3 {
		return hook.TaskPrestartResponse{State: state}, sdk.Recoverable(errors.New("that is too much ice"))
	}
	err := h.host.EmitEvent(ctx, req.Scope(), hook.Event{Message: config.Drink + " on " + h.node.Name})
	return hook.TaskPrestartResponse{State: state, Env: map[string]string{"DRINK": config.Drink}}, err
}

func (h *hostCallingHook) Stop(ctx context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, h.host.Kill(ctx, req.TaskScope("other"), hook.KillRequest{Reason: "the party is over"})
}

// fakeHost is the agent's side: it records the calls of the hook.
type fakeHost struct {
	hook.Host
	mu    sync.Mutex
	calls []string
}

func (f *fakeHost) recordCall(words ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, strings.Join(words, " "))
	return nil
}

func (f *fakeHost) EmitEvent(_ context.Context, s hook.Scope, event hook.Event) error {
	return f.recordCall(s.Token, s.Task, event.Message)
}

func (f *fakeHost) Kill(_ context.Context, s hook.Scope, req hook.KillRequest) error {
	return f.recordCall(s.Token, s.Task, req.Reason)
}

func serveFakeHost(t *testing.T, g *fakeHost) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(socketDir(t), "host.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	hookwire.RegisterHost(server, g)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return socket, server.Stop
}

func launchHook(t *testing.T, env ...string) (base.Plugin, *hookwire.Client) {
	t.Helper()
	plugins := plugin.PluginSet{basewire.PluginName: &basewire.GRPCPlugin{}, hookwire.PluginName: &hookwire.GRPCPlugin{}}
	client := launchPlugin(t, plugins, io.Discard, append(env, envServeHook+"=1")...)
	return dispense[base.Plugin](t, client, basewire.PluginName), dispense[*hookwire.Client](t, client, hookwire.PluginName)
}

func TestHookPluginProcess(t *testing.T) {
	b, h := launchHook(t)
	if info, err := b.PluginInfo(t.Context()); err != nil || info.Type != base.TypeHook || info.Name != "valet" || info.Version != "0.1.0" || info.APIVersions[0] != hook.APIVersion {
		t.Errorf("it says that it is %+v, %v", info, err)
	}
	d, err := h.Describe(t.Context())
	if err != nil || len(d.Subscriptions) != 2 || d.Subscriptions[0].Point != hook.Prestart || d.Subscriptions[1].Point != hook.Stop || d.AttachmentSchema == nil || d.AllAllocs || d.IncludeAllocJSON {
		t.Errorf("it describes itself as %+v, %v", d, err)
	}
	if err := h.Configure(t.Context(), hook.Config{}); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("without a socket: %v", err)
	}

	g := &fakeHost{}
	socket, stop := serveFakeHost(t, g)
	config := hook.Config{HostSocket: socket, Node: hook.Node{Name: "rome"}}
	if err := h.Configure(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	request := hook.TaskPrestartRequest{PreviousState: map[string]string{"calls": "I"}}
	request.Token, request.AttachmentJSON = "key", []byte(`{"drink":"tea","cubes":3}`)
	answer, err := h.Prestart(t.Context(), request)
	if err != nil || answer.State["calls"] != "II" || answer.Env["DRINK"] != "tea" {
		t.Errorf("prestart: %+v, %v", answer, err)
	}
	request.AttachmentJSON = []byte(`{"drink":"tea","cubes":4}`)
	if answer, err := h.Prestart(t.Context(), request); !driver.IsRecoverable(err) || answer.State["calls"] != "II" {
		t.Errorf("a failed prestart: %+v, %v", answer, err)
	}
	request.AttachmentJSON = []byte(`{"drink":"tea","cubes":"many"}`)
	if _, err := h.Prestart(t.Context(), request); err == nil || !strings.Contains(err.Error(), "decode the configuration of the attachment: ") {
		t.Errorf("an attachment of another shape: %v", err)
	}

	// Another agent starts on another socket.
	stop()
	later := &fakeHost{}
	config.HostSocket, _ = serveFakeHost(t, later)
	if err := h.Configure(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	_, err = h.Stop(t.Context(), hook.TaskStopRequest{RequestMeta: hook.RequestMeta{Token: "other key"}})
	if err != nil && err.Error() == hook.ErrHostUnavailable.Error() {
		// The end of the connection to the first agent was detected by this call, which an agent repeats.
		_, err = h.Stop(t.Context(), hook.TaskStopRequest{RequestMeta: hook.RequestMeta{Token: "other key"}})
	}
	if err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(append(g.calls, later.calls...), "\n"), "key  tea on rome\nother key other the party is over"; got != want {
		t.Errorf("the hosts have heard\n%s\nwant\n%s", got, want)
	}
}

func TestDebugHook(t *testing.T) {
	socket := filepath.Join(socketDir(t), "debug.sock")
	env := sdk.EnvDebug + "=valet=" + socket
	startDebugged(t, env, envServeHook+"=1")

	_, h := launchHook(t, env)
	if d, err := h.Describe(t.Context()); err != nil || len(d.Subscriptions) != 2 {
		t.Errorf("through the process of the host it describes itself as %+v, %v", d, err)
	}
	g := &fakeHost{}
	host, _ := serveFakeHost(t, g)
	if err := h.Configure(t.Context(), hook.Config{HostSocket: host}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Stop(t.Context(), hook.TaskStopRequest{}); err != nil || len(g.calls) != 1 {
		t.Errorf("stop: %v, and the host has heard %q", err, g.calls)
	}
}
