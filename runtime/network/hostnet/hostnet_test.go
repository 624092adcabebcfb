package hostnet

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/network/cni"
	"github.com/nomad-lite/nomad-lite/runtime/state"
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
	_, err = h.Connect(t.Context(), &state.AllocNetwork{AllocID: "a", Mode: "bridge", Ports: []state.NetworkPort{{Label: "http", HostPort: port, To: 80}}}, "/no/such/namespace")
	if err == nil || !strings.Contains(err.Error(), `port "http": process "hostnet.test" (pid `) {
		t.Error(err)
	}
}

func TestNamespaceDNS(t *testing.T) {
	const stub = "nameserver 127.0.0.53\nnameserver ::1\n"
	for name, c := range map[string]struct {
		machine, resolved string
		want              []string
	}{
		"settings of the machine work":        {"# x\nnameserver 10.0.0.53\nnameserver 127.0.0.1\n", "nameserver 10.0.0.99\n", nil},
		"servers of systemd-resolved":         {stub, "nameserver 10.0.0.53\nnameserver 127.0.0.1\nsearch a.example b.example\noptions ndots:2\n", []string{"10.0.0.53"}},
		"systemd-resolved knows no server":    {stub, "search a.example\n", nil},
		"systemd-resolved is not there":       {stub, "", nil},
		"machine has no name server":          {"search a.example\n", "nameserver 10.0.0.53\n", nil},
		"line without a value and other text": {"nameserver\nnameserver x\n", "nameserver 10.0.0.53\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			machine, resolved := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "resolved.conf")
			if err := os.WriteFile(machine, []byte(c.machine), 0o644); err != nil {
				t.Fatal(err)
			}
			if c.resolved != "" {
				if err := os.WriteFile(resolved, []byte(c.resolved), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := namespaceDNS(machine, resolved)
			if got == nil {
				if c.want != nil {
					t.Errorf("nil, want %q", c.want)
				}
				return
			}
			if !slices.Equal(got.Servers, c.want) || !slices.Equal(got.Searches, []string{"a.example", "b.example"}) || !slices.Equal(got.Options, []string{"ndots:2"}) {
				t.Errorf("%+v, want %q", got, c.want)
			}
		})
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
		if err == nil || len(got.Modes) > 0 {
			t.Errorf("%+v, %v without the rights of root", got, err)
		}
		return
	}
	if err != nil && !strings.Contains(err.Error(), "legacy") || !slices.Equal(got.Modes, []string{"bridge", "cni/lan"}) || got.Attributes["plugins.cni.version.macvlan"] != "1.6.2" || got.Attributes["nomad.bridge.hairpin_mode"] != "true" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestLegacyTablesAreReported(t *testing.T) {
	dir := t.TempDir()
	if err := checkLegacyTables(dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ip6_tables_names"), []byte("nat\nfilter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkLegacyTables(dir); err == nil || !strings.Contains(err.Error(), "ip6tables-legacy -I FORWARD -i BRIDGE -j ACCEPT") {
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
