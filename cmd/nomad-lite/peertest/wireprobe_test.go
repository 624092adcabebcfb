package peertest

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
)

// wireProbe is a driver without the SDK, for the parts of the protocol that the SDK hides from authors. It records the calls of
// the host as probeDriver does. Its tasks end with an error when they are stopped.
type wireProbe struct {
	driver.Driver // the other methods are not called
	callRecorder
	stopped chan struct{}
}

// serveWireProbe is the program `probe_wire FILE`.
func serveWireProbe() {
	p := &wireProbe{stopped: make(chan struct{})}
	p.open()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins:         plugin.PluginSet{basewire.PluginName: &basewire.GRPCPlugin{Impl: p}, driverwire.PluginName: &driverwire.GRPCPlugin{Impl: p}},
		GRPCServer:      basewire.NewServerWithoutSizeLimits,
		Logger:          hclog.NewNullLogger(),
	})
}

func (*wireProbe) PluginInfo(context.Context) (*base.Info, error) {
	return &base.Info{Type: base.TypeDriver, Name: "probe_wire", Version: "0.1.0", APIVersions: []string{driver.APIVersion}}, nil
}

func (*wireProbe) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	return hclspec.Object(nil), nil
}

func (p *wireProbe) SetConfig(_ context.Context, config *base.Config) error {
	p.called("SetConfig", "", "", config)
	return nil
}

func (*wireProbe) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	return hclspec.Object(map[string]*hclspec.Spec{"recoverable": hclspec.Attr("recoverable", "bool", false)}), nil
}

func (*wireProbe) Capabilities(context.Context) (*driver.Capabilities, error) {
	return &driver.Capabilities{}, nil
}

func (*wireProbe) Init(context.Context) error     { return nil }
func (*wireProbe) Shutdown(context.Context) error { return nil }

func (*wireProbe) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	fingerprints := make(chan driver.Fingerprint, 1)
	fingerprints <- driver.Fingerprint{Health: driver.HealthHealthy, HealthDescription: "Healthy"}
	context.AfterFunc(ctx, func() { close(fingerprints) })
	return fingerprints, nil
}

func (p *wireProbe) StartTask(_ context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	p.called("StartTask", config.AllocID, config.Name, config.ID)
	return &driver.Handle{Version: 5, Config: config, State: driver.TaskRunning, DriverState: []byte("opaque")}, nil, nil
}

func (p *wireProbe) RecoverTask(_ context.Context, handle *driver.Handle) error {
	p.called("RecoverTask", handle.Config.AllocID, handle.Config.Name, handle)
	return nil
}

func (p *wireProbe) WaitTask(ctx context.Context, _ string) (*driver.ExitResult, error) {
	select {
	case <-p.stopped:
		return &driver.ExitResult{Err: errors.New("lost sight of the task")}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *wireProbe) StopTask(context.Context, string, time.Duration, string) error {
	close(p.stopped)
	return nil
}

func (p *wireProbe) DestroyTask(_ context.Context, id string, force bool) error {
	p.called("DestroyTask", "", "", map[string]any{"ID": id, "Force": force})
	return nil
}

func (p *wireProbe) TaskStats(_ context.Context, id string, interval time.Duration) (<-chan *driver.TaskStats, error) {
	p.called("TaskStats", "", "", map[string]any{"ID": id, "Interval": interval})
	return nil, driver.ErrStatsNotImplemented
}

func (*wireProbe) TaskEvents(ctx context.Context) (<-chan *driver.TaskEvent, error) {
	events := make(chan *driver.TaskEvent)
	context.AfterFunc(ctx, func() { close(events) })
	return events, nil
}
