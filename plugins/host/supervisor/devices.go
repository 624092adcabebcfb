package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// deviceUpdateInterval is the minimum time between two updates of the devices of a plugin: each
// update of the node is written to disk, and a plugin may report changes without a pause.
const deviceUpdateInterval = time.Second

// deviceStream reads the fingerprints of one process of a device plugin.
type deviceStream struct {
	inst          pluginInstance
	onFingerprint func(device.Fingerprint) // called with each fingerprint without an error
	logger        hclog.Logger
}

// run reads the stream until it ends. It returns nil if ctx or the process has ended, and
// otherwise the reason why the plugin reports no further devices: Nomad does not open the
// stream of a device plugin again, and plugins rely on it. If the process is unreachable,
// run kills it.
func (d *deviceStream) run(ctx context.Context) error {
	stream, err := d.inst.Device().Fingerprint(ctx)
	if err == nil {
		err = d.readFingerprintsThrottled(ctx, stream)
	}
	switch {
	case ctx.Err() != nil, hasExited(d.inst):
		return nil
	case errors.Is(err, device.ErrPluginDown) && !checkReachableOrKill(ctx, d.inst, d.logger):
		return nil
	}
	return err
}

// readFingerprintsThrottled calls onFingerprint with each fingerprint, for the first fingerprint
// immediately, and then at most once per deviceUpdateInterval, with the latest fingerprint. It returns the reason why
// the stream has ended.
func (d *deviceStream) readFingerprintsThrottled(ctx context.Context, stream <-chan device.Fingerprint) error {
	var latest *device.Fingerprint     // latest fingerprint that was not passed to onFingerprint
	var intervalEnded <-chan time.Time // nil if the next fingerprint is passed immediately
	for {
		if latest != nil && intervalEnded == nil {
			d.onFingerprint(*latest)
			latest, intervalEnded = nil, time.After(deviceUpdateInterval)
		}
		select {
		case f, ok := <-stream:
			switch {
			case !ok:
				return device.ErrStreamEnded
			case f.Err != nil:
				return f.Err
			}
			latest = &f
		case <-intervalEnded:
			intervalEnded = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
