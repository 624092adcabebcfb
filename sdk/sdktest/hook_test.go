package sdktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// envHookFault names the environment variable with the fault of the hook that
// this binary serves.
const envHookFault = "SDKTEST_HOOK_FAULT"

// faultyHook is a hook without the SDK, with a configurable fault.
type faultyHook struct {
	fault string

	mu          sync.Mutex
	client      *hook.HostClient
	seenAllocs  map[string]bool // by allocation
	configCount atomic.Int32
	callCount   atomic.Int32
}

func serveFaultyHook(fault string) {
	if os.Getenv(base.Handshake.MagicCookieKey) == "" {
		if fault != "is silent" {
			fmt.Fprintln(os.Stderr, "this is a plugin")
		}
		os.Exit(1)
	}
	n := &faultyHook{fault: fault, seenAllocs: map[string]bool{}}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins: plugin.PluginSet{
			base.PluginName: &base.GRPCPlugin{Impl: n},
			hook.PluginName: &hook.GRPCPlugin{Impl: n, Hook: n},
		},
		GRPCServer: base.NewServer,
	})
}

func (n *faultyHook) PluginInfo(context.Context) (*base.Info, error) {
	info := &base.Info{Type: base.TypeHook, APIVersions: []string{"v1"}, Version: "0.1.0", Name: "naive"}
	if n.fault == "speaks another version" {
		info.APIVersions = []string{"v7"}
	}
	return info, nil
}

func (n *faultyHook) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (n *faultyHook) SetConfig(context.Context, *base.Config) error {
	if n.configCount.Add(1) > 1 && n.fault == "is configured once" {
		return errors.New("configured already")
	}
	return nil
}

func (n *faultyHook) Describe(context.Context) (*hook.Description, error) {
	d := &hook.Description{Schema: hclspec.Object(map[string]*hclspec.Spec{
		"name": hclspec.Default(hclspec.Attr("name", "string", false), hclspec.Literal(`"nobody"`)),
		"must": hclspec.Attr("must", "bool", n.fault == "wants more"),
	})}
	for _, m := range []hook.Point{hook.Prestart, hook.Poststart, hook.Stop, hook.Destroy} {
		d.Subscriptions = append(d.Subscriptions, hook.Subscription{Point: m})
	}
	switch n.fault {
	case "wants what is not":
		d.Schema = hclspec.Object(map[string]*hclspec.Spec{"must": hclspec.Attr("must", "boole", true)})
	case "takes part in nothing":
		d.Subscriptions = nil
	case "names a hook point twice":
		d.Subscriptions = append(d.Subscriptions, d.Subscriptions[0])
	case "names what it has not":
		d.Subscriptions = append(d.Subscriptions, hook.Subscription{Point: hook.Exited})
	case "is slow":
		d.Subscriptions[0].Timeout = 50 * time.Millisecond
	case "changes its mind":
		d.AllAllocs = n.callCount.Add(1) > 1
	case "stays with its host", "waits for its host to agree":
		d.Subscriptions[1].Timeout = 300 * time.Millisecond
	}
	return d, nil
}

func (n *faultyHook) Configure(_ context.Context, c hook.Config) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client != nil && n.fault == "stays with its host" {
		return nil
	}
	n.client, err = hook.DialHost(c.HostSocket)
	return err
}

func (n *faultyHook) hostClient() *hook.HostClient {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.client
}

func (n *faultyHook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	n.mu.Lock()
	seen := n.seenAllocs[req.Alloc.ID]
	n.seenAllocs[req.Alloc.ID] = true
	n.mu.Unlock()
	answer := hook.TaskPrestartResponse{State: map[string]string{"began": "yes"}, Env: map[string]string{"A": "b"}}
	switch n.fault {
	case "is slow":
		time.Sleep(100 * time.Millisecond)
	case "cannot do it twice":
		if seen {
			return answer, errors.New("there is one already")
		}
	case "does not tell its state":
		answer.State = nil
	case "sets odd variables":
		answer.Env["A=B"] = "c"
	case "sets odd mounts":
		answer.Mounts = []driver.Mount{{TaskPath: "here", HostPath: "/there"}}
	case "sets odd devices":
		answer.Devices = []driver.Device{{TaskPath: "/dev/a", HostPath: "/dev/a", Permissions: "rx"}}
	case "does one thing at a time":
		if n.callCount.Add(1) > 1 {
			return answer, errors.New("busy")
		}
		for n.callCount.Load() == 1 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	case "dies when it is given up":
		if end, ok := ctx.Deadline(); ok && time.Until(end) < 10*time.Second {
			<-ctx.Done()
			os.Exit(1)
		}
	}
	return answer, nil
}

func (n *faultyHook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	scope := req.Scope()
	switch n.fault {
	case "starts once":
		if req.Repeated {
			return hook.TaskPoststartResponse{}, errors.New("it runs already")
		}
	case "makes up capabilities":
		scope.Token = "sesame"
	case "waits for its host to agree":
		for n.hostClient().EmitEvent(ctx, scope, hook.Event{Message: "please"}) != nil && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return hook.TaskPoststartResponse{}, ctx.Err()
	}
	event := hook.Event{Message: "hello"}
	if n.fault == "makes up events" {
		event.Type = "Greeting"
	}
	err := n.hostClient().EmitEvent(ctx, scope, event)
	if errors.Is(err, hook.ErrPermissionDenied) {
		return hook.TaskPoststartResponse{}, nil
	}
	return hook.TaskPoststartResponse{}, err
}

func (n *faultyHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.fault == "cleans up what it knows" && !n.seenAllocs[req.Alloc.ID]:
		return hook.TaskStopResponse{}, errors.New("never heard of it")
	case n.fault == "does not tell its state" && n.seenAllocs[req.Alloc.ID] && req.PreviousState == nil:
		return hook.TaskStopResponse{}, errors.New("the state is lost")
	}
	return hook.TaskStopResponse{}, nil
}

func (n *faultyHook) Destroy(_ context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fault == "remembers in memory" && !n.seenAllocs[req.Alloc.ID] {
		return hook.AllocDestroyResponse{}, errors.New("never heard of it")
	}
	return hook.AllocDestroyResponse{}, nil
}

func faultyHookPlugin(fault string) Plugin {
	return Plugin{Path: os.Args[0], Env: []string{envHookFault + "=" + fault}, Attachment: map[string]any{"name": "suite"}}
}

func TestHookWithoutFaults(t *testing.T) { Hook(t, faultyHookPlugin("")) }

// TestEachHookCaseCanFail is TestEachCaseCanFail for hooks.
func TestEachHookCaseCanFail(t *testing.T) {
	// This additional timeout is long enough for a call to reach the plugin on a
	// slow machine.
	defaultTimeouts := shortCallTimeouts
	t.Cleanup(func() { shortCallTimeouts = defaultTimeouts })
	shortCallTimeouts = append(slices.Clone(defaultTimeouts), 5*time.Second)
	for _, test := range []struct {
		fault string
		run   func(tb, *testHost)
		says  string
	}{
		{"is silent", testStartWithoutHost, "standard error is empty"},
		{"speaks another version", testPluginInfo(base.TypeHook, hook.APIVersion), "v7"},
		{"is configured once", testConfigureTwice, "configured already"},
		{"takes part in nothing", testHookDescription, "returned no hook point"},
		{"names a hook point twice", testHookDescription, "returned prestart twice"},
		{"changes its mind", testHookDescription, "a second Describe"},
		{"wants more", testAttachmentSchema, `The argument "must" is required, but no definition was found.
set Plugin.Attachment, or attachment = { … } in plugin_test.hcl`},
		{"wants what is not", testAttachmentSchema, `the schema of its attachment: Invalid type specification: The schema of the plugin is wrong at "config.must": `},
		{"names what it has not", testEachHookPoint, "takes no part in exited"},
		{"is slow", testEachHookPoint, "prestart: no answer within 50ms"},
		{"sets odd variables", testEachHookPoint, `the variable "A=B"`},
		{"sets odd mounts", testEachHookPoint, "must be absolute"},
		{"sets odd devices", testEachHookPoint, `permissions "rx"`},
		{"does not tell its state", testEachHookPoint, "stop: the state is lost"},
		{"cannot do it twice", testEachHookPointTwice, "prestart: there is one already"},
		{"starts once", testRepeatedPoststart, "poststart: it runs already"},
		{"cleans up what it knows", testCleanupOfUnknownTask, "stop: never heard of it"},
		{"dies when it is given up", testCancelledCalls, "exited by itself, exit status 1"},
		{"remembers in memory", testCrashBeforeEachHookPoint, "destroy: never heard of it"},
		{"stays with its host", testHostRestart, "poststart: no answer within 300ms"},
		{"makes up events", testEachHookPoint, `poststart: events of type "Greeting" are not a hook's: use "Task hook message", or none`},
		{"does one thing at a time", testConcurrentAllocs, "prestart: busy"},
		{"waits for its host to agree", testHostDeniesCalls, "poststart: no answer within 300ms"},
		{"makes up capabilities", func(t tb, h *testHost) { testEachHookPoint(t, h); testCapabilityTokens(t, h) }, `the token "sesame"`},
	} {
		t.Run(test.fault, func(t *testing.T) {
			t.Parallel()
			h := newHost(faultyHookPlugin(test.fault))
			defer h.close()
			r := runCase(t.Context(), testCase{id: test.fault, run: test.run}, h)
			if got := strings.Join(r.logLines, "\n"); !r.failed || !strings.Contains(got, test.says) {
				t.Errorf("failed: %v, it says:\n%s\nwant a failure that says %q", r.failed, got, test.says)
			}
		})
	}
}

func TestCheckReportsHookFailure(t *testing.T) {
	var out bytes.Buffer
	err := Check(t.Context(), &out, faultyHookPlugin("makes up capabilities"))
	for _, want := range []string{"PASS  points.once  ", "FAIL  host.token  (must, ", " passed, 1 failed, 0 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	if err == nil || !strings.Contains(err.Error(), "1 of ") {
		t.Errorf("error %v", err)
	}
}
