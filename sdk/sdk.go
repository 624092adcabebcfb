package sdk

import (
	"context"
	"fmt"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// ServeDriver is the whole main function of a task driver. It returns when the host has
// ended the plugin, or when no task is left and no host has connected for ten minutes. If
// it cannot serve, for example because Info has no Name, it exits the process with an error message.
//
// If a user starts the program by hand, it prints its description, or its version if
// its only argument is --version, and exits.
//
// While ServeDriver runs, hclog.Default() and package log write to the host's log, and
// output of the plugin on standard output and standard error goes there too. Tasks keep
// running however the process ends. After a burst of calls, ServeDriver returns unused
// memory to the system.
//
// To run a plugin under a debugger, start it by hand with
// NOMAD_LITE_PLUGIN_DEBUG=NAME=SOCKET, and the host with the same variable: the process
// that the host starts then passes every call on to your process. This works with any
// host.
func ServeDriver[T Task](d Driver[T]) { serveOrExit(newDriverSpec(d)) }

// ServeHook is [ServeDriver] for a hook: a hook without a host exits after ten minutes.
func ServeHook(h Hook) { serveOrExit(newHookSpec(h)) }

// ServeDevice is [ServeDriver] for a device plugin: a plugin without a host exits after ten
// minutes.
func ServeDevice(d Device) { serveOrExit(newDeviceSpec(d)) }

// Configurer is a driver, a hook or a device plugin with its own configuration, in the `plugin` block of
// the host. ConfigSchema of its Info describes the configuration.
type Configurer interface {
	// Configure accepts the configuration, or returns an error that users see. It is called before any
	// method that works with tasks or devices, and again for each different configuration, possibly while
	// other methods run. It must have no effect outside of the process: hosts also call it only to validate a
	// configuration.
	Configure(ctx context.Context, config *Config) error
}

// Config is the configuration of a plugin.
type Config struct {
	// MinPort and MaxPort limit the range of ports that Nomad reserves for helper processes of
	// drivers; both are 0 if the host did not send them, and in hooks and device plugins.
	MinPort, MaxPort uint32

	// Topology describes the processors of the machine, and which of them tasks can use. It is nil if the host did not
	// send it, and in hooks and device plugins. The plugin must not change it.
	Topology *base.Topology

	encodedBody []byte
}

// NewConfig returns a configuration whose body is encoded in the shape of ConfigSchema. Package sdktest calls it for the
// tests of authors. For hosts only.
func NewConfig(encodedBody []byte) *Config { return &Config{encodedBody: encodedBody} }

// Decode decodes the block config of the host's `plugin` block into dst, a pointer to a struct
// whose fields are matched by the tag `codec`: `ttl = "24h"` becomes the field with the tag `codec:"ttl"`. A nested block
// is a struct, or a pointer that is nil if the block is absent; a list of blocks is a slice.
//
// An argument that is absent has its hclspec.Default, also if the operator has written no block; without a Default it resets
// its field to the zero value. If the host has sent no configuration, as for a plugin without a ConfigSchema, dst is
// unchanged. A key of the schema without a field, or with a value that does not fit its field, is an error. Decode
// may be called any number of times.
func (c *Config) Decode(dst any) error {
	if len(c.encodedBody) == 0 {
		return nil
	}
	if err := hclspec.UnmarshalExact(c.encodedBody, dst); err != nil {
		return fmt.Errorf("decode the configuration of the plugin: %w", err)
	}
	return nil
}

// Watcher is a device plugin, or a driver with Fingerprint, that detects changes earlier than the next
// FingerprintInterval.
type Watcher interface {
	// Watch returns a channel. After each value on the channel the package calls Fingerprint. Watch is
	// called once per connection of a host, and the plugin must stop watching when ctx ends. If the channel
	// is nil or closed, the package calls Fingerprint only once per FingerprintInterval.
	Watch(ctx context.Context) <-chan struct{}
}

// Recoverable marks an error of a driver's Start, or of a hook's Prestart, for which a
// retry may succeed: the restart policy of the task applies. A marked error of Recover
// means that the task may still exist, see [Recoverer]. For nil it returns nil.
func Recoverable(err error) error { return driver.Recoverable(err) }

// MarkIfResourceExhausted marks an error of a driver's Start if its cause is that this process or the machine has no
// free descriptors or processes: a nomad-lite agent emits an event, and calls Start again until some are free, even if
// the restart policy permits no attempt. Under Nomad the error is marked by [Recoverable]. Any other error is returned
// unchanged, and nil stays nil.
//
// Start must have executed nothing of the task. Package sdk/process marks the errors of its own Start.
func MarkIfResourceExhausted(err error) error {
	if !osprocess.IsTableFull(err) {
		return err
	}
	return &driver.Error{Err: err, Recoverable: true, ResourceExhausted: true}
}
