package hostnet

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/node/network/cni"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// A port on which a program listens is not forwarded: the error names the program.
func TestPortInUseByProgram(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	h := New(Config{}.WithDefaults())
	_, err = h.CheckPortsAndConnectNamespace(t.Context(), &state.AllocNetwork{AllocID: "a", Mode: "bridge", Ports: []state.NetworkPort{{Label: "http", HostPort: port, To: 80}}}, "/no/such/namespace")
	if err == nil || !strings.Contains(err.Error(), `port "http": process "hostnet.test" (pid `) {
		t.Error(err)
	}
}

// A machine has the mode bridge, and a mode for each CNI network.
func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.conf"), []byte(`{"cniVersion": "1.0.0", "name": "lan", "type": "macvlan"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "macvlan"), []byte("#!/bin/sh\necho 'CNI macvlan plugin v1.6.2'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := New(Config{CNI: cni.Config{ConfigDir: dir, PluginDirs: []string{dir}}}.WithDefaults()).Fingerprint(t.Context())
	if os.Geteuid() != 0 {
		if err == nil || len(got.NetworkModes) > 0 {
			t.Errorf("%+v, %v without the rights of root", got, err)
		}
		return
	}
	if err != nil && !strings.Contains(err.Error(), "legacy") || !slices.Equal(got.NetworkModes, []string{"bridge", "cni/lan"}) || got.NodeAttributes["plugins.cni.version.macvlan"] != "v1.6.2" || got.NodeAttributes["nomad.bridge.hairpin_mode"] != "true" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestLegacyTablesAreReported(t *testing.T) {
	dir := t.TempDir()
	if err := checkNoIptablesLegacyFilterRules(dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ip6_tables_names"), []byte("nat\nfilter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkNoIptablesLegacyFilterRules(dir); err == nil || !strings.Contains(err.Error(), "ip6tables-legacy -I FORWARD -i BRIDGE -j ACCEPT") {
		t.Error(err)
	}
}

func BenchmarkFingerprint(b *testing.B) {
	h := New(Config{}.WithDefaults())
	for b.Loop() {
		if _, err := h.Fingerprint(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
