package model

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestWarnings(t *testing.T) {
	group := func(text string) []string {
		return wantSingleFault("Group \"g\" has warnings: 1 error occurred:\n\t* " + text)
	}
	task := func(texts ...string) []string {
		head := "1 error"
		if len(texts) > 1 {
			head = "2 errors"
		}
		return group("Task \"t\" has warnings: " + head + " occurred:\n\t* " + strings.Join(texts, "\n\t* "))
	}
	sound := func(name string, edit func(*api.WorkloadIdentity)) func(*jobFixture) {
		id := api.WorkloadIdentity{Name: name, Audience: []string{"a"}, TTL: time.Hour}
		edit(&id)
		return func(f *jobFixture) { f.task.Identities = []*api.WorkloadIdentity{&id} }
	}
	for _, c := range []struct {
		name string
		edit func(*jobFixture)
		want []string
	}{
		{"a plain job", func(*jobFixture) {}, nil},
		{"more at once than there are", func(f *jobFixture) { f.group.Count = new(2); f.group.Update = &api.UpdateStrategy{MaxParallel: new(5)} },
			group("Update max parallel count is greater than task group count (5 > 2). A destructive change would result in the simultaneous replacement of all allocations.")},
		{"a canary beside a static port", func(f *jobFixture) {
			f.group.Update = &api.UpdateStrategy{Canary: new(1)}
			f.group.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 80}}}}
		}, group(`a canary cannot be placed beside the allocation that it replaces, because both need the static port 80 (port "http") and a node has it once. Remove canary, or write the port without static`)},
		{"a canary beside a shared static port", func(f *jobFixture) {
			f.group.Update = &api.UpdateStrategy{Canary: new(1)}
			f.group.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 80, IgnoreCollision: true}}}}
		}, nil},
		{"a canary beside a dynamic port, and a static port without a canary", func(f *jobFixture) {
			f.group.Update = &api.UpdateStrategy{Canary: new(1)}
			f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
			second := f.addGroup("static")
			second.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: 80}}}}
		}, nil},
		{"more at once than the only one", func(f *jobFixture) { f.group.Update = &api.UpdateStrategy{MaxParallel: new(5)} }, nil},
		{"a service without delay", func(f *jobFixture) { f.group.Services = []*api.Service{{Provider: "nomad"}} },
			wantSingleFault(`group "g" defines services, but neither the group nor any of its tasks have shutdown_delay set`)},
		{"a service with delay", func(f *jobFixture) {
			f.group.Services = []*api.Service{{Provider: "nomad", TaskName: "t"}}
			f.group.ShutdownDelay = new(time.Second)
		}, nil},
		{"a service of another task than the one with delay", func(f *jobFixture) {
			f.group.Services = []*api.Service{{Provider: "nomad", TaskName: "t"}}
			f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "u", Driver: "d", ShutdownDelay: time.Second})
		}, wantSingleFault(`group "g" references task "t" in a service definition, but the task has no shutdown_delay set`)},
		{"services of Consul", func(f *jobFixture) {
			f.group.ShutdownDelay = new(time.Second)
			f.group.Services = []*api.Service{{Name: "web", EnableTagOverride: true, Kind: "x", Identity: &api.WorkloadIdentity{Audience: []string{"a"}}, Checks: []api.ServiceCheck{{TLSServerName: "x"}}}, {Name: "db"}, {Name: "web"}}
		}, []string{
			"enable_tag_override of a service has no effect without Consul", "kind of a service has no effect without Consul",
			"identity of a service has no effect without Consul", "tls_server_name of a check has no effect without Consul",
			`There is no Consul here: the node registers services "db", "web" of provider consul, which is the default, as with provider = "nomad"`,
		}},
		{"a service of a task without delay", func(f *jobFixture) { f.task.Services = []*api.Service{{Provider: "nomad"}} }, wantSingleFault(`task "t" in group "g" defines services, but has no shutdown_delay set`)},
		{"auto_promote in one of two groups", func(f *jobFixture) {
			f.group.Update = &api.UpdateStrategy{Canary: new(1), AutoPromote: new(true)}
			f.addGroup("h")
		}, wantSingleFault("auto_promote must be true for all groups to enable automatic promotion")},
		{"cron", func(f *jobFixture) { f.setJobType("batch"); f.job.Periodic = &api.PeriodicConfig{Spec: new("@daily")} },
			wantSingleFault("cron is deprecated and may be removed in a future release. Use crons instead")},
		{"memory_max", func(f *jobFixture) { f.task.Resources = &api.Resources{MemoryMaxMB: new(500)} },
			wantSingleFault(`Memory oversubscription is not enabled; Task "g.t" memory_max value will be ignored. Update the Scheduler Configuration to allow oversubscription.`)},
		{"iops", func(f *jobFixture) { f.task.Resources = &api.Resources{IOPS: new(1)} }, task("IOPS has been deprecated as of Nomad 0.9.0. Please remove IOPS from resource block.")},
		{"network of a task", func(f *jobFixture) { f.task.Resources = &api.Resources{Networks: []*api.NetworkResource{{}}} },
			task("task network resources have been deprecated as of Nomad 0.12.0. Please configure networking via group network block.")},
		{"mbits", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{MBits: new(1)}} },
			group("mbits has been deprecated as of Nomad 0.12.0. Please remove mbits from the network block")},
		{"vault_grace", func(f *jobFixture) { f.task.Templates = []*api.Template{{VaultGrace: new(time.Second)}} },
			task("Template[0] VaultGrace has been deprecated as of Nomad 0.11 and ignored since Vault 0.5. Please remove VaultGrace / vault_grace from template block.")},
		{"a sound identity", sound("x", func(*api.WorkloadIdentity) {}), nil},
		{"an identity for everybody and forever", sound("x", func(id *api.WorkloadIdentity) { id.Audience, id.TTL = nil, 0 }),
			task("Identity[x] identities without an audience are insecure", "Identity[x] identities without an expiration are insecure")},
		{"an identity for many", sound("x", func(id *api.WorkloadIdentity) { id.Audience = []string{"a", "b"} }),
			task("Identity[x] while multiple audiences is allowed, it is more secure to use 1 audience per identity")},
		{"an identity in the environment", sound("x", func(id *api.WorkloadIdentity) { id.Env = true }),
			task(`Identity[x] using env=true without change_mode="restart" may result in task not getting updated identity`)},
		{"an identity for vault", sound("vault_default", func(*api.WorkloadIdentity) {}), task("Task t has an identity called vault_default but no vault block")},

		{"affinity and spread of the job", func(f *jobFixture) {
			f.job.Affinities = []*api.Affinity{{LTarget: "x"}}
			f.job.Spreads = []*api.Spread{{Attribute: "x"}}
		}, []string{"affinity has no effect on a single node", "spread has no effect on a single node"}},
		{"all_at_once", func(f *jobFixture) { f.job.AllAtOnce = new(true) }, wantSingleFault("all_at_once has no effect on a single node")},
		{"migrate by default", func(f *jobFixture) { f.group.Migrate = &api.MigrateStrategy{} }, nil},
		{"migrate", func(f *jobFixture) { f.group.Migrate = &api.MigrateStrategy{MaxParallel: new(2)} }, group("migrate has no effect on a single node")},
		{"disconnect", func(f *jobFixture) { f.group.Disconnect = &api.DisconnectStrategy{} }, group("disconnect has no effect on a single node")},
		{"consul", func(f *jobFixture) { f.group.Consul = &api.Consul{} }, group("consul has no effect on a single node")},
		{"an attribute from before disconnect", func(f *jobFixture) {
			//lint:ignore SA1019 what Nomad has deprecated is what is warned of
			f.group.MaxClientDisconnect = new(time.Hour)
		}, group("max_client_disconnect is deprecated and ignored. Use the disconnect block instead")},
		{"two networks", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{}, {}} }, group("only the first of 2 network blocks is used")},
		{"dns with a network of its own", func(f *jobFixture) {
			f.group.Networks = []*api.NetworkResource{{Mode: "bridge", DNS: &api.DNSConfig{}}}
		}, nil},
		{"scaling of a task", func(f *jobFixture) { f.task.ScalingPolicies = []*api.ScalingPolicy{{}} }, task("scaling has no effect on a single node")},
		{"disk of a task", func(f *jobFixture) { f.task.Resources = &api.Resources{DiskMB: new(1)} }, task("disk of a task has no effect. Use the ephemeral_disk block of the group instead")},
		{"an empty mount", func(f *jobFixture) { f.task.VolumeMounts = []*api.VolumeMount{{}} }, task("an empty volume_mount has no effect")},
		{"enabled of logs", func(f *jobFixture) { f.task.LogConfig = &api.LogConfig{Enabled: new(false)} }, task("enabled has no effect in a logs block. Use disabled instead")},
		{"an unsound restart policy of a task", func(f *jobFixture) { f.task.RestartPolicy = &api.RestartPolicy{Mode: new("x")} },
			task("the restart policy of the task is not sound: 1 error occurred:\n\t* Unsupported restart mode: \"x\"")},
		{"a prestart task that leads", func(f *jobFixture) { f.task.Leader, f.task.Lifecycle = true, &api.TaskLifecycle{Hook: "prestart"} },
			task("a prestart task is the leader: when it has ended, the other tasks of the group are stopped, even before the main tasks have started")},
		{"a poststop task that leads, and a sidecar", func(f *jobFixture) {
			f.task.Leader, f.task.Lifecycle = true, &api.TaskLifecycle{Hook: "poststop", Sidecar: true}
		}, task("sidecar has no meaning for a poststop task", "a poststop task cannot lead: it runs when the other tasks have ended")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Warnings(newJobFixture(c.edit).job, NewDefaultSchedulerConfig()); !slices.Equal(got, c.want) {
				t.Errorf("warnings\n got %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestFormatWarnings(t *testing.T) {
	for _, c := range []struct {
		warnings []string
		want     string
	}{
		{nil, ""},
		{[]string{"a"}, "1 warning:\n\n* a"},
		{[]string{"a", "b"}, "2 warnings:\n\n* a\n* b"},
	} {
		if got := FormatWarnings(c.warnings); got != c.want {
			t.Errorf("%q: %q, want %q", c.warnings, got, c.want)
		}
	}
}

func TestForegroundRunWarnings(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*jobFixture)
		want string
	}{
		{"a plain job", func(*jobFixture) {}, ""},
		{"a plain system job", func(f *jobFixture) { f.setJobType("system") }, ""},
		{"a plain batch job", func(f *jobFixture) { f.setJobType("batch") }, ""},
		{"update", func(f *jobFixture) { f.job.Update = &api.UpdateStrategy{MaxParallel: new(2)} }, "update"},
		{"scaling", func(f *jobFixture) { f.group.Scaling = &api.ScalingPolicy{} }, "scaling"},
		{"a sticky disk", func(f *jobFixture) { f.group.EphemeralDisk = &api.EphemeralDisk{Sticky: new(true)} }, "ephemeral_disk sticky"},
		{"an action", func(f *jobFixture) { f.task.Actions = []*api.Action{{}} }, "action"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got, want []string
			if c.want != "" {
				want = wantSingleFault(`group "g": ` + c.want + " has no effect for a job that runs in the foreground")
			}
			for _, f := range ForegroundRunWarnings(newJobFixture(c.edit).job, false) {
				got = append(got, f.Text)
			}
			if !slices.Equal(got, want) {
				t.Errorf("warnings %q, want %q", got, want)
			}
		})
	}
}

func TestForegroundNomadVarWarnings(t *testing.T) {
	for text, want := range map[string]int{
		`{{ with nomadVar "a" }}{{ .b }}{{ end }}`: 1,
		"{{- $v := nomadVar (env \"PATH\") -}}":    1,
		`{{ if nomadVarExists "a" }}{{ end }}`:     0,
		`nomadVar "a"`:                             0,
	} {
		job := newJobFixture(func(f *jobFixture) { f.task.Templates = []*api.Template{{EmbeddedTmpl: &text}, {}} }).job
		if got := ForegroundRunWarnings(job, false); len(got) != want {
			t.Errorf("%s: warnings %q, want %d", text, got, want)
		}
		if got := ForegroundRunWarnings(job, true); len(got) != 0 {
			t.Errorf("%s: warnings %q for a run with variables", text, got)
		}
	}
}
