package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestUnknownNameHasSuggestion(t *testing.T) {
	for text, want := range map[string]string{
		`dattacenter = "a"`:                                          `; did you mean "datacenter"?`,
		`bindAddr = "127.0.0.1"`:                                     `; did you mean "bind_addr"?`,
		`ports { htpp = 1 }`:                                         `; did you mean "http"?`,
		`client { network_interfaces = "lo" }`:                       `; did you mean "network_interface"?`,
		`client { reserved { memmory = 1 } }`:                        `; did you mean "memory"?`,
		`client { artifact { http_max_sizes = "1GB" } }`:             `; did you mean "http_max_size"?`,
		`client { options { "driver.denylst" = "docker" } }`:         `; did you mean "driver.denylist"?`,
		`client { host_network "a" { cdir = "10.0.0.0/8" } }`:        `; did you mean "cidr"?`,
		`client { host_volume "a" { pathh = "/srv" } }`:              `; did you mean "path"?`,
		`hook "a" { timout = "1s" }`:                                 `; did you mean "timeout"?`,
		`hook "a" { match { jobs = "web" } }`:                        `; did you mean "job"?`,
		`plugin "a" { arg = ["-v"] }`:                                `; did you mean "args"?`,
		`plugin "a" { configs { a = 1 } }`:                           `; did you mean "config"?`,
		`telemetry { otlp { end_point = "http://localhost:4318" } }`: `; did you mean "endpoint"?`,
		`limits { http_max_conn_per_client = 1 }`:                    `; did you mean "http_max_conns_per_client"?`,
	} {
		var c Config
		if got := c.Parse("n.hcl", []byte(text)); len(got) != 1 || !strings.HasSuffix(got[0].Summary+got[0].Detail, want) {
			t.Errorf("%s\ngot  %v\nwant one message that ends with %s", text, got, want)
		}
	}
	for _, text := range []string{`{"ports": {"htpp": 1}}`, `{"plugin": {"a": {"arg": []}}}`} {
		var c Config
		if got := c.Parse("n.json", []byte(text)); len(got) != 1 || !strings.Contains(got[0].Summary, "did you mean") {
			t.Errorf("%s: %v", text, got)
		}
	}
	for _, name := range []string{"x", "no_such", "zzzzzz"} {
		if got := didYouMean(name, slices.Values([]string{"http", "rpc"})); got != "" {
			t.Errorf("%s has the suggestion %s", name, got)
		}
	}
}

// Each option that a message can suggest is supported.
func TestLegacyOptionNamesAreSupported(t *testing.T) {
	for _, name := range legacyOptionNames {
		var c Config
		if got := c.Parse("n.hcl", []byte(`client { options { "`+name+`" = "" } }`)); len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestJSONPluginBlockHasAllSettings(t *testing.T) {
	var c Config
	sum := strings.Repeat("ab", 32)
	diags := c.Parse("n.json", []byte(`{"plugin": {"a": {"args": ["-v"], "env_allowlist": [], "sha256": "`+sum+`", "config": {"b": 1}}}}`))
	if len(diags) > 0 || len(c.Plugins) != 1 {
		t.Fatalf("%d plugins, %v", len(c.Plugins), diags)
	}
	if p := c.Plugins[0]; !slices.Equal(p.Args, []string{"-v"}) || p.EnvAllowlist == nil || len(p.EnvAllowlist) > 0 || p.SHA256 != sum || p.Config["b"] != 1.0 {
		t.Errorf("got %+v", p)
	}
	if diags := c.Parse("n.json", []byte(`{"plugin": {"a": {"sha256": "12"}}}`)); !diags.HasErrors() {
		t.Errorf("a wrong checksum is accepted: %v", diags)
	}
}

func TestAccessControlWithoutServersHasItsSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "n.hcl")
	text := `acl {
  enabled                  = true
  token_min_expiration_ttl = "5s"
  token_max_expiration_ttl = "48h"
}
server { acl_token_gc_threshold = "2h" }`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, diags := Load([]string{file}, nil, false)
	want := TokenSettings{5 * time.Second, 48 * time.Hour, 2 * time.Hour}
	if len(diags) > 0 || !c.Cluster.AccessControl || c.DisableAccessControl || c.Tokens != want {
		t.Errorf("got %+v, %v, want %+v", c.Tokens, diags, want)
	}
}
