package devicewire

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/proto/devicepb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// newClientOf serves a device plugin on an in-memory connection, and returns the host's client of it. The test can have a fake
// clock: the client waits for the exit of the process after a stream has ended.
func newClientOf(t *testing.T, exited <-chan struct{}, register func(*grpc.Server), options ...grpc.ServerOption) device.Plugin {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	s := grpc.NewServer(options...)
	register(s)
	var serverDone sync.WaitGroup
	serverDone.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { s.Stop(); serverDone.Wait() })
	conn, err := grpc.NewClient("passthrough:memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return NewClient("usb", conn, exited)
}

// fakePlugin sends the values of its fields.
type fakePlugin struct {
	fingerprints []device.Fingerprint
	keepOpen     bool // keepOpen: the channel of Fingerprint stays open after the values
	stats        []device.Stats
	reservation  *device.Reservation
	err          error

	mu       sync.Mutex
	ids      []string
	interval time.Duration
	canceled chan struct{} // closed when the context of Fingerprint has ended
}

func channelOf[V any](values []V, keepOpen bool) <-chan V {
	ch := make(chan V, len(values))
	for _, v := range values {
		ch <- v
	}
	if !keepOpen {
		close(ch)
	}
	return ch
}

func (p *fakePlugin) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	if p.canceled != nil {
		context.AfterFunc(ctx, func() { close(p.canceled) })
	}
	return channelOf(p.fingerprints, p.keepOpen), p.err
}

func (p *fakePlugin) Reserve(_ context.Context, ids []string) (*device.Reservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = ids
	return p.reservation, p.err
}

func (p *fakePlugin) Stats(_ context.Context, interval time.Duration) (<-chan device.Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interval = interval
	return channelOf(p.stats, false), p.err
}

func serveFake(t *testing.T, p *fakePlugin) device.Plugin {
	return newClientOf(t, nil, func(s *grpc.Server) { RegisterServer(s, p) })
}

// receive returns all values of a channel until it is closed.
func receive[V any](t *testing.T, ch <-chan V, err error) (values []V) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for v := range ch {
		values = append(values, v)
	}
	return values
}

func testGroups() []device.Group {
	return []device.Group{
		{
			ID: device.GroupID{Vendor: "nvidia", Type: "gpu", Name: "Tesla T4"},
			Devices: []device.Device{
				{ID: "GPU-1", Healthy: true, PCIBusID: "00000000:65:00.0"},
				{ID: "GPU-2", HealthDescription: "fell off the bus"},
			},
			Attributes: map[string]device.Attribute{
				"memory": {Value: int64(16), Unit: "GiB"}, "power": {Value: 70.5, Unit: "W"}, "driver": {Value: "470"}, "ecc": {Value: true},
			},
		},
		{ID: device.GroupID{Vendor: "acme", Type: "empty", Name: "x"}},
	}
}

func TestFingerprintRoundTrip(t *testing.T) {
	p := &fakePlugin{fingerprints: []device.Fingerprint{{Groups: testGroups()}, {}, {Groups: testGroups()[1:], FailureReason: "no bus"}}, keepOpen: true, canceled: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ch, err := serveFake(t, p).Fingerprint(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range p.fingerprints {
		if got := <-ch; !reflect.DeepEqual(got, want) {
			t.Errorf("fingerprint %d: %+v, want %+v", i, got, want)
		}
	}
	cancel()
	if f, ok := <-ch; ok {
		t.Errorf("after cancellation: %+v", f)
	}
	<-p.canceled
}

func TestFailureReasonIsLimited(t *testing.T) {
	p := &fakePlugin{fingerprints: []device.Fingerprint{{FailureReason: strings.Repeat("é", 1000)}, {FailureReason: "\xff"}}}
	ch, err := serveFake(t, p).Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{strings.Repeat("é", 512) + "…", "\uFFFD"} {
		if got := (<-ch).FailureReason; got != want {
			t.Errorf("reason is %q, want %q", got, want)
		}
	}
}

func TestFingerprintStreamEnds(t *testing.T) {
	exited := make(chan struct{})
	close(exited)
	for name, c := range map[string]struct {
		plugin *fakePlugin
		exited chan struct{}
		want   error
		text   string
	}{
		"closed channel":         {plugin: &fakePlugin{}, want: device.ErrStreamEnded},
		"closed channel at exit": {plugin: &fakePlugin{}, exited: exited, want: device.ErrPluginDown},
		"disabled":               {plugin: &fakePlugin{err: device.ErrDisabled}, want: device.ErrDisabled, text: `device plugin "usb": device is not enabled`},
		"error in the stream":    {plugin: &fakePlugin{fingerprints: []device.Fingerprint{{Err: errors.New("no bus")}}}, text: `device plugin "usb": Fingerprint: no bus`},
		"invalid groups":         {plugin: &fakePlugin{fingerprints: []device.Fingerprint{{Groups: []device.Group{{}}}}}, text: `device plugin "usb": Fingerprint: fingerprint: groups[0] ("//"): vendor is empty`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newClientOf(t, c.exited, func(s *grpc.Server) { RegisterServer(s, c.plugin) })
				ch, err := client.Fingerprint(t.Context())
				got := receive(t, ch, err)
				if len(got) != 1 || got[0].Err == nil {
					t.Fatalf("received %+v, want one error", got)
				}
				if c.want != nil && !errors.Is(got[0].Err, c.want) || c.text != "" && got[0].Err.Error() != c.text {
					t.Errorf("error %q, want %v %q", got[0].Err, c.want, c.text)
				}
			})
		})
	}
}

// unusableServer is a device plugin whose answers are bytes that need not be messages.
type unusableServer struct {
	devicepb.UnimplementedDevicePluginServer
	bytes []byte
	err   error
}

func (s *unusableServer) Reserve(context.Context, *devicepb.ReserveRequest) (*devicepb.ReserveResponse, error) {
	return &devicepb.ReserveResponse{}, s.err
}

func (s *unusableServer) Fingerprint(_ *devicepb.FingerprintRequest, stream devicepb.DevicePlugin_FingerprintServer) error {
	return s.send(stream)
}

func (s *unusableServer) Stats(_ *devicepb.StatsRequest, stream devicepb.DevicePlugin_StatsServer) error {
	return s.send(stream)
}

func (s *unusableServer) send(stream grpc.ServerStream) error {
	if s.err != nil {
		return s.err
	}
	return stream.SendMsg(&s.bytes)
}

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) ([]byte, error) {
	if b, ok := v.(*[]byte); ok {
		return *b, nil
	}
	return proto.Marshal(v.(proto.Message))
}

func (bytesCodec) Unmarshal(b []byte, v any) error { return proto.Unmarshal(b, v.(proto.Message)) }

// The answers of a plugin that cannot be used are errors of the plugin and the call, whatever their status code.
func TestUnusableAnswers(t *testing.T) {
	type fault struct {
		server *unusableServer
		want   string
	}
	faults := map[string]fault{
		"corrupt":  {&unusableServer{bytes: []byte{0xff}}, "unmarshal"},
		"oversize": {&unusableServer{bytes: make([]byte, maxResponseSize+1)}, "more than the 4194304 bytes"},
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		faults[code.String()] = fault{&unusableServer{err: status.Error(code, "the bus is locked")}, "the bus is locked"}
	}
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newClientOf(t, nil, func(s *grpc.Server) { devicepb.RegisterDevicePluginServer(s, f.server) }, grpc.ForceServerCodec(bytesCodec{}))
				check := func(call string, err error) {
					if err == nil || !strings.HasPrefix(err.Error(), `device plugin "usb": `+call) || !strings.Contains(err.Error(), f.want) {
						t.Errorf("%s: error %v, want %q", call, err, f.want)
					}
				}
				fingerprints, err := client.Fingerprint(t.Context())
				check("Fingerprint", receive(t, fingerprints, err)[0].Err)
				stats, err := client.Stats(t.Context(), 0)
				check("Stats", receive(t, stats, err)[0].Err)
				if f.server.err != nil {
					_, err = client.Reserve(t.Context(), []string{"1"})
					check("Reserve", err)
				}
			})
		})
	}
}

func TestReserveRoundTrip(t *testing.T) {
	want := &device.Reservation{
		Env:     map[string]string{"VISIBLE_DEVICES": "GPU-1"},
		Mounts:  []device.Mount{{TaskPath: "/lib/x", HostPath: "/usr/lib/x", ReadOnly: true}},
		Devices: []device.HostDevice{{TaskPath: "/dev/gpu0", HostPath: "/dev/gpu1", Permissions: "rw"}},
	}
	p := &fakePlugin{reservation: want}
	got, err := serveFake(t, p).Reserve(t.Context(), []string{"GPU-1", "GPU-2"})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Reserve returned %+v, %v; want %+v", got, err, want)
	}
	if !reflect.DeepEqual(p.ids, []string{"GPU-1", "GPU-2"}) {
		t.Errorf("the plugin received the ids %q", p.ids)
	}
	p.reservation = nil
	if got, err = serveFake(t, p).Reserve(t.Context(), nil); err != nil || !reflect.DeepEqual(got, &device.Reservation{}) {
		t.Errorf("a nil reservation is %+v, %v", got, err)
	}
	p.err = errors.New(`no device "GPU-9"`)
	if _, err = serveFake(t, p).Reserve(t.Context(), nil); err == nil || err.Error() != `device plugin "usb": Reserve: no device "GPU-9"` {
		t.Errorf("error: %v", err)
	}
}

func TestStatsRoundTrip(t *testing.T) {
	t.Parallel()
	at := time.Unix(1700000000, 5).UTC()
	want := device.Stats{Groups: []device.GroupStats{{
		ID: device.GroupID{Vendor: "nvidia", Type: "gpu", Name: "Tesla T4"},
		Instances: map[string]device.DeviceStats{"GPU-1": {
			Summary: device.StatValue{Value: int64(3), Max: int64(16), Unit: "MiB", Description: "used memory"},
			Stats: device.StatObject{
				Attributes: map[string]device.StatValue{"power": {Value: 1.5, Max: 70.0}, "state": {Value: "P0"}, "ecc": {Value: false}, "fan": {Unit: "rpm"}, "zero": {Value: int64(0)}},
				Nested:     map[string]device.StatObject{"clocks": {Attributes: map[string]device.StatValue{"sm": {Value: int64(300), Unit: "MHz"}}}},
			},
			Timestamp: at,
		}},
	}}}
	p := &fakePlugin{stats: []device.Stats{want, {}}}
	client := serveFake(t, p)
	ch, err := client.Stats(t.Context(), 0)
	if got := receive(t, ch, err); !reflect.DeepEqual(got, []device.Stats{want, {}}) {
		t.Errorf("received %+v, want %+v and an empty one", got, want)
	}
	if p.interval != device.DefaultStatsInterval {
		t.Errorf("interval %v for a request without one", p.interval)
	}

	p.stats = []device.Stats{{Groups: []device.GroupStats{{ID: want.Groups[0].ID, Instances: map[string]device.DeviceStats{"GPU-1": {}}}}}, {Err: errors.New("no bus")}}
	before := time.Now()
	ch, err = client.Stats(t.Context(), time.Minute)
	got := receive(t, ch, err)
	if len(got) != 2 || got[1].Err == nil || got[1].Err.Error() != `device plugin "usb": Stats: no bus` {
		t.Fatalf("received %+v, want statistics and an error", got)
	}
	if at := got[0].Groups[0].Instances["GPU-1"].Timestamp; at.Before(before) {
		t.Errorf("a zero timestamp became %v", at)
	}
	if p.interval != time.Minute {
		t.Errorf("interval %v, want 1m", p.interval)
	}
}

// rawServer sends messages that RegisterServer would not send.
type rawServer struct {
	devicepb.UnimplementedDevicePluginServer
	fingerprint *devicepb.FingerprintResponse
	reserve     *devicepb.ReserveResponse
	stats       *devicepb.StatsResponse
}

func (s *rawServer) Fingerprint(_ *devicepb.FingerprintRequest, stream grpc.ServerStreamingServer[devicepb.FingerprintResponse]) error {
	return stream.Send(s.fingerprint)
}

func (s *rawServer) Reserve(context.Context, *devicepb.ReserveRequest) (*devicepb.ReserveResponse, error) {
	return s.reserve, nil
}

func (s *rawServer) Stats(_ *devicepb.StatsRequest, stream grpc.ServerStreamingServer[devicepb.StatsResponse]) error {
	return stream.Send(s.stats)
}

func repeat[V any](n int, v V) []V {
	values := make([]V, n)
	for i := range values {
		values[i] = v
	}
	return values
}

func TestClientRejectsInvalidFingerprints(t *testing.T) {
	group := func(g *devicepb.DeviceGroup) *devicepb.FingerprintResponse {
		g.Vendor, g.DeviceType, g.DeviceName = "v", "t", "n"
		return &devicepb.FingerprintResponse{DeviceGroup: []*devicepb.DeviceGroup{g}}
	}
	attribute := func(a *structspb.Attribute) *devicepb.FingerprintResponse {
		return group(&devicepb.DeviceGroup{Attributes: map[string]*structspb.Attribute{"a": a}})
	}
	manyDevices := repeat(8193, &devicepb.DetectedDevice{ID: "1"})
	manyAttributes := make(map[string]*structspb.Attribute)
	for i := range 1025 {
		manyAttributes[fmt.Sprint(i)] = nil
	}
	for want, p := range map[string]*devicepb.FingerprintResponse{
		`groups[0] ("//"): vendor is empty`:                         {DeviceGroup: []*devicepb.DeviceGroup{{}}},
		`groups[0] ("v//"): type is empty`:                          {DeviceGroup: []*devicepb.DeviceGroup{{Vendor: "v"}}},
		`groups[0] ("v/t/"): name is empty`:                         {DeviceGroup: []*devicepb.DeviceGroup{{Vendor: "v", DeviceType: "t"}}},
		`groups[0] ("v/t/n"): devices[0]: id is empty`:              group(&devicepb.DeviceGroup{Devices: []*devicepb.DetectedDevice{{}}}),
		`devices[1]: an earlier device of the group has the id "1"`: group(&devicepb.DeviceGroup{Devices: []*devicepb.DetectedDevice{{ID: "1"}, {ID: "1"}}}),
		`groups[1] ("v/t/n"): an earlier group has the same vendor`: {DeviceGroup: repeat(2, &devicepb.DeviceGroup{Vendor: "v", DeviceType: "t", DeviceName: "n"})},
		`attribute "a" has no value`:                                attribute(&structspb.Attribute{Unit: "MHz"}),
		`attribute "a" has the unit "MHz", but only numbers`:        attribute(&structspb.Attribute{Value: &structspb.Attribute_StringVal{}, Unit: "MHz"}),
		`attribute "a" has the unknown unit "parsec"`:               attribute(&structspb.Attribute{Value: &structspb.Attribute_IntVal{}, Unit: "parsec"}),
		`attribute "a" is NaN, which is not a finite`:               attribute(&structspb.Attribute{Value: &structspb.Attribute_FloatVal{FloatVal: math.NaN()}}),
		`an attribute has no name`:                                  group(&devicepb.DeviceGroup{Attributes: map[string]*structspb.Attribute{"": {}}}),
		`more than 8192 devices`:                                    group(&devicepb.DeviceGroup{Devices: manyDevices}),
		`1025 attributes, and at most`:                              group(&devicepb.DeviceGroup{Attributes: manyAttributes}),
		`1025 groups, and at most`:                                  {DeviceGroup: repeat(1025, &devicepb.DeviceGroup{})},
		`its answer has more than the 4194304 bytes that are taken`: {DeviceGroup: []*devicepb.DeviceGroup{{Vendor: strings.Repeat("x", maxResponseSize)}}},
	} {
		client := newClientOf(t, nil, func(s *grpc.Server) { devicepb.RegisterDevicePluginServer(s, &rawServer{fingerprint: p}) })
		ch, err := client.Fingerprint(t.Context())
		got := receive(t, ch, err)
		if len(got) != 1 || got[0].Err == nil || !strings.HasPrefix(got[0].Err.Error(), `device plugin "usb": `) || !strings.Contains(got[0].Err.Error(), want) {
			t.Errorf("received %.300v, want the error %q", got, want)
		}
	}
}

func TestClientRejectsInvalidReservations(t *testing.T) {
	for want, p := range map[string]*devicepb.ContainerReservation{
		"container_res is missing":      nil,
		`the variable "" to what`:       {Envs: map[string]string{"": "secret"}},
		`the variable "A" to what`:      {Envs: map[string]string{"A": "secret\x00"}},
		`it mounts "" at "/x"`:          {Mounts: []*devicepb.Mount{{TaskPath: "/x"}}},
		`it mounts "/x" at "/../y"`:     {Mounts: []*devicepb.Mount{{HostPath: "/x", TaskPath: "/../y"}}},
		`it shares the device "" at ""`: {Devices: []*devicepb.DeviceSpec{{}}},
		`with permissions "rwx"`:        {Devices: []*devicepb.DeviceSpec{{TaskPath: "/dev/x", HostPath: "/dev/x", Permissions: "rwx"}}},
		`more than the 1048576`:         {Mounts: repeat(1<<14, &devicepb.Mount{TaskPath: "/x", HostPath: "/y"})},
	} {
		client := newClientOf(t, nil, func(s *grpc.Server) {
			devicepb.RegisterDevicePluginServer(s, &rawServer{reserve: &devicepb.ReserveResponse{ContainerRes: p}})
		})
		_, err := client.Reserve(t.Context(), []string{"1"})
		if err == nil || !strings.HasPrefix(err.Error(), `device plugin "usb": invalid answer of Reserve: `) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestClientRejectsInvalidStats(t *testing.T) {
	t.Parallel()
	stats := func(id string, d *devicepb.DeviceStats) *devicepb.StatsResponse {
		return &devicepb.StatsResponse{Groups: []*devicepb.DeviceGroupStats{{Vendor: "v", Type: "t", Name: "n", InstanceStats: map[string]*devicepb.DeviceStats{id: d}}}}
	}
	deep := &structspb.StatObject{}
	for range 16 {
		deep = &structspb.StatObject{Nested: map[string]*structspb.StatObject{"x": deep}}
	}
	now := timestamppb.Now()
	for want, p := range map[string]*devicepb.StatsResponse{
		`groups[0] ("//"): vendor is empty`:                  {Groups: []*devicepb.DeviceGroupStats{{}}},
		`have an empty id`:                                   stats("", &devicepb.DeviceStats{Timestamp: now}),
		`device "1": timestamp is in the year`:               stats("1", &devicepb.DeviceStats{Timestamp: &timestamppb.Timestamp{Seconds: math.MaxInt64 / 1000}}),
		`device "1": summary: +Inf is not a finite number`:   stats("1", &devicepb.DeviceStats{Timestamp: now, Summary: &structspb.StatValue{FloatNumeratorVal: wrapperspb.Double(math.Inf(1))}}),
		`device "1": stats: "a": NaN is not a finite number`: stats("1", &devicepb.DeviceStats{Timestamp: now, Stats: &structspb.StatObject{Attributes: map[string]*structspb.StatValue{"a": {FloatNumeratorVal: wrapperspb.Double(1), FloatDenominatorVal: wrapperspb.Double(math.NaN())}}}}),
		`device "1": stats: "x": "x":`:                       stats("1", &devicepb.DeviceStats{Timestamp: now, Stats: deep}),
		`1025 groups, and at most`:                           {Groups: repeat(1025, &devicepb.DeviceGroupStats{})},
	} {
		client := newClientOf(t, nil, func(s *grpc.Server) { devicepb.RegisterDevicePluginServer(s, &rawServer{stats: p}) })
		ch, err := client.Stats(t.Context(), time.Second)
		got := receive(t, ch, err)
		if len(got) != 1 || got[0].Err == nil || !strings.HasPrefix(got[0].Err.Error(), `device plugin "usb": invalid answer of Stats: `) || !strings.Contains(got[0].Err.Error(), want) {
			t.Errorf("received %.300v, want the error %q", got, want)
		}
	}

	client := newClientOf(t, nil, func(s *grpc.Server) {
		devicepb.RegisterDevicePluginServer(s, &rawServer{stats: stats("1", &devicepb.DeviceStats{})})
	})
	ch, err := client.Stats(t.Context(), time.Second)
	if got := receive(t, ch, err); len(got) != 1 || got[0].Err != nil || len(got[0].Groups[0].Instances) != 0 || !reflect.DeepEqual(got[0].Groups[0].DeviceIDsWithoutTimestamp, []string{"1"}) {
		t.Errorf("statistics without a timestamp are kept: %+v", got)
	}
}

// Existing hosts dereference nested messages without a check.
func TestMessagesAreComplete(t *testing.T) {
	f, err := fingerprintProto(device.Fingerprint{Groups: []device.Group{{Devices: []device.Device{{}}}}})
	if err != nil || f.DeviceGroup[0].Devices[0].HwLocality == nil {
		t.Errorf("fingerprint: %v, %v", f, err)
	}
	s := timestampedStatsProto(device.Stats{Groups: []device.GroupStats{{Instances: map[string]device.DeviceStats{"1": {}}}}}).Groups[0].InstanceStats["1"]
	if s.Summary == nil || s.Stats == nil || s.Timestamp == nil {
		t.Errorf("statistics: %v", s)
	}
	if reservationProto(nil) == nil {
		t.Error("no reservation")
	}
}

func TestServerSendsNoInvalidStatistic(t *testing.T) {
	for want, v := range map[string]device.StatValue{
		"a value of type uint8 is neither": {Value: uint8(1)},
		"a maximum of type float64 for":    {Value: int64(1), Max: 1.0},
		"a maximum of type int64 for a va": {Max: int64(1)},
	} {
		p := &fakePlugin{stats: []device.Stats{{Groups: []device.GroupStats{{ID: device.GroupID{Vendor: "v", Type: "t", Name: "n"}, Instances: map[string]device.DeviceStats{"1": {Summary: v}}}}}}}
		ch, err := serveFake(t, p).Stats(t.Context(), time.Second)
		if got := receive(t, ch, err); len(got) != 1 || got[0].Err == nil || !strings.Contains(got[0].Err.Error(), `stats: groups[0] ("v/t/n"): device "1": summary: `+want) {
			t.Errorf("received %+v, want %q", got, want)
		}
	}
}
