package thirdparty

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
)

// idleTime is the time from the connection of the host to the measurement of a plugin's memory.
const idleTime = 10 * time.Second

// BenchmarkPluginMemory measures the anonymous memory of idle plugins: what the smallest driver, and that of
// `plugin new`, need beside a program that only serves go-plugin.
func BenchmarkPluginMemory(b *testing.B) {
	smallest, onlyGoPlugin, template := buildMeasuredPrograms(b, systemtest.PublishModule(b))
	sums := map[string]int{}
	for b.Loop() {
		pids := map[string]int{}
		for name, path := range map[string]string{"smallest-driver": smallest, "new-driver": template, "go-plugin-only": onlyGoPlugin} {
			client, protocol := connectPlugin(b, path)
			defer client.Kill()
			pids[name] = client.ReattachConfig().Pid
			if path != onlyGoPlugin {
				useDriver(b, protocol)
			}
		}
		time.Sleep(idleTime)
		for name, pid := range pids {
			sums[name] += anonymousMemory(b, pid)
		}
	}
	for name, sum := range sums {
		b.ReportMetric(float64(sum)/float64(b.N), name+"-KiB")
	}
	b.ReportMetric(0, "ns/op") // the time is that of the pause
}

// connectPlugin starts a plugin as a host does.
func connectPlugin(b *testing.B, path string) (*plugin.Client, plugin.ClientProtocol) {
	b.Helper()
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  basewire.Handshake,
		Plugins:          plugin.PluginSet{basewire.PluginName: &basewire.GRPCPlugin{}, driverwire.PluginName: &driverwire.GRPCPlugin{}},
		Cmd:              exec.Command(path),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.NewNullLogger(),
	})
	protocol, err := client.Client()
	if err != nil {
		client.Kill()
		b.Fatal(err)
	}
	return client, protocol
}

// useDriver calls the methods of a driver that a host calls when it has connected, and keeps the streams open.
func useDriver(b *testing.B, protocol plugin.ClientProtocol) {
	b.Helper()
	basePlugin, err := protocol.Dispense(basewire.PluginName)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := basePlugin.(base.Plugin).PluginInfo(b.Context()); err != nil {
		b.Fatal(err)
	}
	dispensed, err := protocol.Dispense(driverwire.PluginName)
	if err != nil {
		b.Fatal(err)
	}
	d := dispensed.(driver.Driver)
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	if _, err := d.TaskConfigSchema(ctx); err != nil {
		b.Fatal(err)
	}
	if _, err := d.Capabilities(ctx); err != nil {
		b.Fatal(err)
	}
	fingerprints, err := d.Fingerprint(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if f := <-fingerprints; f.Health != driver.HealthHealthy {
		b.Fatalf("the driver is %v: %s", f.Health, f.HealthDescription)
	}
	if _, err := d.TaskEvents(ctx); err != nil {
		b.Fatal(err)
	}
}

// anonymousMemory returns the anonymous memory of a process in KiB.
func anonymousMemory(b *testing.B, pid int) (kib int) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nRssAnon:")
	if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
		b.Fatal("read the anonymous memory of a process: ", err)
	}
	return kib
}
