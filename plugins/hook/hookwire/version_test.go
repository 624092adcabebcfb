package hookwire_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
	"github.com/nomad-lite/nomad-lite/plugins/proto/hookpb"
)

// unknownField is an encoded field that no message of the hook protocol has.
var unknownField = protowire.AppendString(protowire.AppendTag(nil, 4242, protowire.BytesType), "from the next version")

// addUnknownField adds unknownField to a message.
func addUnknownField(message any) {
	if m, ok := message.(proto.Message); ok {
		m.ProtoReflect().SetUnknown(unknownField)
	}
}

// addFieldsToResponse is an interceptor that adds unknownField to each response of a
// server.
func addFieldsToResponse(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, request)
	addUnknownField(answer)
	return answer, err
}

// addFieldsToRequest is an interceptor that adds unknownField to each request of a client.
func addFieldsToRequest(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	addUnknownField(request)
	return invoke(ctx, method, request, answer, conn, options...)
}

// serviceDescWithoutMethods returns the service without the named methods, like the service of an
// earlier version.
func serviceDescWithoutMethods(s grpc.ServiceDesc, without ...string) *grpc.ServiceDesc {
	var remainingMethods []grpc.MethodDesc
	for _, m := range s.Methods {
		if !slices.Contains(without, m.MethodName) {
			remainingMethods = append(remainingMethods, m)
		}
	}
	s.Methods = remainingMethods
	return &s
}

// filteringRegistrar registers services without omittedMethods, like those of an earlier
// version.
type filteringRegistrar struct {
	*grpc.Server
	omittedMethods []string
}

func (r filteringRegistrar) RegisterService(s *grpc.ServiceDesc, impl any) {
	r.Server.RegisterService(serviceDescWithoutMethods(*s, r.omittedMethods...), impl)
}

// dialServer connects to a server that is created with options.
func dialServer(t *testing.T, serverOptions []grpc.ServerOption, register func(*grpc.Server), options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+serveOnSocket(t, register, serverOptions...), append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestPluginOfTheNextVersion(t *testing.T) {
	e := &recordingHook{response: newFilledValue[hook.TaskPrestartResponse]()}
	l := &stopOnlyHook{description: hook.Description{Subscriptions: []hook.Subscription{{Point: hook.Stop}, {Point: 99}}}}
	client := hookwire.NewClient(dialServer(t, []grpc.ServerOption{grpc.UnaryInterceptor(addFieldsToResponse)}, func(s *grpc.Server) { hookwire.RegisterServer(s, l, e) }), nil)
	if d, err := client.Describe(t.Context()); err != nil || len(d.Subscriptions) != 1 || d.Subscriptions[0].Point != hook.Stop {
		t.Errorf("%+v, %v", d, err)
	}
	for m := range hook.AllPoints() {
		if _, out := callHookMethod(client, m); out[len(out)-1].Interface() != nil {
			t.Errorf("%s: %v", m, out)
		}
	}
}

func TestPluginOfTheVersionBefore(t *testing.T) {
	e := &recordingHook{response: newFilledValue[hook.TaskPrestartResponse]()}
	// A plugin of the previous version receives unknown fields, and lacks the newer
	// methods.
	conn := dialServer(t, nil, func(s *grpc.Server) {
		hookwire.RegisterServer(filteringRegistrar{s, []string{"Configure", "UpdateAlloc", "Exited"}}, &stopOnlyHook{}, e)
	}, grpc.WithUnaryInterceptor(addFieldsToRequest))
	client := hookwire.NewClient(conn, nil)
	if err := client.Configure(t.Context(), hook.Config{}); err != nil {
		t.Errorf("one that asks its host for nothing: %v", err)
	}
	for m := range hook.AllPoints() {
		e.lastRequest = nil
		request, out := callHookMethod(client, m)
		err, _ := out[len(out)-1].Interface().(error)
		if m == hook.UpdateAlloc || m == hook.Exited {
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: %v", m, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(e.lastRequest, request) {
			t.Errorf("%s: %v, got %+v", m, err, e.lastRequest)
		}
	}
}

// An agent of the previous version lacks a method that a hook calls, and an agent of
// the next version returns fields that the hook does not have.
func TestAgentOfAnotherVersion(t *testing.T) {
	before, err := hookwire.DialHost(serveOnSocket(t, func(s *grpc.Server) { hookwire.RegisterHost(filteringRegistrar{s, []string{"Services"}}, &fakeHost{}) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { before.Close() })
	if _, err := before.Services(t.Context(), hook.Scope{}, hook.ServicesRequest{}); err == nil || !strings.Contains(err.Error(), "the agent is too old for that") {
		t.Errorf("services: %v", err)
	}
	if text, err := before.Interpolate(t.Context(), hook.Scope{}, "x"); err != nil || text != "<x>" {
		t.Errorf("interpolate: %q, %v", text, err)
	}

	next, err := hookwire.DialHost(serveOnSocket(t, func(s *grpc.Server) { hookwire.RegisterHost(s, &fakeHost{}) }, grpc.UnaryInterceptor(addFieldsToResponse)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { next.Close() })
	if state, err := next.State(t.Context(), hook.Scope{}); err != nil || state.ClientStatus == "" {
		t.Errorf("state: %+v, %v", state, err)
	}
	if found, err := next.Services(t.Context(), hook.Scope{}, hook.ServicesRequest{}); err != nil || len(found.Services) == 0 {
		t.Errorf("services: %+v, %v", found, err)
	}

	// A hook of the next version sends fields that this agent does not have.
	b := &fakeHost{}
	conn := dialServer(t, nil, func(s *grpc.Server) { hookwire.RegisterHost(s, b) }, grpc.WithUnaryInterceptor(addFieldsToRequest))
	if _, err := hookpb.NewHostClient(conn).Kill(t.Context(), &hookpb.KillRequest{Token: "key", Reason: "why"}); err != nil || fmt.Sprint(b.lastCall) != "[{key } {why}]" {
		t.Errorf("kill: %v, asked %v", err, b.lastCall)
	}
}
