package systemtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/hookplugin"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// serveHostileHook is a plugin that misbehaves at the hook point that its attachment names. Its
// argument is its name.
func serveHostileHook() {
	h := &hostileHookPlugin{name: os.Args[1]}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins: plugin.PluginSet{
			base.PluginName: &base.GRPCPlugin{Impl: h},
			hook.PluginName: &hook.GRPCPlugin{Impl: h, Hook: h},
		},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.UnaryInterceptor(h.interceptCall))...)
		},
		Logger: hclog.NewNullLogger(),
	})
}

// hostileHookPlugin takes part in all hook points. It implements only Prestart; intercept answers
// the calls at the other hook points.
type hostileHookPlugin struct {
	hookplugin.RemoteHook
	name string
	host *hook.HostClient
}

// invalidPrestartResponses are responses of Prestart that are invalid for every task.
var invalidPrestartResponses = map[string]hook.TaskPrestartResponse{
	"env":    {Env: map[string]string{"GOOD": "yes", "BAD": "a\x00b"}},
	"mount":  {Mounts: []driver.Mount{{TaskPath: "/local/../../../etc", HostPath: "/etc"}}},
	"device": {Devices: []driver.Device{{TaskPath: "dev", HostPath: "/dev/null", Permissions: "everything"}}},
	"state":  {State: map[string]string{"x": strings.Repeat("x", 2<<20)}, Done: true},
	"crowd":  {Mounts: make([]driver.Mount, 20_000)},
}

func (h *hostileHookPlugin) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	orders, err := parseHostileHookConfig(req.Attachment)
	return invalidPrestartResponses[strings.TrimPrefix(orders.Mode, "lie ")], err
}

func (h *hostileHookPlugin) PluginInfo(context.Context) (*base.Info, error) {
	return &base.Info{Type: base.TypeHook, Name: h.name, Version: "1.0.0", APIVersions: []string{hook.APIVersion}}, nil
}

func (h *hostileHookPlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (h *hostileHookPlugin) SetConfig(context.Context, *base.Config) error { return nil }

func (h *hostileHookPlugin) Describe(context.Context) (*hook.Description, error) {
	d := &hook.Description{Schema: hclspec.Object(map[string]*hclspec.Spec{
		"at":   hclspec.Attr("at", "string", true),
		"mode": hclspec.Attr("mode", "string", true),
	})}
	for m := range hook.AllPoints() {
		p := hook.Subscription{Point: m, Timeout: waitTimeout}
		if h.name == shortTimeoutHookName(m) || h.name == shortTimeoutHookName(m)+"-warn" {
			p.Timeout = hostileHookTimeout
		}
		d.Subscriptions = append(d.Subscriptions, p)
	}
	return d, nil
}

// shortTimeoutHookName returns the name of the hook that does not answer at a hook point, and has a
// short timeout there. All other timeouts of hooks are long enough for a busy machine.
func shortTimeoutHookName(m hook.Point) string { return "tardy-" + m.String() }

// hostileHookTimeout is the timeout of hooks that do not answer.
const hostileHookTimeout = 2 * time.Second

func (h *hostileHookPlugin) Configure(_ context.Context, c hook.Config) (err error) {
	h.host, err = hook.DialHost(c.HostSocket)
	return err
}

// interceptCall answers the calls at hook points. Only a Prestart that must return an invalid response
// reaches the method.
func (h *hostileHookPlugin) interceptCall(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	asked, ok := request.(interface {
		GetToken() string
		GetAttachment() []byte
	})
	if !ok {
		return handler(ctx, request)
	}
	orders, err := parseHostileHookConfig(asked.GetAttachment())
	if err != nil {
		return nil, err
	}
	if rpcMethodName(orders.At) == filepath.Base(call.FullMethod) {
		if strings.HasPrefix(orders.Mode, "lie ") {
			return handler(ctx, request)
		}
		if answer, err := h.faultyResponse(ctx, orders.Mode, hook.Scope{Token: asked.GetToken()}); answer != nil || err != nil {
			return answer, err
		}
	}
	return &emptypb.Empty{}, nil // an empty response means success
}

type hostileHookConfig struct{ At, Mode string }

func parseHostileHookConfig(attachment []byte) (o hostileHookConfig, err error) {
	return o, json.Unmarshal(attachment, &o)
}

// failureResponse returns a response with a failure in the wire format.
func failureResponse(message string) (any, error) {
	text, err := proto.Marshal(wrapperspb.String(message))
	return wrapperspb.Bytes(text), err
}

// rpcMethodName returns the gRPC method of a hook point.
func rpcMethodName(point string) string {
	var methodName strings.Builder
	for word := range strings.SplitSeq(point, "_") {
		methodName.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return methodName.String()
}

// faultyResponse returns the faulty response of a mode. It returns nil if the mode misbehaves in
// another way and the response is correct.
func (h *hostileHookPlugin) faultyResponse(ctx context.Context, mode string, s hook.Scope) (any, error) {
	mode, arg, _ := strings.Cut(mode, " ")
	switch mode {
	case "hang":
		<-make(chan struct{}) // ignores ctx
	case "late":
		<-ctx.Done()
		time.Sleep(time.Second) // the host must notice that the deadline has passed before the call returns
	case "refuse":
		return failureResponse("I do not like it")
	case "code":
		var statusCode codes.Code
		if err := statusCode.UnmarshalJSON([]byte(arg)); err != nil {
			return nil, err
		}
		return nil, status.Error(statusCode, "I do not like it")
	case "corrupt":
		return wrapperspb.Bytes([]byte{0xff, 0xff, 0xff}), nil // bytes that are not a valid failure message
	case "oversize":
		return failureResponse(strings.Repeat("x", 20<<20))
	case "chatter":
		return failureResponse(strings.Repeat("x", 1<<20) + "\x00\n")
	case "flood":
		minded := false
		for n, end := 0, time.Now().Add(hostileHookTimeout/4); time.Now().Before(end); n++ {
			fmt.Fprintf(os.Stderr, "{\"@level\":\"info\",\"@message\":\"flood %d\"}\nnoise %d\n", n, n)
			if _, err := h.host.State(ctx, s); err != nil {
				return nil, fmt.Errorf("state: %w", err)
			}
			err := h.host.EmitEvent(ctx, s, hook.Event{Message: strings.Repeat("x", 5000)})
			if minded = minded || err != nil; n > 1000 && !minded {
				return nil, fmt.Errorf("nobody minds %d events", n)
			}
		}
	case "steal":
		forged := []byte(s.Token)
		forged[len(forged)/2] ^= 1
		for what, scope := range map[string]hook.Scope{
			"none": {}, "a forged one": {Token: string(forged)}, "that of another task": {Token: s.Token, Task: "other"},
		} {
			if err := h.host.Kill(ctx, scope, "stolen"); !errors.Is(err, hook.ErrPermissionDenied) && !errors.Is(err, hook.ErrTaskNotRunning) {
				return nil, fmt.Errorf("kill with %s: %v", what, err)
			}
			if _, err := h.host.State(ctx, scope); err == nil && what != "that of another task" {
				return nil, fmt.Errorf("state with %s is told", what)
			}
		}
	}
	return nil, nil
}

// init adds commands of killable agents for the tests of hostile hooks.
func init() {
	killableAgentCommands["end"] = func(ctx context.Context, a *agent.Agent, job string) any {
		_, err := a.Scheduler().Deregister(ctx, scheduler.JobKey{Namespace: "default", ID: job}, scheduler.DeregisterOptions{})
		return fmt.Sprint(err)
	}
	killableAgentCommands["restart"] = func(ctx context.Context, a *agent.Agent, ids string) any {
		for _, id := range strings.Fields(ids) {
			go func() { _ = a.Alloc(id).RestartAll(ctx) }() // the test checks the result of the restart in the task's events
		}
		return "ok"
	}
}

// hookFault is a way in which a hook misbehaves, and the message that an event must contain.
type hookFault struct {
	at                 hook.Point
	mode               string
	expectedText       string
	harmless           bool // the fault does not fail the task, even with on_error fail
	onlyWithFaultsFlag bool // there are many similar faults, so this one is tested only with -faults
}

// allHookFaults returns the faults of all hook points.
func allHookFaults() (list []hookFault) {
	for m := range hook.AllPoints() {
		list = append(list,
			hookFault{at: m, mode: "hang", expectedText: "no answer within 2s", onlyWithFaultsFlag: true},
			hookFault{at: m, mode: "late", expectedText: "no answer within 2s", onlyWithFaultsFlag: true},
			hookFault{at: m, mode: "refuse", expectedText: "I do not like it", onlyWithFaultsFlag: true},
			hookFault{at: m, mode: "flood", harmless: true, onlyWithFaultsFlag: true},
			hookFault{at: m, mode: "corrupt", onlyWithFaultsFlag: true})
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		list = append(list, hookFault{at: hook.Poststart, mode: fmt.Sprintf("code %d", code), onlyWithFaultsFlag: true})
	}
	return append(list,
		hookFault{at: hook.Prestart, mode: "corrupt"},
		hookFault{at: hook.Poststart, mode: "flood", harmless: true},
		hookFault{at: hook.Poststart, mode: "oversize", expectedText: "bytes that are taken"},
		hookFault{at: hook.Poststart, mode: "chatter", expectedText: "xxx"},
		hookFault{at: hook.Prestart, mode: "steal", harmless: true},
		hookFault{at: hook.Poststart, mode: "steal", harmless: true},
		hookFault{at: hook.PreKill, mode: "steal", harmless: true},
		hookFault{at: hook.Prestart, mode: "lie env", expectedText: `sets the variable "BAD" to what no environment can hold`},
		hookFault{at: hook.Prestart, mode: "lie mount", expectedText: `mounts "/etc" at "/local/../../../etc"`},
		hookFault{at: hook.Prestart, mode: "lie device", expectedText: `shares the device "/dev/null" at "dev" with permissions "everything"`},
		hookFault{at: hook.Prestart, mode: "lie state", expectedText: "its answer has 2097153 bytes, more than the 1048576 that are kept"},
		hookFault{at: hook.Prestart, mode: "lie crowd", expectedText: "bytes, more than the 1048576 that are kept"})
}

// faultyHookJob is a job with a hook that misbehaves.
type faultyHookJob struct {
	hookFault
	jobID, attachedHook string
	onErrorWarn         bool
	seenEvents          map[string]bool
	steps               []jobStep // steps of the job that are not done yet
}

// hookName returns the name of the hook plugin that has the fault.
func (w hookFault) hookName() string {
	if w.mode == "hang" || w.mode == "late" {
		return shortTimeoutHookName(w.at)
	}
	return "bad"
}

// jobSpec returns the specification of the job, with the hook that misbehaves.
func (s *faultyHookJob) jobSpec(killTimeout string) string {
	return jobSpecWithHooks(s.jobID, 0, killTimeout, map[string]string{s.attachedHook: fmt.Sprintf("{ at = %q, mode = %q }", s.at, s.mode)})
}

// jobStep is a condition for which a test waits, and the action that follows.
type jobStep struct {
	description string
	ok          func(*api.Allocation) bool // reports whether the action can run; if ok is nil, the step waits until the allocation was removed
	action      func(*api.Allocation)
}

func (s *faultyHookJob) String() string {
	return fmt.Sprintf("%s at %s, lenient %v", s.mode, s.at, s.onErrorWarn)
}

// hasExpectedEvent reports whether an event contains the expected text of the fault.
func (s *faultyHookJob) hasExpectedEvent() bool {
	for message := range s.seenEvents {
		if strings.Contains(message, s.attachedHook) && strings.Contains(message, s.at.String()+": ") && strings.Contains(message, s.expectedText) && strings.Contains(message, "(on_error is warn)") == s.onErrorWarn {
			return true
		}
	}
	return false
}

// planSteps sets the steps of the job. Steps for the shutdown of the agent come after all other
// steps of all jobs; replaced is set when the next agent runs.
func (s *faultyHookJob) planSteps(n *faultNode, replaced *bool) {
	register := func(timeout string) {
		n.registerJob(s.jobSpec(timeout))
	}
	do := func(verb string) func(*api.Allocation) {
		return func(*api.Allocation) { n.do(verb+" "+s.jobID, new(string)) }
	}
	over := func(status string) func(*api.Allocation) bool {
		return func(a *api.Allocation) bool {
			if a.ClientTerminalStatus() && a.ClientStatus != status {
				n.Errorf("%v: %s", s, a.ClientStatus)
			}
			return a.ClientTerminalStatus() && (s.harmless || s.hasExpectedEvent())
		}
	}
	gone := jobStep{"is gone", nil, nil}
	register("1s")
	switch s.at {
	case hook.Prerun, hook.Prestart:
		if !s.onErrorWarn && !s.harmless {
			s.steps = []jobStep{{"fails, and says why", over(api.AllocClientStatusFailed), do("purge")}, gone}
			return
		}
	case hook.Shutdown, hook.ShutdownAlloc:
		s.steps = []jobStep{
			{"runs", allTasksRunning, func(*api.Allocation) {}},
			{"is told by the next agent", func(*api.Allocation) bool { return *replaced && (s.harmless || s.hasExpectedEvent()) }, do("purge")},
			gone,
		}
		return
	case hook.Destroy:
		s.steps = []jobStep{
			{"runs", allTasksRunning, do("end")},
			{"ends", func(a *api.Allocation) bool { return a.ClientStatus == api.AllocClientStatusComplete }, do("purge")},
			gone,
		}
		return
	}
	s.steps = []jobStep{
		{"runs", allTasksRunning, func(*api.Allocation) { register("2s") }},
		{"is updated", func(a *api.Allocation) bool {
			return *a.Job.Version == 1 && (s.harmless || s.at != hook.Update && s.at != hook.UpdateAlloc || s.hasExpectedEvent())
		}, func(a *api.Allocation) { n.do("restart "+a.ID, new(string)) }},
		{"runs again", func(a *api.Allocation) bool { return allTasksRunning(a) && a.TaskStates["t"].Restarts == 1 }, do("end")},
		{"ends", over(api.AllocClientStatusComplete), do("purge")},
		gone,
	}
}

// runNextStep runs the next step of the job if its condition holds, and reports whether no step is
// left.
func (s *faultyHookJob) runNextStep(a *api.Allocation) bool {
	recordTaskEvents(a, s.seenEvents)
	if len(s.steps) == 0 {
		return true
	}
	next := s.steps[0]
	switch {
	case a == nil && next.ok == nil:
		s.steps = nil
	case a != nil && next.ok != nil && next.ok(a):
		s.steps = s.steps[1:]
		next.action(a)
	}
	return len(s.steps) == 0
}

// TestHostileHooks makes a hook misbehave in each way at each hook point, for many jobs at once.
// Each fault affects its own allocation as on_error says, and no other allocation: neither an
// allocation in which the same hook is correct, nor an allocation without the hook.
func TestHostileHooks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	t.Parallel()
	n := newFaultNode(t, fault{step: -1})
	var all []*faultyHookJob
	hooks := map[string]bool{}
	replaced := false
	for i, w := range allHookFaults() {
		for _, hook := range []string{w.hookName(), w.hookName() + "-warn"} {
			if *runAllFaults || !w.onlyWithFaultsFlag || i%9 == 0 {
				hooks[hook] = true
				all = append(all, &faultyHookJob{
					hookFault: w, jobID: fmt.Sprintf("job-%d-%s", i, hook), attachedHook: hook, onErrorWarn: strings.HasSuffix(hook, "-warn"), seenEvents: map[string]bool{},
				})
			}
		}
	}
	for name := range hooks {
		if err := n.installHook("hostile-hook", name); err != nil {
			t.Fatal(err)
		}
	}
	n.startAgent()
	n.startBystander()
	neighbour := &faultyHookJob{hookFault: hookFault{at: hook.Prerun, mode: "nothing"}, jobID: "neighbour", attachedHook: "bad", seenEvents: map[string]bool{}}
	n.registerJob(neighbour.jobSpec("1s"))

	// At most this many jobs run at once. The next ones start when some have ended.
	const maxConcurrentJobs = 40
	begun := 0
	var unfinishedJobs []string
	await := func(what string, enough func(remainingJobs []*faultyHookJob) bool) {
		t.Helper()
		defer func() {
			if t.Failed() {
				t.Logf("not over: %q", unfinishedJobs)
			}
		}()
		n.waitAllocReport(what, func(seen allocReport) bool {
			var remainingJobs []*faultyHookJob
			unfinishedJobs = nil
			for _, s := range all[:begun] {
				if !s.runNextStep(seen.findAlloc(s.jobID, func(*api.Allocation) bool { return true })) {
					remainingJobs = append(remainingJobs, s)
					unfinishedJobs = append(unfinishedJobs, fmt.Sprintf("%v: %s: %v", s, s.steps[0].description, slices.Sorted(maps.Keys(s.seenEvents))))
				}
			}
			for ; begun < len(all) && len(remainingJobs) < maxConcurrentJobs; begun++ {
				all[begun].planSteps(n, &replaced)
				remainingJobs = append(remainingJobs, all[begun])
			}
			recordTaskEvents(seen.findAlloc(neighbour.jobID, allTasksRunning), neighbour.seenEvents)
			return begun == len(all) && enough(remainingJobs)
		})
	}
	await("all are over but those that wait for the end of the agent", func(remainingJobs []*faultyHookJob) bool {
		return !slices.ContainsFunc(remainingJobs, func(s *faultyHookJob) bool {
			return (s.at != hook.Shutdown && s.at != hook.ShutdownAlloc) || len(s.steps) == 3
		})
	})
	n.agent.end("leave")
	n.startAgent()
	replaced = true
	await("all are over", func(remainingJobs []*faultyHookJob) bool { return len(remainingJobs) == 0 })

	for _, s := range all {
		for message := range s.seenEvents {
			if s.harmless && strings.Contains(message, "failed") {
				t.Errorf("%v: %s", s, message)
			}
			if len(message) > 4<<10 {
				t.Errorf("%v: an event of %d bytes", s, len(message))
			}
		}
	}
	if got := slices.Sorted(maps.Keys(neighbour.seenEvents)); len(got) != 3 {
		t.Errorf("the neighbour has heard %q", got)
	}
	for _, s := range all {
		if said := n.readLog(); s.at == hook.Destroy && s.expectedText != "" && !strings.Contains(said, s.expectedText) {
			t.Errorf("%v: the agent does not say so", s)
		}
	}
	n.checkBystander()
	n.agent.end("stop")
}
