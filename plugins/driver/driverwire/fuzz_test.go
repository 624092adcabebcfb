package driverwire

import (
	"bytes"
	"context"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/driverpb"
)

// FuzzMessages checks that any message can be decoded, and that encoding the result and
// decoding it again yields the same value.
func FuzzMessages(f *testing.F) {
	for _, m := range []proto.Message{
		taskConfigProto(&driver.TaskConfig{ID: "id", Env: map[string]string{"A": "1"}, Mounts: []driver.Mount{{}}, DNS: &driver.DNSConfig{}}),
		handleProto(&driver.Handle{Version: 1, Config: &driver.TaskConfig{NetworkIsolation: &driver.NetworkIsolation{Hosts: &driver.HostsConfig{}}}}),
		taskStatsProto("id", &driver.TaskStats{ByPID: map[string]driver.Usage{"1": {CPU: driver.CPUUsage{Measured: driver.MeasurableCPUFields()}}}}),
		capabilitiesProto(&driver.Capabilities{NetworkIsolationModes: []driver.NetworkMode{driver.NetworkNone}}),
		&driverpb.FingerprintResponse{Err: "x"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkRoundTripIsStable(t, b, &driverpb.TaskConfig{}, func(p *driverpb.TaskConfig) *driverpb.TaskConfig {
			return taskConfigProto(taskConfigFromProto(p))
		})
		checkRoundTripIsStable(t, b, &driverpb.TaskHandle{}, func(p *driverpb.TaskHandle) *driverpb.TaskHandle {
			return handleProto(handleFromProto(p))
		})
		checkRoundTripIsStable(t, b, &driverpb.TaskStats{}, func(p *driverpb.TaskStats) *driverpb.TaskStats {
			return taskStatsProto("", taskStatsFromProto(p))
		})
		checkRoundTripIsStable(t, b, &driverpb.DriverCapabilities{}, func(p *driverpb.DriverCapabilities) *driverpb.DriverCapabilities {
			return capabilitiesProto(capabilitiesFromProto(p))
		})
		checkRoundTripIsStable(t, b, &driverpb.DriverTaskEvent{}, func(p *driverpb.DriverTaskEvent) *driverpb.DriverTaskEvent {
			return taskEventProto(taskEventFromProto(p))
		})
		checkRoundTripIsStable(t, b, &driverpb.FingerprintResponse{}, func(p *driverpb.FingerprintResponse) *driverpb.FingerprintResponse {
			p, err := fingerprintProto(fingerprintFromProto(p))
			if err != nil {
				t.Fatal(err)
			}
			return p
		})
		checkRoundTripIsStable(t, b, &driverpb.InspectTaskResponse{}, func(p *driverpb.InspectTaskResponse) *driverpb.InspectTaskResponse {
			p, err := taskStatusProto(taskStatusFromProto(p))
			if err != nil {
				t.Fatal(err)
			}
			return p
		})
	})
}

// checkRoundTripIsStable decodes and encodes a message twice, and checks that both
// encodings are equal.
func checkRoundTripIsStable[M proto.Message](t *testing.T, b []byte, m M, again func(M) M) {
	t.Helper()
	if proto.Unmarshal(b, m) != nil {
		return
	}
	// Encodings are compared, because a NaN is not equal to itself.
	opts := proto.MarshalOptions{Deterministic: true}
	once, err := opts.Marshal(again(m))
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(once, m); err != nil {
		t.Fatal(err)
	}
	twice, err := opts.Marshal(again(m))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(once, twice) {
		t.Fatalf("%T:\n%x became\n%x", m, once, twice)
	}
}

// fakeExecStream is the server's end of a stream that returns prepared frames, and then
// io.EOF.
type fakeExecStream struct {
	grpc.ServerStream
	ctx      context.Context
	frames   []*driverpb.ExecTaskStreamingRequest
	lastSent *driverpb.ExecTaskStreamingResponse
}

func (s *fakeExecStream) Context() context.Context { return s.ctx }

func (s *fakeExecStream) Recv() (*driverpb.ExecTaskStreamingRequest, error) {
	if len(s.frames) == 0 {
		return nil, io.EOF
	}
	frame := s.frames[0]
	s.frames = s.frames[1:]
	return frame, nil
}

func (s *fakeExecStream) Send(frame *driverpb.ExecTaskStreamingResponse) error {
	s.lastSent = frame
	return nil
}

// FuzzExecFrames checks that a session ends with a status or with an error for any
// input of the client.
func FuzzExecFrames(f *testing.F) {
	for _, frames := range [][]*driverpb.ExecTaskStreamingRequest{
		{{Setup: &driverpb.ExecTaskStreamingRequest_Setup{TaskId: "id"}}, stdinFrame([]byte("x"), false), {}, stdinFrame(nil, true), stdinFrame([]byte("y"), true)},
		{{Setup: &driverpb.ExecTaskStreamingRequest_Setup{}}, {TtySize: &driverpb.ExecTaskStreamingRequest_TerminalSize{Height: -1}}, {Setup: &driverpb.ExecTaskStreamingRequest_Setup{}}},
		{{}},
	} {
		var all []byte
		for _, frame := range frames {
			b, err := proto.Marshal(frame)
			if err != nil {
				f.Fatal(err)
			}
			all = append(append(all, byte(len(b))), b...)
		}
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		stream := &fakeExecStream{ctx: t.Context()}
		for len(b) > 0 {
			n := min(int(b[0]), len(b)-1)
			frame := &driverpb.ExecTaskStreamingRequest{}
			if proto.Unmarshal(b[1:1+n], frame) == nil {
				stream.frames = append(stream.frames, frame)
			}
			b = b[1+n:]
		}
		s := &server{impl: &fakeDriver{execFunc: func(_ context.Context, e driver.Exec) (*driver.ExitResult, error) {
			_, err := io.Copy(e.Stdout, e.Stdin)
			for range e.Resize {
			}
			return &driver.ExitResult{}, err
		}}}
		if err := s.ExecTaskStreaming(stream); err == nil && !stream.lastSent.GetExited() {
			t.Fatalf("the last frame is %v", stream.lastSent)
		}
	})
}
