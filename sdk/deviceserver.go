package sdk

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// deviceServer implements device.Plugin and base.Plugin with an author's device plugin.
type deviceServer struct {
	basePlugin
	authorDevice        Device
	fingerprintInterval time.Duration // time between two calls of Fingerprint
	logger              hclog.Logger

	mu                 sync.Mutex
	lastGroups         []device.Group // result of the last call of Fingerprint that succeeded
	lastFingerprintErr string         // error of the last call of Fingerprint; empty if it succeeded
}

var (
	_ device.Plugin = (*deviceServer)(nil)
	_ base.Plugin   = (*deviceServer)(nil)
)

// newDeviceServer returns an error if impl has a method that looks like a method of an optional interface and does
// not implement it, or if a field of info is invalid.
func newDeviceServer(impl Device, id pluginIdentity, info DeviceInfo) (*deviceServer, error) {
	if err := checkOptionalMethods(reflect.TypeOf(impl), deviceInterfaces); err != nil {
		return nil, err
	}
	if info.FingerprintInterval < 0 {
		return nil, fmt.Errorf("FingerprintInterval in Info is %v; leave it out to have %v", info.FingerprintInterval, defaultFingerprintInterval)
	}
	if info.FingerprintInterval == 0 {
		info.FingerprintInterval = defaultFingerprintInterval
	}
	return &deviceServer{
		basePlugin:          basePlugin{authorPlugin: impl, pluginIdentity: id, pluginType: base.TypeDevice, apiVersion: device.APIVersion},
		authorDevice:        impl,
		fingerprintInterval: info.FingerprintInterval,
		logger:              hclog.NewNullLogger(),
	}, nil
}

func (s *deviceServer) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	changes, err := callWatchIfWatcher(ctx, s.authorPlugin)
	if err != nil {
		return nil, err
	}
	return streamFingerprints(ctx, s.fingerprintOrUnhealthy, s.fingerprintInterval, changes), nil
}

// fingerprintOrUnhealthy calls the author's Fingerprint. After an error it returns the devices of the last
// call that succeeded, as unhealthy, and the error as FailureReason. Only ErrDisabled is returned as an error, because the host
// stops a plugin for good after an error.
func (s *deviceServer) fingerprintOrUnhealthy(ctx context.Context) device.Fingerprint {
	groups, err := callDeviceFingerprintRecoverPanic(ctx, s.authorDevice)
	if err == nil {
		err = validateGroups(groups)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.lastGroups, s.lastFingerprintErr = groups, ""
		return device.Fingerprint{Groups: groups}
	}
	if errors.Is(err, device.ErrDisabled) {
		return device.Fingerprint{Err: err}
	}
	if s.lastFingerprintErr != err.Error() && ctx.Err() == nil {
		s.lastFingerprintErr = err.Error()
		s.logger.Warn("finding devices failed, known devices are unhealthy", "error", err)
	}
	unhealthy := slices.Clone(s.lastGroups)
	for i := range unhealthy {
		unhealthy[i].Devices = slices.Clone(unhealthy[i].Devices)
		for k := range unhealthy[i].Devices {
			unhealthy[i].Devices[k].Healthy, unhealthy[i].Devices[k].HealthDescription = false, err.Error()
		}
	}
	return device.Fingerprint{Groups: unhealthy, FailureReason: err.Error()}
}

// validateGroups returns an error for groups that a host rejects, and for two devices with one id, because
// Reserve receives only the ids of devices.
func validateGroups(groups []device.Group) error {
	if err := (device.Fingerprint{Groups: groups}).Validate(); err != nil {
		return fmt.Errorf("invalid result of Fingerprint: %w", err)
	}
	groupOf := map[string]device.GroupID{}
	for _, g := range groups {
		for _, d := range g.Devices {
			if other, ok := groupOf[d.ID]; ok {
				return fmt.Errorf("invalid result of Fingerprint: the groups %q and %q have a device with the id %q", other, g.ID, d.ID)
			}
			groupOf[d.ID] = g.ID
		}
	}
	return nil
}

func (s *deviceServer) Reserve(ctx context.Context, ids []string) (*device.Reservation, error) {
	req, err := s.newReserveRequest(ids)
	if err != nil {
		// A device may have appeared since the last call of Fingerprint.
		if f := s.fingerprintOrUnhealthy(ctx); f.Err != nil {
			return nil, f.Err
		}
		if req, err = s.newReserveRequest(ids); err != nil {
			return nil, err
		}
	}
	return callReserveRecoverPanic(ctx, s.authorDevice, req)
}

// newReserveRequest builds the request for the author's Reserve. It returns an error unless all ids are ids of
// devices of one group of the last Fingerprint.
func (s *deviceServer) newReserveRequest(ids []string) (*ReserveRequest, error) {
	if len(ids) == 0 {
		return nil, errors.New("the request has no device ids")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	req := &ReserveRequest{}
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			return nil, fmt.Errorf("the request has the device id %q twice", id)
		}
		group, d, ok := s.findDeviceLocked(id)
		if !ok {
			return nil, fmt.Errorf("unknown device id %q", id)
		}
		if i > 0 && req.Group.ID != group.ID {
			return nil, fmt.Errorf("the request has devices of the groups %q and %q", req.Group.ID, group.ID)
		}
		req.Group = group
		req.Devices = append(req.Devices, d)
	}
	return req, nil
}

func (s *deviceServer) findDeviceLocked(id string) (device.Group, device.Device, bool) {
	for _, g := range s.lastGroups {
		for _, d := range g.Devices {
			if d.ID == id {
				return g, d, true
			}
		}
	}
	return device.Group{}, device.Device{}, false
}

func (s *deviceServer) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	out := make(chan device.Stats)
	provider, ok := s.authorPlugin.(DeviceStatsProvider)
	if !ok {
		close(out) // after a stream that ends without an error, the host requests no statistics
		return out, nil
	}
	go func() {
		defer close(out)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			groups, err := callDeviceStatsRecoverPanic(ctx, provider)
			select {
			case out <- device.Stats{Groups: groups, Err: err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
