package programs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
)

// serveHostileHook serves a hook that misbehaves at the hook point that its attachment names. Its argument is its name.
func serveHostileHook() {
	h := &hostileHookPlugin{name: os.Args[1]}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName: &basewire.GRPCPlugin{Impl: h},
			hookwire.PluginName: &hookwire.GRPCPlugin{Impl: h, PointHandler: h},
		},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.UnaryInterceptor(h.answerCallOrInjectFault))...)
		},
		Logger: hclog.NewNullLogger(),
	})
}

// hostileHookPlugin subscribes to all hook points. It implements only Prestart; answerCallOrInjectFault responds to the
// calls at the other hook points.
type hostileHookPlugin struct {
	pluginhooks.RemoteHook
	name string
	host *hookwire.HostClient
}

// invalidPrestartResponse returns a response of Prestart whose part invalidPart every host must reject.
func invalidPrestartResponse(invalidPart string) hook.TaskPrestartResponse {
	switch invalidPart {
	case "env":
		return hook.TaskPrestartResponse{Env: map[string]string{"GOOD": "yes", "BAD": "a\x00b"}}
	case "mount":
		return hook.TaskPrestartResponse{Mounts: []driver.Mount{{TaskPath: "/local/../../../etc", HostPath: "/etc"}}}
	case "device":
		return hook.TaskPrestartResponse{Devices: []driver.Device{{TaskPath: "dev", HostPath: "/dev/null", Permissions: "everything"}}}
	case "state":
		return hook.TaskPrestartResponse{State: map[string]string{"x": strings.Repeat("x", 2<<20)}, Done: true}
	case "crowd":
		return hook.TaskPrestartResponse{Mounts: make([]driver.Mount, 20_000)}
	}
	return hook.TaskPrestartResponse{}
}

func (h *hostileHookPlugin) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	orders, err := parseHostileHookConfig(req.AttachmentJSON)
	return invalidPrestartResponse(strings.TrimPrefix(orders.Mode, "lie ")), err
}

func (h *hostileHookPlugin) PluginInfo(context.Context) (*base.Info, error) {
	return &base.Info{Type: base.TypeHook, Name: h.name, Version: "1.0.0", APIVersions: []string{hook.APIVersion}}, nil
}

func (h *hostileHookPlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (h *hostileHookPlugin) SetConfig(context.Context, *base.Config) error { return nil }

func (h *hostileHookPlugin) Describe(context.Context) (*hook.Description, error) {
	d := &hook.Description{AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
		"at":   hclspec.Attr("at", "string", true),
		"mode": hclspec.Attr("mode", "string", true),
	})}
	for m := range hook.AllPoints() {
		p := hook.Subscription{Point: m, Timeout: systemtest.WaitTimeout}
		if h.name == ShortTimeoutHookName(m) || h.name == ShortTimeoutHookName(m)+"-warn" {
			p.Timeout = hostileHookTimeout
		}
		d.Subscriptions = append(d.Subscriptions, p)
	}
	return d, nil
}

// ShortTimeoutHookName returns the name of the hook that does not respond at a hook point, and has a short timeout
// there. All other timeouts of hooks are long enough for a busy machine.
func ShortTimeoutHookName(point hook.Point) string { return "tardy-" + point.String() }

// hostileHookTimeout is the timeout at the hook points at which a hook does not respond.
const hostileHookTimeout = 2 * time.Second

func (h *hostileHookPlugin) Configure(_ context.Context, c hook.Config) (err error) {
	h.host, err = hookwire.DialHost(c.HostSocket)
	return err
}

// answerCallOrInjectFault responds to calls at hook points with an empty message, or with the fault of the attachment's
// mode. Only a Prestart that must return an invalid response reaches its method.
func (h *hostileHookPlugin) answerCallOrInjectFault(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
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
	if rpcMethodOfHookPoint(orders.At) == filepath.Base(call.FullMethod) {
		if strings.HasPrefix(orders.Mode, "lie ") {
			return handler(ctx, request)
		}
		if answer, err := h.causeFaultOfMode(ctx, orders.Mode, hook.Scope{Token: asked.GetToken()}); answer != nil || err != nil {
			return answer, err
		}
	}
	return &emptypb.Empty{}, nil // an empty response means success
}

type hostileHookConfig struct{ At, Mode string }

func parseHostileHookConfig(attachment []byte) (o hostileHookConfig, err error) {
	return o, json.Unmarshal(attachment, &o)
}

// encodeFailureResponse returns a response in the wire format by which a hook reports a failure.
func encodeFailureResponse(message string) (any, error) {
	text, err := proto.Marshal(wrapperspb.String(message))
	return wrapperspb.Bytes(text), err
}

// rpcMethodOfHookPoint returns the name of the gRPC method for a hook point, such as PreKill for pre_kill.
func rpcMethodOfHookPoint(point string) string {
	var methodName strings.Builder
	for word := range strings.SplitSeq(point, "_") {
		methodName.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return methodName.String()
}

// causeFaultOfMode causes the fault of a mode. It returns nil if the response itself is correct.
func (h *hostileHookPlugin) causeFaultOfMode(ctx context.Context, mode string, s hook.Scope) (any, error) {
	mode, arg, _ := strings.Cut(mode, " ")
	switch mode {
	case "hang":
		<-make(chan struct{}) // ignores ctx
	case "late":
		<-ctx.Done()
		time.Sleep(time.Second) // so that the host detects the timeout before the call returns
	case "refuse":
		return encodeFailureResponse("I do not like it")
	case "code":
		var statusCode codes.Code
		if err := statusCode.UnmarshalJSON([]byte(arg)); err != nil {
			return nil, err
		}
		return nil, status.Error(statusCode, "I do not like it")
	case "corrupt":
		return wrapperspb.Bytes([]byte{0xff, 0xff, 0xff}), nil // bytes that are not a valid failure message
	case "oversize":
		return encodeFailureResponse(strings.Repeat("x", 20<<20))
	case "chatter":
		return encodeFailureResponse(strings.Repeat("x", 1<<20) + "\x00\n")
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
			if err := h.host.Kill(ctx, scope, hook.KillRequest{Reason: "stolen"}); !errors.Is(err, hook.ErrPermissionDenied) && !errors.Is(err, hook.ErrTaskNotRunning) {
				return nil, fmt.Errorf("kill with %s: %v", what, err)
			}
			if _, err := h.host.State(ctx, scope); err == nil && what != "that of another task" {
				return nil, fmt.Errorf("state with %s is told", what)
			}
		}
	}
	return nil, nil
}
