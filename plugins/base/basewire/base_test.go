package basewire

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/proto/basepb"
)

// serveOnSocket runs a server on a unix socket until the test ends.
func serveOnSocket(t *testing.T, register func(grpc.ServiceRegistrar)) *grpc.ClientConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "base")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := NewServerWithoutSizeLimits(nil)
	register(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	conn, err := grpc.NewClient("unix://"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// fakePlugin is a plugin that returns the values of its fields.
type fakePlugin struct {
	info   *base.Info
	spec   *hclspec.Spec
	config *base.Config
	err    error
}

func (f *fakePlugin) PluginInfo(context.Context) (*base.Info, error) { return f.info, f.err }

func (f *fakePlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) { return f.spec, f.err }

func (f *fakePlugin) SetConfig(_ context.Context, c *base.Config) error {
	f.config = c
	return f.err
}

func TestFieldsSurviveBothDirections(t *testing.T) {
	full := &base.Config{
		MsgpackConfig: []byte{0x80},
		APIVersion:    "0.1.0",
		Driver: &base.ClientDriverConfig{
			ClientMinPort: 14000,
			ClientMaxPort: 14512,
			Topology: &base.Topology{
				NodeIDs:   []uint32{0, 1},
				Distances: [][]uint32{{10, 20}, {20, 10}},
				Cores: []base.Core{
					{SocketID: 1, NodeID: 2, CoreID: 3, Grade: base.CoreEfficiency, Disable: true, BaseSpeed: 4, MaxSpeed: 5, GuessSpeed: 6},
					{},
				},
				OverrideTotalCompute:    7,
				OverrideWithholdCompute: 8,
			},
		},
	}
	f := &fakePlugin{
		info: &base.Info{Type: base.TypeDriver, APIVersions: []string{"v0.1.0", "v0.2.0"}, Version: "0.1.0", Name: "spy"},
		spec: hclspec.Object(map[string]*hclspec.Spec{"x": hclspec.Attr("x", "string", true)}),
	}
	conn := serveOnSocket(t, func(s grpc.ServiceRegistrar) { RegisterServer(s, f) })
	p := NewClient(conn, nil)

	info, err := p.PluginInfo(t.Context())
	if err != nil || !reflect.DeepEqual(info, f.info) {
		t.Errorf("PluginInfo: got %+v, %v", info, err)
	}
	spec, err := p.ConfigSchema(t.Context())
	if err != nil || !reflect.DeepEqual(spec, f.spec) {
		t.Errorf("ConfigSchema: got %+v, %v", spec, err)
	}
	for name, config := range map[string]*base.Config{
		"full":             full,
		"only checked":     {MsgpackConfig: []byte{0x80}, APIVersion: "v0.1.0"},
		"nothing":          {},
		"without topology": {Driver: &base.ClientDriverConfig{ClientMinPort: 1}},
	} {
		if err := p.SetConfig(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(f.config, config) {
			t.Errorf("SetConfig %s: got %+v, want %+v", name, f.config, config)
		}
	}

	f.spec = nil
	if spec, err := p.ConfigSchema(t.Context()); spec != nil || err != nil {
		t.Errorf("ConfigSchema: got %v, %v, want none", spec, err)
	}
	f.err = errors.New("bad mode")
	err = p.SetConfig(t.Context(), &base.Config{})
	if got, want := fmt.Sprint(err), "rpc error: code = Unknown desc = SetConfig failed: bad mode"; got != want {
		t.Errorf("SetConfig: got %q, want %q", got, want)
	}
}

// TestInfoWireEncoding compares the encoding of a PluginInfo response with fixed bytes: the
// encoding is part of the protocol.
func TestInfoWireEncoding(t *testing.T) {
	s := &server{impl: &fakePlugin{info: &base.Info{Type: base.TypeDriver, APIVersions: []string{"v0.1.0"}, Version: "0.1.0", Name: "spy"}}}
	resp, err := s.PluginInfo(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(resp)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(b), "0802120676302e312e301a05302e312e302203737079"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// emptyResponseServer is a plugin that returns an empty message from PluginInfo and
// ConfigSchema.
type emptyResponseServer struct {
	basepb.UnimplementedBasePluginServer
}

func (emptyResponseServer) PluginInfo(context.Context, *basepb.PluginInfoRequest) (*basepb.PluginInfoResponse, error) {
	return &basepb.PluginInfoResponse{}, nil
}

func (emptyResponseServer) ConfigSchema(context.Context, *basepb.ConfigSchemaRequest) (*basepb.ConfigSchemaResponse, error) {
	return &basepb.ConfigSchemaResponse{}, nil
}

func TestEmptyResponses(t *testing.T) {
	conn := serveOnSocket(t, func(s grpc.ServiceRegistrar) { basepb.RegisterBasePluginServer(s, emptyResponseServer{}) })
	p := NewClient(conn, nil)
	if info, err := p.PluginInfo(t.Context()); err != nil || !reflect.DeepEqual(info, &base.Info{}) {
		t.Errorf("PluginInfo: got %+v, %v", info, err)
	}
	if spec, err := p.ConfigSchema(t.Context()); err != nil || spec != nil {
		t.Errorf("ConfigSchema: got %+v, %v", spec, err)
	}
	if err := p.SetConfig(t.Context(), &base.Config{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("SetConfig: got %v", err)
	}
}

func TestTopologyDistancesFromProto(t *testing.T) {
	tests := []struct {
		name   string
		in     *basepb.ClientTopologySLIT
		want   [][]uint32
		values []uint32 // distances in the message that topologyProto makes of the decoded topology
	}{
		{"nothing", nil, nil, nil},
		{"a dimension without values", &basepb.ClientTopologySLIT{Dimension: 1 << 31}, nil, nil},
		{"values without a dimension", &basepb.ClientTopologySLIT{Values: []uint32{1}}, nil, nil},
		{"a row that is short", &basepb.ClientTopologySLIT{Dimension: 2, Values: []uint32{1, 2, 3}}, [][]uint32{{1, 2}}, []uint32{1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			topology := topologyFromProto(&basepb.ClientTopology{Distances: tt.in})
			if got := topology.Distances; !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if got := topologyProto(topology).Distances.Values; !reflect.DeepEqual(got, tt.values) {
				t.Errorf("sent again: got %v, want %v", got, tt.values)
			}
		})
	}
}

// fixedStateConn is a connection that is always in the same connectivity.State.
type fixedStateConn struct {
	grpc.ClientConnInterface
	connectivity.State
}

func (s fixedStateConn) GetState() connectivity.State { return s.State }

func TestConnErr(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "EOF")
	canceled := status.Error(codes.Canceled, "closing")
	deadline := status.Error(codes.DeadlineExceeded, "too slow")
	plain := status.Error(codes.Unknown, "plain")
	const noTimeout = time.Hour
	tests := []struct {
		name  string
		err   error
		state connectivity.State
		death time.Duration // death: the process exits after this time
		end   time.Duration // end: the caller's context ends after this time
		want  error
		after time.Duration
	}{
		{"an answer is an answer", plain, connectivity.Ready, noTimeout, noTimeout, plain, 0},
		{"nothing counts from the dead", plain, connectivity.Ready, 0, noTimeout, base.ErrPluginDown, 0},
		{"the dead win over the caller", canceled, connectivity.Idle, 0, 0, base.ErrPluginDown, 0},
		{"a broken connection waits for the news", unavailable, connectivity.Idle, time.Second, noTimeout, base.ErrPluginDown, time.Second},
		{"a broken connection is down without news", unavailable, connectivity.TransientFailure, noTimeout, noTimeout, base.ErrPluginDown, 3 * time.Second},
		{"a live plugin may say it too", unavailable, connectivity.Ready, noTimeout, noTimeout, unavailable, 3 * time.Second},
		{"the caller's own end is told at once", canceled, connectivity.Ready, noTimeout, 0, context.Canceled, 0},
		{"the caller's end while waiting", unavailable, connectivity.Ready, noTimeout, time.Second, context.Canceled, time.Second},
		{"a connection that we close", canceled, connectivity.Shutdown, time.Second, noTimeout, base.ErrPluginDown, time.Second},
		{"a deadline of the plugin's own", deadline, connectivity.Ready, noTimeout, noTimeout, deadline, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan struct{})
				death := time.AfterFunc(tt.death, func() { close(done) })
				defer death.Stop()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				end := time.AfterFunc(tt.end, cancel)
				defer end.Stop()
				synctest.Wait()

				start := time.Now()
				got := NewConn(fixedStateConn{State: tt.state}, done).ConvertErr(ctx, tt.err)
				if got != tt.want {
					t.Errorf("got %v, want %v", got, tt.want)
				}
				if after := time.Since(start); after != tt.after {
					t.Errorf("after %v, want %v", after, tt.after)
				}
			})
		})
	}
	t.Run("no error", func(t *testing.T) {
		if err := NewConn(nil, nil).ConvertErr(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("a deadline that the plugin sees first", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := NewConn(nil, nil).ConvertErr(ctx, deadline); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
	})
}

// FuzzTopology checks that decoding and encoding a message yield no more rows or values
// than the message contains.
func FuzzTopology(f *testing.F) {
	b, _ := proto.Marshal(topologyProto(&base.Topology{Distances: [][]uint32{{1, 2}, {3, 4}}, Cores: []base.Core{{}}}))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &basepb.ClientTopology{}
		if proto.Unmarshal(b, p) != nil {
			return
		}
		topology := topologyFromProto(p)
		if n := len(topology.Distances); n > len(p.GetDistances().GetValues()) {
			t.Fatalf("%d rows of %d values", n, len(p.GetDistances().GetValues()))
		}
		if n := len(topologyProto(topology).Distances.Values); n > len(p.GetDistances().GetValues()) {
			t.Fatalf("%d values of %d", n, len(p.GetDistances().GetValues()))
		}
	})
}

func TestErrorMessageKeepsWrappingText(t *testing.T) {
	grpcErr := status.Error(codes.Unknown, "no such image")
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("plain"), "plain"},
		{grpcErr, "no such image"},
		{fmt.Errorf("pull: %w", grpcErr), "pull: no such image"},
		{status.Error(codes.Unavailable, ""), "rpc error: code = Unavailable desc = "},
	} {
		if got := ErrorMessageWithoutGRPCPrefix(c.err); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
