package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHostNetworks(t *testing.T) {
	for text, want := range map[string]struct{ networks, summary string }{
		"host_network \"public\" {\n cidr = \"203.0.113.7/24\"\n reserved_ports = \"22,80-81\"\n}\nhost_network \"lan\" { interface = \"eth1\" }": {
			"map[lan:{invalid Prefix eth1 } public:{203.0.113.0/24  22,80-81}]", ""},
		"host_network \"six\" {\n cidr = \"fd00::/64\"\n interface = \"eth0\"\n}": {"map[six:{fd00::/64 eth0 }]", ""},
		`host_network "a" {}`:                                        {"", `host_network "a": cidr or interface must say which address the network has`},
		`host_network "a" { cidr = "10.0.0.1" }`:                     {"", `host_network "a": cidr: "10.0.0.1" is not a network such as 203.0.113.0/24`},
		`host_network "a" { netmask = "10.0.0.1" }`:                  {"", `host_network "a": netmask: is not a setting of a host_network block: it has cidr, interface and reserved_ports`},
		"host_network \"a\" {\ncidr=\"::/0\"\nreserved_ports=\"x\"}": {"", `host_network "a": reserved_ports: "x" is no port and no range of ports: write them like "22,8000-8010"`},
		`host_network "default" { interface = "eth0" }`:              {"", `host_network "default": the network of the node's own address has this name: set network_interface in place of it`},
		`host_network { cidr = "10.0.0.0/8" }`:                       {"", `host_network "cidr": must be a block: host_network "public" { cidr = "203.0.113.0/24" }`},
		`host_network = "a"`:                                         {"", `host_network: must be a block with a name: host_network "public" { cidr = "203.0.113.0/24" }`},
	} {
		path := filepath.Join(t.TempDir(), "agent.hcl")
		if err := os.WriteFile(path, []byte("client {\n"+text+"\n}"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, diags := Load([]string{path}, nil, false)
		if want.summary != "" {
			if len(diags) != 1 || !strings.HasSuffix(diags[0].Summary, want.summary) {
				t.Errorf("%s: %v, want %q", text, diagnosticLines(diags), want.summary)
			}
			continue
		}
		if got := fmt.Sprint(c.Node.Networks.HostNetworks); len(diags) > 0 || got != want.networks {
			t.Errorf("%s: %s, %v, want %s", text, got, diagnosticLines(diags), want.networks)
		}
	}
}
