package devicewire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/proto/devicepb"
)

// maxResponseSize is the maximum size of a response of a plugin, in bytes. The limit protects the host's memory.
const maxResponseSize = 4 << 20

// NewClient returns the host's client of a device plugin; name is the plugin's name for error
// messages, and processExited must be closed when the plugin process has exited. The client validates
// every message: an error names the plugin and the field.
func NewClient(name string, conn grpc.ClientConnInterface, processExited <-chan struct{}) device.Plugin {
	c := basewire.NewConn(conn, processExited).WithMaxRecvSize(maxResponseSize)
	return &client{pluginName: name, conn: c, pb: devicepb.NewDevicePluginClient(c)}
}

type client struct {
	pluginName string
	conn       *basewire.Conn
	pb         devicepb.DevicePluginClient
}

// convertErr converts the error of a call to device.ErrPluginDown, the error of ctx, device.ErrDisabled, or an error
// that names the plugin and the method.
func (c *client) convertErr(ctx context.Context, method string, err error) error {
	err = c.conn.ConvertErr(ctx, err)
	if errors.Is(err, device.ErrPluginDown) || ctx.Err() != nil {
		return err
	}
	text := basewire.ErrorMessageWithoutGRPCPrefix(err)
	if strings.Contains(text, device.ErrDisabled.Error()) {
		return fmt.Errorf("device plugin %q: %w", c.pluginName, device.ErrDisabled)
	}
	return fmt.Errorf("device plugin %q: %s: %s", c.pluginName, method, text)
}

// invalidMessageError returns the error for a message that Validate has rejected with err.
func (c *client) invalidMessageError(method string, err error) error {
	return fmt.Errorf("device plugin %q: invalid answer of %s: %w", c.pluginName, method, err)
}

func (c *client) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.pb.Fingerprint(ctx, &devicepb.FingerprintRequest{})
	if err != nil {
		defer cancel()
		return nil, c.convertErr(ctx, "Fingerprint", err)
	}
	ch := make(chan device.Fingerprint)
	go func() {
		defer close(ch)
		defer cancel()
		err := c.receiveUntilError(ctx, "Fingerprint", func() error {
			p, err := stream.Recv()
			if err != nil {
				return err
			}
			f := fingerprintFromProto(p)
			if err := f.Validate(); err != nil {
				return &validationError{err}
			}
			return sendValue(ctx, ch, f)
		})
		if err == io.EOF {
			if err = device.ErrStreamEnded; c.conn.ExitsWithinMaxDelay(ctx) { // a plugin also ends its stream while it exits
				err = device.ErrPluginDown
			}
		}
		if ctx.Err() == nil {
			_ = sendValue(ctx, ch, device.Fingerprint{Err: err})
		}
	}()
	return ch, nil
}

func (c *client) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.pb.Stats(ctx, &devicepb.StatsRequest{CollectionInterval: durationpb.New(interval)})
	if err != nil {
		defer cancel()
		return nil, c.convertErr(ctx, "Stats", err)
	}
	ch := make(chan device.Stats)
	go func() {
		defer close(ch)
		defer cancel()
		err := c.receiveUntilError(ctx, "Stats", func() error {
			p, err := stream.Recv()
			if err != nil {
				return err
			}
			s := timestampedStatsFromProto(p)
			if err := s.Validate(); err != nil {
				return &validationError{err}
			}
			return sendValue(ctx, ch, s)
		})
		if err != io.EOF && ctx.Err() == nil {
			_ = sendValue(ctx, ch, device.Stats{Err: err})
		}
	}()
	return ch, nil
}

// validationError is an error of Validate. Other errors that receiveUntilError gets are errors of a stream.
type validationError struct{ error }

// receiveUntilError calls receiveMessage, which receives one message, until it returns an error. It returns io.EOF for
// a stream that the plugin has ended, and otherwise the error for the caller of the client.
func (c *client) receiveUntilError(ctx context.Context, method string, receiveMessage func() error) error {
	for {
		err := receiveMessage()
		var invalid *validationError
		switch {
		case err == nil:
		case errors.As(err, &invalid):
			return c.invalidMessageError(method, invalid.error)
		case err == io.EOF:
			return err
		default:
			return c.convertErr(ctx, method, err)
		}
	}
}

func sendValue[V any](ctx context.Context, ch chan<- V, v V) error {
	select {
	case ch <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *client) Reserve(ctx context.Context, ids []string) (*device.Reservation, error) {
	resp, err := c.pb.Reserve(ctx, &devicepb.ReserveRequest{DeviceIds: ids})
	if err != nil {
		return nil, c.convertErr(ctx, "Reserve", err)
	}
	if resp.GetContainerRes() == nil {
		return nil, c.invalidMessageError("Reserve", errors.New("container_res is missing"))
	}
	r := reservationFromProto(resp.GetContainerRes())
	if err := r.Validate(); err != nil {
		return nil, c.invalidMessageError("Reserve", err)
	}
	return r, nil
}
