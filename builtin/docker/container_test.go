package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/hclspec/jsonschema"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// build builds the container of a task with a plugin block and a config block, for a driver that makes no mounts.
func build(t *testing.T, plugin, task map[string]any, change func(*sdk.StartRequest)) (*container.Config, *container.HostConfig, error) {
	t.Helper()
	plan, err := buildPlan(t, plugin, task, change, errors.New("it is a test"))
	if err != nil {
		return nil, nil, err
	}
	return plan.createOptions.Config, plan.createOptions.HostConfig, nil
}

func buildPlan(t *testing.T, plugin, task map[string]any, change func(*sdk.StartRequest), noBind error) (*containerPlan, error) {
	t.Helper()
	p := decodeBlock[pluginConfig](t, configSchema, plugin)
	if err := p.validateAndParseDurations(); err != nil {
		return nil, err
	}
	body := map[string]any{"image": "i:1"}
	for name, value := range task {
		body[name] = value
	}
	start := newTestStart(t, body)
	makeTaskDirs(t, start)
	if change != nil {
		change(start)
	}
	var c taskConfig
	if err := start.DecodeConfig(&c); err != nil {
		t.Fatal(err)
	}
	if err := c.validateAndParseDurations(); err != nil {
		return nil, err
	}
	return planContainer(&p, &c, start, noBind)
}

func makeTaskDirs(t *testing.T, start *sdk.StartRequest) {
	t.Helper()
	for _, dir := range []string{"alloc", "web/local", "web/secrets", "web/private"} {
		if err := os.MkdirAll(filepath.Join(start.AllocDir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func list(values ...any) []any { return values }

// TestRefusedOptions names every option that the operator's policy refuses by default.
func TestRefusedOptions(t *testing.T) {
	enabled := map[string]any{
		"allow_privileged": true, "volumes": list(map[string]any{"enabled": true}),
		"allow_caps": list("all"), "allow_runtimes": list("kata"),
	}
	for _, test := range []struct {
		name string
		task map[string]any
		want string // part of the error
	}{
		{"privileged", map[string]any{"privileged": true}, "privileged is refused"},
		{"pid namespace of the host", map[string]any{"pid_mode": "host"}, "pid_mode"},
		{"ipc namespace of the host", map[string]any{"ipc_mode": "host"}, "ipc_mode"},
		{"uts namespace of the host", map[string]any{"uts_mode": "host"}, "uts_mode"},
		{"user namespace of the host", map[string]any{"userns_mode": "host"}, "userns_mode"},
		{"cgroup namespace of the host", map[string]any{"cgroupns": "host"}, "cgroupns"},
		{"cgroup namespace of a process", map[string]any{"cgroupns": "ns:/proc/1/ns/cgroup"}, "cgroupns"},
		{"pid namespace of a process", map[string]any{"pid_mode": "ns:/proc/1/ns/pid"}, "pid_mode"},
		{"network namespace of a process", map[string]any{"network_mode": "ns:/proc/1/ns/net"}, "network_mode"},
		{"pid namespace of another container", map[string]any{"pid_mode": "container:x"}, "pid_mode"},
		{"capability", map[string]any{"cap_add": list("SYS_ADMIN")}, `cap_add: the capability "sys_admin" is not allowed`},
		{"capability that the engine gives by default", map[string]any{"cap_add": list("net_raw")}, "net_raw"},
		{"runtime", map[string]any{"runtime": "kata"}, `runtime "kata" is not allowed`},
		{"path of the host", map[string]any{"volumes": list("/etc:/host")}, `volumes: "/etc:/host"`},
		{"path above the task", map[string]any{"volumes": list("../other/secrets:/s")}, "outside of the directories of the task"},
		{"bind mount of the host", map[string]any{"mount": list(map[string]any{"type": "bind", "source": "/etc", "target": "/host"})}, `mount "/host"`},
		{"volume mount", map[string]any{"mounts": list(map[string]any{"source": "data", "target": "/data"})}, "type volume is refused"},
		{"volume driver", map[string]any{"volume_driver": "nfs", "volumes": list("data:/data")}, "volume_driver is refused"},
		{"the directory of the task with its private directories", map[string]any{"volumes": list(".:/task")}, "name one of its subdirectories"},
		{"overlay of a directory of the host", map[string]any{"volumes": list("local:/x:O,upperdir=/etc,workdir=/tmp")}, `the mode "O" is refused`},
		{"change of the owners of a volume", map[string]any{"volumes": list("local:/x:rw,U")}, `the mode "U" is refused`},
		{"log file of the host", map[string]any{"logging": list(map[string]any{"type": "k8s-file", "config": list(map[string]any{"path": "/etc/cron.d/x"})})}, `logging: the option "path" of k8s-file is refused`},
		{"network with options", map[string]any{"network_mode": "slirp4netns:allow_host_loopback=true"}, "network_mode"},
		{"network with a space", map[string]any{"network_mode": " host"}, "network_mode"},
		{"container without a name", map[string]any{"network_mode": "container:"}, "network_mode"},
		{"network by a path", map[string]any{"network_mode": "/proc/1/ns/net"}, "network_mode"},
		{"kernel settings", map[string]any{"security_opt": list("systempaths=unconfined")}, "security_opt"},
		{"kernel settings of Podman", map[string]any{"security_opt": list("unmask=ALL")}, "security_opt"},
		{"seccomp with a colon", map[string]any{"security_opt": list("seccomp:/etc/profile.json")}, "security_opt"},
		{"access control of AppArmor", map[string]any{"security_opt": list("apparmor=unconfined")}, "security_opt"},
		{"access control of SELinux", map[string]any{"security_opt": list("label=disable")}, "security_opt"},
		{"type of SELinux", map[string]any{"security_opt": list("label=type:spc_t")}, "security_opt"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, _, err := build(t, nil, test.task, nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("by default: %v, want an error with %q", err, test.want)
			}
			if _, _, err := build(t, enabled, test.task, nil); err != nil {
				t.Errorf("with a configuration that allows it: %v", err)
			}
		})
	}
}

// A mode of a namespace needs allow_privileged, or allowed_modes of this namespace.
func TestAllowedModes(t *testing.T) {
	for _, test := range []struct {
		name         string
		option, mode string
		namespace    string
		allowed      string
		isAllowed    bool
	}{
		{"the mode is listed", "pid_mode", "host", "pid", "host", true},
		{"the mode of another namespace is listed", "pid_mode", "host", "ipc", "host", false},
		{"a mode that shares nothing is not listed", "ipc_mode", "private", "ipc", "host", false},
		{"a mode that shares nothing is listed", "ipc_mode", "shareable", "ipc", "shareable", true},
		{"the user namespace", "userns_mode", "host", "userns", "host", true},
		{"the uts namespace", "uts_mode", "host", "uts", "host", true},
		{"the container is listed", "pid_mode", "container:web-1", "pid", "container:web-1", true},
		{"another container is listed", "pid_mode", "container:web-1", "pid", "container:web-2", false},
		{"the container matches a pattern", "pid_mode", "container:web-1", "pid", "container:web-*", true},
		{"the container does not match the pattern", "ipc_mode", "container:db", "ipc", "container:web-*", false},
		{"a pattern is for containers", "ipc_mode", "host", "ipc", "container:*", false},
		{"the case of letters counts", "pid_mode", "HOST", "pid", "host", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			plugin := map[string]any{"allowed_modes": map[string]any{test.namespace: list(test.allowed)}}
			_, host, err := build(t, plugin, map[string]any{test.option: test.mode}, nil)
			if !test.isAllowed {
				want := fmt.Sprintf("%s = %q is refused: the operator must set allowed_modes { ", test.option, test.mode)
				if err == nil || !strings.HasPrefix(err.Error(), want) {
					t.Errorf("%v, want an error that starts with %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			modes := map[string]string{
				"pid_mode": string(host.PidMode), "ipc_mode": string(host.IpcMode), "userns_mode": string(host.UsernsMode), "uts_mode": string(host.UTSMode),
			}
			if modes[test.option] != test.mode {
				t.Errorf("the container has the modes %v, want %s %q", modes, test.option, test.mode)
			}
		})
	}
	everything := map[string]any{"allowed_modes": map[string]any{"pid": list("host"), "ipc": list("host"), "userns": list("host"), "uts": list("host")}}
	for option, value := range map[string]any{"privileged": true, "cgroupns": "host"} {
		if _, _, err := build(t, everything, map[string]any{option: value}, nil); err == nil || !strings.Contains(err.Error(), "allow_privileged") {
			t.Errorf("%s with all modes allowed: %v, want an error that names allow_privileged", option, err)
		}
	}
}

func TestOOMScoreAdj(t *testing.T) {
	for _, test := range []struct {
		name         string
		plugin, task map[string]any
		want         int
	}{
		{"neither is set", nil, nil, 0},
		{"the plugin's is for tasks without their own", map[string]any{"oom_score_adj": 500}, nil, 500},
		{"the task's takes precedence", map[string]any{"oom_score_adj": 500}, map[string]any{"oom_score_adj": 300}, 300},
		{"the task's takes precedence when it is 0", map[string]any{"oom_score_adj": 500}, map[string]any{"oom_score_adj": 0}, 0},
	} {
		if _, host, err := build(t, test.plugin, test.task, nil); err != nil || host.OomScoreAdj != test.want {
			t.Errorf("%s: %+v, %v; want %d", test.name, host, err, test.want)
		}
	}
	if _, _, err := build(t, nil, map[string]any{"oom_score_adj": -1}, nil); err == nil {
		t.Error("a task can protect itself with a negative score")
	}
}

func TestCpuset(t *testing.T) {
	reserve := func(cores string) func(*sdk.StartRequest) {
		return func(s *sdk.StartRequest) {
			s.Resources = &driver.Resources{MemoryMB: 1, Linux: driver.LinuxResources{CpusetCpus: cores}}
		}
	}
	cpuset := map[string]any{"cpuset_cpus": "0-1"}
	for _, test := range []struct {
		name     string
		task     map[string]any
		reserved string
		want     string
	}{
		{"neither is set", nil, "", ""},
		{"the option of the task", cpuset, "", "0-1"},
		{"reserved cores", nil, "3", "3"},
		{"reserved cores take precedence", cpuset, "3", "3"},
	} {
		if _, host, err := build(t, nil, test.task, reserve(test.reserved)); err != nil || host.CpusetCpus != test.want {
			t.Errorf("%s: %+v, %v; want %q", test.name, host, err, test.want)
		}
	}
}

func TestLogging(t *testing.T) {
	limits := map[string]string{"max-file": "2", "max-size": "2m"}
	other := map[string]any{"logging": map[string]any{"type": "local", "config": map[string]any{"max-size": "9m"}}}
	for _, test := range []struct {
		name         string
		plugin, task map[string]any
		want         container.LogConfig
	}{
		{"neither is set", nil, nil, container.LogConfig{Type: "json-file", Config: limits}},
		{"the plugin's replaces the default", other, nil, container.LogConfig{Type: "local", Config: map[string]string{"max-size": "9m"}}},
		{"the plugin's type alone", map[string]any{"logging": map[string]any{"type": "local"}}, nil, container.LogConfig{Type: "local"}},
		{"the task's replaces the plugin's", other, map[string]any{"logging": map[string]any{"driver": "journald"}}, container.LogConfig{Type: "journald"}},
		{
			"a task without type", other, map[string]any{"logging": map[string]any{"config": list(map[string]any{"max-size": "1m"})}},
			container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": "1m"}},
		},
	} {
		_, host, err := build(t, test.plugin, test.task, nil)
		if err != nil || host.LogConfig.Type != test.want.Type || !maps.Equal(host.LogConfig.Config, test.want.Config) {
			t.Errorf("%s: %+v, %v; want %+v", test.name, host, err, test.want)
		}
	}
	if _, _, err := build(t, nil, map[string]any{"logging": map[string]any{"type": "local", "driver": "syslog"}}, nil); err == nil {
		t.Error("two types of one task are accepted")
	}
}

// A job file has a block or an object, which the parser makes a list with one object; a configuration and the HTTP API
// have an object, too.
func TestSpellingsOfBlocks(t *testing.T) {
	for name, spell := range map[string]func(map[string]any) any{
		"object":                 func(m map[string]any) any { return m },
		"list":                   func(m map[string]any) any { return list(m) },
		"list of the job parser": func(m map[string]any) any { return []map[string]any{m} },
	} {
		_, host, err := build(t,
			map[string]any{"logging": spell(map[string]any{"type": "local", "config": spell(map[string]any{"max-size": "1m"})})},
			map[string]any{"storage_opt": spell(map[string]any{"size": "1G"})}, nil)
		if err != nil || host.LogConfig.Config["max-size"] != "1m" || host.StorageOpt["size"] != "1G" {
			t.Errorf("%s: %+v, %v", name, host, err)
		}
	}
}

// Links are followed before a path is compared with the directories of the task.
func TestVolumeLinks(t *testing.T) {
	volume := map[string]any{"volumes": list("local/link:/data")}
	link := func(target string) func(*sdk.StartRequest) {
		return func(s *sdk.StartRequest) {
			if err := os.Symlink(target, filepath.Join(s.TaskDir(), "local", "link")); err != nil {
				t.Fatal(err)
			}
		}
	}
	for target, allowed := range map[string]bool{
		"/etc": false, "/etc/no-such-file": false, "../../../..": false, "../private": false,
		"../secrets": true, "../../alloc": true,
	} {
		if _, _, err := build(t, nil, volume, link(target)); (err == nil) != allowed {
			t.Errorf("a link to %s: %v, want allowed: %v", target, err, allowed)
		}
	}
}

func TestCapabilities(t *testing.T) {
	for _, test := range []struct {
		name               string
		allowed, add, drop []any
		wantAdd, wantDrop  []string
	}{
		{"default", nil, nil, nil, nil, []string{"NET_RAW"}},
		{"added", list("net_admin", "chown"), list("CAP_NET_ADMIN"), nil, []string{"NET_ADMIN"}, nil},
		{"all that is allowed", list("chown", "kill"), list("all"), nil, []string{"CHOWN", "KILL"}, nil},
		{"all dropped", nil, list("chown"), list("ALL"), []string{"CHOWN"}, []string{"ALL"}},
		{"everything is allowed", list("all"), list("sys_admin"), nil, []string{"SYS_ADMIN"}, []string{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			plugin, task := map[string]any{}, map[string]any{}
			for name, value := range map[string][]any{"cap_add": test.add, "cap_drop": test.drop} {
				if value != nil {
					task[name] = value
				}
			}
			if test.allowed != nil {
				plugin["allow_caps"] = test.allowed
			}
			_, host, err := build(t, plugin, task, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(host.CapAdd, test.wantAdd) {
				t.Errorf("adds %v, want %v", host.CapAdd, test.wantAdd)
			}
			if test.wantDrop != nil && !slices.Equal(host.CapDrop, test.wantDrop) {
				t.Errorf("drops %v, want %v", host.CapDrop, test.wantDrop)
			}
			if test.name == "all that is allowed" && !slices.Contains(host.CapDrop, "SETUID") {
				t.Errorf("drops %v, want also SETUID, which the operator does not allow", host.CapDrop)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	const mb = 1 << 20
	for name, test := range map[string]struct {
		resources  driver.Resources
		hardLimit  int
		hard, soft int64
	}{
		"memory is a hard limit":           {driver.Resources{MemoryMB: 100}, 0, 100 * mb, 0},
		"memory_max is the hard limit":     {driver.Resources{MemoryMB: 100, MemoryMaxMB: 300}, 0, 300 * mb, 100 * mb},
		"memory_hard_limit of the task":    {driver.Resources{MemoryMB: 100}, 200, 200 * mb, 100 * mb},
		"unlimited, with a soft limit":     {driver.Resources{MemoryMB: 100, MemoryMaxMB: driver.NoMemoryLimit}, 0, 0, 100 * mb},
		"no oversubscription on this node": {driver.Resources{MemoryMB: 100, MemoryMaxMB: 100}, 0, 100 * mb, 0},
	} {
		_, host, err := build(t, nil, map[string]any{"memory_hard_limit": test.hardLimit}, func(s *sdk.StartRequest) { s.Resources = &test.resources })
		if err != nil {
			t.Fatal(err)
		}
		if host.Memory != test.hard || host.MemoryReservation != test.soft || host.MemorySwap != test.hard {
			t.Errorf("%s: hard %d, soft %d, swap %d; want %d, %d, %d", name, host.Memory, host.MemoryReservation, host.MemorySwap, test.hard, test.soft, test.hard)
		}
	}
	_, _, err := build(t, nil, map[string]any{"memory_hard_limit": 50}, func(s *sdk.StartRequest) { s.Resources = &driver.Resources{MemoryMB: 100} })
	if err == nil {
		t.Error("memory_hard_limit below the memory of the task is accepted")
	}
}

func TestPorts(t *testing.T) {
	group := func(s *sdk.StartRequest) {
		s.Resources = &driver.Resources{Ports: []driver.PortMapping{{Label: "http", Value: 20000, To: 80, HostIP: "127.0.0.1"}, {Label: "same", Value: 20001}}}
	}
	config, host, err := build(t, nil, map[string]any{"ports": list("http", "same")}, group)
	if err != nil {
		t.Fatal(err)
	}
	http, same := network.MustParsePort("80/tcp"), network.MustParsePort("20001/udp")
	if got := host.PortBindings[http]; len(got) != 1 || got[0].HostPort != "20000" || got[0].HostIP.String() != "127.0.0.1" {
		t.Errorf("port 80 is published as %v", got)
	}
	if _, ok := config.ExposedPorts[same]; !ok {
		t.Errorf("the exposed ports are %v, want 20001/udp among them", config.ExposedPorts)
	}
	if _, host, err = build(t, nil, map[string]any{"ports": list("http"), "network_mode": "host"}, group); err != nil || len(host.PortBindings) > 0 {
		t.Errorf("in the network of the host, ports are published: %v, %v", host, err)
	}
	if _, _, err := build(t, nil, map[string]any{"ports": list("https")}, group); err == nil || !strings.Contains(err.Error(), `"https"`) {
		t.Errorf("an unknown label: %v", err)
	}
	task := func(s *sdk.StartRequest) {
		s.Resources = &driver.Resources{Networks: []driver.NetworkResource{{IP: "10.0.0.1", DynamicPorts: []driver.NetworkPort{{Label: "db", Value: 20002}}}}}
	}
	if _, host, err = build(t, nil, map[string]any{"port_map": list(map[string]any{"db": 5432})}, task); err != nil || len(host.PortBindings[network.MustParsePort("5432/tcp")]) != 1 {
		t.Errorf("port_map: %v, %v", host, err)
	}
}

func TestLabels(t *testing.T) {
	t.Setenv("NOMAD_LITE_DIRECTORY_ID", "directory")
	config, _, err := build(t, map[string]any{"extra_labels": list("job_*", "short_alloc_id")}, map[string]any{"labels": list(map[string]any{"mine": "1"})}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"mine": "1", "com.hashicorp.nomad.alloc_id": "11111111-2222-3333-4444-555555555555", "com.hashicorp.nomad.job_name": "job",
		"com.hashicorp.nomad.job_id": "", "com.hashicorp.nomad.short_alloc_id": "11111111",
		"nomad-lite.task_name": "web", "nomad-lite.directory_id": "directory", "nomad-lite.start_id": "11111111-2222-3333-4444-555555555555/web/0badcafe",
	}
	if !reflect.DeepEqual(config.Labels, want) {
		t.Errorf("the labels are %v, want %v", config.Labels, want)
	}
	if _, _, err := build(t, nil, map[string]any{"labels": list(map[string]any{labelDirectoryID: "other"})}, nil); err == nil {
		t.Error("a task can set a label of the driver")
	}
}

// TestEveryOptionIsUsed sets each option of the task schema and expects that the container or
// the pull differs, so that no option is accepted and ignored.
func TestEveryOptionIsUsed(t *testing.T) {
	allowed := map[string]any{
		"allow_privileged": true, "volumes": list(map[string]any{"enabled": true}), "allow_caps": list("all"), "allow_runtimes": list("kata"),
	}
	resources := func(s *sdk.StartRequest) {
		s.Resources = &driver.Resources{MemoryMB: 1, Linux: driver.LinuxResources{PercentTicks: 0.5},
			Ports:    []driver.PortMapping{{Label: "p", Value: 1}},
			Networks: []driver.NetworkResource{{DynamicPorts: []driver.NetworkPort{{Label: "q", Value: 2}}}}}
	}
	tmpfs := list(map[string]any{"type": "tmpfs", "target": "/t", "tmpfs_options": list(map[string]any{"size": 1 << 20})})
	values := map[string]map[string]any{ // by option; the values of other options that it needs
		"entrypoint": {"entrypoint": list("x")}, "command": {"command": "x"}, "args": {"args": list("x")}, "work_dir": {"work_dir": "/x"},
		"labels": {"labels": list(map[string]any{"a": "b"})}, "group_add": {"group_add": list("1")}, "init": {"init": true},
		"interactive": {"interactive": true}, "tty": {"tty": true}, "healthchecks": {"healthchecks": list(map[string]any{"disable": true})},
		"hostname": {"hostname": "x"}, "network_mode": {"network_mode": "host"}, "ports": {"ports": list("p")},
		"port_map": {"port_map": list(map[string]any{"q": 3})}, "extra_hosts": {"extra_hosts": list("a:1.2.3.4")},
		"dns_servers": {"dns_servers": list("1.1.1.1")}, "dns_search_domains": {"dns_search_domains": list("x")}, "dns_options": {"dns_options": list("x")},
		"volumes": {"volumes": list("/a:/b")}, "volume_driver": {"volume_driver": "x"}, "mount": {"mount": tmpfs}, "mounts": {"mounts": tmpfs},
		"devices": {"devices": list(map[string]any{"host_path": "/dev/null"})}, "readonly_rootfs": {"readonly_rootfs": true},
		"storage_opt": {"storage_opt": list(map[string]any{"size": "1G"})}, "privileged": {"privileged": true}, "cap_add": {"cap_add": list("kill")},
		"cap_drop": {"cap_drop": list("kill")}, "ipc_mode": {"ipc_mode": "none"}, "pid_mode": {"pid_mode": "host"}, "uts_mode": {"uts_mode": "host"},
		"userns_mode": {"userns_mode": "host"}, "cgroupns": {"cgroupns": "host"}, "runtime": {"runtime": "kata"},
		"security_opt": {"security_opt": list("no-new-privileges")}, "sysctl": {"sysctl": list(map[string]any{"a": "b"})},
		"cpu_hard_limit": {"cpu_hard_limit": true}, "cpu_cfs_period": {"cpu_hard_limit": true, "cpu_cfs_period": 50000},
		"cpuset_cpus":       {"cpuset_cpus": "0"},
		"memory_hard_limit": {"memory_hard_limit": 9}, "oom_score_adj": {"oom_score_adj": 9}, "pids_limit": {"pids_limit": 9},
		"shm_size": {"shm_size": 9}, "ulimit": {"ulimit": list(map[string]any{"nofile": "1:2"})}, "logging": {"logging": list(map[string]any{"type": "local"})},
	}
	// The other tests use these options, or they are in the network's endpoint.
	elsewhere := []string{
		"image", "load", "force_pull", "image_pull_timeout", "auth", "auth_soft_fail", "isolation", "container_exists_attempts",
		"network_aliases", "ipv4_address", "ipv6_address", "mac_address", "advertise_ipv6_address",
	}
	config, host, err := build(t, allowed, nil, resources)
	if err != nil {
		t.Fatal(err)
	}
	// The directory of the allocation is another one in each build.
	allocDir := regexp.MustCompile(`"/[^"]*/11111111-`)
	describe := func(config *container.Config, host *container.HostConfig) string {
		text, err := json.Marshal([]any{config, host})
		if err != nil {
			t.Fatal(err)
		}
		return allocDir.ReplaceAllString(string(text), `"/11111111-`)
	}
	unchanged := describe(config, host)
	for name := range block.JSONSchema(taskSchema)["properties"].(map[string]jsonschema.Schema) {
		if name == "//" {
			continue // a comment of the JSON syntax
		}
		value, ok := values[name]
		if !ok {
			if !slices.Contains(elsewhere, name) {
				t.Errorf("no value for the option %s", name)
			}
			continue
		}
		gotConfig, gotHost, err := build(t, allowed, value, resources)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if describe(gotConfig, gotHost) == unchanged {
			t.Errorf("the option %s changes nothing", name)
		}
	}
}
