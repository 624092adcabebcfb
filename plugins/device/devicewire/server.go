package devicewire

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/proto/devicepb"
)

// RegisterServer registers a device plugin on s. It passes calls to impl as they arrive, also
// concurrently. It sends no invalid message: the call returns the error of Validate instead.
func RegisterServer(s grpc.ServiceRegistrar, impl device.Plugin) {
	devicepb.RegisterDevicePluginServer(s, &server{impl: impl})
}

type server struct {
	devicepb.UnimplementedDevicePluginServer
	impl device.Plugin
}

func (s *server) Fingerprint(_ *devicepb.FingerprintRequest, stream grpc.ServerStreamingServer[devicepb.FingerprintResponse]) error {
	ctx := stream.Context()
	ch, err := s.impl.Fingerprint(ctx)
	if err != nil {
		return err
	}
	return basewire.ForwardChannel(ctx, ch, func(f device.Fingerprint) error {
		if f.Err != nil {
			return f.Err
		}
		if err := f.Validate(); err != nil {
			return fmt.Errorf("fingerprint: %w", err)
		}
		p, err := fingerprintProto(f)
		if err != nil {
			return err
		}
		return stream.Send(p)
	})
}

func (s *server) Reserve(ctx context.Context, req *devicepb.ReserveRequest) (*devicepb.ReserveResponse, error) {
	r, err := s.impl.Reserve(ctx, req.GetDeviceIds())
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = &device.Reservation{}
	}
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("reservation: %w", err)
	}
	return &devicepb.ReserveResponse{ContainerRes: reservationProto(r)}, nil
}

func (s *server) Stats(req *devicepb.StatsRequest, stream grpc.ServerStreamingServer[devicepb.StatsResponse]) error {
	ctx := stream.Context()
	interval := req.GetCollectionInterval().AsDuration()
	if interval <= 0 {
		interval = device.DefaultStatsInterval
	}
	ch, err := s.impl.Stats(ctx, interval)
	if err != nil {
		return err
	}
	return basewire.ForwardChannel(ctx, ch, func(stats device.Stats) error {
		if stats.Err != nil {
			return stats.Err
		}
		if err := stats.Validate(); err != nil {
			return fmt.Errorf("stats: %w", err)
		}
		return stream.Send(timestampedStatsProto(stats))
	})
}
