package docker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
)

// commonLogOptions are the options of all log drivers. None of them names anything of the machine.
var commonLogOptions = []string{"mode", "max-buffer-size", "tag", "labels", "labels-regex", "env", "env-regex"}

// logOptionsByType are the log drivers that a task can choose, with the options that it can give them besides
// commonLogOptions. The engine, which is root, executes the options: those that name files or sockets of the machine are
// not in the list.
var logOptionsByType = map[string][]string{
	"json-file": {"max-size", "max-file", "compress"},
	"local":     {"max-size", "max-file", "compress"},
	"k8s-file":  {"max-size"}, // of Podman
	"none":      nil,
	"journald":  nil,
	"syslog":    {"syslog-address", "syslog-facility", "syslog-format", "syslog-tls-skip-verify"},
	"fluentd": {
		"fluentd-address", "fluentd-async", "fluentd-async-connect", "fluentd-async-reconnect-interval", "fluentd-buffer-limit", "fluentd-max-retries",
		"fluentd-request-ack", "fluentd-retry-wait", "fluentd-sub-second-precision", "fluentd-write-timeout", "fluentd-read-timeout",
	},
	"gelf": {"gelf-address", "gelf-compression-level", "gelf-compression-type", "gelf-tcp-max-reconnect", "gelf-tcp-reconnect-delay"},
	"splunk": {
		"splunk-format", "splunk-gzip", "splunk-gzip-level", "splunk-index", "splunk-index-acknowledgment", "splunk-insecureskipverify", "splunk-caname",
		"splunk-source", "splunk-sourcetype", "splunk-token", "splunk-url", "splunk-verify-connection",
	},
}

// logAddressSchemes are the beginnings of addresses of other programs on a network. A syslog server without an address is the
// socket of the machine.
var logAddressSchemes = []string{"tcp://", "tcp+tls://", "udp://", "tls://", "http://", "https://"}

// setLogging sets the log driver of the container from the task, or from the plugin if the task sets none.
func (b *containerBuilder) setLogging() error {
	l := b.pluginConfig.Logging
	if t := b.taskConfig.Logging; t.Type != "" || t.Driver != "" || len(t.Config) > 0 {
		l = loggingConfig{Type: cmp.Or(t.Type, t.Driver, "json-file"), Config: t.Config}
		if err := b.checkLogging(l); err != nil {
			return fmt.Errorf("logging: %w", err)
		}
	}
	b.hostConfig.LogConfig = container.LogConfig{Type: cmp.Or(l.Type, "json-file"), Config: l.Config}
	return nil
}

// checkLogging returns an error if the operator does not allow what a task wants the engine to do with its output.
func (b *containerBuilder) checkLogging(l loggingConfig) error {
	if slices.Contains(b.pluginConfig.AllowLogDrivers, l.Type) {
		return nil
	}
	options, known := logOptionsByType[l.Type]
	if !known {
		return fmt.Errorf("the type %q is refused: the operator must write allow_log_drivers = [%q] into the configuration of the driver \"docker\"; allowed are %s",
			l.Type, l.Type, strings.Join(slices.Sorted(maps.Keys(logOptionsByType)), ", "))
	}
	if b.pluginConfig.Volumes.Enabled {
		return nil
	}
	if l.Type == "syslog" && l.Config["syslog-address"] == "" {
		return fmt.Errorf("syslog without syslog-address is refused, because the engine writes to the log of the machine: name the address of a server such as udp://192.0.2.1:514, or %s", volumesDisabledText)
	}
	for _, name := range slices.Sorted(maps.Keys(l.Config)) {
		value := l.Config[name]
		switch {
		case !slices.Contains(commonLogOptions, name) && !slices.Contains(options, name):
			return fmt.Errorf("the option %q of %s is refused, because it can name a file of the machine, which the engine opens as root: %s", name, l.Type, volumesDisabledText)
		case !strings.HasSuffix(name, "-address") && !strings.HasSuffix(name, "-url"):
		case l.Type == "fluentd" && !strings.Contains(value, "/"): // HOST:PORT
		case !slices.ContainsFunc(logAddressSchemes, func(scheme string) bool { return strings.HasPrefix(strings.ToLower(value), scheme) }):
			return fmt.Errorf("%s = %q is refused, because it can name a socket of the machine: write an address that begins with %s, or %s", name, value, strings.Join(logAddressSchemes, ", "), volumesDisabledText)
		}
	}
	return nil
}
