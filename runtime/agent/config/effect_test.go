package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// forEachSetting calls visit for each setting of the tables that is no block, with its dotted path.
func forEachSetting(block string, settings map[string]settingSpec, visit func(path string, s settingSpec)) {
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		path := strings.TrimPrefix(block+"."+name, ".")
		if s := settings[name]; s.blockSettings != nil {
			forEachSetting(path, s.blockSettings, visit)
		} else {
			visit(path, s)
		}
	}
}

// configTextOf returns a configuration file with one setting, whose line is the number of the path's elements.
func configTextOf(path, value string) string {
	elements := strings.Split(path, ".")
	last := len(elements) - 1
	return strings.Join(elements[:last], " {\n") + strings.Repeat(" {\n", min(last, 1)) + elements[last] + " = " + value + strings.Repeat("\n}", last) + "\n"
}

// A setting without an effect has exactly one warning, at its position, with its reason.
func TestIgnoredSettingHasItsWarning(t *testing.T) {
	forEachSetting("", topLevelSettings, func(path string, s settingSpec) {
		if s.ignoredReason == "" {
			return
		}
		var c Config
		got := diagnosticLines(c.Parse("a.hcl", []byte(configTextOf(path, `"x"`))))
		want := fmt.Sprintf("a.hcl:%d: %s is ignored: %s", 1+strings.Count(path, "."), path, s.ignoredReason)
		if !slices.Equal(got, []string{want}) || !reflect.DeepEqual(c, Config{}) {
			t.Errorf("%s: %q, want %q; configuration %+v", path, got, want, c)
		}
	})
}

// settingValues are values that change the configuration, for settings to which none of commonSettingValues applies.
var settingValues = map[string]string{
	"log_level":                         `"debug"`,
	"tls.tls_min_version":               `"tls13"`,
	"tls.tls_cipher_suites":             `"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"`,
	"http_api_response_headers":         `{ a = "b" }`,
	"hook":                              `{ x = {} }`,
	"audit.sink":                        `{ x = { path = "/var/log/audit.log" } }`,
	"audit.filter":                      `{ x = { endpoints = ["/v1/metrics"] } }`,
	"server.oidc_issuer":                `"https://nomad.example.com"`,
	"server.job_max_priority":           `200`,
	"server.job_default_priority":       `60`,
	"client.meta":                       `{ a = "b" }`,
	"client.options":                    `{ "driver.allowlist" = "exec" }`,
	"client.chroot_env":                 `{ "/bin" = "/bin" }`,
	"client.cni_path":                   `"/opt"`,
	"client.bridge_network_subnet":      `"10.1.0.0/20"`,
	"client.bridge_network_subnet_ipv6": `"fd00:1::/64"`,
	"client.host_network":               `{ x = { cidr = "10.0.0.0/8" } }`,
	"client.host_volume":                `{ x = { path = "/srv" } }`,
	"client.host_volume_plugin_dir":     `"/srv"`,
	"client.host_volumes_dir":           `"/srv"`,
	"client.preferred_address_family":   `"ipv6"`,
	"client.server_http_addr":           `"https://10.0.0.1:4646"`,
	"client.artifact.filesystem_isolation_extra_paths": `["d:rx:/opt/tools"]`,
	"client.artifact.download_uids":                    `"200000-200100"`,
	"client.template.wait":                             `{ min = "1s" max = "2s" }`,
	"client.template.wait_bounds":                      `{ min = "1s" max = "2s" }`,
	"client.template.nomad_retry":                      `{ backoff = "1s" }`,
	"client.template.function_denylist":                `["env", "plugin", "writeToFile"]`,
	"telemetry.prefix_filter":                          `["-nomad.client"]`,
	"telemetry.datadog_tags":                           `["env:test"]`,
	"telemetry.statsd_address":                         `"127.0.0.1:8125"`,
	"telemetry.statsite_address":                       `"127.0.0.1:8125"`,
	"telemetry.datadog_address":                        `"127.0.0.1:8125"`,
	"telemetry.otlp.endpoint":                          `"http://127.0.0.1:4318"`,
	"telemetry.otlp.protocol":                          `"grpc"`,
	"telemetry.otlp.headers":                           `{ a = "b" }`,
}

// commonSettingValues are tried in turn for the other settings.
var commonSettingValues = []string{`true`, `false`, `7`, `"7s"`, `"x"`, `["x"]`, `"64MB"`}

// A setting with an effect changes the configuration, without a warning.
func TestSettingChangesTheConfiguration(t *testing.T) {
	forEachSetting("", topLevelSettings, func(path string, s settingSpec) {
		if s.ignoredReason != "" || path == "client.enabled" { // which can only have its default
			return
		}
		values := commonSettingValues
		if value, ok := settingValues[path]; ok {
			values = []string{value}
		}
		var all []string
		for _, value := range values {
			var before, after Config
			initBlocks(&before, path)
			lines := diagnosticLines(after.Parse("a.hcl", []byte(configTextOf(path, value))))
			if len(lines) == 0 && !reflect.DeepEqual(before, after) {
				return
			}
			all = append(all, lines...)
		}
		t.Errorf("%s: no value of %s changes the configuration: %q", path, strings.Join(values, ", "), all)
	})
}

// initBlocks does what the blocks of a path do without a setting.
func initBlocks(c *Config, path string) {
	settings := topLevelSettings
	for name := range strings.SplitSeq(path, ".") {
		s := settings[name]
		if s.initBlock != nil {
			s.initBlock(c)
		}
		settings = s.blockSettings
	}
}
