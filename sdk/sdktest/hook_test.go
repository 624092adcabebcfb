package sdktest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// envHookFault names the environment variable with the fault of the hook that
// this binary serves.
const envHookFault = "SDKTEST_HOOK_FAULT"

// faultyHook is a hook without the SDK, with a configurable fault.
type faultyHook struct {
	fault string

	mu            sync.Mutex
	client        *hookwire.HostClient
	seenAllocs    map[string]bool   // by allocation
	stoppedAllocs map[string]bool   // by allocation
	startIDs      map[string]string // stored by Poststart, by allocation
	lock          *os.File
	current       string     // allocation of the latest Prestart
	cancelled     sync.Mutex // stays locked after a cancelled call
	configCount   atomic.Int32
	callCount     atomic.Int32
}

func serveFaultyHook(fault string) {
	if os.Getenv(basewire.Handshake.MagicCookieKey) == "" {
		if fault != "is silent" {
			fmt.Fprintln(os.Stderr, "this is a plugin")
		}
		os.Exit(1)
	}
	n := &faultyHook{fault: fault, seenAllocs: map[string]bool{}, stoppedAllocs: map[string]bool{}, startIDs: map[string]string{}}
	if fault == "exits on SIGINT" {
		interrupts := make(chan os.Signal, 1)
		signal.Notify(interrupts, os.Interrupt)
		go func() { <-interrupts; os.Exit(2) }()
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName: &basewire.GRPCPlugin{Impl: n},
			hookwire.PluginName: &hookwire.GRPCPlugin{Impl: n, PointHandler: n},
		},
		GRPCServer: basewire.NewServerWithoutSizeLimits,
	})
	if fault == "does not exit" {
		select {}
	}
}

func (h *faultyHook) PluginInfo(context.Context) (*base.Info, error) {
	info := &base.Info{Type: base.TypeHook, APIVersions: []string{"v1"}, Version: "0.1.0", Name: "naive"}
	switch h.fault {
	case "speaks another version":
		info.APIVersions = []string{"v7"}
	case "has a malformed version":
		info.Version = "new"
	}
	return info, nil
}

func (h *faultyHook) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (h *faultyHook) SetConfig(context.Context, *base.Config) error {
	if h.configCount.Add(1) > 1 && h.fault == "is configured once" {
		return errors.New("configured already")
	}
	if h.fault == "locks a file" && h.configCount.Load() == 1 {
		// Flock uses the descriptor, so it belongs to the process.
		f, err := os.Create(filepath.Join(os.Getenv("TMPDIR"), "lock"))
		if err != nil {
			return err
		}
		h.lock = f
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return nil
}

func (h *faultyHook) Describe(context.Context) (*hook.Description, error) {
	d := &hook.Description{AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
		"name": hclspec.Default(hclspec.Attr("name", "string", false), hclspec.Literal(`"nobody"`)),
		"must": hclspec.Attr("must", "bool", h.fault == "wants more"),
	})}
	for _, m := range []hook.Point{hook.Prestart, hook.Poststart, hook.Stop, hook.Destroy} {
		d.Subscriptions = append(d.Subscriptions, hook.Subscription{Point: m})
	}
	switch h.fault {
	case "wants what is not":
		d.AttachmentSchema = hclspec.Object(map[string]*hclspec.Spec{"must": hclspec.Attr("must", "boole", true)})
	case "takes part in nothing":
		d.Subscriptions = nil
	case "names a hook point twice":
		d.Subscriptions = append(d.Subscriptions, d.Subscriptions[0])
	case "names what it has not":
		d.Subscriptions = append(d.Subscriptions, hook.Subscription{Point: hook.Exited})
	case "is slow":
		d.Subscriptions[0].Timeout = 50 * time.Millisecond
	case "changes its mind":
		d.AllAllocs = h.callCount.Add(1) > 1
	case "deadlocks after a cancelled call":
		d.Subscriptions[1].Timeout = 3 * time.Second // longer than the timeouts of call.cancelled
	case "stays with its host", "waits for its host to agree":
		d.Subscriptions[1].Timeout = time.Second
	}
	return d, nil
}

func (h *faultyHook) Configure(_ context.Context, c hook.Config) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil && h.fault == "stays with its host" {
		return nil
	}
	h.client, err = hookwire.DialHost(c.HostSocket)
	return err
}

func (h *faultyHook) hostClient() *hookwire.HostClient {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client
}

func (h *faultyHook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	h.mu.Lock()
	seen := h.seenAllocs[req.Alloc.ID]
	h.seenAllocs[req.Alloc.ID] = true
	h.current = req.Alloc.ID
	h.mu.Unlock()
	answer := hook.TaskPrestartResponse{State: map[string]string{"began": "yes"}, Env: map[string]string{"A": "b"}}
	switch h.fault {
	case "is slow":
		time.Sleep(100 * time.Millisecond)
	case "cannot do it twice":
		if seen {
			return answer, errors.New("there is one already")
		}
	case "does not tell its state":
		answer.State = nil
	case "cannot read its state":
		if req.PreviousState != nil {
			return answer, errors.New("a state of another version")
		}
	case "cannot take over a running task":
		if req.Running {
			return answer, errors.New("the task runs already")
		}
	case "keeps a descriptor":
		_, _ = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case "exits for a malformed attachment":
		if !json.Valid(req.AttachmentJSON) {
			os.Exit(3)
		}
	case "returns two megabytes":
		answer.Env["LARGE"] = strings.Repeat("x", 2<<20)
	case "sets odd variables":
		answer.Env["A=B"] = "c"
	case "sets odd mounts":
		answer.Mounts = []driver.Mount{{TaskPath: "here", HostPath: "/there"}}
	case "sets odd devices":
		answer.Devices = []driver.Device{{TaskPath: "/dev/a", HostPath: "/dev/a", Permissions: "rx"}}
	case "does one thing at a time":
		defer h.callCount.Add(-1)
		if h.callCount.Add(1) > 1 {
			return answer, errors.New("busy")
		}
		// Time for concurrent calls; longer than the timeouts of call.cancelled, whose calls continue here.
		time.Sleep(100 * time.Millisecond)
	case "dies when it is given up":
		if end, ok := ctx.Deadline(); ok && time.Until(end) < 10*time.Second {
			<-ctx.Done()
			os.Exit(1)
		}
	}
	return answer, nil
}

func (h *faultyHook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	scope := req.Scope()
	switch h.fault {
	case "":
		if req.Env["A"] != "b" || req.PreviousState["began"] != "yes" {
			return hook.TaskPoststartResponse{}, fmt.Errorf("not what Prestart has returned: variables %v, state %v", req.Env, req.PreviousState)
		}
		if h.hostClient().StoreState(ctx, scope, map[string]string{"began": "yes", "start": req.StartID}) == nil {
			h.mu.Lock()
			h.startIDs[req.Alloc.ID] = req.StartID
			h.mu.Unlock()
		}
	case "starts once":
		if req.Repeated {
			return hook.TaskPoststartResponse{}, errors.New("it runs already")
		}
	case "makes up capabilities":
		scope.Token = "sesame"
	case "needs its Prestart":
		h.mu.Lock()
		seen := h.seenAllocs[req.Alloc.ID]
		h.mu.Unlock()
		if !seen {
			return hook.TaskPoststartResponse{}, errors.New("no Prestart")
		}
	case "is for one allocation":
		time.Sleep(20 * time.Millisecond) // the other allocations get to their Prestart
		h.mu.Lock()
		current := h.current
		h.mu.Unlock()
		if current != "" && current != req.Alloc.ID {
			return hook.TaskPoststartResponse{}, errors.New("another allocation")
		}
	case "deadlocks after a cancelled call":
		h.cancelled.Lock()
		if end, ok := ctx.Deadline(); ok && time.Until(end) < 2500*time.Millisecond {
			<-ctx.Done()
			return hook.TaskPoststartResponse{}, ctx.Err()
		}
		defer h.cancelled.Unlock()
	case "waits for its host to agree":
		for h.hostClient().EmitEvent(ctx, scope, hook.Event{Message: "please"}) != nil && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return hook.TaskPoststartResponse{}, ctx.Err()
	}
	event := hook.Event{Message: "hello"}
	if h.fault == "makes up events" {
		event.Type = "Greeting"
	}
	if h.fault == "makes up operations" {
		event.Ongoing = true
	}
	err := h.hostClient().EmitEvent(ctx, scope, event)
	if errors.Is(err, hook.ErrPermissionDenied) {
		return hook.TaskPoststartResponse{}, nil
	}
	return hook.TaskPoststartResponse{}, err
}

func (h *faultyHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	stopped := h.stoppedAllocs[req.Alloc.ID]
	h.stoppedAllocs[req.Alloc.ID] = true
	switch {
	case h.fault == "stops once" && stopped:
		return hook.TaskStopResponse{}, errors.New("stopped already")
	case req.PreviousState["start"] != cmp.Or(h.startIDs[req.Alloc.ID], req.PreviousState["start"]):
		return hook.TaskStopResponse{}, fmt.Errorf("the state %v is not that of the start %s", req.PreviousState, h.startIDs[req.Alloc.ID])
	case h.fault == "cleans up what it knows" && !h.seenAllocs[req.Alloc.ID]:
		return hook.TaskStopResponse{}, errors.New("never heard of it")
	case h.fault == "does not tell its state" && h.seenAllocs[req.Alloc.ID] && req.PreviousState == nil:
		return hook.TaskStopResponse{}, errors.New("the state is lost")
	}
	return hook.TaskStopResponse{}, nil
}

func (h *faultyHook) Destroy(_ context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fault == "remembers in memory" && !h.seenAllocs[req.Alloc.ID] {
		return hook.AllocDestroyResponse{}, errors.New("never heard of it")
	}
	return hook.AllocDestroyResponse{}, nil
}

func faultyHookPlugin(fault string) Plugin {
	return Plugin{Path: os.Args[0], Env: []string{envHookFault + "=" + fault}, Attachment: map[string]any{"name": "suite"}}
}

func TestHookWithoutFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
	Hook(t, faultyHookPlugin(""))
}

// TestHookDefects checks that the suite reports exactly the cases that a defect of a hook concerns.
func TestHookDefects(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the suite once per defect; TestEachCaseCanFail has other defects")
	}
	// This additional timeout is long enough for a call to reach the plugin on a
	// slow machine.
	defaultTimeouts := shortCallTimeouts
	t.Cleanup(func() { shortCallTimeouts = defaultTimeouts })
	shortCallTimeouts = append(slices.Clone(defaultTimeouts), 2*time.Second)
	// These cases call the hook at all hook points of a task that starts.
	failsInEachLife := []string{
		"call.cancelled", "concurrency.allocs", "crash.each-point", "host.restart",
		"leaks.descriptors", "points.once", "points.twice", "poststart.repeated",
	}
	for _, test := range []struct {
		fault string
		want  []string // want: ids of the findings
		says  string   // says: part of their messages
	}{
		{"is silent", []string{"launch.without-host"}, "standard error is empty"},
		{"speaks another version", []string{"launch.info"}, "v7"},
		{"is configured once", []string{"config.set-twice"}, "configured already"},
		{"takes part in nothing", []string{"describe.points"}, "returned no hook point"},
		{"names a hook point twice", []string{"describe.points"}, "returned prestart twice"},
		{"changes its mind", []string{"describe.points"}, "a second Describe"},
		{"wants more", []string{"attachment.schema"}, `the attachment does not fit: "must": the argument is required` + "\n      " + `set Plugin.Attachment, or attachment = { … } in plugin_test.hcl`},
		{"wants what is not", []string{"attachment.schema"}, `the schema of its attachment: wrong at "config.must": the type boole is invalid: `},
		{"names what it has not", failsInEachLife, "takes no part in exited"},
		{"is slow", slices.Concat(failsInEachLife, []string{"host.denied-calls"}), "prestart: no answer within 50ms"},
		{"sets odd variables", failsInEachLife, `the variable "A=B"`},
		{"sets odd mounts", failsInEachLife, "must be absolute"},
		{"sets odd devices", failsInEachLife, `permissions "rx"`},
		{"does not tell its state", []string{"call.cancelled", "concurrency.allocs", "host.restart", "leaks.descriptors", "points.once", "points.twice"}, "stop: the state is lost"},
		{"cannot do it twice", []string{"call.cancelled", "concurrency.allocs", "host.restart", "leaks.descriptors", "points.once", "points.twice"}, "prestart: there is one already"},
		{"starts once", []string{"host.restart", "poststart.repeated"}, "poststart: it runs already"},
		{"cleans up what it knows", []string{"cleanup.unknown-task", "crash.each-point", "poststart.repeated"}, "stop: never heard of it"},
		{"dies when it is given up", []string{"call.cancelled"}, "exited by itself, exit status 1"},
		{"remembers in memory", []string{"cleanup.unknown-task", "crash.each-point", "poststart.repeated"}, "destroy: never heard of it"},
		{"stays with its host", []string{"concurrency.allocs", "host.denied-calls", "host.restart", "leaks.descriptors"}, "poststart: no answer within 1s"},
		{"makes up events", failsInEachLife, `poststart: events of type "Greeting" are not a hook's: use "Task hook message", or none`},
		{"does one thing at a time", []string{"call.cancelled", "concurrency.allocs"}, "prestart: busy"},
		{"waits for its host to agree", []string{"host.denied-calls"}, "poststart: no answer within 1s"},
		{"makes up capabilities", []string{"host.token"}, `the token "sesame"`},
		{"exits on SIGINT", []string{"launch.interrupt"}, ""},
		{"does not exit", []string{"launch.exit"}, ""},
		{"locks a file", []string{"launch.two-processes"}, ""},
		{"has a malformed version", []string{"launch.info"}, ""},
		{"exits for a malformed attachment", []string{"attachment.malformed"}, "exit status 3"},
		{"keeps a descriptor", []string{"leaks.descriptors"}, ""},
		{"stops once", []string{"call.cancelled", "points.twice"}, "stop: stopped already"},
		{"needs its Prestart", []string{"crash.each-point", "poststart.repeated"}, "poststart: no Prestart"},
		{"deadlocks after a cancelled call", []string{"call.cancelled"}, "poststart: no answer within 3s"},
		{"is for one allocation", []string{"concurrency.allocs"}, "poststart: another allocation"},
		{"returns two megabytes", failsInEachLife, ""},
		{"makes up operations", failsInEachLife, "an ongoing event without an OperationID"},
		{"cannot read its state", []string{"call.cancelled", "concurrency.allocs", "crash.each-point", "host.restart", "leaks.descriptors", "points.once", "points.twice"}, "prestart: a state of another version"},
		{"cannot take over a running task", []string{"host.restart"}, "prestart: the task runs already"},
	} {
		t.Run(test.fault, func(t *testing.T) {
			t.Parallel()
			p := faultyHookPlugin(test.fault)
			p.CaseTimeout = 20 * time.Second
			// With all cases, the table takes minutes: make test-defects.
			if os.Getenv("NOMAD_LITE_ALL_CASES") == "" {
				p.OnlyCasePatterns = strings.Join(append(slices.Clone(test.want), "launch.info", "describe.points", "points.once"), ",")
			}
			ids, text := findings(t, p)
			if !slices.Equal(ids, slices.Sorted(slices.Values(test.want))) || !strings.Contains(text, test.says) {
				t.Errorf("findings %q, want %q, with %q\n%s", ids, test.want, test.says, text)
			}
		})
	}
}

func TestCheckReportsHookFailure(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
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
