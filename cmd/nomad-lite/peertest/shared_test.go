package peertest

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

func programName() string { return filepath.Base(os.Args[0]) }

// networkInterface returns the name of an interface with an address, lo if the machine has no other.
func networkInterface(t testing.TB) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if addresses, err := i.Addrs(); err == nil && i.Flags&(net.FlagUp|net.FlagLoopback) == net.FlagUp && len(addresses) > 0 {
			return i.Name
		}
	}
	return "lo"
}

// sharedConfig returns the configuration of the agents that the tests share. The drivers raw_exec, exec and mock_driver of
// nomad-lite are Nomad's.
func sharedConfig(t testing.TB, lite bool) hostConfig {
	t.Helper()
	own := func(name string) string {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := hostConfig{plugins: map[string]string{"probe-device": own("probe-device"), "hello-driver": peers.ProgramOrSkip(t, "hello-driver"), "example-device": peers.ProgramOrSkip(t, "example-device")}}
	for _, name := range append(slices.Collect(maps.Keys(probeVariants)), "probe_wire") {
		config.plugins[name] = own("probe")
		config.text += fmt.Sprintf("plugin %q {\n  args = [\"DIR/%s.calls\"]\n}\n", name, name)
	}
	config.text += fmt.Sprintf("client {\n  network_interface = %q\n}\n", networkInterface(t)) // with -dev, the default of Nomad is lo
	config.text += `
plugin "probe-device" {}
plugin "hello-driver" {}
plugin "example-device" {
  config {
    dir = "DIR/devices"
  }
}
`
	config.text += qemuConfig()
	if lite {
		for _, name := range []string{"ext-raw-exec", "ext-exec", "ext-mock"} {
			config.plugins[name] = peers.ProgramOrSkip(t, "ext-drivers")
			config.text += fmt.Sprintf("plugin %q {\n", name)
			if name == "ext-raw-exec" {
				config.text += "  config {\n    enabled = true\n  }\n"
			}
			config.text += "}\n"
		}
	} else {
		config.text += "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n"
	}
	return config
}
