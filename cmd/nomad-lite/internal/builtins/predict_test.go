package builtins

import (
	"os"
	osexec "os/exec"
	"reflect"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
)

// TestMain serves a builtin if a test has started the test's program.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "plugin" && os.Args[2] == "serve" {
		if err := ServePlugin(os.Args[3]); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// The driver's process reports the predicted fingerprint.
func TestPredictedFingerprintIsReported(t *testing.T) {
	for _, name := range DriverNames() {
		for _, options := range []map[string]any{nil, {"enabled": true}, {"enabled": false}, {"enabled": "no bool"}, {"default_pid_mode": "wrong"}, {"unknown": 1}} {
			predicted, ok := PredictFingerprint(name, options)
			if predictable := name == rawexec.Name || name == exec.Name && os.Geteuid() == 0; !predictable {
				if ok {
					t.Errorf("%s: %+v is predicted, which only its process can find out", name, predicted)
				}
				continue
			}
			reported, err := reportedFingerprint(t, name, options)
			if ok != (err == nil) || ok && !reflect.DeepEqual(reported, predicted) {
				t.Errorf("%s with %v: predicted %+v, %v, reported %+v, %v", name, options, predicted, ok, reported, err)
			}
		}
	}
}

// reportedFingerprint returns what the driver's process reports first. It returns an error if the process cannot be configured.
func reportedFingerprint(t *testing.T, name string, options map[string]any) (driver.Fingerprint, error) {
	t.Helper()
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  basewire.Handshake,
		Plugins:          plugin.PluginSet{basewire.PluginName: &basewire.GRPCPlugin{}, driverwire.PluginName: &driverwire.GRPCPlugin{}},
		Cmd:              osexec.Command(os.Args[0], "plugin", "serve", name),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	defer client.Kill()
	protocol, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	dispense := func(service string) any {
		raw, err := protocol.Dispense(service)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	p, d := dispense(basewire.PluginName).(base.Plugin), dispense(driverwire.PluginName).(driver.Driver)
	schema, err := p.ConfigSchema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := launch.EncodeConfigBlock(schema, options)
	if err == nil {
		err = p.SetConfig(t.Context(), &base.Config{MsgpackConfig: encoded, APIVersion: driver.APIVersion, Driver: &base.ClientDriverConfig{}})
	}
	if err != nil {
		return driver.Fingerprint{}, err
	}
	fingerprints, err := d.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return <-fingerprints, nil
}
