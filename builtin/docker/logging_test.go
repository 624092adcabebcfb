package docker

import (
	"reflect"
	"strings"
	"testing"
)

// What the engine, which is root, does with the output of a task reaches nothing of the machine without the operator's word.
func TestLogOptionsOfTasks(t *testing.T) {
	volumes := map[string]any{"volumes": list(map[string]any{"enabled": true})}
	loki := map[string]any{"allow_log_drivers": []any{"loki"}}
	const volumesRemedy, driverRemedy = "volumes { enabled = true }", "allow_log_drivers ="
	for _, test := range []struct {
		driver        string
		options       map[string]any
		plugin        map[string]any
		refusedRemedy string // "" if the options are accepted
	}{
		{"json-file", map[string]any{"max-size": "1m", "labels": "a", "tag": "t"}, nil, ""},
		{"json-file", map[string]any{"path": "/etc/cron.d/x"}, nil, volumesRemedy},
		{"k8s-file", map[string]any{"path": "/etc/cron.d/x"}, nil, volumesRemedy},
		{"local", map[string]any{"no-such-option": "1"}, nil, volumesRemedy},
		{"syslog", map[string]any{}, nil, volumesRemedy},
		{"syslog", map[string]any{"syslog-address": "unix:///run/systemd/journal/dev-log"}, nil, volumesRemedy},
		{"syslog", map[string]any{"syslog-address": "unixgram:///dev/log", "tag": "sshd"}, nil, volumesRemedy},
		{"syslog", map[string]any{"syslog-address": "UNIX:///dev/log"}, nil, volumesRemedy},
		{"syslog", map[string]any{"syslog-address": "/dev/log"}, nil, volumesRemedy},
		{"syslog", map[string]any{"syslog-address": "tcp+tls://h:1", "syslog-tls-key": "/etc/ssl/private/key"}, nil, volumesRemedy},
		{"syslog", map[string]any{"syslog-address": "udp://192.0.2.1:514", "syslog-facility": "daemon"}, nil, ""},
		{"syslog", map[string]any{"syslog-address": "unix:///dev/log"}, volumes, ""},
		{"fluentd", map[string]any{"fluentd-address": "unix:///run/x.sock"}, nil, volumesRemedy},
		{"fluentd", map[string]any{"fluentd-address": "192.0.2.1:24224"}, nil, ""},
		{"splunk", map[string]any{"splunk-url": "https://h", "splunk-token": "t", "splunk-capath": "/etc/shadow"}, nil, volumesRemedy},
		{"splunk", map[string]any{"splunk-url": "https://h", "splunk-token": "t"}, nil, ""},
		{"gelf", map[string]any{"gelf-address": "udp://192.0.2.1:12201"}, nil, ""},
		{"loki", map[string]any{"loki-url": "https://h"}, nil, driverRemedy},
		{"loki", map[string]any{"loki-url": "https://h"}, volumes, driverRemedy},
		{"loki", map[string]any{"loki-url": "https://h"}, loki, ""},
		{"awslogs", map[string]any{}, nil, driverRemedy},
		{"passthrough", map[string]any{}, nil, driverRemedy},
	} {
		_, _, err := build(t, test.plugin, map[string]any{"logging": list(map[string]any{"type": test.driver, "config": list(test.options)})}, nil)
		switch {
		case test.refusedRemedy == "" && err != nil:
			t.Errorf("%s %v: %v", test.driver, test.options, err)
		case test.refusedRemedy != "" && (err == nil || !strings.Contains(err.Error(), test.refusedRemedy)):
			t.Errorf("%s %v: %v; want a refusal with %q", test.driver, test.options, err, test.refusedRemedy)
		}
	}
}

func TestKernelAndStorageOptions(t *testing.T) {
	for option, accepted := range map[string]bool{
		"net.core.somaxconn": true, "kernel.shmmax": true, "fs/mqueue/msg_max": true,
		"kernel.core_pattern": false, "vm.overcommit_memory": false, "fs.file-max": false, "kernel/core_pattern": false, "netfilter": false,
	} {
		if _, _, err := build(t, nil, map[string]any{"sysctl": list(map[string]any{option: "1"})}, nil); (err == nil) != accepted {
			t.Errorf("sysctl %s: %v", option, err)
		}
	}
	for option, accepted := range map[string]bool{"size": true, "inodes": true, "overlay.mount_program": false, "dm.basesize": false} {
		if _, _, err := build(t, nil, map[string]any{"storage_opt": list(map[string]any{option: "1"})}, nil); (err == nil) != accepted {
			t.Errorf("storage_opt %s: %v", option, err)
		}
	}
}

// optionDecisions says for each option of a task what a hostile value of it reaches, and where that is decided. An option
// without an entry fails the test.
var optionDecisions = map[string]string{
	"image": "pulled with the credentials of the operator or of auth", "load": "resolveAllowedHostPath", "force_pull": "own image", "image_pull_timeout": "own start",
	"auth": "sent to the registry of the image, or to the server that it names", "auth_soft_fail": "own start",
	"entrypoint": "in the container", "command": "in the container", "args": "in the container", "work_dir": "in the container", "labels": "free, except those of the driver: setLabels",
	"group_add": "in the container", "init": "in the container", "interactive": "in the container", "tty": "in the container", "healthchecks": "own container",
	"hostname": "own namespace", "network_mode": "setNetwork", "network_aliases": "own network", "ipv4_address": "own network", "ipv6_address": "own network",
	"advertise_ipv6_address": "own service", "mac_address": "own network", "ports": "ports of the job", "port_map": "ports of the job",
	"extra_hosts": "own file", "dns_servers": "own file", "dns_search_domains": "own file", "dns_options": "own file",
	"volumes": "addVolume", "volume_driver": "setMounts", "mount": "parseMount", "mounts": "parseMount", "devices": "setDevices", "readonly_rootfs": "own container",
	"storage_opt": "checkKernelAndStorageOptions", "privileged": "setIsolation", "cap_add": "setCapabilities", "cap_drop": "own container",
	"ipc_mode": "checkNamespaceModes", "pid_mode": "checkNamespaceModes", "uts_mode": "checkNamespaceModes", "userns_mode": "checkNamespaceModes",
	"cgroupns": "checkNamespaceModes", "isolation": "validateAndParseDurations", "runtime": "setRuntime", "security_opt": "checkAndResolveSecurityOpt", "sysctl": "checkKernelAndStorageOptions",
	"cpu_hard_limit": "own limits", "cpu_cfs_period": "own limits", "cpuset_cpus": "own limits", "memory_hard_limit": "own limits", "oom_score_adj": "checkOOMScoreAdj",
	"pids_limit": "own limits", "shm_size": "own limits", "ulimit": "own limits", "container_exists_attempts": "own start", "logging": "checkLogging",
}

func TestEachOptionIsDecided(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[taskConfig]()) {
		if option := field.Tag.Get("codec"); option != "" && optionDecisions[option] == "" {
			t.Errorf("nobody has decided what a hostile value of %q reaches", option)
		}
	}
}
