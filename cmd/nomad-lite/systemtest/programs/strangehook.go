package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
)

// serveMisbehavingHook is the program "strange-hook NAME MODE", a hook that violates the hook protocol in the way that
// MODE names.
func serveMisbehavingHook() {
	s := &misbehavingPlugin{
		name: os.Args[1], mode: os.Args[2],
		info: base.Info{Type: base.TypeHook, Name: os.Args[1], Version: "1.0.0", APIVersions: []string{hook.APIVersion}},
	}
	// The file contains one byte for each launch of the plugin.
	marks, _ := os.ReadFile(s.name + ".launches")
	s.launchCount = 1 + bytes.Count(marks, []byte("x"))
	if err := os.WriteFile(s.name+".launches", bytes.Repeat([]byte("x"), s.launchCount), 0o644); err != nil {
		panic(err)
	}
	handshake := basewire.Handshake
	switch s.mode {
	case "handshake":
		handshake.ProtocolVersion = 9
	case "cookie":
		handshake.MagicCookieValue = "another"
	case "name", "twin":
		s.info.Name = "somebody"
	case "no-name":
		s.info.Name = "../../etc/passwd"
	case "version":
		s.info.Version = "one"
	case "api":
		s.info.APIVersions = []string{"v9"}
	case "no-api":
		s.info.APIVersions = nil
	case "device":
		s.info.Type, s.info.APIVersions = base.TypeDevice, []string{"v0.1.0"}
	case "driver":
		s.info.Type, s.info.APIVersions = base.TypeDriver, []string{"v0.1.0"}
	case "renamed":
		if s.launchCount > 1 {
			s.info.Name = "somebody-else"
		}
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName: &basewire.GRPCPlugin{Impl: s},
			hookwire.PluginName: &hookwire.GRPCPlugin{Impl: s, PointHandler: s},
		},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			s.server = grpc.NewServer(append(options, grpc.UnaryInterceptor(s.alterResponseToOtherVersion))...)
			return s.server
		},
		Logger: hclog.NewNullLogger(),
	})
	if s.mode == "deaf" && s.launchCount == 1 {
		<-make(chan struct{}) // blocks until it is killed
	}
}

// alterResponseToOtherVersion changes responses to those of an older or a newer version of the protocol, if the mode
// says so.
func (p *misbehavingPlugin) alterResponseToOtherVersion(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(call.FullMethod)
	if p.mode == "older" && slices.Contains([]string{"Configure", "Prestart", "Exited"}, method) {
		return nil, status.Error(codes.Unimplemented, "unknown method "+method)
	}
	answer, err := handler(ctx, request)
	if m, ok := answer.(proto.Message); ok && p.mode == "newer" {
		m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 4242, protowire.BytesType), "news"))
	}
	return answer, err
}

// misbehavingPlugin violates the hook protocol in the way that mode names.
type misbehavingPlugin struct {
	pluginhooks.RemoteHook // implements all hook points; only the methods below are called
	name, mode             string
	launchCount            int
	info                   base.Info
	server                 *grpc.Server
}

func (p *misbehavingPlugin) PluginInfo(context.Context) (*base.Info, error) { return &p.info, nil }

func (p *misbehavingPlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (p *misbehavingPlugin) SetConfig(context.Context, *base.Config) error { return nil }

func (p *misbehavingPlugin) Configure(context.Context, hook.Config) error { return nil }

func (p *misbehavingPlugin) Describe(context.Context) (*hook.Description, error) {
	d := &hook.Description{Subscriptions: []hook.Subscription{{Point: hook.Prerun}, {Point: hook.Poststart}}}
	switch p.mode {
	case "newer":
		d.Subscriptions = append(d.Subscriptions, hook.Subscription{Point: 99}, hook.Subscription{Point: hook.Stop})
	case "older":
		d.Subscriptions = append(d.Subscriptions, hook.Subscription{Point: hook.Stop})
	case "exits":
		os.Exit(3)
	case "hangs":
		<-make(chan struct{})
	case "no-points":
		d.Subscriptions = nil
	case "future":
		d.Subscriptions = []hook.Subscription{{Point: 99}}
	case "large":
		d.AttachmentSchema = hclspec.Object(map[string]*hclspec.Spec{strings.Repeat("x", 5<<20): hclspec.Attr("x", "string", false)})
	case "changes":
		if p.launchCount > 1 { // from its second launch on, the plugin no longer takes part in Prerun and has another schema
			d.Subscriptions = slices.Delete(d.Subscriptions, 0, 1)
			d.AttachmentSchema = hclspec.Object(map[string]*hclspec.Spec{"key": hclspec.Attr("key", "string", true)})
		}
	}
	return d, nil
}

func (p *misbehavingPlugin) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	if p.mode == "deaf" && p.launchCount == 1 {
		go p.server.Stop() // the plugin process continues without its gRPC server
		<-make(chan struct{})
	}
	return hook.AllocPrerunResponse{}, p.appendHookPointToFile("prerun")
}

func (p *misbehavingPlugin) Poststart(context.Context, hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, p.appendHookPointToFile("poststart")
}

func (p *misbehavingPlugin) Stop(context.Context, hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, p.appendHookPointToFile("stop")
}

func (p *misbehavingPlugin) appendHookPointToFile(point string) error {
	f, err := os.OpenFile(p.name+".points", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintln(f, point)
		err = errors.Join(err, f.Close())
	}
	return err
}
