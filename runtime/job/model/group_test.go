package model

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestValidateGroup(t *testing.T) {
	disconnect := func(d api.DisconnectStrategy) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Disconnect = &d }
	}
	scaling := func(count int, s api.ScalingPolicy) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Count, f.group.Scaling = &count, &s }
	}
	runFaultCases(t, []faultCase{
		{"a name with NUL", func(f *jobFixture) { f.group.Name = new("g\x00") }, wantSingleFault("Task group name contains null character")},
		{"a name with a slash", func(f *jobFixture) { f.group.Name = new("a/b") }, nil},
		{"a negative count", func(f *jobFixture) { f.group.Count = new(-1) }, wantSingleFault("Task group count can't be negative")},
		{"no tasks", func(f *jobFixture) { f.group.Tasks = nil }, wantSingleFault("Missing tasks for task group")},
		{"no tasks but a gateway", func(f *jobFixture) {
			f.group.Tasks = nil
			f.group.Services = []*api.Service{{Name: "a", Connect: &api.ConsulConnect{Gateway: &api.ConsulGateway{}}}}
		}, nil},
		{"a task without name", func(f *jobFixture) { f.task.Name = "" }, []string{"Task 1 missing name", "Missing task name"}},
		{"two tasks of one name", func(f *jobFixture) { f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "t", Driver: "d"}) }, wantSingleFault("Task 2 redefines 't' from task 1")},
		{"RS-022 only a prestart task", func(f *jobFixture) { f.task.Lifecycle = &api.TaskLifecycle{Hook: "prestart"} }, wantSingleFault("Task group g must have at least one main task")},
		{"two leaders", func(f *jobFixture) {
			f.task.Leader = true
			f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "u", Driver: "d", Leader: true})
		}, wantSingleFault("Only one task may be marked as leader")},
		{"RS-026 a leader that is a poststop task", func(f *jobFixture) {
			f.group.Tasks = append(f.group.Tasks, &api.Task{Name: "u", Driver: "d", Leader: true, Lifecycle: &api.TaskLifecycle{Hook: "poststop"}})
		}, nil},
		{"max_run_duration in a batch job", func(f *jobFixture) { f.setJobType("batch"); f.group.MaxRunDuration = new(time.Second) }, nil},
		{"max_run_duration of nothing", func(f *jobFixture) { f.setJobType("batch"); f.group.MaxRunDuration = new(time.Duration(0)) }, wantSingleFault("MaxRunDuration must be greater than zero")},
		{"max_run_duration in a service job", func(f *jobFixture) { f.group.MaxRunDuration = new(time.Second) }, wantSingleFault(`Job type "service" does not allow max_run_duration`)},
		{"too small a disk", func(f *jobFixture) {
			f.group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(5)}
			f.task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
		}, wantSingleFault("minimum DiskMB value is 10; got 5")},

		{"disconnect by default", disconnect(api.DisconnectStrategy{}), nil},
		{"negative lost_after", disconnect(api.DisconnectStrategy{LostAfter: new(-time.Second)}), wantSingleFault("lost_after cannot be a negative duration")},
		{"negative stop_on_client_after", disconnect(api.DisconnectStrategy{StopOnClientAfter: new(-time.Second)}), wantSingleFault("stop_after cannot be a negative duration")},
		{"stop_on_client_after in a system job", func(f *jobFixture) {
			f.setJobType("system")
			f.group.Disconnect = &api.DisconnectStrategy{StopOnClientAfter: new(time.Second)}
		}, wantSingleFault("stop_after can only be used with service or batch job types")},
		{"lost_after and stop_on_client_after", disconnect(api.DisconnectStrategy{LostAfter: new(time.Second), StopOnClientAfter: new(time.Second)}), wantSingleFault("Disconnect cannot be configured with both lost_after and stop_after")},
		{"an unknown reconcile", disconnect(api.DisconnectStrategy{Reconcile: new("x")}), wantSingleFault("reconcile option is invalid: x")},

		{"consul in another cluster", func(f *jobFixture) { f.group.Consul = &api.Consul{Cluster: "x"} }, wantSingleFault("non-default Consul cluster requires Nomad Enterprise")},
		{"consul", func(f *jobFixture) { f.group.Consul = &api.Consul{Namespace: "x"} }, nil},

		{"scaling within bounds", scaling(2, api.ScalingPolicy{Min: new(int64(1)), Max: new(int64(3))}), nil},
		{"scaling with max below min", scaling(2, api.ScalingPolicy{Min: new(int64(2)), Max: new(int64(1))}),
			[]string{"maximum count must not be less than minimum count", "task group count must not be greater than maximum count in scaling policy"}},
		{"scaling without max", scaling(2, api.ScalingPolicy{}), wantSingleFault("maximum count must be specified and non-negative")},
		{"scaling with negative min", scaling(2, api.ScalingPolicy{Min: new(int64(-1)), Max: new(int64(3))}), wantSingleFault("minimum count must be specified and non-negative")},
		{"count above scaling", scaling(4, api.ScalingPolicy{Min: new(int64(1)), Max: new(int64(3))}), wantSingleFault("task group count must not be greater than maximum count in scaling policy")},
		{"count below scaling", scaling(1, api.ScalingPolicy{Min: new(int64(2)), Max: new(int64(3))}), wantSingleFault("task group count must not be less than minimum count in scaling policy")},
	})
}

func TestValidateRestart(t *testing.T) {
	restart := func(p api.RestartPolicy) func(*jobFixture) {
		return func(f *jobFixture) { f.group.RestartPolicy = &p }
	}
	runFaultCases(t, []faultCase{
		{"an unknown mode", restart(api.RestartPolicy{Mode: new("x")}), wantSingleFault(`Unsupported restart mode: "x"`)},
		{"no attempts and mode delay", restart(api.RestartPolicy{Mode: new("delay"), Attempts: new(0)}), wantSingleFault(`Restart policy "delay" with 0 attempts is ambiguous`)},
		{"no attempts and mode fail", restart(api.RestartPolicy{Mode: new("fail"), Attempts: new(0)}), nil},
		{"too short an interval", restart(api.RestartPolicy{Interval: new(time.Second), Delay: new(time.Duration(0))}), wantSingleFault("Interval can not be less than 5s (got 1s)")},
		{"attempts that do not fit", restart(api.RestartPolicy{Attempts: new(10), Interval: new(time.Minute), Delay: new(15 * time.Second)}),
			wantSingleFault("Nomad can't restart the TaskGroup 10 times in an interval of 1m0s with a delay of 15s")},
		{"attempts that overflow", restart(api.RestartPolicy{Attempts: new(1 << 40), Interval: new(time.Minute), Delay: new(time.Hour)}),
			wantSingleFault("Nomad can't restart the TaskGroup 1099511627776 times in an interval of 1m0s with a delay of 1h0m0s")},
		{"a task may have any policy", func(f *jobFixture) {
			f.task.RestartPolicy = &api.RestartPolicy{Mode: new("x"), Interval: new(time.Second)}
		}, nil},
	})
}

func TestValidateReschedule(t *testing.T) {
	policy := func(p api.ReschedulePolicy) func(*jobFixture) {
		return func(f *jobFixture) { f.group.ReschedulePolicy = &p }
	}
	limited := func(function string, attempts int, interval, delay, ceiling time.Duration) func(*jobFixture) {
		return policy(api.ReschedulePolicy{
			Attempts: &attempts, Interval: &interval, Delay: &delay, MaxDelay: &ceiling, DelayFunction: &function, Unlimited: new(false),
		})
	}
	const maxDuration = 1<<63 - 1
	runFaultCases(t, []faultCase{
		{"attempts beside the default of unlimited", policy(api.ReschedulePolicy{Attempts: new(3), Interval: new(time.Hour)}),
			[]string{"Reschedule Policy with Attempts = 3, Interval = 1h0m0s, and Unlimited = true is ambiguous", "If Attempts >0, Unlimited cannot also be set to true"}},
		{"attempts without interval", limited("constant", 1, 0, 5*time.Second, 0),
			[]string{"Interval must be a non zero value if Attempts > 0", "Interval cannot be less than 15s (got 0s)"}},
		{"too short an interval", limited("constant", 1, 10*time.Second, 5*time.Second, 0), wantSingleFault("Interval cannot be less than 15s (got 10s)")},
		{"too short a delay", limited("constant", 1, time.Hour, time.Second, 0), wantSingleFault("Delay cannot be less than 5s (got 1s)")},
		{"an unknown function", limited("x", 1, time.Hour, 5*time.Second, time.Minute), wantSingleFault(`Invalid delay function "x", must be one of ["constant" "exponential" "fibonacci"]`)},
		{"too low a ceiling", limited("exponential", 1, time.Hour, 30*time.Second, time.Second),
			[]string{"Max Delay cannot be less than 5s (got 30s)", "Max Delay cannot be less than Delay 30s (got 1s)"}},
		{"a ceiling below the delay", limited("fibonacci", 1, time.Hour, 30*time.Second, 10*time.Second), wantSingleFault("Max Delay cannot be less than Delay 30s (got 10s)")},
		{"disabled, whatever else", policy(api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false), Delay: new(time.Duration(1)), DelayFunction: new("x")}), nil},
		{"constant attempts that do not fit", limited("constant", 10, time.Minute, 30*time.Second, 0),
			[]string{`Nomad can only make 2 attempts in 1m0s with initial delay 30s and delay function "constant"`, "Set the interval to at least 5m0s to accommodate 10 attempts"}},
		{"constant attempts that just fit", limited("constant", 2, time.Minute, 30*time.Second, 0), nil},
		{"exponential attempts that do not fit", limited("exponential", 10, time.Minute, 10*time.Second, 20*time.Second),
			[]string{`Nomad can only make 3 attempts in 1m0s with initial delay 10s, delay function "exponential", and delay ceiling 20s`, "Set the interval to at least 3m0s to accommodate 10 attempts"}},
		{"an exponential attempt at the end of the interval", limited("exponential", 3, 40*time.Second, 10*time.Second, time.Hour),
			[]string{`Nomad can only make 2 attempts in 40s with initial delay 10s, delay function "exponential", and delay ceiling 1h0m0s`, "Set the interval to at least 40s to accommodate 3 attempts"}},
		{"fibonacci attempts that do not fit", limited("fibonacci", 5, 30*time.Second, 10*time.Second, 20*time.Second),
			[]string{`Nomad can only make 4 attempts in 30s with initial delay 10s, delay function "fibonacci", and delay ceiling 20s`, "Set the interval to at least 40s to accommodate 5 attempts"}},
		{"a fibonacci attempt at the end of the interval", limited("fibonacci", 5, 40*time.Second, 10*time.Second, 20*time.Second), nil},
		{"an endless exponential policy ends", limited("exponential", maxDuration, maxDuration, 5*time.Second, 5*time.Second),
			[]string{`Nomad can only make 1844674407 attempts in 2562047h47m16.854775807s with initial delay 5s, delay function "exponential", and delay ceiling 5s`,
				"Set the interval to at least 2562047h47m16.854775807s to accommodate 9223372036854775807 attempts"}},
		{"in a system job", func(f *jobFixture) { f.setJobType("system"); f.group.ReschedulePolicy = &api.ReschedulePolicy{} }, wantSingleFault("System or sysbatch jobs should not have a reschedule policy")},
		{"at the level of a sysbatch job", func(f *jobFixture) { f.setJobType("sysbatch"); f.job.Reschedule = &api.ReschedulePolicy{} }, wantSingleFault("System or sysbatch jobs should not have a reschedule policy")},
	})
}

func TestValidateUpdate(t *testing.T) {
	update := func(u api.UpdateStrategy) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Update = &u }
	}
	runFaultCases(t, []faultCase{
		{"nothing in parallel", update(api.UpdateStrategy{MaxParallel: new(0)}), nil},
		{"negative max_parallel", update(api.UpdateStrategy{MaxParallel: new(-1)}), wantSingleFault("Max parallel can not be less than zero: -1 < 0")},
		{"unknown health_check", update(api.UpdateStrategy{HealthCheck: new("x")}), wantSingleFault(`Invalid health check given: "x"`)},
		{"negative min_healthy_time", update(api.UpdateStrategy{MinHealthyTime: new(-time.Second)}), wantSingleFault("Minimum healthy time may not be less than zero: -1s")},
		{"min_healthy_time above healthy_deadline", update(api.UpdateStrategy{MinHealthyTime: new(10 * time.Minute)}), wantSingleFault("Minimum healthy time must be less than healthy deadline: 10m0s > 5m0s")},
		{"no healthy_deadline", update(api.UpdateStrategy{HealthyDeadline: new(time.Duration(0)), MinHealthyTime: new(-time.Second)}),
			[]string{"Minimum healthy time may not be less than zero: -1s", "Healthy deadline must be greater than zero: 0s"}},
		{"healthy_deadline above progress_deadline", update(api.UpdateStrategy{ProgressDeadline: new(time.Minute)}), wantSingleFault("Healthy deadline must be less than progress deadline: 5m0s > 1m0s")},
		{"no progress_deadline", update(api.UpdateStrategy{ProgressDeadline: new(time.Duration(0))}), nil},
		{"negative progress_deadline", update(api.UpdateStrategy{ProgressDeadline: new(-time.Second)}),
			[]string{"Progress deadline must be zero or greater: -1s", "Healthy deadline must be less than progress deadline: 5m0s > -1s"}},
		{"negative canary", update(api.UpdateStrategy{Canary: new(-1)}), wantSingleFault("Canary count can not be less than zero: -1 < 0")},
		{"auto_promote without canary", update(api.UpdateStrategy{AutoPromote: new(true)}), wantSingleFault("Auto Promote requires a Canary count greater than zero")},
		{"no stagger", update(api.UpdateStrategy{Stagger: new(time.Duration(0))}), wantSingleFault("Stagger must be greater than zero: 0s")},
		{"canary in a system job", func(f *jobFixture) { f.setJobType("system"); f.group.Update = &api.UpdateStrategy{Canary: new(1)} }, nil},
		{"in a batch job", func(f *jobFixture) { f.setJobType("batch"); f.job.Update = &api.UpdateStrategy{MaxParallel: new(0)} }, wantSingleFault(`Job type "batch" does not allow update block`)},
		{"in the group of a sysbatch job", func(f *jobFixture) { f.setJobType("sysbatch"); f.group.Update = &api.UpdateStrategy{} }, wantSingleFault(`Job type "sysbatch" does not allow update block`)},
	})
}

func TestValidateMigrate(t *testing.T) {
	migrate := func(m api.MigrateStrategy) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Migrate = &m }
	}
	runFaultCases(t, []faultCase{
		{"in a batch job", func(f *jobFixture) { f.setJobType("batch"); f.job.Migrate = &api.MigrateStrategy{} }, wantSingleFault(`Job type "batch" does not allow migrate block`)},
		{"negative max_parallel", migrate(api.MigrateStrategy{MaxParallel: new(-1)}), wantSingleFault("MaxParallel must be >= 0 but found -1")},
		{"no health_check", migrate(api.MigrateStrategy{HealthCheck: new("")}), wantSingleFault("Missing HealthCheck")},
		{"unknown health_check", migrate(api.MigrateStrategy{HealthCheck: new("manual")}), wantSingleFault(`Invalid HealthCheck: "manual"`)},
		{"negative min_healthy_time", migrate(api.MigrateStrategy{MinHealthyTime: new(-time.Second)}), wantSingleFault("MinHealthyTime is -1s and must be >= 0")},
		{"negative healthy_deadline", migrate(api.MigrateStrategy{HealthyDeadline: new(-time.Second)}),
			[]string{"HealthyDeadline is -1s and must be >= 0", "MinHealthyTime must be less than HealthyDeadline"}},
		{"min_healthy_time equal to healthy_deadline", migrate(api.MigrateStrategy{MinHealthyTime: new(5 * time.Minute)}), nil},
	})
}

func TestValidateNetwork(t *testing.T) {
	network := func(n ...*api.NetworkResource) func(*jobFixture) {
		return func(f *jobFixture) { f.group.Networks = n }
	}
	static := func(ports ...api.Port) func(*jobFixture) { return network(&api.NetworkResource{ReservedPorts: ports}) }
	dynamic := func(ports ...api.Port) func(*jobFixture) { return network(&api.NetworkResource{DynamicPorts: ports}) }
	runFaultCases(t, []faultCase{
		{"any mode is valid", network(&api.NetworkResource{Mode: "foo"}), nil},
		{"a label without a name, and one with a blank", dynamic(api.Port{}, api.Port{Label: "a b"}), nil},
		{"one label twice", network(&api.NetworkResource{ReservedPorts: []api.Port{{Label: "a", Value: 80}}, DynamicPorts: []api.Port{{Label: "a"}}}), wantSingleFault("Port label a already in use by taskgroup network")},
		{"one static port twice", static(api.Port{Label: "a", Value: 80}, api.Port{Label: "b", Value: 80}), wantSingleFault("Static port 80 already reserved by taskgroup network:a")},
		{"one static port on two host networks", static(api.Port{Label: "a", Value: 80}, api.Port{Label: "b", Value: 80, HostNetwork: "x"}), nil},
		{"a collision that is to be ignored", static(api.Port{Label: "a", Value: 80}, api.Port{Label: "b", Value: 80, IgnoreCollision: true}), nil},
		{"a static port that does not exist", static(api.Port{Label: "a", Value: 70000}), wantSingleFault("Port a (70000) cannot be greater than 65535")},
		{"a target that does not exist", dynamic(api.Port{Label: "b", To: 70000}), wantSingleFault(`Port "b" cannot be mapped to a port (70000) greater than 65535`)},
		{"a negative target", dynamic(api.Port{Label: "c", To: -2}), wantSingleFault(`Port "c" cannot be mapped to negative value -2`)},
		{"the target -1", dynamic(api.Port{Label: "c", To: -1}), nil},
		{"ignore_collision in bridge mode", network(&api.NetworkResource{Mode: "bridge", ReservedPorts: []api.Port{{Label: "b", Value: 80, IgnoreCollision: true}}}),
			wantSingleFault(`Port "b" collision may not be ignored on non-host network mode "bridge"`)},
		{"a hostname", network(&api.NetworkResource{Hostname: "a-b.example.com."}), nil},
		{"a hostname known at run time", network(&api.NetworkResource{Hostname: "${NOMAD_ALLOC_ID}!"}), nil},
		{"a hostname that is none", network(&api.NetworkResource{Hostname: "a b"}), wantSingleFault("Hostname is not a valid DNS name")},
		{"dns", network(&api.NetworkResource{DNS: &api.DNSConfig{Servers: []string{"10.0.0.1", "fe80::1%eth0", "${meta.dns}"}, Searches: []string{"example.org", "."}, Options: []string{"ndots:2", "rotate"}}}), nil},
		{"dns that is none", network(&api.NetworkResource{DNS: &api.DNSConfig{Servers: []string{"dns.example.org"}, Searches: []string{"a b"}, Options: []string{"x\nnameserver 10.0.0.1"}}}),
			[]string{`DNS server "dns.example.org" is not valid`, `DNS search domain "a b" is not valid`, `DNS option "x\nnameserver 10.0.0.1" is not valid`}},
		{"a separator in CNI arguments", network(&api.NetworkResource{CNI: &api.CNIConfig{Args: map[string]string{"a;b": "c;d"}}}),
			[]string{`invalid ';' character in CNI arg key "a;b"`, `invalid ';' character in CNI arg value "c;d"`}},
		{"one CNI argument in two networks", network(
			&api.NetworkResource{CNI: &api.CNIConfig{Args: map[string]string{"k": "v"}}},
			&api.NetworkResource{CNI: &api.CNIConfig{Args: map[string]string{"k": "v"}}}), wantSingleFault(`duplicate CNI arg "k"`)},
	})
}

func TestValidateVolume(t *testing.T) {
	volume := func(v api.VolumeRequest, mounts ...*api.VolumeMount) func(*jobFixture) {
		return func(f *jobFixture) {
			f.group.Volumes = map[string]*api.VolumeRequest{"v": &v}
			f.task.VolumeMounts = mounts
		}
	}
	host := func(edit func(*api.VolumeRequest)) func(*jobFixture) {
		v := api.VolumeRequest{Type: "host", Source: "s"}
		edit(&v)
		return volume(v)
	}
	runFaultCases(t, []faultCase{
		{"a host volume and its mount", volume(api.VolumeRequest{Type: "host", Source: "s"}, &api.VolumeMount{Volume: new("v"), Destination: new("/x")}), nil},
		// Nomad drops volumes with an unknown type.
		{"a volume of an unknown type", volume(api.VolumeRequest{Type: "x", Source: "s"}), wantSingleFault("volume has unrecognized type x")},
		{"no source", host(func(v *api.VolumeRequest) { v.Source = "" }), wantSingleFault("volume has an empty source")},
		{"per_alloc and sticky", host(func(v *api.VolumeRequest) { v.PerAlloc, v.Sticky = true, true }), wantSingleFault("volume cannot be per_alloc and sticky at the same time")},
		{"per_alloc with canaries", func(f *jobFixture) {
			host(func(v *api.VolumeRequest) { v.PerAlloc = true })(f)
			f.group.Update = &api.UpdateStrategy{Canary: new(1)}
		}, wantSingleFault("volume cannot be per_alloc when canaries are in use")},
		{"per_alloc in a system job", func(f *jobFixture) {
			host(func(v *api.VolumeRequest) { v.PerAlloc = true })(f)
			f.setJobType("system")
		}, wantSingleFault("volume cannot be per_alloc for system or sysbatch jobs")},
		{"a host volume for many nodes", host(func(v *api.VolumeRequest) { v.AccessMode = "multi-node-reader-only" }), wantSingleFault("host volumes cannot be mounted with multi-node-reader-only access mode")},
		{"a volume for readers that is written", host(func(v *api.VolumeRequest) { v.AccessMode = "single-node-reader-only" }), wantSingleFault("single-node-reader-only volumes must be read-only")},
		{"a volume for readers", host(func(v *api.VolumeRequest) { v.AccessMode, v.ReadOnly = "single-node-reader-only", true }), nil},
		{"mount options of a host volume", host(func(v *api.VolumeRequest) { v.MountOptions = &api.CSIMountOptions{} }), wantSingleFault("host volumes cannot have mount options")},
		{"a CSI volume without modes", volume(api.VolumeRequest{Type: "csi", Source: "s"}), []string{"CSI volumes must have an attachment mode", "CSI volumes must have an access mode"}},
		{"a mount of no volume", func(f *jobFixture) { f.task.VolumeMounts = []*api.VolumeMount{{Volume: new("v")}} }, wantSingleFault("Volume Mount (0) references undefined volume v")},
		{"an empty mount", func(f *jobFixture) { f.task.VolumeMounts = []*api.VolumeMount{{}} }, nil},
		{"an unknown propagation mode and label", volume(api.VolumeRequest{Type: "host", Source: "s"}, &api.VolumeMount{Volume: new("v"), PropagationMode: new("x"), SELinuxLabel: new("q")}),
			[]string{`Volume Mount (0) is invalid: "volume mount has an invalid propagation mode: "x""`, `Volume Mount (0) is invalid: "volume mount has an invalid SELinux label: "q""`}},
	})
}
