package supervisor

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// fingerprintStream reads the fingerprints of the driver in one plugin process.
type fingerprintStream struct {
	inst             pluginInstance
	driverName       string
	pluginName       string
	updateDriverInfo func(change func(*DriverInfo)) // calls change with the DriverInfo of the driver
	logger           hclog.Logger
}

// run reads the stream, and opens it again when it breaks, until ctx or the process ends. If
// the process is unreachable, run kills it.
func (f *fingerprintStream) run(ctx context.Context) {
	var lastErr error // error for which the fingerprint was marked as failed; nil after a fingerprint without error
	fail := func(err error) {
		if lastErr = err; err != nil {
			f.logger.Warn("fingerprint of driver failed", "driver", f.driverName, "plugin", f.pluginName, "error", err)
		}
		f.updateDriverInfo((*DriverInfo).markFingerprintFailed)
	}
	keepStreamOpen(ctx, f.inst, f.inst.Driver().Fingerprint, func(fp driver.Fingerprint) error {
		switch {
		case fp.Err == nil:
			lastErr = nil
			f.updateDriverInfo(func(info *DriverInfo) { info.applyFingerprint(fp) })
		case !errors.Is(fp.Err, driver.ErrPluginDown):
			fail(fp.Err) // immediately, because the driver can keep the stream open after an error
		}
		return fp.Err
	}, func(err error) bool {
		if err == nil || !errors.Is(err, lastErr) {
			fail(err)
		}
		return checkReachableOrKill(ctx, f.inst, f.logger)
	})
}

// taskEventStream reads the task events of the driver in one plugin process.
type taskEventStream struct {
	inst       pluginInstance
	driverName string
	onEvent    func(driver string, event driver.TaskEvent) // receives the events of tasks; nil discards them
	logger     hclog.Logger
}

// run reads the stream, and opens it again when it breaks, until ctx or the process ends.
func (e *taskEventStream) run(ctx context.Context) {
	keepStreamOpen(ctx, e.inst, e.inst.Driver().TaskEvents, func(event *driver.TaskEvent) error {
		if e.onEvent != nil && event != nil {
			e.onEvent(e.driverName, *event)
		}
		return nil
	}, func(err error) bool {
		e.logger.Debug("event stream of driver failed", "driver", e.driverName, "error", err)
		return true
	})
}

// keepStreamOpen reads a stream of a plugin, and reopens it when it breaks, until ctx or the
// process ends, or shouldReopen returns false. It passes the error of the stream, or nil, to
// shouldReopen.
func keepStreamOpen[T any](ctx context.Context, inst pluginInstance, open func(context.Context) (<-chan T, error), onItem func(T) error, shouldReopen func(error) bool) {
	for failureCount := 1; ; {
		opened := time.Now()
		stream, err := open(ctx)
		if err == nil {
			for item := range stream {
				err = cmp.Or(onItem(item), err)
			}
		}
		if ctx.Err() != nil || hasExited(inst) || !shouldReopen(err) {
			return
		}
		if failureCount++; time.Since(opened) >= stableStreamUptime {
			failureCount = 1
		}
		if wait.Sleep(ctx, streamBackoff.delayAfter(failureCount)) != nil {
			return
		}
	}
}

// checkReachableOrKill checks whether a process that runs accepts connections on its socket.
// After three failed checks, checkReachableOrKill kills the process. It returns false when ctx or
// the process ends.
func checkReachableOrKill(ctx context.Context, inst pluginInstance, logger hclog.Logger) bool {
	const maxChecks, checkInterval = 3, 500 * time.Millisecond
	for i := range maxChecks {
		err := inst.CheckHealth(ctx)
		if err == nil {
			return ctx.Err() == nil && !hasExited(inst)
		}
		if ctx.Err() != nil || hasExited(inst) {
			return false
		}
		if i == maxChecks-1 {
			logger.Warn("plugin unreachable, killing process", "plugin", inst.Info().Name, "pid", inst.PID(), "error", err)
			break
		}
		if wait.Sleep(ctx, checkInterval) != nil {
			return false
		}
	}
	inst.Kill()
	return false
}

// applyFingerprint updates the DriverInfo by a fingerprint. An attribute that a fingerprint does not contain keeps its
// value, until the driver reports an empty string for the attribute.
func (i *DriverInfo) applyFingerprint(fp driver.Fingerprint) {
	i.Detected = fp.Health != driver.HealthUndetected
	i.Healthy = fp.Health == driver.HealthHealthy
	i.Description = fp.HealthDescription
	attributes := make(map[string]driver.Attribute, len(i.Attributes)+len(fp.Attributes))
	for k, v := range i.Attributes {
		attributes[k] = v
	}
	for k, v := range fp.Attributes {
		if v.Value == "" {
			delete(attributes, k)
		} else {
			attributes[k] = v
		}
	}
	i.Attributes = attributes
}

// markFingerprintFailed sets the DriverInfo to that of a driver whose stream of fingerprints has failed: not detected, and
// unhealthy.
func (i *DriverInfo) markFingerprintFailed() {
	i.Detected, i.Healthy = false, false
	i.Description = "failed to fingerprint driver"
}
