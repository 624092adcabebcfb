package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
)

// diagnosticLines returns the diagnostics, each in one line with its position.
func diagnosticLines(diags hcl.Diagnostics) []string {
	var all []string
	for _, d := range diags {
		place := ""
		if d.Subject != nil {
			place = strings.SplitN(d.Subject.String(), ",", 2)[0] + ": "
		}
		all = append(all, place+d.Summary)
	}
	return all
}

func TestNomadConfigFile(t *testing.T) {
	const configText = `
datacenter = "east"
data_dir   = "/srv/nomad"
bind_addr  = "10.0.0.1"
log_level  = "DEBUG"
leave_on_terminate = true

ports { http = 5656 }
advertise { http = "10.0.0.1" }

server {
  enabled          = true
  bootstrap_expect = 3
  job_gc_threshold = "2h"
}

client {
  enabled    = true
  node_class = "big"
  servers    = ["10.0.0.2:4647"]
  meta { "rack" = "r1" }
  options {
    "driver.raw_exec.enable" = "1"
    "user.denylist"          = "root, admin"
    "env.denylist"           = "DB_PASSWORD, TOKEN"
    "env.allowlist"          = ""
    "alloc_dir.nomad_modes"  = "true"
    "alloc_dir.allow_setuid" = "true"
    "docker.nvidia_runtime" = "x"
  }
  reserved {
    cpu            = 500
    reserved_ports = "22,80-90"
    cores          = "0,2-3"
  }
  gc_max_allocs    = 7
  gc_interval      = "10s"
  gc_disk_usage_min_age = "3m"
  max_kill_timeout = "2m"
  drain_on_shutdown { deadline = "1m" }
}

plugin "raw_exec" { config { enabled = true } }

consul { address = "127.0.0.1:8500" }
tls {
  http                = true
  ca_file             = "ca.pem"
  verify_https_client = true
  tls_min_version     = "tls11"
  tls_cipher_suites   = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
}
telemetry {
  prometheus_metrics         = false
  publish_allocation_metrics = true
}
limits {
  http_max_conns_per_client = 200
  https_handshake_timeout   = "2s"
  rpc_handshake_timeout     = "5s"
}
enable_debug = true
unix_sockets { group = "operators" }
no_such = 1
ui {
  enabled        = false
  show_cli_hints = false
  label { text = "staging" }
}
`
	var c Config
	got := diagnosticLines(c.Parse("n.hcl", []byte(configText)))
	want := []string{
		`n.hcl:13: server.bootstrap_expect is ignored: ` + noServersReason,
		`n.hcl:29: option "docker.nvidia_runtime" is ignored: it has no meaning here`,
		`n.hcl:45: consul is ignored: ` + noConsulReason,
		`n.hcl:50: tls_min_version: tls11 is not safe, tls12 is the least`,
		`n.hcl:60: limits.rpc_handshake_timeout is ignored: ` + noServersReason,
		`n.hcl:64: no_such is not a setting that is known here, and is ignored`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"datacenter", c.Node.Datacenter, "east"},
		{"data_dir", c.DataDir, "/srv/nomad"},
		{"bind_addr", c.BindAddr, "10.0.0.1"},
		{"log_level", c.LogLevel, "DEBUG"},
		{"leave_on_terminate", c.LeaveOnTerminate, true},
		{"ports.http", *c.HTTPPort, 5656},
		{"advertise.http", c.HTTPAdvertiseAddr, "10.0.0.1"},
		{"job_gc_threshold", c.SchedulerGC.MinDeadJobAge, 2 * time.Hour},
		{"node_class", c.Node.Class, "big"},
		{"meta", c.Node.Meta["rack"], "r1"},
		{"raw_exec option", *c.LegacyEnableRawExec, true},
		{"user.denylist", strings.Join(c.UserDenylist, "+"), "root+admin"},
		{"alloc_dir.nomad_modes", c.FallBackToNomadFileModes, true},
		{"alloc_dir.allow_setuid", c.AllowSetuidAndDevicesInAllocs, true},
		{"env.denylist", strings.Join(c.EnvDenylist, "+"), "DB_PASSWORD+TOKEN"},
		{"env.allowlist", c.EnvAllowlist != nil && len(c.EnvAllowlist) == 0, true},
		{"reserved.cpu", c.Node.Reserved.CPUMHz, uint64(500)},
		{"reserved.cores", fmt.Sprint(c.Node.Reserved.CoreIDs), "[0 2 3]"},
		{"reserved_ports", c.Node.Reserved.Ports, "22,80-90"},
		{"gc_max_allocs", c.GC.MaxAllocsOnDisk, 7},
		{"gc_interval", c.GC.DiskCheckInterval, 10 * time.Second},
		{"gc_disk_usage_min_age", c.GC.MinEndedTimeForDiskUsageGC, 3 * time.Minute},
		{"max_kill_timeout", c.MaxKillTimeout, 2 * time.Minute},
		{"drain deadline", c.DrainOnExit.Deadline, time.Minute},
		{"plugins", c.Plugins[0].Name, "raw_exec"},
		{"plugin config", c.Plugins[0].Config["enabled"], true},
		{"tls.http", c.TLS.ServeHTTPS, true},
		{"tls.ca_file", c.TLS.CAFile, "ca.pem"},
		{"tls.verify_https_client", c.TLS.VerifyClient, true},
		{"tls_min_version", c.TLS.MinVersion, uint16(tls.VersionTLS12)},
		{"tls_cipher_suites", slices.Equal(c.TLS.CipherSuites, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}), true},
		{"telemetry", reflect.DeepEqual(c.Telemetry, metrics.Settings{OmitPrometheusFormat: true}), true},
		{"http_max_conns_per_client", c.MaxHTTPConnsPerClient, 200},
		{"https_handshake_timeout", c.TLSHandshakeTimeout, 2 * time.Second},
		{"enable_debug", c.EnableDebug, true},
		{"unix_sockets", c.SocketGroup, "operators"},
		{"ui.enabled", c.DisableWebPage, true},
		{"ui.show_cli_hints", c.HideWebPageURLs, true},
	} {
		if check.got != check.want {
			t.Errorf("%s is %v, want %v", check.what, check.got, check.want)
		}
	}
}

func TestTelemetryBlock(t *testing.T) {
	var c Config
	diags := c.Parse("c.hcl", []byte(`telemetry {
  collection_interval                    = "10s"
  publish_allocation_metrics             = false
  publish_node_metrics                   = true
  disable_hostname                       = true
  disable_dispatched_job_summary_metrics = true
  prefix_filter                          = ["-nomad.raft", "+nomad.client"]
  filter_default                         = false
  include_alloc_metadata_in_metrics      = true
  allowed_metadata_keys_in_metrics       = ["team"]
  statsd_address                         = "statsd.example:8125"
  statsite_address                       = "[::1]:8126"
  datadog_tags                           = ["env:test"]
  datadog_address                        = "127.0.0.1:8127"
}`))
	diags = append(diags, c.Parse("d.json", []byte(`{"telemetry": {"statsite_address": ""}}`))...)
	if got, want := diagnosticLines(diags), []string{`c.hcl:7: prefix_filter: no metric has the prefix of "-nomad.raft"`}; !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
	want := metrics.Settings{
		OmitAllocationMetrics: true, OmitDispatchedJobSummary: true, OmitHost: true, CollectionInterval: 10 * time.Second,
		Filter:               metrics.Filter{Rules: []string{"-nomad.raft", "+nomad.client"}, OmitDefault: true},
		IncludeAllocMetadata: true, AllowedMetadataKeys: []string{"team"},
		Sinks: []metrics.Sink{
			{Protocol: metrics.Statsd, Address: "statsd.example:8125"}, {Protocol: metrics.Statsite},
			{Protocol: metrics.Datadog, Address: "127.0.0.1:8127", Tags: []string{"env:test"}},
		},
	}
	if !reflect.DeepEqual(c.Telemetry, want) {
		t.Errorf("settings %+v, want %+v", c.Telemetry, want)
	}
}

func TestHandshakeTimeoutHasALimit(t *testing.T) {
	for text, want := range map[string]time.Duration{"30s": 30 * time.Second, "0s": time.Minute, "2m": time.Minute} {
		var c Config
		diags := c.Parse("c.hcl", []byte(`limits { https_handshake_timeout = "`+text+`" }`))
		if warned := len(diags) > 0; c.TLSHandshakeTimeout != want || diags.HasErrors() || warned != (text != "30s") {
			t.Errorf("%s is %v, want %v; %q", text, c.TLSHandshakeTimeout, want, diagnosticLines(diags))
		}
	}
}

func TestJSONConfig(t *testing.T) {
	const configText = `{
  "datacenter": "east",
  "client": {
    "meta": {"a": "b"},
    "options": [{"driver.allowlist": "raw_exec"}],
    "gc_max_allocs": 3,
    "servers": ["x"]
  },
  "plugin": [{"raw_exec": [{"config": [{"enabled": true, "n": 3}], "args": ["-x"]}]}]
}`
	var c Config
	got := diagnosticLines(c.Parse("n.json", []byte(configText)))
	if len(got) > 0 {
		t.Errorf("warnings %q", got)
	}
	p := c.Plugins[0]
	if c.Node.Datacenter != "east" || c.Node.Meta["a"] != "b" || c.GC.MaxAllocsOnDisk != 3 || !slices.Equal(c.DriverAllowlist, []string{"raw_exec"}) ||
		p.Name != "raw_exec" || p.Config["enabled"] != true || p.Config["n"] != 3.0 || !slices.Equal(p.Args, []string{"-x"}) {
		t.Errorf("read %+v", c)
	}
}

func TestInvalidSettingValues(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"a level that there is not", "c.hcl", `log_level = "loud"`, `c.hcl:1: log_level: must be trace, debug, info, warn or error`},
		{"a port that is none", "c.hcl", "\nports {\n http = 70000\n}", `c.hcl:3: http: must be a whole number from 0 to 65535`},
		{"a word for a number", "c.hcl", `client { gc_max_allocs = "many" }`, `c.hcl:1: gc_max_allocs: must be a number`},
		{"a core with a name", "c.hcl", "client {\n reserved {\n cores = \"0,two\"\n}\n}", `c.hcl:3: cores: "0,two" is no list of cores: write them like "0,2-3"`},
		{"a port with a name", "c.hcl", "client {\n reserved {\n reserved_ports = \"22,ssh\"\n}\n}", `c.hcl:3: reserved_ports: "ssh" is no port and no range of ports: write them like "22,8000-8010"`},
		{"a duration without unit", "c.hcl", `client { gc_interval = "10" }`, `c.hcl:1: gc_interval: must be a duration, such as "90s"`},
		{"a sink without a port", "c.hcl", "telemetry {\n statsd_address = \"127.0.0.1\"\n}", `c.hcl:2: statsd_address: "127.0.0.1" is not host:port, such as 127.0.0.1:8125`},
		{"a sink at a path", "c.hcl", "telemetry {\n datadog_address = \"unix:///run/datadog.sock\"\n}", `c.hcl:2: datadog_address: "unix:///run/datadog.sock" is not host:port, such as 127.0.0.1:8125`},
		{"a tag that has a comma", "c.hcl", "telemetry {\n datadog_tags = [\"a:b,c\"]\n}", `c.hcl:2: datadog_tags: "a:b,c" is not a tag such as "env:production"`},
		{"a filter without a sign", "c.hcl", "telemetry {\n prefix_filter = [\"nomad.client\"]\n}", `c.hcl:2: prefix_filter: "nomad.client" has no sign: write +prefix to keep metrics and -prefix to omit them`},
		{"an interval that is too short", "c.hcl", "telemetry {\n collection_interval = \"10ms\"\n}", `c.hcl:2: collection_interval: must be at least "1s"`},
		{"a setting in the place of a block", "c.hcl", `client = "yes"`, `c.hcl:1: client is a block: client { … }`},
		{"an agent that does nothing", "c.hcl", `client { enabled = false }`, `c.hcl:1: enabled: cannot be false here: running tasks is all that an agent does`},
		{"an expression", "c.hcl", `name = var.x`, `c.hcl:1: not HCL: "var.x" is not a value: write a number, true, false, a text in quotes, [ … ] or { … }; an expression for a plugin is written in quotes, "${ … }"`},
		{"a setting that is repeated", "c.hcl", "name = \"a\"\nname = \"b\"", `c.hcl:2: name is already set at c.hcl:1,1-5: remove one of the two settings`},
		{"a text with a reference", "c.hcl", `hook "x" { config { url = "http://x/${meta.owner}" } }`, `c.hcl:1: url: the value must be written out: Variables may not be used here. For a text with ${ in it write $${.`},
		{"a hook without a name", "c.hcl", `hook { order = 300 }`, `c.hcl:1: hook: is a block with the name of a plugin: hook "NAME" { … }`},
		{"a place before the directories", "c.hcl", `hook "x" { order = 100 }`, `c.hcl:1: hook "x": order must be a whole number from 101 to 899`},
		{"a third way", "c.hcl", "hook \"x\" {\n on_error = \"ignore\"\n}", `c.hcl:2: hook "x": on_error must be fail or warn`},
		{"a pattern that is none", "c.hcl", "hook \"x\" {\n match {\n job = \"[\"\n}\n}", `c.hcl:3: hook "x": match job must be a name, or a pattern such as "web-*"`},
		{"an unknown setting", "c.hcl", "hook \"x\" {\n\n retries = 3\n}", `c.hcl:3: hook "x": retries is not known: a hook has order, timeout, on_error, match and config`},
		{"an unknown setting in JSON", "c.json", "{\"name\": \"retries\",\n\"hook\": {\"x\": {\n\"retries\": 3}}}", `c.json:2: hook "x": retries is not known: a hook has order, timeout, on_error, match and config`},
		{"seconds without a unit", "c.hcl", "hook \"x\" {\n timeout = 5\n}", `c.hcl:2: hook "x": timeout must be a duration of at least 1ms, such as "90s"`},
		{"a hook that says nothing, not even its name", "c.hcl", `hook {}`, `c.hcl:1: hook: is a block with the name of a plugin: hook "NAME" { … }`},
		{"broken JSON", "c.json", "{\n\"name\": }", `c.json:2: not a JSON object: invalid character '}' looking for beginning of value`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var config Config
			diags := config.Parse(c.file, []byte(c.text))
			if got := diagnosticLines(diags); !diags.HasErrors() || len(got) != 1 || got[0] != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestTwoHookBlocksOfAName(t *testing.T) {
	var c Config
	diags := c.Parse("a.hcl", []byte("hook \"x\" { order = 200 }\n\nhook \"x\" { order = 300 }"))
	if got := diagnosticLines(diags); diags.HasErrors() || !slices.Equal(got, []string{`a.hcl:3: hook: "x" replaces the block of the same name at a.hcl:1,1-9`}) || c.HookRules[0].Order != 300 {
		t.Errorf("in one file: %q, %+v", got, c.HookRules)
	}
	if got := diagnosticLines(c.Parse("b.hcl", []byte(`hook "x" { order = 400 }`))); len(got) > 0 || len(c.HookRules) != 1 || c.HookRules[0].Order != 400 {
		t.Errorf("in another file: %q, %+v", got, c.HookRules)
	}
}

func TestHookBlocks(t *testing.T) {
	places := map[string]string{"c.hcl": "c.hcl:2,1-13", "c.json": "c.json:1,23-23"}
	for name, text := range map[string]string{
		"c.hcl": `hook "a" {}
hook "stamp" {
	order    = 650
	timeout  = "2s"
	on_error = "warn"
	match {
		job    = "web-*"
		driver = "raw_exec"
		meta { team = "red" }
	}
	config {
		ledger = "x"
		count  = 3
		rule {
			word = "one"
		}
		rule {
			word = "two"
		}
	}
}`,
		"c.json": `{"hook": [{"a": {}}, {"stamp": {"order": 650, "timeout": "2s", "on_error": "warn",
			"match": {"job": "web-*", "driver": "raw_exec", "meta": {"team": "red"}},
			"config": {"ledger": "x", "count": 3, "rule": [{"word": "one"}, {"word": "two"}]}}}]}`,
	} {
		var c Config
		if diags := c.Parse(name, []byte(text)); len(diags) > 0 {
			t.Fatalf("%s: %q", name, diagnosticLines(diags))
		}
		want := []pluginhooks.OperatorRule{{Name: "a"}, {
			Name: "stamp", Order: 650, Timeout: 2 * time.Second, WarnOnError: true,
			Match:  &pluginhooks.RuleMatch{JobPattern: "web-*", DriverPattern: "raw_exec", PatternByMetaKey: map[string]string{"team": "red"}},
			Config: map[string]any{"ledger": "x", "count": 3.0, "rule": []any{map[string]any{"word": "one"}, map[string]any{"word": "two"}}},
		}}
		if at := c.HookRules[1].ConfigRange.String(); at != places[name] {
			t.Errorf("%s: it stands at %s, want %s", name, at, places[name])
		}
		for i := range c.HookRules {
			c.HookRules[i].ConfigRange = hcl.Range{}
		}
		if !reflect.DeepEqual(c.HookRules, want) {
			t.Errorf("%s: read %+v", name, c.HookRules)
		}
		if diags := c.Parse("later.hcl", []byte(`hook "stamp" { order = 200 }`)); len(diags) > 0 || c.HookRules[1].Order != 200 || c.HookRules[1].WarnOnError || len(c.HookRules) != 2 {
			t.Errorf("a later block: %q, %+v", diagnosticLines(diags), c.HookRules)
		}
	}
}

func TestLaterConfigFilesOverrideEarlier(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.hcl":      `name = "a" client { meta { one = "1" two = "2" } }`,
		"b.json":     `{"name": "b", "client": {"meta": {"two": "3"}}}`,
		".#c.hcl":    `name = "an editor"`,
		"readme.txt": `name = `,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, diags := Load([]string{dir}, nil, false)
	if len(diags) > 0 {
		t.Fatalf("diagnostics %q", diagnosticLines(diags))
	}
	if c.Node.Name != "b" || c.Node.Meta["one"] != "1" || c.Node.Meta["two"] != "3" {
		t.Errorf("read %+v", c.Node)
	}
	if _, diags := Load([]string{t.TempDir()}, nil, false); !diags.HasErrors() {
		t.Error("an empty directory is no error")
	}
	if err := os.WriteFile(filepath.Join(dir, "z.hcl"), []byte("client {\n min_dynamic_port = 40000\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, diags := Load([]string{dir}, nil, false); len(diags) != 1 || diags[0].Summary != "configuration: min_dynamic_port 40000 is above max_dynamic_port 32000" {
		t.Errorf("no ports in the range: %v", diags)
	}
	if err := os.WriteFile(filepath.Join(dir, "z.hcl"), []byte("client {\n client_max_port = 13000\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, diags := Load([]string{dir}, nil, false); c.Node.ClientMaxPort != 13000 || len(diags) != 1 || diags[0].Summary != "configuration: client_min_port 14000 is above client_max_port 13000" {
		t.Errorf("no ports for drivers in the range: %d, %v", c.Node.ClientMaxPort, diags)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("client {\n meta { \"a.b\" = 1 }\n}", false)
	f.Add(`{"client": [{"meta": {"a": null}}]}`, true)
	f.Add(`plugin "x" { config { "y" = [1, {"z" = 2}] } }`, false)
	f.Fuzz(func(t *testing.T, text string, json bool) {
		name := "c.hcl"
		if json {
			name = "c.json"
		}
		var c Config
		for _, d := range c.Parse(name, []byte(text)) {
			if d.Subject != nil && (d.Subject.Start.Byte < 0 || d.Subject.Start.Byte > len(text)) {
				t.Errorf("place %v is not in the text", d.Subject)
			}
		}
	})
}

// The range of the user ids of tasks is checked together with that of downloads.
func TestDynamicUsers(t *testing.T) {
	for text, want := range map[string]struct {
		ids     idrange.Range
		enabled bool
		summary string
	}{
		"": {idrange.Range{First: 80000, Last: 89999}, true, ""},
		"client {\n users {\n dynamic_user_min = 70000\n }\n}":                      {idrange.Range{First: 70000, Last: 89999}, true, ""},
		"client {\n users {\n dynamic_user_max = -1\n }\n}":                         {idrange.Range{}, false, ""},
		"client {\n users {\n dynamic_user_min = 90\n dynamic_user_max = 80\n }\n}": {idrange.Range{First: 90, Last: 80}, true, "configuration: client.users: dynamic_user_min 90 is above dynamic_user_max 80"},
		"client {\n users {\n dynamic_user_max = 90000\n }\n}":                      {idrange.Range{First: 80000, Last: 90000}, true, "configuration: client.users: the ids 80000-90000 overlap with download_uids of the artifact block: choose another range for one of them"},
		"client {\n users {\n dynamic_user_max = 4294967295\n }\n}":                 {idrange.Range{First: 80000, Last: 89999}, true, "dynamic_user_max: must be a whole number from -1 to 4294967294"},
	} {
		path := filepath.Join(t.TempDir(), "agent.hcl")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, diags := Load([]string{path}, nil, false)
		summary := ""
		if len(diags) > 0 {
			summary = diags[0].Summary
		}
		ids, enabled := c.DynamicUserRange.UserIDs()
		if ids != want.ids || enabled != want.enabled || !strings.HasSuffix(summary, want.summary) || (summary == "") != (want.summary == "") {
			t.Errorf("%s: %v, %t, %q, want %+v", text, ids, enabled, summary, want)
		}
	}
}

// The settings of bridge and CNI networks have the defaults of hostnet, and are checked.
func TestNetworkSettings(t *testing.T) {
	for text, want := range map[string]struct {
		networks string // bridge and CNI configuration
		summary  string
	}{
		"": {"{nomad 172.26.64.0/20 invalid Prefix false []} {[/opt/cni/bin] /opt/cni/config}", ""},
		`bridge_network_name = "br1"
			bridge_network_subnet = "10.9.0.0/16"
			bridge_network_subnet_ipv6 = "fd00::/64"
			bridge_network_hairpin_mode = false
			cni_path = "/a:/b"
			cni_config_dir = "/c"`: {"{br1 10.9.0.0/16 fd00::/64 true []} {[/a /b] /c}", ""},
		`bridge_network_subnet = "10.9.0.0"`:    {"", `bridge_network_subnet: "10.9.0.0" is not a network such as 172.26.64.0/20`},
		`bridge_network_subnet = "10.9.0.0/31"`: {"", `bridge_network_subnet "10.9.0.0/31" is not an IPv4 network with at least 4 addresses, such as 172.26.64.0/20`},
		`bridge_network_name = "a/b"`:           {"", `bridge_network_name "a/b" is not the name of a network interface`},
		`cni_path = "/a:b"`:                     {"", `cni_path: "/a:b" has a directory that is not an absolute path: the agent would run programs of its working directory`},
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
		networks := c.Node.Networks.WithDefaults()
		if got := fmt.Sprint(networks.Bridge, networks.CNI); len(diags) > 0 || got != want.networks {
			t.Errorf("%s: %s, %v, want %s", text, got, diagnosticLines(diags), want.networks)
		}
	}
}

// A file in a directory in which others can create or replace files decides nothing; a sticky directory protects a file that is named.
func TestConfigInWritableDirIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "conf")
	name := filepath.Join(dir, "agent.hcl")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(name, []byte("log_level = \"debug\"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		mode          os.FileMode
		file, wantErr bool
	}{
		{0o755, true, false}, {0o755, false, false}, {0o777, true, true}, {0o777, false, true},
		{0o777 | os.ModeSticky, true, false}, {0o777 | os.ModeSticky, false, true},
	} {
		path := dir
		if test.file {
			path = name
		}
		if err := os.Chmod(dir, test.mode); err != nil {
			t.Fatal(err)
		}
		for _, reload := range []bool{false, true} {
			if c, diags := Load([]string{path}, nil, reload); diags.HasErrors() != test.wantErr || (c.LogLevel != "") == test.wantErr {
				t.Errorf("%s, mode %v, reload %v: %v", path, test.mode, reload, diags)
			}
		}
	}
}

// What others may write to decides nothing, whatever name leads to it.
func TestWritableConfigIsRefused(t *testing.T) {
	dir := t.TempDir()
	name, link := filepath.Join(dir, "agent.hcl"), filepath.Join(dir, "link.hcl")
	if err := errors.Join(os.WriteFile(name, []byte("log_level = \"debug\"\n"), 0o600), os.Symlink(name, link)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		mode     os.FileMode
		gid, uid int // -1: that of the test
		start    hcl.DiagnosticSeverity
	}{
		{0o644, -1, -1, 0}, {0o666, -1, -1, hcl.DiagError}, {0o602, -1, -1, hcl.DiagError}, {0o664, 4321, -1, hcl.DiagError}, {0o644, 4321, -1, 0},
		{0o644, -1, 4321, hcl.DiagWarning}, {0o666, -1, 4321, hcl.DiagError},
	} {
		if test.gid+test.uid != -2 && os.Geteuid() != 0 {
			continue // only root gives files away
		}
		if err := errors.Join(os.Chown(name, max(test.uid, os.Geteuid()), max(test.gid, os.Getegid())), os.Chmod(name, test.mode)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{name, link, dir} {
			for _, reload := range []bool{false, true} {
				want := test.start
				if reload && want == hcl.DiagWarning {
					want = hcl.DiagError
				}
				c, diags := Load([]string{path}, nil, reload)
				got := hcl.DiagnosticSeverity(0)
				if len(diags) > 0 {
					got = diags[0].Severity
				}
				if got != want || want == hcl.DiagError && c.LogLevel != "" {
					t.Errorf("%s, %+v, reload %v: %v, log level %q", path, test, reload, diags, c.LogLevel)
				}
			}
		}
	}
}
