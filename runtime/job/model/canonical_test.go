package model

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// asJSON returns a value's JSON form, so that values with different pointers can be compared.
func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sameJSON(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := asJSON(t, got), asJSON(t, want); g != w {
		t.Errorf("%s\n got %s\nwant %s", what, g, w)
	}
}

func durationPointer(d time.Duration) *time.Duration { return &d }

// The cases are each job type's defaults.
func TestDefaultsByType(t *testing.T) {
	serviceRestart := &api.RestartPolicy{Attempts: new(2), Interval: durationPointer(30 * time.Minute), Delay: durationPointer(15 * time.Second), Mode: new("fail"), RenderTemplates: new(false)}
	batchRestart := &api.RestartPolicy{Attempts: new(3), Interval: durationPointer(24 * time.Hour), Delay: durationPointer(15 * time.Second), Mode: new("fail"), RenderTemplates: new(false)}
	update := &api.UpdateStrategy{
		Stagger: durationPointer(30 * time.Second), MaxParallel: new(1), HealthCheck: new("checks"), MinHealthyTime: durationPointer(10 * time.Second),
		HealthyDeadline: durationPointer(5 * time.Minute), ProgressDeadline: durationPointer(10 * time.Minute), Canary: new(0), AutoRevert: new(false), AutoPromote: new(false),
	}
	zero := func(stagger time.Duration, parallel int) *api.UpdateStrategy {
		return &api.UpdateStrategy{
			Stagger: &stagger, MaxParallel: &parallel, HealthCheck: new(""), MinHealthyTime: durationPointer(0),
			HealthyDeadline: durationPointer(0), ProgressDeadline: durationPointer(0), Canary: new(0), AutoRevert: new(false), AutoPromote: new(false),
		}
	}
	for _, c := range []struct {
		jobType            string
		restart            *api.RestartPolicy
		reschedule         *api.ReschedulePolicy
		groupUpdate, onJob *api.UpdateStrategy
		migrate            *api.MigrateStrategy
	}{
		{
			"service", serviceRestart,
			&api.ReschedulePolicy{Attempts: new(0), Interval: durationPointer(0), Delay: durationPointer(30 * time.Second), DelayFunction: new("exponential"), MaxDelay: durationPointer(time.Hour), Unlimited: new(true)},
			update, zero(30*time.Second, 1),
			&api.MigrateStrategy{MaxParallel: new(1), HealthCheck: new("checks"), MinHealthyTime: durationPointer(10 * time.Second), HealthyDeadline: durationPointer(5 * time.Minute)},
		},
		{
			"batch", batchRestart,
			&api.ReschedulePolicy{Attempts: new(1), Interval: durationPointer(24 * time.Hour), Delay: durationPointer(5 * time.Second), DelayFunction: new("constant"), MaxDelay: durationPointer(0), Unlimited: new(false)},
			nil, zero(0, 0), nil,
		},
		{"system", serviceRestart, nil, update, zero(30*time.Second, 1), nil},
		{"sysbatch", batchRestart, nil, nil, zero(0, 0), nil},
	} {
		t.Run(c.jobType, func(t *testing.T) {
			f := newJobFixture(func(f *jobFixture) { f.setJobType(c.jobType) })
			sameJSON(t, "restart", f.group.RestartPolicy, c.restart)
			sameJSON(t, "restart of the task", f.task.RestartPolicy, c.restart)
			sameJSON(t, "reschedule", f.group.ReschedulePolicy, c.reschedule)
			sameJSON(t, "update", f.group.Update, c.groupUpdate)
			sameJSON(t, "update of the job", f.job.Update, c.onJob)
			sameJSON(t, "migrate", f.group.Migrate, c.migrate)
		})
	}
}

func TestDefaults(t *testing.T) {
	f := newJobFixture(func(f *jobFixture) {
		f.job.Periodic = &api.PeriodicConfig{}
		f.job.Affinities = []*api.Affinity{{}}
		f.job.Spreads = []*api.Spread{{}}
		f.group.Disconnect = &api.DisconnectStrategy{}
		f.group.Scaling = &api.ScalingPolicy{}
		f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a"}}}}
		f.task.Templates = []*api.Template{{ChangeScript: &api.ChangeScript{}}, {ChangeMode: new("signal")}, {ChangeSignal: new("sigint")}}
		f.task.Artifacts = []*api.TaskArtifact{{}, {GetterMode: new("file"), GetterSource: new("http://x/f.tgz?x=1")}}
		f.task.VolumeMounts = []*api.VolumeMount{{}}
		f.task.Resources = &api.Resources{Devices: []*api.RequestedDevice{{}}}
		f.task.CSIPluginConfig = &api.TaskCSIPluginConfig{}
		f.task.Vault = &api.Vault{}
	})
	task, group := f.task, f.group
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"name", f.job.Name, "j"},
		{"type", f.job.Type, "service"},
		{"region", f.job.Region, "global"},
		{"namespace", f.job.Namespace, "default"},
		{"node_pool", f.job.NodePool, "default"},
		{"datacenters", f.job.Datacenters, []string{"*"}},
		{"priority", f.job.Priority, 50},
		{"all_at_once", f.job.AllAtOnce, false},
		{"DispatchIdempotencyToken", f.job.DispatchIdempotencyToken, ""},
		{"count", group.Count, 1},
		{"ephemeral_disk", group.EphemeralDisk, api.EphemeralDisk{SizeMB: new(300), Sticky: new(false), Migrate: new(false)}},
		{"cpu", task.Resources.CPU, 100},
		{"cores", task.Resources.Cores, 0},
		{"memory", task.Resources.MemoryMB, 300},
		{"logs", task.LogConfig, api.LogConfig{MaxFiles: new(10), MaxFileSizeMB: new(10), Disabled: new(false)}},
		{"kill_timeout", task.KillTimeout, 5 * time.Second},
		{"identity", task.Identity, api.WorkloadIdentity{Name: "default", Audience: []string{"nomadproject.io"}}},
		{"device count", task.Resources.Devices[0].Count, 1},
		{"affinity weight", f.job.Affinities[0].Weight, 50},
		{"affinity operator", f.job.Affinities[0].Operand, "="},
		{"spread weight", f.job.Spreads[0].Weight, 50},
		{"periodic enabled", f.job.Periodic.Enabled, true},
		{"periodic prohibit_overlap", f.job.Periodic.ProhibitOverlap, false},
		{"periodic time_zone", f.job.Periodic.TimeZone, "UTC"},
		{"disconnect replace", group.Disconnect.Replace, true},
		{"disconnect reconcile", group.Disconnect.Reconcile, "best_score"},
		{"scaling enabled", group.Scaling.Enabled, true},
		{"scaling min", group.Scaling.Min, 1},
		{"scaling type", group.Scaling.Type, "horizontal"},
		{"scaling target", group.Scaling.Target, map[string]string{"Namespace": "default", "Job": "j", "Group": "g"}},
		{"host network", group.Networks[0].DynamicPorts[0].HostNetwork, "default"},
		{"template change_mode", task.Templates[0].ChangeMode, "restart"},
		{"template splay", task.Templates[0].Splay, 5 * time.Second},
		{"template perms", task.Templates[0].Perms, "0644"},
		{"template delimiters", []*string{task.Templates[0].LeftDelim, task.Templates[0].RightDelim}, []string{"{{", "}}"}},
		{"template change_script", task.Templates[0].ChangeScript, api.ChangeScript{Command: new(""), Args: []string{}, Timeout: durationPointer(5 * time.Second), FailOnError: new(false), RunOnFirstRender: new(false)}},
		{"template change_signal by default", task.Templates[1].ChangeSignal, "SIGHUP"},
		{"template change_signal", task.Templates[2].ChangeSignal, "SIGINT"},
		{"artifact mode", task.Artifacts[0].GetterMode, "any"},
		{"artifact destination", task.Artifacts[0].RelativeDest, "local/"},
		{"artifact destination of a file", task.Artifacts[1].RelativeDest, "local/f.tgz?x=1"},
		{"volume_mount read_only", task.VolumeMounts[0].ReadOnly, false},
		{"volume_mount propagation_mode", task.VolumeMounts[0].PropagationMode, "private"},
		{"csi_plugin", task.CSIPluginConfig, api.TaskCSIPluginConfig{MountDir: "/csi", StagePublishBaseDir: "/local/csi", HealthTimeout: 30 * time.Second}},
		{"vault", task.Vault, api.Vault{Namespace: new(""), Cluster: "default", Env: new(true), DisableFile: new(false), ChangeMode: new("restart"), ChangeSignal: new("SIGHUP"), AllowTokenExpiration: new(false)}},
	} {
		sameJSON(t, c.what, c.got, c.want)
	}
}

func TestInheritance(t *testing.T) {
	f := newJobFixture(func(f *jobFixture) {
		f.job.Update = &api.UpdateStrategy{MaxParallel: new(3), Canary: new(1)}
		f.job.Reschedule = &api.ReschedulePolicy{Attempts: new(4), Delay: durationPointer(time.Minute)}
		f.job.Migrate = &api.MigrateStrategy{MaxParallel: new(5)}
		f.group.Update = &api.UpdateStrategy{Canary: new(2)}
		f.group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(6)}
		f.group.RestartPolicy = &api.RestartPolicy{Attempts: new(7), Mode: new("delay")}
		f.task.RestartPolicy = &api.RestartPolicy{Attempts: new(8)}
	})
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"update of the job below that of the group", []*int{f.group.Update.MaxParallel, f.group.Update.Canary}, []int{3, 2}},
		{"what the job keeps of update", []*int{f.job.Update.MaxParallel, f.job.Update.Canary}, []int{3, 0}},
		{"reschedule", []any{f.group.ReschedulePolicy.Attempts, f.group.ReschedulePolicy.Delay, f.group.ReschedulePolicy.Unlimited}, []any{6, time.Minute, true}},
		{"what the job keeps of reschedule", f.job.Reschedule, nil},
		{"migrate", f.group.Migrate.MaxParallel, 5},
		{"what the job keeps of migrate", f.job.Migrate, nil},
		{"restart of the task", []any{f.task.RestartPolicy.Attempts, f.task.RestartPolicy.Mode, f.task.RestartPolicy.Interval}, []any{8, "delay", 30 * time.Minute}},
	} {
		sameJSON(t, c.what, c.got, c.want)
	}
}

func TestCanonicalService(t *testing.T) {
	f := newJobFixture(func(f *jobFixture) {
		f.job.Name = new("job")
		f.group.Services = []*api.Service{
			{},
			{
				Name: "${JOB}-${TASKGROUP}-${TASK}-${NOMAD_ALLOC_ID}", Provider: "nomad", OnUpdate: "ignore",
				CheckRestart: &api.CheckRestart{Limit: 3, Grace: durationPointer(time.Minute)},
				Checks:       []api.ServiceCheck{{}, {Name: "c", CheckRestart: &api.CheckRestart{Limit: 5}, SuccessBeforePassing: -1}},
			},
		}
		f.task.Services = []*api.Service{{}, {Name: "${BASE}"}}
	})
	second := f.group.Services[1]
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"name by default, of a group", f.group.Services[0].Name, "job-g"},
		{"name by default, of a task", f.task.Services[0].Name, "job-g-t"},
		{"the task of a service", f.task.Services[0].TaskName, "t"},
		{"provider", f.group.Services[0].Provider, "consul"},
		{"address_mode", f.group.Services[0].AddressMode, "auto"},
		{"on_update", f.group.Services[0].OnUpdate, "require_healthy"},
		{"cluster", f.group.Services[0].Cluster, "default"},
		{"placeholders of a group", second.Name, "job-g-group-${NOMAD_ALLOC_ID}"},
		{"placeholders of a task", f.task.Services[1].Name, "job-g-t"},
		{"check_restart of the service", second.CheckRestart, nil},
		{"check_restart of a check without", second.Checks[0].CheckRestart, api.CheckRestart{Limit: 3, Grace: durationPointer(time.Minute)}},
		{"check_restart of a check with", second.Checks[1].CheckRestart, api.CheckRestart{Limit: 5, Grace: durationPointer(time.Minute)}},
		{"name of a check", second.Checks[0].Name, `service: "job-g-group-${NOMAD_ALLOC_ID}" check`},
		{"on_update of a check", second.Checks[0].OnUpdate, "ignore"},
		{"a negative threshold", second.Checks[1].SuccessBeforePassing, 0},
	} {
		sameJSON(t, c.what, c.got, c.want)
	}
}

func TestCanonicalJobHasNoEmptyValues(t *testing.T) {
	var job api.Job
	text := `{"ID": "j", "Meta": {}, "Datacenters": [], "Constraints": [null], "TaskGroups": [null, {
		"Name": "g", "Volumes": {"a": null, "v": {"Type": "host", "Source": "s"}}, "Services": [null, {"Checks": []}], "Networks": [],
		"Tasks": [{"Name": "t", "Env": {}, "Config": {"list": [null], "empty": {}}, "Identities": [{"Name": "default", "Env": true}, {"Name": "x", "ChangeSignal": "sighup"}]}]}]}`
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		t.Fatal(err)
	}
	Canonicalize(&job)
	if job.Meta != nil || job.Constraints != nil || len(job.TaskGroups) != 1 {
		t.Fatalf("meta %v, constraints %v, %d groups", job.Meta, job.Constraints, len(job.TaskGroups))
	}
	g := job.TaskGroups[0]
	task := g.Tasks[0]
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"volumes", len(g.Volumes), 1},
		{"the name of a volume", g.Volumes["v"].Name, "v"},
		{"services", len(g.Services), 1},
		{"checks", g.Services[0].Checks, nil},
		{"networks", g.Networks, nil},
		{"env", task.Env, nil},
		{"config is not touched", task.Config, map[string]any{"list": []any{nil}, "empty": map[string]any{}}},
		{"the default identity", task.Identity, api.WorkloadIdentity{Name: "default", Audience: []string{"nomadproject.io"}, Env: true}},
		{"the others", task.Identities, []api.WorkloadIdentity{{Name: "x", ChangeSignal: "SIGHUP"}}},
	} {
		sameJSON(t, c.what, c.got, c.want)
	}
	Canonicalize(nil) // a nil job is ignored
}

func TestImpliedConstraints(t *testing.T) {
	version := api.NewConstraint("${attr.nomad.version}", "semver", ">= 1.4.0")
	discovery := api.NewConstraint("${attr.nomad.service_discovery}", "=", "true")
	consul := api.NewConstraint("${attr.consul.version}", "semver", ">= 1.8.0")
	var cni []*api.Constraint
	for _, plugin := range []string{"bridge", "firewall", "host-local", "loopback", "portmap"} {
		cni = append(cni, api.NewConstraint("${attr.plugins.cni.version."+plugin+"}", "semver", ">= 0.4.0"))
	}
	for _, c := range []struct {
		name        string
		edit        func(*jobFixture)
		group, task []*api.Constraint
	}{
		{"nothing", func(*jobFixture) {}, nil, nil},
		{"signals", func(f *jobFixture) {
			f.task.KillSignal = "SIGINT"
			f.task.Templates = []*api.Template{{ChangeMode: new("signal")}, {ChangeSignal: new("SIGUSR1")}}
		}, []*api.Constraint{api.NewConstraint("${attr.os.signals}", "set_contains", "SIGHUP,SIGINT")}, nil},
		{"services of nomad", func(f *jobFixture) {
			f.group.Services = []*api.Service{{Provider: "nomad"}}
		}, []*api.Constraint{discovery}, nil},
		{"checks of nomad, in a task", func(f *jobFixture) {
			f.task.Services = []*api.Service{{Provider: "nomad", Checks: []api.ServiceCheck{{}}}}
		}, []*api.Constraint{discovery, version}, nil},
		{"services that the user has thought of", func(f *jobFixture) {
			f.group.Constraints = []*api.Constraint{new(*discovery)}
			f.group.Services = []*api.Service{{Provider: "nomad"}}
		}, []*api.Constraint{discovery}, nil},
		{"services of consul", func(f *jobFixture) {
			f.group.Services = []*api.Service{{}}
			f.task.Services = []*api.Service{{}}
		}, []*api.Constraint{consul}, []*api.Constraint{consul}},
		{"services of consul, with another version", func(f *jobFixture) {
			f.group.Constraints = []*api.Constraint{api.NewConstraint("${attr.consul.version}", "semver", ">= 2.0.0")}
			f.group.Services = []*api.Service{{}}
		}, []*api.Constraint{api.NewConstraint("${attr.consul.version}", "semver", ">= 2.0.0")}, nil},
		{"bridge", func(f *jobFixture) { f.group.Networks = []*api.NetworkResource{{Mode: "bridge"}} }, cni, nil},
		{"secrets", func(f *jobFixture) {
			f.task.Secrets = []*api.Secret{{Name: "a", Provider: "nomad"}, {Name: "b", Provider: "nomad"}}
		}, []*api.Constraint{api.NewConstraint("${attr.plugins.secrets.nomad.version}", "is_set", "")}, nil},
		{"an identity", func(f *jobFixture) {
			f.task.Identities = []*api.WorkloadIdentity{{Name: "x"}}
		}, []*api.Constraint{api.NewConstraint("${attr.nomad.version}", "semver", ">= 1.7.0-a")}, nil},
		{"vault", func(f *jobFixture) { f.task.Vault = &api.Vault{} }, []*api.Constraint{api.NewConstraint("${attr.vault.version}", "semver", ">= 0.6.1")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newJobFixture(c.edit)
			sameJSON(t, "constraints of the group", f.group.Constraints, c.group)
			sameJSON(t, "constraints of the task", f.task.Constraints, c.task)
		})
	}
}

// FuzzJob checks that no rule panics for any job from JSON, and that canonicalizing a canonical job changes nothing.
func FuzzJob(f *testing.F) {
	full := newJobFixture(func(f *jobFixture) {
		f.job.Multiregion = &api.Multiregion{Regions: []*api.MultiregionRegion{{}}}
		f.job.UI = &api.JobUIConfig{}
		f.job.ParameterizedJob = &api.ParameterizedJobConfig{MetaRequired: []string{"a"}}
		f.group.Services = []*api.Service{{Checks: []api.ServiceCheck{{}}, Connect: &api.ConsulConnect{Gateway: &api.ConsulGateway{Ingress: &api.ConsulIngressConfigEntry{}}}}}
		f.group.Scaling = &api.ScalingPolicy{}
		f.group.Volumes = map[string]*api.VolumeRequest{"v": {}}
		f.task.Resources = &api.Resources{NUMA: &api.NUMAResource{}, Devices: []*api.RequestedDevice{{}}}
		f.task.Secrets = []*api.Secret{{}}
	})
	text, err := json.Marshal(full.job)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"TaskGroups":[null,{"Tasks":[null,{"Services":[{"Checks":[{}],"Connect":{"Gateway":{"Ingress":{"Listeners":[null]}}}}]}]}]}`))
	f.Add([]byte(`{"Type":"batch","Name":"${JOB}","Periodic":{"Spec":"@daily"},"TaskGroups":[{"Count":-9223372036854775808,"Services":[{"Name":"${JOB}"}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var job api.Job
		if json.Unmarshal(text, &job) != nil {
			return
		}
		Canonicalize(&job)
		Validate(&job, JobLimits{})
		FormatWarnings(Warnings(&job, NewDefaultSchedulerConfig()))
		ForegroundRunWarnings(&job, false)
		once := asJSON(t, &job)
		Canonicalize(&job)
		if twice := asJSON(t, &job); once != twice {
			t.Errorf("canonical form\n once %s\ntwice %s", once, twice)
		}
	})
}

func FuzzCron(f *testing.F) {
	for _, text := range []string{"* * * * *", "0 0 L * *", "@every 1s", "0 0 15W * 5#3", "60/0 * * * *"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := checkCron(text)
		if again := checkCron(text); !reflect.DeepEqual(err, again) {
			t.Errorf("%q: %v, then %v", text, err, again)
		}
	})
}

func FuzzConstraintHolds(f *testing.F) {
	for operand := range commonOperators {
		f.Add("1.5.0", operand, ">= 1.0")
	}
	f.Fuzz(func(t *testing.T, left, operand, right string) {
		c := api.NewConstraint(left, operand, right)
		ConstraintHolds(c, func(target string) (string, bool) { return target, true })
		checkConstraint(newFaultReport(), c)
	})
}
