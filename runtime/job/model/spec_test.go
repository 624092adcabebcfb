package model

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// newSpecJob makes a canonical job with one group and one task.
func newSpecJob(edit func(*api.Job, *api.TaskGroup, *api.Task)) *api.Job {
	task := &api.Task{Name: "t", Driver: "d", Config: map[string]any{"n": 1}, Meta: map[string]string{"a": "1"}}
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{task}, Networks: []*api.NetworkResource{{
		DynamicPorts: []api.Port{{Label: "a", Value: 1}}, ReservedPorts: []api.Port{{Label: "b", Value: 80}},
	}}}
	job := &api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{group}}
	if edit != nil {
		edit(job, group, task)
	}
	Canonicalize(job)
	return job
}

func TestSameSpec(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*api.Job, *api.TaskGroup, *api.Task)
		want bool
	}{
		{"the same", nil, true},
		{"what the agent writes", func(j *api.Job, _ *api.TaskGroup, _ *api.Task) {
			j.Status, j.Stable, j.Version, j.SubmitTime = new("dead"), new(true), new(uint64(7)), new(int64(7))
			j.CreateIndex, j.ModifyIndex, j.JobModifyIndex, j.VersionTag = new(uint64(7)), new(uint64(7)), new(uint64(7)), &api.JobVersionTag{Name: "x"}
		}, true},
		{"a stop", func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Stop = new(true) }, false},
		{"a count", func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Count = new(2) }, false},
		{"config", func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Config["n"] = 2 }, false},
		{"the same number from JSON", func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Config["n"] = float64(1) }, true},
	} {
		if got := SameSpec(newSpecJob(nil), newSpecJob(c.edit)); got != c.want {
			t.Errorf("%s: same %v, want %v", c.name, got, c.want)
		}
	}
	job := newSpecJob(nil)
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	var decodedJob api.Job
	if err := json.Unmarshal(text, &decodedJob); err != nil {
		t.Fatal(err)
	}
	if !SameSpec(job, &decodedJob) || UpdateIsDestructive(job, &decodedJob, "g") {
		t.Error("a job that was stored and read is another one")
	}
}

// Destructive is true only for changes that need a new allocation.
func TestUpdateIsDestructive(t *testing.T) {
	type jobEdit = func(*api.Job, *api.TaskGroup, *api.Task)
	for name, f := range map[string]jobEdit{
		"number of tasks": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.Tasks = append(g.Tasks, &api.Task{Name: "u", Driver: "d"})
		},
		"name of a task": func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Name = "u" },
		"ephemeral_disk": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(999)}
		},
		"network mode":     func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Networks[0].Mode = "bridge" },
		"static port":      func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Networks[0].ReservedPorts[0].Value = 81 },
		"label of a port":  func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Networks[0].DynamicPorts[0].Label = "c" },
		"to of a port":     func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Networks[0].DynamicPorts[0].To = 8 },
		"volumes":          func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Volumes = map[string]*api.VolumeRequest{"v": {}} },
		"driver":           func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Driver = "e" },
		"user":             func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.User = "u" },
		"config":           func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Config["n"] = 2 },
		"env":              func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Env = map[string]string{"A": "1"} },
		"artifacts":        func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Artifacts = []*api.TaskArtifact{{}} },
		"templates":        func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Templates = []*api.Template{{}} },
		"volume_mounts":    func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.VolumeMounts = []*api.VolumeMount{{}} },
		"meta of the task": func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Meta["a"] = "2" },
		"meta of the job":  func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Meta = map[string]string{"b": "1"} },
		"cpu":              func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Resources = &api.Resources{CPU: new(7)} },
		"memory":           func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Resources = &api.Resources{MemoryMB: new(77)} },
		"memory_max":       func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Resources = &api.Resources{MemoryMaxMB: new(7777)} },
		"devices": func(_ *api.Job, _ *api.TaskGroup, t *api.Task) {
			t.Resources = &api.Resources{Devices: []*api.RequestedDevice{{Name: "gpu"}}}
		},
		"identities":    func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Identities = []*api.WorkloadIdentity{{Name: "x"}} },
		"logs.disabled": func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.LogConfig = &api.LogConfig{Disabled: new(true)} },
		"render_templates": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.RestartPolicy = &api.RestartPolicy{RenderTemplates: new(true)}
		},
		"lifecycle": func(_ *api.Job, _ *api.TaskGroup, t *api.Task) {
			t.Lifecycle = &api.TaskLifecycle{Hook: "prestart", Sidecar: true}
		}, // RS-026
		"name of the group": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Name = new("h") },
	} {
		if !UpdateIsDestructive(newSpecJob(nil), newSpecJob(f), "g") {
			t.Errorf("%s is updated in place", name)
		}
	}
	for name, f := range map[string]jobEdit{
		"nothing":  nil,
		"count":    func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Count = new(2) },
		"priority": func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Priority = new(7) },
		"constraints": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.Constraints = []*api.Constraint{{LTarget: "a", RTarget: "a"}}
		},
		"services": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.Services = []*api.Service{{Name: "s", Provider: "nomad"}}
		},
		"kill_timeout": func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.KillTimeout = new(time.Second) },
		"kill_signal":  func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.KillSignal = "SIGINT" },
		"leader":       func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.Leader = true },
		"restart": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.RestartPolicy = &api.RestartPolicy{Attempts: new(9)}
		},
		"shutdown_delay": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.ShutdownDelay = new(time.Second) },
		"update":         func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Update = &api.UpdateStrategy{MaxParallel: new(2)} },
		"reschedule": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.ReschedulePolicy = &api.ReschedulePolicy{Delay: new(time.Minute)}
		},
		"log sizes":               func(_ *api.Job, _ *api.TaskGroup, t *api.Task) { t.LogConfig = &api.LogConfig{MaxFiles: new(2)} },
		"max_run_duration":        func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.MaxRunDuration = new(time.Hour) },
		"value of a dynamic port": func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Networks[0].DynamicPorts[0].Value = 5 },
		"the same meta elsewhere": func(j *api.Job, _ *api.TaskGroup, t *api.Task) { j.Meta, t.Meta = t.Meta, nil },
	} {
		if UpdateIsDestructive(newSpecJob(nil), newSpecJob(f), "g") {
			t.Errorf("%s is destructive", name)
		}
	}
}

func TestValidateJobUpdate(t *testing.T) {
	plain := func(*api.Job, *api.TaskGroup, *api.Task) {}
	periodic := func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Periodic = &api.PeriodicConfig{} }
	parameterized := func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.ParameterizedJob = &api.ParameterizedJobConfig{} }
	batch := func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Type = new("batch") }
	for _, c := range []struct {
		from, to func(*api.Job, *api.TaskGroup, *api.Task)
		want     string
	}{
		{plain, plain, ""},
		{plain, batch, `cannot update job from type "service" to "batch"`},
		{periodic, plain, "cannot update periodic job to being non-periodic"},
		{plain, periodic, "cannot update non-periodic job to being periodic"},
		{parameterized, plain, "cannot update parameterized job to being non-parameterized"},
		{plain, parameterized, "cannot update non-parameterized job to being parameterized"},
	} {
		got := ""
		if err := ValidateJobUpdate(newSpecJob(c.from), newSpecJob(c.to)); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("fault %q, want %q", got, c.want)
		}
	}
}

// Delays grow as the policy defines, up to the ceiling, and start again from the base when
// an allocation lived longer than the ceiling.
func TestNextReschedule(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name     string
		function string
		attempts int // attempts is 0 for unlimited
		lives    []time.Duration
		want     []time.Duration // want has -1 for never
	}{
		{"constant", "constant", 0, []time.Duration{s, s, s, 500 * s}, []time.Duration{10 * s, 10 * s, 10 * s, 10 * s}},
		{"exponential", "exponential", 0, []time.Duration{s, s, s, s, s}, []time.Duration{10 * s, 20 * s, 40 * s, 60 * s, 60 * s}},
		{"fibonacci", "fibonacci", 0, []time.Duration{s, s, s, s, s, s, s}, []time.Duration{10 * s, 10 * s, 20 * s, 30 * s, 50 * s, 60 * s, 60 * s}},
		{"a long life", "exponential", 0, []time.Duration{s, s, s, 500 * s, s, s}, []time.Duration{10 * s, 20 * s, 40 * s, 10 * s, 20 * s, 40 * s}},
		{"attempts", "constant", 2, []time.Duration{s, s, s}, []time.Duration{10 * s, 10 * s, -1}},
		{"attempts that are long ago", "constant", 1, []time.Duration{s, s, 2 * time.Hour}, []time.Duration{10 * s, -1, 10 * s}},
	} {
		p := &api.ReschedulePolicy{
			Attempts: &c.attempts, Unlimited: new(c.attempts == 0), Interval: new(time.Hour),
			Delay: new(10 * s), MaxDelay: new(60 * s), DelayFunction: &c.function,
		}
		var tracker *api.RescheduleTracker
		now := time.Unix(1000, 0)
		for i, lifetime := range c.lives {
			now = now.Add(lifetime)
			at, ok := NextReschedule(p, tracker, now)
			got := time.Duration(-1)
			if ok {
				got = at.Sub(now)
			}
			if got != c.want[i] {
				t.Errorf("%s, failure %d: delay %v, want %v", c.name, i, got, c.want[i])
			}
			if ok {
				now = at
				tracker = AppendRescheduleEvent(p, tracker, api.RescheduleEvent{RescheduleTime: now.UnixNano()})
			}
		}
	}
	if _, ok := NextReschedule(nil, nil, time.Unix(0, 0)); ok {
		t.Error("without a policy there is a reschedule")
	}
	p := &api.ReschedulePolicy{Unlimited: new(true), Delay: new(s), MaxDelay: new(time.Hour), DelayFunction: new("exponential")}
	var tracker *api.RescheduleTracker
	for i := range 100 {
		tracker = AppendRescheduleEvent(p, tracker, api.RescheduleEvent{RescheduleTime: int64(i)})
	}
	if n := len(tracker.Events); n > 20 {
		t.Errorf("a tracker keeps %d events", n)
	}
}

// JobStatus returns the first matching case's result.
func TestJobStatus(t *testing.T) {
	service, system := newSpecJob(nil), newSpecJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Type = new("system") })
	stopped := newSpecJob(func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.Stop = new(true) })
	run, failed := &api.Allocation{DesiredStatus: "run", ClientStatus: "pending"}, &api.Allocation{DesiredStatus: "run", ClientStatus: "failed"}
	stopping := &api.Allocation{DesiredStatus: "stop", ClientStatus: "running"}
	complete, blocked := &api.Evaluation{Status: "complete"}, &api.Evaluation{Status: "blocked"}
	for _, c := range []struct {
		name        string
		job         *api.Job
		allocs      []*api.Allocation
		evals       []*api.Evaluation
		deployments []*api.Deployment
		want        string
	}{
		{"system", system, nil, nil, nil, "running"},
		{"an allocation", service, []*api.Allocation{failed, run}, []*api.Evaluation{blocked}, nil, "running"},
		{"an active deployment", service, nil, nil, []*api.Deployment{{Status: "paused"}}, "running"},
		{"a blocked evaluation", service, []*api.Allocation{failed}, []*api.Evaluation{complete, blocked}, nil, "pending"},
		{"all is over", service, []*api.Allocation{failed}, []*api.Evaluation{complete}, []*api.Deployment{{Status: "failed"}}, "dead"},
		{"stopped, and still stopping", stopped, []*api.Allocation{stopping}, nil, nil, "dead"},
		{"new", service, nil, nil, nil, "pending"},
	} {
		if got := JobStatus(c.job, c.allocs, c.evals, c.deployments); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestNextLaunch(t *testing.T) {
	after := time.Date(2026, 3, 28, 23, 59, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		p    api.PeriodicConfig
		want string // want is "" for never
	}{
		{"the earliest of several", api.PeriodicConfig{Specs: []string{"0 12 * * *", "30 6 * * *"}}, "2026-03-29T06:30:00Z"},
		{"a time zone", api.PeriodicConfig{Spec: new("0 12 * * *"), TimeZone: new("Europe/Berlin")}, "2026-03-29T10:00:00Z"},
		{"seconds", api.PeriodicConfig{Spec: new("*/5 * * * * * *")}, "2026-03-28T23:59:05Z"},
		{"a year that is over", api.PeriodicConfig{Spec: new("0 0 1 1 * 2020")}, ""},
		{"a line that does not read", api.PeriodicConfig{Spec: new("nope")}, ""},
		{"no line", api.PeriodicConfig{}, ""},
	} {
		got := ""
		if at := NextPeriodicLaunch(&api.Job{Periodic: &c.p}, after); !at.IsZero() {
			got = at.UTC().Format(time.RFC3339)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if at := NextPeriodicLaunch(&api.Job{}, after); !at.IsZero() {
		t.Errorf("a job that is not periodic is launched at %v", at)
	}
}
