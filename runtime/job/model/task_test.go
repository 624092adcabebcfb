package model

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestValidateTask(t *testing.T) {
	hook := func(h string) func(*jobFixture) {
		return func(f *jobFixture) {
			f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "u", Driver: "d", Lifecycle: &api.TaskLifecycle{Hook: h, Sidecar: true}})
		}
	}
	payload := func(file string) func(*jobFixture) {
		return func(f *jobFixture) { f.task.DispatchPayload = &api.DispatchPayloadConfig{File: file} }
	}
	runFaultCases(t, []faultCase{
		{"a task called alloc", func(f *jobFixture) { f.task.Name = "alloc" }, wantSingleFault(`Task cannot be named "alloc"`)},
		{"a name with a slash", func(f *jobFixture) { f.task.Name = "a/b" }, wantSingleFault("Task name cannot include slashes")},
		{"a name with a backslash", func(f *jobFixture) { f.task.Name = `a\b` }, wantSingleFault("Task name cannot include slashes")},
		{"a name of dots that is none of a directory above", func(f *jobFixture) { f.task.Name = "..." }, nil},
		{"the task's own directory", func(f *jobFixture) { f.task.Name = "." }, wantSingleFault(`Task cannot be named ".": its directory has the name of the task`)},
		{"the directory above", func(f *jobFixture) { f.task.Name = ".." }, wantSingleFault(`Task cannot be named "..": its directory has the name of the task`)},
		{"the longest name", func(f *jobFixture) { f.task.Name = strings.Repeat("x", 212) }, nil},
		{"a name that is too long", func(f *jobFixture) { f.task.Name = strings.Repeat("x", 213) }, wantSingleFault("Task name has 213 bytes, and may have 212: its directory, log files and cgroup are named after it")},
		{"a name that has fewer letters than bytes", func(f *jobFixture) { f.task.Name = strings.Repeat("ü", 107) }, wantSingleFault("Task name has 214 bytes, and may have 212: its directory, log files and cgroup are named after it")},
		{"a name with NUL", func(f *jobFixture) { f.task.Name = "a\x00" }, wantSingleFault("Task name cannot include null characters")},
		{"a name with a blank", func(f *jobFixture) { f.task.Name = "a b" }, nil},
		{"no driver", func(f *jobFixture) { f.task.Driver = "" }, wantSingleFault("Missing task driver")},
		{"negative kill_timeout", func(f *jobFixture) { f.task.KillTimeout = new(-time.Second) }, wantSingleFault("KillTimeout must be a positive value")},
		{"a kill_timeout of nanoseconds", func(f *jobFixture) { f.task.KillTimeout = new(time.Duration(10)) }, nil},
		{"kill_timeout above progress_deadline", func(f *jobFixture) { f.task.KillTimeout = new(11 * time.Minute) }, wantSingleFault("KillTimout (11m0s) longer than the group's ProgressDeadline (10m0s)")},
		{"kill_timeout without progress_deadline", func(f *jobFixture) {
			f.task.KillTimeout = new(11 * time.Minute)
			f.group.Update = &api.UpdateStrategy{ProgressDeadline: new(time.Duration(0))}
		}, nil},
		{"the same in a batch job", func(f *jobFixture) { f.setJobType("batch"); f.task.KillTimeout = new(11 * time.Minute) }, nil},
		{"negative shutdown_delay", func(f *jobFixture) { f.task.ShutdownDelay = -time.Second }, wantSingleFault("ShutdownDelay must be a positive value")},
		{"any user and any signal", func(f *jobFixture) { f.task.User, f.task.KillSignal = "root", "SIGFOO" }, nil},

		{"a prestart sidecar", hook("prestart"), nil},
		{"a poststop sidecar", hook("poststop"), nil},
		{"no hook", hook(""), wantSingleFault("Lifecycle validation failed: no lifecycle hook provided")},
		{"an unknown hook", hook("foo"), wantSingleFault("Lifecycle validation failed: invalid hook: foo")},

		{"a payload below the allocation", payload("../../x"), nil},
		{"a payload above the allocation", payload("../../../x"), wantSingleFault("Dispatch Payload validation failed: destination escapes allocation directory")},

		{"an action without command", func(f *jobFixture) { f.task.Actions = []*api.Action{{Name: "a"}} }, wantSingleFault("command cannot be empty")},
		{"an action with a blank", func(f *jobFixture) { f.task.Actions = []*api.Action{{Name: "a b", Command: "x"}} }, wantSingleFault("invalid name 'a b'")},
		{"an action with a long name", func(f *jobFixture) { f.task.Actions = []*api.Action{{Name: strings.Repeat("a", 129), Command: "x"}} }, wantSingleFault("invalid name '" + strings.Repeat("a", 129) + "'")},
		{"one action three times", func(f *jobFixture) {
			f.task.Actions = []*api.Action{{Name: "a", Command: "x"}, {Name: "a", Command: "x"}, {Name: "a", Command: "x"}}
		}, wantSingleFault("Action a defined multiple times")},

		{"a proxy without its service", func(f *jobFixture) { f.task.Kind = "connect-proxy:x" }, wantSingleFault(`No Connect services in task group with Connect proxy ("x")`)},
		{"another kind", func(f *jobFixture) { f.task.Kind = "x" }, nil},
		{"a CSI plugin", func(f *jobFixture) { f.task.CSIPluginConfig = &api.TaskCSIPluginConfig{ID: "x", Type: "node"} }, nil},
		{"a CSI plugin without anything", func(f *jobFixture) { f.task.CSIPluginConfig = &api.TaskCSIPluginConfig{} },
			[]string{"CSIPluginConfig must have a non-empty PluginID", `CSIPluginConfig PluginType must be one of 'node', 'controller', or 'monolith', got: ""`}},
		{"a schedule", func(f *jobFixture) { f.task.Schedule = &api.TaskSchedule{} }, wantSingleFault("task schedules requires Nomad Enterprise")},

		{"vault", func(f *jobFixture) { f.task.Vault = &api.Vault{} }, wantSingleFault(`Vault "default" not enabled but used in the job`)},
		{"vault in another cluster", func(f *jobFixture) { f.task.Vault = &api.Vault{Cluster: "x"} }, wantSingleFault("non-default Vault cluster requires Nomad Enterprise")},
		{"vault with an unknown change mode", func(f *jobFixture) { f.task.Vault = &api.Vault{ChangeMode: new("x")} },
			[]string{`Vault "default" not enabled but used in the job`, `Unknown change mode "x"`}},
	})
}

func TestValidateResources(t *testing.T) {
	resources := func(r api.Resources) func(*jobFixture) { return func(f *jobFixture) { f.task.Resources = &r } }
	device := func(d api.RequestedDevice) func(*jobFixture) {
		return resources(api.Resources{Devices: []*api.RequestedDevice{&d}})
	}
	runFaultCases(t, []faultCase{
		{"no cpu", resources(api.Resources{CPU: new(0)}), wantSingleFault("minimum CPU value is 1; got 0")},
		{"no cores, and so no cpu", resources(api.Resources{Cores: new(0)}), wantSingleFault("minimum CPU value is 1; got 0")},
		{"cores", resources(api.Resources{Cores: new(1)}), nil},
		{"cpu and cores", resources(api.Resources{CPU: new(1), Cores: new(1)}), wantSingleFault("Task can only ask for 'cpu' or 'cores' resource, not both.")},
		{"negative cores", resources(api.Resources{CPU: new(1), Cores: new(-1)}), wantSingleFault("cores value (-1) cannot be negative")},
		{"too little memory", resources(api.Resources{MemoryMB: new(1)}), wantSingleFault("minimum MemoryMB value is 10; got 1")},
		{"memory_max below memory", resources(api.Resources{MemoryMB: new(100), MemoryMaxMB: new(50)}), wantSingleFault("MemoryMaxMB value (50) should be larger than MemoryMB value (100)")},
		{"memory_max without limit", resources(api.Resources{MemoryMaxMB: new(-1)}), nil},
		{"secrets above memory", resources(api.Resources{MemoryMB: new(100), SecretsMB: new(200)}), wantSingleFault("SecretsMB value (200) cannot be larger than MemoryMB value (100)")},
		{"negative secrets", resources(api.Resources{SecretsMB: new(-1)}), wantSingleFault("SecretsMB value (-1) cannot be negative")},
		{"a device by type, vendor and name", device(api.RequestedDevice{Name: "nvidia/gpu/x"}), nil},
		{"a device with too long a name", device(api.RequestedDevice{Name: "a/b/c/d"}), wantSingleFault("device name must be given as one of the following: type, vendor/type, or vendor/type/name")},
		{"a device without name", device(api.RequestedDevice{}), wantSingleFault("device name must be given as one of the following: type, vendor/type, or vendor/type/name")},
		{"distinct_hosts of a device", device(api.RequestedDevice{Name: "gpu", Constraints: []*api.Constraint{{Operand: "distinct_hosts"}}}), wantSingleFault(`using unsupported operand "distinct_hosts"`)},
		{"numa", resources(api.Resources{NUMA: &api.NUMAResource{Affinity: "prefer"}}), wantSingleFault("numa scheduling requires Nomad Enterprise")},
		{"numa that asks for nothing", resources(api.Resources{NUMA: &api.NUMAResource{}}), nil},
		{"an unknown numa affinity and device", resources(api.Resources{NUMA: &api.NUMAResource{Affinity: "x", Devices: []string{"a"}}}),
			[]string{"numa affinity must be one of none, prefer, or require", `numa device "a" not requested as task resource`, "numa scheduling requires Nomad Enterprise"}},
	})
}

func TestValidateLogs(t *testing.T) {
	logs := func(files, size int) func(*jobFixture) {
		return func(f *jobFixture) { f.task.LogConfig = &api.LogConfig{MaxFiles: &files, MaxFileSizeMB: &size} }
	}
	runFaultCases(t, []faultCase{
		{"no file", logs(0, 10), wantSingleFault("minimum number of files is 1; got 0")},
		{"no size", logs(10, 0), wantSingleFault("minimum file size is 1MB; got 0")},
		{"as much as the disk", logs(10, 30), wantSingleFault("log storage (300 MB) must be less than requested disk capacity (300 MB)")},
		{"a little less than the disk", logs(1, 299), nil},
		{"more than a number holds", logs(1<<62, 1<<62), wantSingleFault("log storage (9223372036854775807 MB) must be less than requested disk capacity (300 MB)")},
	})
}

func TestValidateTemplate(t *testing.T) {
	template := func(edit func(*api.Template)) func(*jobFixture) {
		return func(f *jobFixture) {
			tmpl := &api.Template{EmbeddedTmpl: new("x"), DestPath: new("local/x")}
			edit(tmpl)
			f.task.Templates = []*api.Template{tmpl}
		}
	}
	dest := func(path string) func(*jobFixture) { return template(func(t *api.Template) { t.DestPath = &path }) }
	runFaultCases(t, []faultCase{
		{"nothing", func(f *jobFixture) { f.task.Templates = []*api.Template{{}} },
			[]string{"Must specify a source path or have an embedded template", "Must specify a destination for the template"}},
		{"a destination beside the task", dest("../x"), nil},
		{"a destination that comes back", dest("local/../../x"), nil},
		{"a destination above the allocation", dest("../../x"), wantSingleFault("destination escapes allocation directory")},
		{"an absolute destination", dest("/etc/zz"), nil},
		{"an unknown change mode", template(func(t *api.Template) { t.ChangeMode = new("x") }), wantSingleFault("Invalid change mode. Must be one of the following: noop, signal, script, restart")},
		{"a signal for an env template", template(func(t *api.Template) { t.ChangeMode, t.Envvars = new("signal"), new(true) }), wantSingleFault("cannot use signals with env var templates")},
		{"a script that is missing", template(func(t *api.Template) { t.ChangeMode = new("script") }), wantSingleFault("must specify change script configuration value when change mode is script")},
		{"a script without command", template(func(t *api.Template) { t.ChangeMode, t.ChangeScript = new("script"), &api.ChangeScript{} }), wantSingleFault("must specify script path value when change mode is script")},
		{"negative splay", template(func(t *api.Template) { t.Splay = new(-time.Second) }), wantSingleFault("Must specify positive splay value")},
		{"perms that are no number", template(func(t *api.Template) { t.Perms = new("abc") }), wantSingleFault(`Failed to parse "abc" as octal: strconv.ParseUint: parsing "abc": invalid syntax`)},
		{"perms of more than 12 bits", template(func(t *api.Template) { t.Perms = new("10000") }), wantSingleFault(`Failed to parse "10000" as octal: strconv.ParseUint: parsing "10000": value out of range`)},
		{"wait that ends before it begins", template(func(t *api.Template) {
			t.Wait = &api.WaitConfig{Min: new(5 * time.Second), Max: new(time.Second)}
		}), wantSingleFault("wait min 5s is greater than max 1s")},
		{"wait without max", template(func(t *api.Template) { t.Wait = &api.WaitConfig{Min: new(5 * time.Second)} }), nil},
		{"two with one destination", func(f *jobFixture) {
			same := func() *api.Template { return &api.Template{EmbeddedTmpl: new("x"), DestPath: new("local/x")} }
			f.task.Templates = []*api.Template{same(), same()}
		}, wantSingleFault("Template 2 has same destination as 1")},
	})
}

func TestValidateArtifact(t *testing.T) {
	artifact := func(a api.TaskArtifact) func(*jobFixture) {
		return func(f *jobFixture) { f.task.Artifacts = []*api.TaskArtifact{&a} }
	}
	checksum := func(sum string) func(*jobFixture) {
		return artifact(api.TaskArtifact{GetterSource: new("x"), GetterOptions: map[string]string{"checksum": sum}})
	}
	runFaultCases(t, []faultCase{
		{"no source", artifact(api.TaskArtifact{}), wantSingleFault("source must be specified")},
		{"an unknown mode", artifact(api.TaskArtifact{GetterSource: new("x"), GetterMode: new("z")}), wantSingleFault(`invalid artifact mode "z"; must be one of: any, file, dir`)},
		{"a destination above the allocation", artifact(api.TaskArtifact{GetterSource: new("x"), RelativeDest: new("../../x")}), wantSingleFault("destination escapes allocation directory")},
		{"a checksum without type", checksum("abcd"), wantSingleFault(`checksum must be given as "type:value"; got "abcd"`)},
		{"an empty checksum", checksum(""), wantSingleFault("checksum value cannot be empty")},
		{"an unknown type of checksum", checksum("foo:abcd"), wantSingleFault("unsupported checksum type: foo")},
		{"a checksum that is not hexadecimal", checksum("md5:xyz"), wantSingleFault("invalid checksum: encoding/hex: invalid byte: U+0078 'x'")},
		{"a checksum that is too short", checksum("sha256:abcd"), wantSingleFault("invalid sha256 checksum: abcd")},
		{"a checksum known at run time", checksum("${NOMAD_META_sum}"), nil},
		{"a good checksum", checksum("md5:d41d8cd98f00b204e9800998ecf8427e"), nil},
	})
}

func TestValidateIdentity(t *testing.T) {
	identity := func(id api.WorkloadIdentity) func(*jobFixture) {
		return func(f *jobFixture) { f.task.Identities = []*api.WorkloadIdentity{&id} }
	}
	runFaultCases(t, []faultCase{
		{"one of its own", identity(api.WorkloadIdentity{Name: "x", Audience: []string{"a"}, TTL: time.Hour}), nil},
		{"a name with a blank", identity(api.WorkloadIdentity{Name: "a b"}), wantSingleFault(`invalid name "a b". Must match regex ^[a-zA-Z0-9-_]{1,128}$`)},
		{"an empty audience", identity(api.WorkloadIdentity{Name: "x", Audience: []string{""}}), wantSingleFault("an empty string is an invalid audience (1)")},
		{"an unknown change_mode", identity(api.WorkloadIdentity{Name: "x", ChangeMode: "x"}), wantSingleFault("invalid change_mode: x")},
		{"a signal that is missing", identity(api.WorkloadIdentity{Name: "x", ChangeMode: "signal"}), wantSingleFault(`change_signal must be specified when using change_mode="signal"`)},
		{"a signal without its mode", identity(api.WorkloadIdentity{Name: "x", ChangeSignal: "sighup"}), wantSingleFault(`can only use change_signal="SIGHUP" with change_mode="signal"`)},
		{"a ttl of the default one", identity(api.WorkloadIdentity{TTL: time.Hour}), wantSingleFault("ttl for default identity not yet supported")},
		{"a negative ttl", identity(api.WorkloadIdentity{Name: "x", TTL: -1}), wantSingleFault("ttl must be >= 0")},
		{"a path without a file", identity(api.WorkloadIdentity{Name: "x", Filepath: "x"}), wantSingleFault("file parameter must be true in order to specify filepath")},
		{"two default ones", func(f *jobFixture) {
			f.task.Identities = []*api.WorkloadIdentity{{Name: "default"}, {Env: true}}
		}, nil},
	})
}

func TestValidateSecret(t *testing.T) {
	secret := func(s ...*api.Secret) func(*jobFixture) { return func(f *jobFixture) { f.task.Secrets = s } }
	runFaultCases(t, []faultCase{
		{"of Nomad", secret(&api.Secret{Name: "x", Provider: "nomad", Path: "p", Config: map[string]any{"a": 1}}), nil},
		{"a name with a blank and nothing else", secret(&api.Secret{Name: "x y"}),
			[]string{"secret name must match regex ^[a-zA-Z0-9_]{1,128}$", "secret provider cannot be empty", "secret path cannot be empty"}},
		{"env of the provider nomad", secret(&api.Secret{Name: "x", Provider: "nomad", Path: "p", Env: map[string]string{"a": "b"}}), wantSingleFault("nomad provider cannot use the env block")},
		{"config of a plugin", secret(&api.Secret{Name: "x", Provider: "foo", Path: "p", Config: map[string]any{"a": 1}}), wantSingleFault("custom plugin provider foo cannot use the config block")},
		{"one twice", secret(&api.Secret{Name: "x", Provider: "foo", Path: "p"}, &api.Secret{Name: "x", Provider: "foo", Path: "p"}), wantSingleFault(`Duplicate secret "x" found`)},
		{"of Vault, without Vault", secret(&api.Secret{Name: "x", Provider: "vault", Path: "p", Env: map[string]string{"a": "b"}}),
			[]string{"vault provider cannot use the env block", `Secret "x" has provider "vault" but no vault block`}},
	})
}
