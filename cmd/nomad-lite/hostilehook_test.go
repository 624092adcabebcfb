package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// hostileHook is a plugin that does wrong at the moment that its attachment names.
// It is called what its argument says.
func hostileHook() {
	h := &hostile{name: os.Args[1]}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins: plugin.PluginSet{
			base.PluginName: &base.GRPCPlugin{Impl: h},
			hook.PluginName: &hook.GRPCPlugin{Impl: h, Hook: h},
		},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.UnaryInterceptor(h.intercept))...)
		},
		Logger: hclog.NewNullLogger(),
	})
}

// hostile takes part in all moments, and has none: intercept answers.
type hostile struct {
	hooks.Remote
	name string
	host *hook.HostClient
}

func (h *hostile) PluginInfo(context.Context) (*base.Info, error) {
	return &base.Info{Type: base.TypeHook, Name: h.name, Version: "1.0.0", APIVersions: []string{hook.APIVersion}}, nil
}

func (h *hostile) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (h *hostile) SetConfig(context.Context, *base.Config) error { return nil }

func (h *hostile) Describe(context.Context) (*hook.Description, error) {
	d := &hook.Description{Schema: sdk.Object(map[string]*sdk.Spec{
		"at":   sdk.Attr("at", "string", true),
		"mode": sdk.Attr("mode", "string", true),
	})}
	for m := range hook.AllMoments() {
		d.Moments = append(d.Moments, hook.Participation{Moment: m, Timeout: hostileTimeout})
	}
	return d, nil
}

// hostileTimeout is long enough for an answer on a machine that has much to do.
const hostileTimeout = 2 * time.Second

func (h *hostile) Configure(_ context.Context, c hook.Config) (err error) {
	h.host, err = hook.DialHost(c.HostSocket)
	return err
}

// intercept answers in the place of the moments.
func (h *hostile) intercept(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	asked, ok := request.(interface {
		GetCapability() string
		GetAttachment() []byte
	})
	if !ok {
		return handler(ctx, request)
	}
	var orders struct{ At, Mode string }
	if err := json.Unmarshal(asked.GetAttachment(), &orders); err != nil {
		return nil, err
	}
	if rpcOf(orders.At) == filepath.Base(call.FullMethod) {
		if answer, err := h.misbehave(ctx, orders.Mode, hook.Scope{Capability: asked.GetCapability()}); answer != nil || err != nil {
			return answer, err
		}
	}
	return &emptypb.Empty{}, nil // which is what an answer without a failure is on the wire
}

// failureAnswer is an answer with a failure, as it is on the wire.
func failureAnswer(message string) (any, error) {
	text, err := proto.Marshal(wrapperspb.String(message))
	return wrapperspb.Bytes(text), err
}

// rpcOf is the method that is called for a moment.
func rpcOf(moment string) string {
	var name strings.Builder
	for word := range strings.SplitSeq(moment, "_") {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
}

// misbehave returns the wrong answer of a mode, or none if it does its wrong
// besides a good one.
func (h *hostile) misbehave(ctx context.Context, mode string, s hook.Scope) (any, error) {
	mode, arg, _ := strings.Cut(mode, " ")
	switch mode {
	case "hang":
		<-make(chan struct{}) // whatever ctx says
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		<-make(chan struct{}) // the answer must not overtake the signal
	case "refuse":
		return failureAnswer("I do not like it")
	case "code":
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(arg)); err != nil {
			return nil, err
		}
		return nil, status.Error(code, "I do not like it")
	case "corrupt":
		return wrapperspb.Bytes([]byte{0xff, 0xff, 0xff}), nil // in the place of the failure
	case "oversize":
		return failureAnswer(strings.Repeat("x", 20<<20))
	case "chatter":
		return failureAnswer(strings.Repeat("x", 1<<20) + "\x00\n")
	case "flood":
		for i := range 3000 {
			fmt.Fprintf(os.Stderr, "{\"@level\":\"info\",\"@message\":\"flood %d\"}\nnoise %d\n", i, i)
		}
		for i := range 200 {
			if err := h.host.EmitEvent(ctx, s, hook.Event{Message: strings.Repeat("x", 5000)}); err != nil {
				return nil, fmt.Errorf("emit event %d: %w", i, err)
			}
		}
	case "steal":
		forged := []byte(s.Capability)
		forged[len(forged)/2] ^= 1
		for what, scope := range map[string]hook.Scope{
			"none": {}, "a forged one": {Capability: string(forged)}, "that of another task": {Capability: s.Capability, Task: "other"},
		} {
			if err := h.host.Kill(ctx, scope, "stolen"); !errors.Is(err, hook.ErrDenied) && !errors.Is(err, hook.ErrNoTask) {
				return nil, fmt.Errorf("kill with %s: %v", what, err)
			}
			if _, err := h.host.State(ctx, scope); err == nil && what != "that of another task" {
				return nil, fmt.Errorf("state with %s is told", what)
			}
		}
	}
	return nil, nil
}

// The verbs of the agent of these tests.
func init() {
	moreVerbs["end"] = func(ctx context.Context, a *agent.Agent, job string) any {
		_, err := a.Scheduler().Deregister(ctx, scheduler.JobKey{Namespace: "default", ID: job}, scheduler.DeregisterOptions{})
		return fmt.Sprint(err)
	}
	moreVerbs["restart"] = func(ctx context.Context, a *agent.Agent, ids string) any {
		var restarts sync.WaitGroup
		for _, id := range strings.Fields(ids) {
			restarts.Go(func() { _ = a.Alloc(id).RestartAll(ctx) }) // what becomes of it is seen
		}
		restarts.Wait()
		return "ok"
	}
}

// hostileJob lives with a hook that does wrong.
const hostileJob = `
job "%[1]s" {
  group "g" {
    meta {
      lite_hook_%[2]s = jsonencode({ at = "%[3]s", mode = "%[4]s" })
    }
    update {
      max_parallel = 0
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "t" {
      driver       = "raw_exec"
      kill_timeout = "%[5]s"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 20
        memory = 10
      }
    }
  }
}
`

// stage is what is waited for in the life of such a job.
func (n *node) stage(job, what string, heard map[string]bool, ok func(*api.Allocation) bool) *api.Allocation {
	n.Helper()
	var found *api.Allocation
	n.await(job+" "+what, func(s sight) bool {
		found = s.of(job, func(*api.Allocation) bool { return true })
		if found == nil {
			return false
		}
		for _, task := range found.TaskStates {
			for _, e := range task.Events {
				heard[e.Type+": "+e.DisplayMessage] = true
			}
		}
		return ok(found)
	})
	return found
}

// TestHostileHooks has a hook do wrong at each moment, in each way. It costs its
// own allocation what the operator has said, and a bystander nothing.
func TestHostileHooks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have task directories like an agent's")
	}
	type wrong struct {
		at, mode, says string
		harmless       bool // even where it counts
		often          bool // there are many of its kind: -faults has them all
	}
	var all []wrong
	for m := range hook.AllMoments() {
		if m == hook.Destroy || m == hook.ShutdownAlloc || m == hook.Shutdown {
			continue // nobody is left who could tell: other tests look at the log
		}
		all = append(all,
			wrong{at: m.String(), mode: "die", says: "plugin is shut down", often: true},
			wrong{at: m.String(), mode: "hang", says: "no answer within 2s", often: true},
			wrong{at: m.String(), mode: "refuse", says: "I do not like it", often: true})
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		all = append(all, wrong{at: "poststart", mode: fmt.Sprintf("code %d", code), often: true})
	}
	all = append(all,
		wrong{at: "prestart", mode: "corrupt"},
		wrong{at: "poststart", mode: "oversize", says: "larger than max"},
		wrong{at: "poststart", mode: "chatter", says: "xxx"},
		wrong{at: "poststart", mode: "flood", harmless: true},
		wrong{at: "prestart", mode: "steal", harmless: true},
		wrong{at: "poststart", mode: "steal", harmless: true},
		wrong{at: "pre_kill", mode: "steal", harmless: true})
	for _, lenient := range []bool{false, true} {
		for _, kind := range []string{"die", "hang", "refuse", "code", "corrupt", "oversize", "chatter", "flood", "steal"} {
			name := kind
			if lenient {
				name += "-warn"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				n := newNode(t, fault{step: -1})
				if err := n.makeHook("hostile-hook", name); err != nil {
					t.Fatal(err)
				}
				n.start()
				n.startBystander()
				for i, w := range all {
					if mode, _, _ := strings.Cut(w.mode, " "); mode != kind || !*allFaults && w.often && i%5 > 0 {
						continue
					}
					n.suffer(fmt.Sprintf("job-%d", i), name, w.at, w.mode, w.says, w.harmless, lenient)
				}
				n.checkBystander()
				n.agent.end("stop")
			})
		}
	}
}

// suffer lives with a hook that does wrong at a moment.
func (n *node) suffer(job, name, at, mode, says string, harmless, lenient bool) {
	n.Helper()
	heard := map[string]bool{}
	register := func(timeout string) { n.register(fmt.Sprintf(hostileJob, job, name, at, mode, timeout)) }
	told := func(*api.Allocation) bool {
		for message := range heard {
			if strings.Contains(message, name) && strings.Contains(message, at+": ") && strings.Contains(message, says) && strings.Contains(message, "(on_error is warn)") == lenient {
				return true
			}
		}
		return false
	}
	never := func(a *api.Allocation) bool { return model.ClientTerminal(a) && (harmless || told(a)) }
	register("1s")
	if fatal := at == "prerun" || at == "prestart"; fatal && !lenient && !harmless {
		a := n.stage(job, "fails, and says why", heard, never)
		if a.ClientStatus != api.AllocClientStatusFailed {
			n.Errorf("%s at %s: %s", mode, at, a.ClientStatus)
		}
		n.do("purge "+job, new(string))
		return
	}
	a := n.stage(job, "runs", heard, running)
	register("2s")
	n.stage(job, "is updated", heard, func(a *api.Allocation) bool { return *a.Job.Version == 1 })
	if at == "update" || at == "update_alloc" {
		n.stage(job, "is told", heard, told)
	}
	n.do("restart "+a.ID, new(string))
	n.stage(job, "runs again", heard, func(a *api.Allocation) bool { return running(a) && a.TaskStates["t"].Restarts == 1 })
	n.do("end "+job, new(string))
	a = n.stage(job, "ends", heard, never)
	if a.ClientStatus != api.AllocClientStatusComplete {
		n.Errorf("%s at %s: %s", mode, at, a.ClientStatus)
	}
	for message := range heard {
		if harmless && strings.Contains(message, "failed") {
			n.Errorf("%s at %s: %s", mode, at, message)
		}
		if len(message) > 4<<10 {
			n.Errorf("%s at %s: an event of %d bytes", mode, at, len(message))
		}
	}
	n.do("purge "+job, new(string))
}
