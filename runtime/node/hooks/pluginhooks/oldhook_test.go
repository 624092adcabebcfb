package pluginhooks

import (
	"context"
	"net"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// oldHook is a hook server built before PoststartRequest had the field "repeated".
type oldHook struct {
	service protoreflect.ServiceDescriptor

	mu             sync.Mutex
	poststartCalls []poststartCall // poststartCalls are the calls to Poststart
}

type poststartCall struct {
	processNumber int
	unknownBytes  int // unknownBytes counts the bytes in fields unknown to the hook
}

func newOldHook(t *testing.T) *oldHook {
	t.Helper()
	file, err := protoregistry.GlobalFiles.FindFileByPath("plugins/proto/hookpb/hook.proto")
	if err != nil {
		t.Fatal(err)
	}
	old := protodesc.ToFileDescriptorProto(file)
	removed := 0
	for _, message := range old.MessageType {
		if message.GetName() == "PoststartRequest" {
			fields := len(message.Field)
			message.Field = slices.DeleteFunc(message.Field, func(f *descriptorpb.FieldDescriptorProto) bool { return f.GetName() == "repeated" })
			removed = fields - len(message.Field)
		}
	}
	if removed != 1 {
		t.Fatalf("%d fields removed, want 1", removed)
	}
	parsed, err := protodesc.NewFile(old, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return &oldHook{service: parsed.Services().ByName("Hook")}
}

// startProcess starts a hook process, and returns the host's connection to it. If dies is set, the first Poststart ends it.
func (h *oldHook) startProcess(t *testing.T, process int, dies bool) *hookwire.Client {
	t.Helper()
	done := make(chan struct{})
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		name, _ := grpc.MethodFromServerStream(stream)
		method := h.service.Methods().ByName(protoreflect.Name(path.Base(name)))
		if method == nil {
			return status.Error(codes.Unimplemented, name)
		}
		request := dynamicpb.NewMessage(method.Input())
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		if method.Name() == "Poststart" {
			h.mu.Lock()
			h.poststartCalls = append(h.poststartCalls, poststartCall{process, len(request.GetUnknown())})
			h.mu.Unlock()
			if dies {
				close(done)
				return status.Error(codes.Unavailable, "the process has exited")
			}
		}
		return stream.SendMsg(dynamicpb.NewMessage(method.Output()))
	}))
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var servingWG sync.WaitGroup
	servingWG.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); servingWG.Wait() })
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return hookwire.NewClient(conn, done)
}

// A hook built before the field "repeated" gets Poststart again after its process or the agent was restarted. It cannot recognize
// the repetition.
func TestHookWithoutRepeatedField(t *testing.T) {
	for name, test := range map[string]struct {
		dies bool // dies ends the process in the call; the host then repeats the call to the next process
		sent hook.TaskPoststartRequest
	}{
		"the agent was restarted":       {false, hook.TaskPoststartRequest{Repeated: true}},
		"the process exits in the call": {true, hook.TaskPoststartRequest{}},
	} {
		t.Run(name, func(t *testing.T) {
			old := newOldHook(t)
			processes := []*hookwire.Client{old.startProcess(t, 0, test.dies), old.startProcess(t, 1, false)}
			s := &pluginFixture{description: allPointsDescription}
			plugins := s.newSet()
			plugins.config.FindOrLaunchHook = func(context.Context, string, time.Time) (RemoteHook, *hook.Description, error) {
				if test.dies && !wait.IsClosed(processes[0].Done()) {
					return processes[0], s.description, nil
				}
				return processes[1], s.description, nil
			}
			p := plugins.newAttachedHook("stamp", attachment{isExplicit: true}, s.target("t"))
			if !test.dies { // this Poststart stands for the earlier agent's call
				if _, err := processes[0].Poststart(t.Context(), hook.TaskPoststartRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := p.Poststart(t.Context(), test.sent); err != nil {
				t.Errorf("the repeated call: %v", err)
			}
			old.mu.Lock()
			defer old.mu.Unlock()
			if len(old.poststartCalls) != 2 || old.poststartCalls[0].processNumber != 0 || old.poststartCalls[1].processNumber != 1 || old.poststartCalls[0].unknownBytes != 0 || old.poststartCalls[1].unknownBytes == 0 {
				t.Errorf("calls %+v, want one of each process, and the field in the second", old.poststartCalls)
			}
			if len(s.events) > 0 {
				t.Errorf("events %q", s.events)
			}
		})
	}
}
