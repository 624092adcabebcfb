package admission

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// A jobFixture is a valid job with one group and one task. A test case changes it.
type jobFixture struct {
	job   *api.Job
	group *api.TaskGroup
	task  *api.Task
}

func newJob(edit func(*jobFixture)) *api.Job {
	task := &api.Task{Name: "t", Driver: "d"}
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{task}}
	f := &jobFixture{&api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{group}}, group, task}
	if edit != nil {
		edit(f)
	}
	model.Canonicalize(f.job)
	return f.job
}

func TestRefusedParts(t *testing.T) {
	for _, c := range []struct {
		name     string
		edit     func(*jobFixture)
		id, path string // the only refusal's
		text     string // a part of the refusal's text
	}{
		{"a plain job", nil, "", "", ""},
		{"what this build can run", func(f *jobFixture) {
			f.job.Meta = map[string]string{"litter": "x"}
			f.group.Networks = []*api.NetworkResource{{Mode: "host", DynamicPorts: []api.Port{{Label: "a"}}, ReservedPorts: []api.Port{{Label: "b", Value: 80}}}}
			f.group.ShutdownDelay = new(time.Second)
			f.group.EphemeralDisk = &api.EphemeralDisk{Sticky: new(true)}
			f.task.Leader, f.task.User, f.task.KillTimeout = true, "nobody", new(time.Second)
			f.task.Env, f.task.Meta = map[string]string{"A": "b"}, map[string]string{"a": "b"}
			f.task.LogConfig = &api.LogConfig{Disabled: new(true)}
			f.task.RestartPolicy = &api.RestartPolicy{Attempts: new(0)}
			f.task.Resources = &api.Resources{CPU: new(1), MemoryMaxMB: new(500), Cores: new(1)}
			f.task.DispatchPayload = &api.DispatchPayloadConfig{File: "x"}
			f.task.Identities = []*api.WorkloadIdentity{{Name: "x"}}
			f.task.Affinities = []*api.Affinity{{}}
			f.task.VolumeMounts = []*api.VolumeMount{{}}
			f.task.Actions = []*api.Action{{}}
			f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "u", Driver: "e", Lifecycle: &api.TaskLifecycle{Hook: "prestart", Sidecar: true}})
		}, "", "", ""},
		{"another region", func(f *jobFixture) { f.job.Region = new("mars") }, "other-region", "region", `the region "mars" does not exist`},
		{"a stopped job", func(f *jobFixture) { f.job.Stop = new(true) }, "stopped-job", "", "marked as stopped"},
		{"a periodic job", func(f *jobFixture) { f.job.Periodic = &api.PeriodicConfig{} }, "periodic-job", "periodic", "Run it once, now, with -now"},
		{"a network namespace", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Mode: "none", Hostname: "x"}} }, "", "", ""},
		{"a second network of the host", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Mode: "none"}, {}} }, "", "", ""},
		{"a network mode that does not exist", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Mode: "cni/"}} }, "unknown-network-mode", "group g network 0 mode", `network mode "cni/" is not supported`},
		{"the network mode driver", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Mode: "driver"}} }, "unknown-network-mode", "group g network 0 mode", `network mode "driver" is not supported`},
		{"the second network", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{}, {Mode: "cni/x"}} }, "further-network", "group g network 1 mode", `network mode "cni/x"`},
		{"a hostname", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Hostname: "x"}} }, "host-network-hostname", "group g network 0 hostname", `hostname cannot be set on task group using "host" networking mode: remove it`},
		{"a network mode that the node does not have", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Mode: "bridge"}} }, "missing-network-mode", "group g network 0 mode", `this node does not have the network mode "bridge"`},
		{"a host network that the node does not have", func(f *jobFixture) {
			f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a", HostNetwork: "public"}}}}
		}, "missing-host-network", "group g network 0", `missing host network "public" for port "a": add a block host_network "public"`},
		{"a namespace of consul", func(f *jobFixture) {
			f.group.Consul = &api.Consul{Namespace: "n"}
			f.group.Services = []*api.Service{{Name: "a"}}
		}, "consul-namespace", "group g consul namespace", `the namespace "n" of Consul`},
		{"services of nomad are run", func(f *jobFixture) {
			f.group.Services = []*api.Service{{Name: "a", Provider: "nomad"}}
			f.task.Services = []*api.Service{{Name: "b", Provider: "nomad"}}
		}, "", "", ""},
		{"a partition of consul for the service of a task", func(f *jobFixture) {
			f.task.Consul = &api.Consul{Partition: "p"}
			f.task.Services = []*api.Service{{Name: "a"}}
		}, "consul-namespace", "group g task t consul partition", `the partition "p" of Consul`},
		{"connect", func(f *jobFixture) { f.group.Services = []*api.Service{{Connect: &api.ConsulConnect{}}} }, "consul-connect", "group g service 0 connect", "Consul Connect"},
		{"a port label that does not exist", func(f *jobFixture) {
			f.group.Services = []*api.Service{{Name: "a", Provider: "nomad", PortLabel: "x"}}
		}, "unknown-port-label", "group g service 0 port", `port label "x" does not exist`},
		{"a CSI volume", func(f *jobFixture) {
			f.group.Volumes = map[string]*api.VolumeRequest{"v": {Type: "csi", Source: "v", AccessMode: "single-node-writer", AttachmentMode: "file-system"}}
		}, "csi-volume", "group g volume v", `the CSI volume "v" needs a directory of this machine in its place`},
		{"a host volume", func(f *jobFixture) {
			f.group.Volumes = map[string]*api.VolumeRequest{"v": {Type: "host", Source: "data"}}
		}, "", "", ""},
		{"a host volume that the node does not have", func(f *jobFixture) {
			f.group.Volumes = map[string]*api.VolumeRequest{"v": {Type: "host", Source: "no"}}
		}, "missing-host-volume", "group g volume v", `this node has no host volume "no", only data`},
		{"a driver that is not there", func(f *jobFixture) { f.task.Driver = "docker" }, "missing-driver", "group g task t driver", `there is no task driver "docker", only d, e: use one of these, or give the directory of its plugin with -plugin-dir. It starts with the agent if there is a Docker engine at DOCKER_HOST or /var/run/docker.sock by then, or a plugin block "docker" in the agent's configuration`},
		{"a config block that is too large", func(f *jobFixture) {
			f.task.Config = map[string]any{"a": make([]any, hclspec.MaxValues)}
		}, "config-size", "group g task t config", "put long lists into a file that the task reads"},
		{"a secret of nomad is run", func(f *jobFixture) {
			f.task.Secrets = []*api.Secret{{Name: "s", Provider: "nomad", Path: "nomad/jobs/a", Config: map[string]any{"namespace": "default"}}}
		}, "", "", ""},
		{"a secret of a plugin", func(f *jobFixture) { f.task.Secrets = []*api.Secret{{Name: "s", Provider: "aws", Path: "a"}} }, "secret-provider", "group g task t secret s provider", `the secret provider "aws"`},
		{"a secret at an invalid path", func(f *jobFixture) {
			f.task.Secrets = []*api.Secret{{Name: "s", Provider: "nomad", Path: "nomad/jobs/${NOMAD_JOB_ID}"}}
		}, "secret-path", "group g task t secret s path", `secret "s": invalid path`},
		{"a secret of another namespace", func(f *jobFixture) {
			f.task.Secrets = []*api.Secret{{Name: "s", Provider: "nomad", Path: "a", Config: map[string]any{"namespace": "other"}}}
		}, "secret-config", "group g task t secret s config", `"namespace" in the config of a secret`},
		{"a CSI plugin", func(f *jobFixture) { f.task.CSIPluginConfig = &api.TaskCSIPluginConfig{ID: "x", Type: "node"} }, "csi-plugin", "group g task t csi_plugin", "a CSI plugin"},
		{"claims of an identity", func(f *jobFixture) {
			f.task.Identities = []*api.WorkloadIdentity{{Name: "x", ExtraClaims: []string{"a"}}}
		}, "identity-claims", "group g task t identity", `identity "x" with extra_claims`},
		{"a hook that is not there", func(f *jobFixture) { f.task.Meta = map[string]string{"lite_hook_absent": ""} }, "missing-hook", "group g task t meta lite_hook_absent", "meta lite_hook_absent: no such hook"},
		{"an attachment that the hook does not accept", func(f *jobFixture) { f.job.Meta = map[string]string{"lite_hook_strict": "x"} }, "hook-attachment", "meta lite_hook_strict", "meta lite_hook_strict: bad value"},
		{"another datacenter", func(f *jobFixture) { f.job.Datacenters = []string{"dc2"} }, "other-datacenter", "datacenters", `this node is in datacenter "dc1"`},
		{"a constraint", func(f *jobFixture) {
			f.group.Constraints = []*api.Constraint{api.NewConstraint("${attr.kernel.name}", "=", "plan9")}
		}, "unmet-constraint", "group g constraint 0", `${attr.kernel.name} is "linux" here`},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := newJob(c.edit)
			for caller := range callers {
				answer := Check(t.Context(), job, testNode(job), CheckOptions{Caller: caller})
				if c.id == "" {
					if len(answer.Refusals) > 0 {
						t.Errorf("caller %d: refused: %+v", caller, answer.Refusals)
					}
					continue
				}
				if len(answer.Refusals) != 1 {
					t.Fatalf("caller %d: refusals %+v, want one", caller, answer.Refusals)
				}
				r := answer.Refusals[0]
				if r.Kind.ID != c.id || strings.Join(r.Path, " ") != c.path || !strings.Contains(r.Text, c.text) || r.Effect != r.Kind.EffectFor(caller) {
					t.Errorf("caller %d: %s at %q: %q, want %s at %q: %q", caller, r.Kind.ID, r.Path, r.Text, c.id, c.path, c.text)
				}
			}
		})
	}
}

// testNode returns a node without networks. Its hook "absent" does not exist, and its hook "strict" accepts nothing.
func testNode(job *api.Job) Node {
	node := Node{
		DriverNames: []string{"e", "d"},
		Features: &NodeFeatures{
			NodeFacts:    model.NodeFacts{Datacenter: "dc1", Pool: "default", Attributes: map[string]string{"kernel.name": "linux", "nomad.service_discovery": "true", "plugins.secrets.nomad.version": "1"}},
			NetworkModes: []string{}, HostVolumes: map[string]*api.HostVolumeInfo{"data": {}},
		},
	}
	for _, at := range model.HookAttachments(job) {
		fault := HookAttachmentFault{Attachment: at, IsHookMissing: at.Hook == "absent", Err: errors.New("bad value")}
		if fault.IsHookMissing {
			fault.Err = errors.New("no such hook")
		}
		node.HookFaults = append(node.HookFaults, fault)
	}
	return node
}

func TestUnknownFactsRefuseNothing(t *testing.T) {
	job := newJob(func(f *jobFixture) {
		f.job.Namespace, f.job.Datacenters, f.task.Driver = new("any"), []string{"elsewhere"}, "nope"
	})
	answer := Check(t.Context(), job, Node{}, CheckOptions{Caller: Foreground})
	if answer.IsRejected() || len(answer.Refusals) > 0 || answer.AllConfigsChecked {
		t.Errorf("answer %+v", answer)
	}
}

func TestMissingDriverWithoutSuggestions(t *testing.T) {
	answer := Check(t.Context(), newJob(nil), Node{DriverNames: []string{}}, CheckOptions{Caller: Validate})
	if len(answer.Refusals) != 1 || strings.Contains(answer.Refusals[0].Text, "only") {
		t.Errorf("refusals %+v", answer.Refusals)
	}
}

func TestPeriodicJobRunsNow(t *testing.T) {
	job := newJob(func(f *jobFixture) { f.job.Periodic = &api.PeriodicConfig{} })
	if answer := Check(t.Context(), job, Node{}, CheckOptions{Caller: Foreground, RunsPeriodicJobNow: true}); len(answer.Refusals) > 0 {
		t.Errorf("refusals %+v", answer.Refusals)
	}
}

// Nomad's HTTP API reports a system job's scaling block alone, before the server validates the job.
func TestScalingOfASystemJobIsTheOnlyFault(t *testing.T) {
	job := newJob(func(f *jobFixture) {
		f.job.Type, f.job.Priority = new("system"), new(500)
		f.group.Scaling = &api.ScalingPolicy{}
	})
	for caller := range callers {
		answer := Check(t.Context(), job, Node{}, CheckOptions{Caller: caller})
		faults := model.LeafFaults(answer.ValidationErr)
		if !answer.IsMalformedRequest || len(faults) != 1 || faults[0].Text != "Task groups with job type system do not support scaling blocks" || strings.Join(faults[0].Path, " ") != "group g scaling" {
			t.Errorf("caller %d: %+v", caller, answer)
		}
	}
}

func TestNamespaces(t *testing.T) {
	const missing = `job "j" is in nonexistent namespace "prod"`
	job := newJob(func(f *jobFixture) { f.job.Namespace = new("prod") })
	for _, c := range []struct {
		namespaces []*api.Namespace
		want       bool // the job is valid
	}{{nil, true}, {[]*api.Namespace{}, false}, {[]*api.Namespace{{Name: "prod"}}, true}} {
		answer := Check(t.Context(), job, Node{Namespaces: c.namespaces}, CheckOptions{})
		if valid := answer.ValidationErr == nil; valid != c.want || !valid && !strings.Contains(answer.ValidationErr.Error(), missing) {
			t.Errorf("namespaces %#v: %v", c.namespaces, answer.ValidationErr)
		}
	}
}

func TestConfigBlocks(t *testing.T) {
	schema := hclspec.Object(map[string]*hclspec.Spec{"command": hclspec.Attr("command", "string", true)})
	job := newJob(func(f *jobFixture) {
		f.task.Config = map[string]any{"comand": "x"}
		f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "u", Driver: "free", Config: map[string]any{"a": 1}})
	})
	check := func(schemas map[string]DriverConfigSchema) CheckResult {
		return Check(t.Context(), job, Node{ConfigSchemaByDriver: schemas}, CheckOptions{Caller: API})
	}
	answer := check(map[string]DriverConfigSchema{"d": {Spec: schema}, "free": {}})
	if len(answer.ConfigFaults) == 0 || !answer.AllConfigsChecked || answer.IsRejected() {
		t.Fatalf("answer %+v", answer)
	}
	for _, f := range answer.ConfigFaults {
		if f.Group != "g" || f.Task != "t" || f.Driver != "d" {
			t.Errorf("fault %+v", f)
		}
	}
	if answer = check(map[string]DriverConfigSchema{"d": {Err: errors.New("starting")}, "free": {}}); len(answer.ConfigFaults) > 0 || answer.AllConfigsChecked {
		t.Errorf("unknown schema: %+v", answer)
	}
}

func TestWarningsOfHooksAndOfTheForeground(t *testing.T) {
	job := newJob(func(f *jobFixture) { f.group.Scaling = &api.ScalingPolicy{Min: new(int64(1)), Max: new(int64(2))} })
	node := Node{HookCheckErrors: []error{errors.New(`hook "h": not available`)}}
	const want = `What the job says to a hook was not checked: hook "h": not available.`
	answer := Check(t.Context(), job, node, CheckOptions{Caller: API})
	if !slices.Contains(answer.Warnings, want) || answer.IgnoredParts != nil {
		t.Errorf("API: warnings %q, ignored %v", answer.Warnings, answer.IgnoredParts)
	}
	if answer = Check(t.Context(), job, node, CheckOptions{Caller: Foreground}); len(answer.IgnoredParts) != 1 || answer.IgnoredParts[0].Path[2] != "scaling" {
		t.Errorf("foreground: ignored %v", answer.IgnoredParts)
	}
}

func TestTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, row := range RefusalKinds() {
		if row.ID == "" || row.RefusedPart == "" || row.Remedy == "" || strings.ToLower(row.ID) != row.ID || strings.ContainsAny(row.ID, " _") || seen[row.ID] {
			t.Errorf("row %+v", row)
		}
		if row.EffectFor(Foreground) != Rejects {
			t.Errorf("%s: a run in the foreground does not reject the job", row.ID)
		}
		seen[row.ID] = true
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"dc1", "dc1", true},
		{"dc1", "dc2", false},
		{"*", "", true},
		{"d*1", "dc1", true},
		{"d*1", "dc12", false},
		{"*c*c*", "acbc", true},
		{"*c*c*", "acb", false},
		{"a*a", "a", false},
		{"a**b", "ab", true},
	} {
		if got := matchStarPattern(c.pattern, c.name); got != c.want {
			t.Errorf("glob %q on %q: %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
}
