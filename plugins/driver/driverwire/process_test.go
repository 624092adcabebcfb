package driverwire

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// envServePlugin is the variable that makes the test binary a plugin.
const envServePlugin = "DRIVER_TEST_AS_PLUGIN"

// servePlugin is the main function of the plugin process.
func servePlugin() {
	f := &fakeDriver{waitFunc: func(ctx context.Context) (*driver.ExitResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName: &basewire.GRPCPlugin{Impl: fakeBasePlugin{}},
			PluginName:          &GRPCPlugin{Impl: f},
		},
		GRPCServer: basewire.NewServerWithoutSizeLimits,
		Logger:     hclog.NewNullLogger(),
	})
}

type fakeBasePlugin struct{}

func (fakeBasePlugin) PluginInfo(context.Context) (*base.Info, error) {
	return &base.Info{Type: base.TypeDriver, APIVersions: []string{driver.APIVersion}, Version: "0.1.0", Name: "real"}, nil
}

func (fakeBasePlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) { return nil, nil }

func (fakeBasePlugin) SetConfig(context.Context, *base.Config) error { return errors.New("not now") }

// TestDriverInSeparateProcess calls the base and the driver service over go-plugin in a separate
// process, and kills the process.
func TestDriverInSeparateProcess(t *testing.T) {
	command := exec.Command(os.Args[0])
	// TMPDIR: a killed plugin does not remove its socket.
	command.Env = append(os.Environ(), envServePlugin+"=1", "TMPDIR="+t.TempDir())
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  basewire.Handshake,
		Plugins:          plugin.PluginSet{basewire.PluginName: &basewire.GRPCPlugin{}, PluginName: &GRPCPlugin{}},
		Cmd:              command,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	defer client.Kill()
	protocol, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	dispense := func(name string) any {
		raw, err := protocol.Dispense(name)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	p, d := dispense(basewire.PluginName).(base.Plugin), dispense(PluginName).(driver.Driver)

	info, err := p.PluginInfo(t.Context())
	if err != nil || info.Name != "real" {
		t.Errorf("PluginInfo: got %+v, %v", info, err)
	}
	if err := p.SetConfig(t.Context(), &base.Config{}); err == nil || err.Error() != "rpc error: code = Unknown desc = SetConfig failed: not now" {
		t.Errorf("SetConfig: got %v", err)
	}
	if err := d.Init(t.Context()); err != nil {
		t.Errorf("Init: %v", err)
	}

	fingerprints, err := d.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	go func() { _, err := d.WaitTask(t.Context(), "id"); errs <- err }()
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err != driver.ErrPluginDown {
		t.Errorf("WaitTask: got %v", err)
	}
	if last := <-fingerprints; last.Err != driver.ErrPluginDown {
		t.Errorf("Fingerprint: got %v", last.Err)
	}
	if _, err := p.PluginInfo(t.Context()); err != base.ErrPluginDown {
		t.Errorf("PluginInfo afterwards: got %v", err)
	}
}
