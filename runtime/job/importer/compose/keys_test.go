package compose

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// schemaKeys are the keys of the compose specification, each with a value, by the place where they are. A key that changes neither
// the job nor the warnings is dropped silently.
var schemaKeys = []struct {
	place string // a file, in which the key replaces %s
	keys  []string
}{
	{`{services: {web: {image: "i:1"}}, %s}`, []string{
		`name: other`, `include: [included.yaml]`, `models: {llm: {model: m}}`,
	}},
	{`{services: {web: {image: "i:1", %s}, db: {image: "d:1", restart: always}}, secrets: {s: {content: x}}, configs: {c: {content: x}}, volumes: {data: {}}}`, []string{
		`annotations: [a=b]`, `attach: false`, `blkio_config: {weight: 300}`, `build: .`, `cap_add: [NET_ADMIN]`, `cap_drop: [ALL]`, `cgroup: private`, `cgroup_parent: p`,
		`command: run`, `configs: [c]`, `container_name: c`, `cpu_count: 1`, `cpu_percent: 10`, `cpu_period: 1000`, `cpu_quota: 5000`, `cpu_rt_period: 1000`,
		`cpu_rt_runtime: 1000`, `cpu_shares: 10`, `cpus: 2`, `cpuset: "0"`, `credential_spec: {file: f}`, `depends_on: [db]`, `deploy: {replicas: 0}`, `develop: {watch: []}`,
		`device_cgroup_rules: ["c 1:3 mr"]`, `devices: [/dev/null]`, `dns: 192.0.2.1`, `dns_opt: [rotate]`, `dns_search: example.com`, `domainname: d`, `entrypoint: e`,
		`env_file: web.env`, `environment: {A: b}`, `external_links: [other]`, `extra_hosts: ["a:192.0.2.1"]`, `gpus: all`, `group_add: ["1"]`,
		`healthcheck: {test: t}`, `hostname: h`, `init: true`, `ipc: private`, `isolation: default`, `label_file: f`, `labels: {a: b}`, `links: [db]`, `logging: {driver: local}`,
		`mac_address: "02:42:ac:11:65:43"`, `mem_limit: 1g`, `mem_reservation: 1g`, `mem_swappiness: 1`, `memswap_limit: 2g`, `models: [llm]`, `network_mode: host`, `networks: {n: {priority: 1}}`,
		`oom_kill_disable: true`, `oom_score_adj: 1`, `pid: host`, `pids_limit: 5`, `platform: linux/arm64`, `ports: ["80:80"]`, `post_start: [{command: c}]`, `pre_stop: [{command: c}]`,
		`privileged: true`, `profiles: [other]`, `provider: {type: t}`, `pull_policy: always`, `read_only: true`, `restart: always`, `runtime: r`, `scale: 2`, `secrets: [s]`, `security_opt: [a]`,
		`shm_size: 1g`, `stdin_open: true`, `stop_grace_period: 2s`, `stop_signal: INT`, `storage_opt: {size: 1g}`, `sysctls: {kernel.a: 1}`, `tmpfs: /t`, `tty: true`, `ulimits: {nofile: 5}`,
		`use_api_socket: true`, `user: u`, `userns_mode: host`, `uts: host`, `volumes: ["data:/d"]`, `volumes_from: [db]`, `working_dir: /w`, `misspelled: 1`,
	}},
	{`{services: {web: {image: "i:1", healthcheck: {test: t, %s}}}}`, []string{
		`interval: 5s`, `timeout: 5s`, `retries: 7`, `start_period: 9s`, `start_interval: 2s`, `disable: true`, `misspelled: 1`,
	}},
	{`{services: {web: {image: "i:1", healthcheck: {%s}}}}`, []string{`interval: 5s`, `timeout: 5s`, `retries: 7`, `start_period: 9s`, `start_interval: 2s`, `disable: true`}},
	{`{services: {web: {image: "i:1", build: {context: ., %s}}}}`, []string{
		`dockerfile: f`, `dockerfile_inline: f`, `target: t`, `args: {a: b}`, `ssh: [default]`, `cache_from: [a]`, `cache_to: [a]`, `no_cache: true`, `additional_contexts: {a: b}`,
		`network: host`, `provenance: true`, `sbom: true`, `pull: true`, `shm_size: 1g`, `entitlements: [a]`, `extra_hosts: {a: b}`, `isolation: a`, `labels: {a: b}`, `privileged: true`,
		`secrets: [a]`, `tags: [a]`, `ulimits: {nofile: 5}`, `platforms: [a]`,
	}},
	{`{services: {web: {image: "i:1", deploy: {%s}}}}`, []string{
		`mode: global`, `endpoint_mode: vip`, `replicas: 3`, `labels: {a: b}`, `rollback_config: {parallelism: 1}`, `update_config: {parallelism: 1}`, `placement: {constraints: []}`,
		`resources: {limits: {cpus: 2}}`, `resources: {limits: {memory: 1g}}`, `resources: {limits: {pids: 3}}`, `resources: {reservations: {cpus: 2}}`, `resources: {reservations: {memory: 1g}}`,
		`resources: {reservations: {generic_resources: []}}`, `resources: {reservations: {devices: []}}`,
		`restart_policy: {condition: on-failure}`, `restart_policy: {delay: 7s}`, `restart_policy: {max_attempts: 7}`, `misspelled: 1`,
	}},
	{`{services: {web: {image: "i:1", deploy: {restart_policy: {condition: any, max_attempts: 2, %s}}}}}`, []string{`window: 70s`}},
	{`{services: {web: {image: "i:1", deploy: {restart_policy: {condition: any, %s}}}}}`, []string{`window: 70s`}},
	{`{services: {web: {image: "i:1", ports: [{target: 80, %s}]}}}`, []string{
		`name: n`, `mode: other`, `host_ip: 127.0.0.1`, `published: 80`, `protocol: udp`, `app_protocol: http`,
	}},
	{`{services: {web: {image: "i:1", volumes: [{type: bind, source: /s, target: /t, %s}]}}}`, []string{
		`read_only: true`, `bind: {propagation: rslave}`, `bind: {create_host_path: false}`, `bind: {selinux: z}`, `bind: {recursive: disabled}`, `volume: {nocopy: true}`, `tmpfs: {size: 1g}`,
		`image: {subpath: s}`, `bind: {propagation: rslave, selinux: z}`,
	}},
	{`{services: {web: {image: "i:1", volumes: [{type: volume, source: data, target: /t, %s}]}}, volumes: {data: {}}}`, []string{
		`read_only: true`, `volume: {nocopy: true}`, `volume: {subpath: s}`, `volume: {labels: {a: b}}`, `bind: {selinux: z}`,
	}},
	{`{services: {web: {image: "i:1", volumes: [{type: tmpfs, target: /t, %s}]}}}`, []string{`read_only: true`, `tmpfs: {size: 1g}`, `tmpfs: {mode: 0700}`}},
	{`{services: {web: {image: "i:1", volumes: [data:/t%s]}}, volumes: {data: {}}}`, []string{`:ro`, `:nocopy`, `:z`}},
	{`{services: {web: {image: "i:1", volumes: [data:/t]}}, volumes: {data: {%s}}}`, []string{
		`name: n`, `driver: d`, `driver_opts: {a: b}`, `external: true`, `labels: {a: b}`, `misspelled: 1`,
	}},
	{`{services: {web: {image: "i:1", secrets: [s]}}, secrets: {s: {content: x, %s}}}`, []string{
		`name: n`, `labels: {a: b}`, `driver: d`, `driver_opts: {a: b}`, `template_driver: d`, `file: ./f`,
	}},
	{`{services: {web: {image: "i:1", secrets: [{source: s, %s}]}}, secrets: {s: {content: x}}}`, []string{
		`target: t`, `uid: "5"`, `gid: "5"`, `mode: 0400`, `misspelled: 1`,
	}},
	{`{services: {web: {image: "i:1", networks: {n: {%s}}}}, networks: {n: {}}}`, []string{
		`interface_name: e`, `ipv4_address: 192.0.2.1`, `ipv6_address: "::2"`, `link_local_ips: [a]`, `mac_address: a`, `driver_opts: {a: b}`, `priority: 1`, `gw_priority: 1`,
	}},
	{`{services: {web: {image: "i:1", networks: {n: {%s}}}, db: {image: "d:1"}}, networks: {n: {}}}`, []string{`aliases: [a]`}},
	{`{services: {web: {image: "i:1", networks: [n]}}, networks: {n: {%s}}}`, []string{
		`name: n`, `driver: d`, `driver_opts: {a: b}`, `ipam: {}`, `external: true`, `internal: true`, `enable_ipv4: true`, `enable_ipv6: true`, `attachable: true`, `labels: {a: b}`,
	}},
	{`{services: {web: {image: "i:1", depends_on: {db: {condition: service_started, %s}}}, db: {image: "d:1"}}}`, []string{`restart: true`, `misspelled: 1`}},
	{`{services: {web: {image: "i:1", logging: {%s}}}}`, []string{`driver: syslog`, `options: {a: b}`, `misspelled: 1`}},
	{`{services: {web: {image: "i:1", ulimits: {nofile: {soft: 5, hard: 5, %s}}}}}`, []string{`misspelled: 1`}},
	{`{services: {web: {image: "i:1", devices: [{source: /dev/a, target: /dev/b, %s}]}}}`, []string{`permissions: r`, `misspelled: 1`}},
	{`{services: {web: {image: "i:1", env_file: [{path: raw.env, %s}]}}}`, []string{`format: raw`, `misspelled: 1`}},
}

func TestNoKeyIsDroppedSilently(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"web.env": "A=1\n", "raw.env": "A='1'\n", "included.yaml": `{services: {included: {image: "i:1"}}}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "compose.yaml")
	// convert returns the job with the texts of the warnings: all are in one line.
	convert := func(place, key string) []byte {
		if err := os.WriteFile(file, fmt.Appendf(nil, place, key), 0o600); err != nil {
			t.Fatal(err)
		}
		result, err := Convert(Options{Files: []string{file}, Profiles: []string{"active"}})
		if err != nil {
			t.Fatalf("%s in %s: %v", key, place, err)
		}
		text := slices.Concat(result.Job, result.AgentConfig)
		for _, w := range result.Warnings {
			text = append(text, w.String()...)
		}
		return text
	}
	for _, s := range schemaKeys {
		without := convert(s.place, "")
		for _, key := range s.keys {
			if bytes.Equal(convert(s.place, key), without) {
				t.Errorf("%s is dropped silently in %s", key, s.place)
			}
		}
	}
}
