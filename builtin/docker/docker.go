package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Name is the name of the driver in a job.
const Name = "docker"

// Driver is the driver docker. Its zero value is ready for use.
type Driver struct {
	mu               sync.Mutex
	config           pluginConfig
	engine           untypedEngineClient // unset until Configure
	images           *imageStore
	hasReachedEngine bool // true after a fingerprint has reached the engine

	attributeCache attributeCache
	reaper         reaper
}

var (
	_ sdk.Driver[*task]    = (*Driver)(nil)
	_ sdk.Recoverer[*task] = (*Driver)(nil)
	_ sdk.Adopter[*task]   = (*Driver)(nil)
	_ sdk.Configurer       = (*Driver)(nil)
	_ sdk.Fingerprinter    = (*Driver)(nil)
	_ sdk.OrphanKiller     = (*Driver)(nil)
	_ sdk.NetworkManager   = (*Driver)(nil)
	_ sdk.Shutdowner       = (*Driver)(nil)

	_ sdk.Signaler           = (*task)(nil)
	_ sdk.Execer             = (*task)(nil)
	_ sdk.StatsProvider      = (*task)(nil)
	_ sdk.StateProvider      = (*task)(nil)
	_ sdk.NetworkReporter    = (*task)(nil)
	_ sdk.AttributesProvider = (*task)(nil)
	_ sdk.Destroyer          = (*task)(nil)
)

// Info describes the driver.
func (d *Driver) Info() sdk.DriverInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	return sdk.DriverInfo{
		Name:         Name,
		Version:      "0.1.0",
		ConfigSchema: configSchema,
		TaskSchema:   taskSchema,

		FingerprintInterval: fingerprintInterval,

		Capabilities: driver.Capabilities{
			SendSignals:           true,
			Exec:                  true,
			FSIsolation:           driver.FSIsolationImage,
			NetworkIsolationModes: []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup, driver.NetworkTask},
			// The engine cannot start a container in a network namespace that is given by its path.
			MustCreateNetwork:    true,
			MountConfigs:         driver.MountConfigsAny,
			DisableLogCollection: d.config.DisableLogCollection,
		},
	}
}

// Configure stores the configuration. It does not connect to the engine.
func (d *Driver) Configure(_ context.Context, c *sdk.Config) error {
	var config pluginConfig
	if err := c.Decode(&config); err != nil {
		return err
	}
	if err := config.validateAndParseDurations(); err != nil {
		return err
	}
	engine, err := newEngineClient(&config)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config, d.engine = config, newUntypedEngineClient(engine)
	if d.images == nil {
		d.images = newImageStore()
	}
	d.images.setEngineAndConfig(engine, &config)
	return nil
}

// newEngineClient returns a client for the configured engine, which connects with the first call
// and then uses the highest version of the API that both sides know.
func newEngineClient(c *pluginConfig) (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if c.TLS != (tlsConfig{}) {
		opts = append(opts, client.WithTLSClientConfig(c.TLS.CAPath, c.TLS.CertPath, c.TLS.KeyPath))
	}
	if c.Endpoint != "" {
		opts = append(opts, client.WithHost(c.Endpoint))
	}
	engine, err := client.New(opts...)
	if err == nil {
		if host, parseErr := client.ParseHostURL(engine.DaemonHost()); parseErr == nil && host.Scheme == "unix" {
			engine, err = client.New(append(opts, client.WithDialContext(newUnixSocketDialer(host.Host)))...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the address of the Docker engine: %w", err)
	}
	return engine, nil
}

// newUnixSocketDialer returns a function that connects to a socket. The client replaces each error with the
// text "dial unix" by an error without a cause. The error for a full table of file descriptors gets
// another text, so that a start can detect the cause and wait.
func newUnixSocketDialer(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if errno, ok := errors.AsType[syscall.Errno](err); ok && osprocess.IsTableFull(err) {
			err = fmt.Errorf("connect to %s: %w", path, errno)
		}
		return conn, err
	}
}

// currentConfigAndClient returns the configuration and the client. It returns an error if the host has not
// configured the driver.
func (d *Driver) currentConfigAndClient() (*pluginConfig, *client.Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.engine.isSet() {
		return nil, nil, errors.New("the driver is not configured")
	}
	config := d.config
	return &config, d.engine.client(), nil
}

// Shutdown stops the background work of the driver. Containers continue.
func (d *Driver) Shutdown(context.Context) error {
	d.reaper.stopReaping()
	return nil
}

// markRecoverableUnlessRefused marks an error of the engine as recoverable unless the engine has refused the
// request, because the engine would refuse the same request again. Podman reports a missing command
// as a server error.
func markRecoverableUnlessRefused(err error) error {
	if err == nil || strings.Contains(err.Error(), "a command that was not found") || cerrdefs.IsInvalidArgument(err) || cerrdefs.IsNotFound(err) || cerrdefs.IsPermissionDenied(err) || cerrdefs.IsUnauthorized(err) {
		return err
	}
	return sdk.Recoverable(err)
}

// isContainerGone reports whether an error means that the container does not exist.
func isContainerGone(err error) bool { return cerrdefs.IsNotFound(err) }
