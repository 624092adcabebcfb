package model

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

func TestValidateJob(t *testing.T) {
	runFaultCases(t, []faultCase{
		{"a plain job is valid", func(*jobFixture) {}, nil},
		{"an empty label leaves neither ID nor name", func(f *jobFixture) { f.job.ID = new("") }, []string{"Missing job ID", "Missing job name"}},
		{"no ID at all", func(f *jobFixture) { f.job.ID = nil }, []string{"Missing job ID", "Missing job name"}},
		{"an ID with a space", func(f *jobFixture) { f.job.ID = new("a b") }, wantSingleFault("Job ID contains a space")},
		{"an ID with a tab and a slash is fine", func(f *jobFixture) { f.job.ID = new("a\tb/c") }, nil},
		{"an ID with NUL", func(f *jobFixture) { f.job.ID, f.job.Name = new("a\x00"), new("a") }, wantSingleFault("Job ID contains a null character")},
		{"a name with NUL", func(f *jobFixture) { f.job.Name = new("a\x00") }, wantSingleFault("Job Name contains a null character")},
		{"a name with blanks is fine", func(f *jobFixture) { f.job.Name = new("a b") }, nil},
		{"an unknown namespace", func(f *jobFixture) { f.job.Namespace = new("nope") }, wantSingleFault(`job "j" is in nonexistent namespace "nope"`)},
		{"an unknown node pool", func(f *jobFixture) { f.job.NodePool = new("nope") }, wantSingleFault(`job "j" is in nonexistent node pool "nope"`)},
		{"the node pool all", func(f *jobFixture) { f.job.NodePool = new("all") }, nil},
		{"no type", func(f *jobFixture) { f.setJobType("") }, wantSingleFault("Missing job type")},
		{"an unknown type", func(f *jobFixture) { f.setJobType("foo") }, wantSingleFault(`Invalid job type: "foo"`)},
		{"the internal type", func(f *jobFixture) { f.setJobType("_core") }, wantSingleFault("job type cannot be core")},
		{"priority above the limit", func(f *jobFixture) { f.job.Priority = new(101) }, wantSingleFault("job priority must be between [1, 100]")},
		{"priority below the limit", func(f *jobFixture) { f.job.Priority = new(-1) }, wantSingleFault("job priority must be between [1, 100]")},
		{"priority 0 means the default", func(f *jobFixture) { f.job.Priority = new(0) }, nil},
		{"an empty datacenter", func(f *jobFixture) { f.job.Datacenters = []string{""} }, wantSingleFault("Job datacenter must be non-empty string")},
		{"no datacenters mean all", func(f *jobFixture) { f.job.Datacenters = []string{} }, nil},
		{"a payload in a registration", func(f *jobFixture) { f.job.Payload = []byte("x") }, wantSingleFault("job can't be submitted with a payload, only dispatched")},
		{"multiregion", func(f *jobFixture) { f.job.Multiregion = &api.Multiregion{} }, wantSingleFault("Multiregion jobs are unlicensed.")},
		{"a UI description of 1000 bytes", func(f *jobFixture) { f.job.UI = &api.JobUIConfig{Description: strings.Repeat("x", 1000)} }, nil},
		{"a UI description of 1001 bytes", func(f *jobFixture) { f.job.UI = &api.JobUIConfig{Description: strings.Repeat("x", 1001)} }, wantSingleFault("UI description must be under 1000 characters, currently 1001")},
		{"no groups", func(f *jobFixture) { f.job.TaskGroups = nil }, wantSingleFault("Missing job task groups")},
		{"a null group is no group", func(f *jobFixture) { f.job.TaskGroups = []*api.TaskGroup{nil} }, wantSingleFault("Missing job task groups")},
		{"a group without name", func(f *jobFixture) { f.group.Name = nil }, []string{"Job task group 1 missing name", "Missing task group name"}},
		{"two groups of one name", func(f *jobFixture) { f.addGroup("g") }, wantSingleFault("Job task group 2 redefines 'g' from group 1")},
		{"a negative shutdown_delay of a group", func(f *jobFixture) { f.group.ShutdownDelay = new(-time.Second) }, wantSingleFault("ShutdownDelay must be a positive value")},
		{"two instances in a system job", func(f *jobFixture) { f.setJobType("system"); f.group.Count = new(2) }, wantSingleFault("Job task group g has count 2. Count cannot exceed 1 with system scheduler")},
		{"two instances in a sysbatch job", func(f *jobFixture) { f.setJobType("sysbatch"); f.group.Count = new(2) }, nil},
		{"more instances than a server allows", func(f *jobFixture) { f.group.Count = new(50000); f.addGroup("h") }, wantSingleFault("total count was greater than configured job_max_count: 50001 > 50000")},
		{"counts that overflow", func(f *jobFixture) { f.group.Count = new(1<<63 - 1); f.addGroup("h").Count = new(1<<63 - 1) }, wantSingleFault("total count was greater than configured job_max_count: 9223372036854775807 > 50000")},
		{"affinity in a system job", func(f *jobFixture) {
			f.setJobType("system")
			f.job.Affinities = []*api.Affinity{{LTarget: "x", RTarget: "y"}}
		}, wantSingleFault("System jobs may not have an affinity block")},
		{"affinity in a sysbatch job", func(f *jobFixture) {
			f.setJobType("sysbatch")
			f.job.Affinities = []*api.Affinity{{LTarget: "x", RTarget: "y"}}
		}, nil},
		{"spread in a system job", func(f *jobFixture) { f.setJobType("system"); f.job.Spreads = []*api.Spread{{Attribute: "x"}} }, wantSingleFault("System jobs may not have a spread block")},
		{"spread in a sysbatch job", func(f *jobFixture) { f.setJobType("sysbatch"); f.job.Spreads = []*api.Spread{{Attribute: "x"}} }, nil},
		{"affinity of a task in a system job", func(f *jobFixture) {
			f.setJobType("system")
			f.task.Affinities = []*api.Affinity{{LTarget: "x", RTarget: "y"}}
		}, wantSingleFault("System jobs may not have an affinity block")},
	})
}

func TestValidatePeriodic(t *testing.T) {
	periodic := func(edit func(*api.PeriodicConfig)) func(*jobFixture) {
		return func(f *jobFixture) {
			f.setJobType("batch")
			f.job.Periodic = &api.PeriodicConfig{Specs: []string{"0 0 * * *"}}
			edit(f.job.Periodic)
		}
	}
	cases := []faultCase{
		{"on a service job", func(f *jobFixture) { f.job.Periodic = &api.PeriodicConfig{Specs: []string{"@daily"}} }, wantSingleFault(`Periodic can only be used with "batch" or "sysbatch" scheduler`)},
		{"disabled on a service job", func(f *jobFixture) { f.job.Periodic = &api.PeriodicConfig{Enabled: new(false)} }, nil},
		{"without spec", periodic(func(p *api.PeriodicConfig) { p.Specs = nil }), wantSingleFault("Must specify a spec")},
		{"with cron and crons", periodic(func(p *api.PeriodicConfig) { p.Spec = new("@daily") }), wantSingleFault("Only cron or crons may be used")},
		{"with an unknown time zone", periodic(func(p *api.PeriodicConfig) { p.TimeZone = new("X/Y") }), wantSingleFault(`Invalid time zone "X/Y": unknown time zone X/Y`)},
		{"with a deprecated cron", periodic(func(p *api.PeriodicConfig) { p.Specs, p.Spec = nil, new("foo") }), wantSingleFault(`Invalid cron spec "foo": missing field(s)`)},
	}
	for _, good := range []string{
		"* * * * *", "*/5 * * * * 2030", "30 0 12 * * * 2030", "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@hourly",
		"0 0 * JAN MON", "0 0 L * *", "0 0 15W * *", "0 0 ? * 5#3", "0 0 ? * 5L", "0 0 * * 7",
	} {
		cases = append(cases, faultCase{"cron " + good, periodic(func(p *api.PeriodicConfig) { p.Specs = []string{good} }), nil})
	}
	for _, bad := range []string{"@every 5m", "@midnight", "@reboot", "foo", ""} {
		cases = append(cases, faultCase{"cron " + bad, periodic(func(p *api.PeriodicConfig) { p.Specs = []string{bad} }),
			wantSingleFault(`Invalid cron spec "` + bad + `": missing field(s)`)})
	}
	runFaultCases(t, cases)
}

func TestValidateParameterized(t *testing.T) {
	runFaultCases(t, []faultCase{
		{"on a batch job", func(f *jobFixture) { f.setJobType("batch"); f.job.ParameterizedJob = &api.ParameterizedJobConfig{} }, nil},
		{"on a service job", func(f *jobFixture) { f.job.ParameterizedJob = &api.ParameterizedJobConfig{} }, wantSingleFault(`Parameterized job can only be used with "batch" or "sysbatch" scheduler`)},
		{"with an unknown payload rule", func(f *jobFixture) {
			f.setJobType("batch")
			f.job.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "x"}
		}, wantSingleFault(`Unknown payload requirement: "x"`)},
		{"with a key both required and optional", func(f *jobFixture) {
			f.setJobType("sysbatch")
			f.job.ParameterizedJob = &api.ParameterizedJobConfig{MetaRequired: []string{"a", "b"}, MetaOptional: []string{"a"}}
		}, wantSingleFault("Required and optional meta keys should be disjoint. Following keys exist in both: [a]")},
		{"together with periodic", func(f *jobFixture) {
			f.setJobType("batch")
			f.job.ParameterizedJob = &api.ParameterizedJobConfig{}
			f.job.Periodic = &api.PeriodicConfig{Specs: []string{"@daily"}}
		}, nil},
	})
}

// Validate nests error texts as Nomad clients show them.
func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*jobFixture)
		want string
	}{
		{"one fault of the job", func(f *jobFixture) { f.job.TaskGroups = nil }, "1 error occurred:\n\t* Missing job task groups\n\n"},
		{"faults of several levels", func(f *jobFixture) {
			f.job.Priority = new(500)
			f.group.Count = new(-1)
			f.task.Driver = ""
			f.task.Resources = &api.Resources{CPU: new(0)}
			f.task.Templates = []*api.Template{{}}
		}, "2 errors occurred:\n" +
			"\t* job priority must be between [1, 100]\n" +
			"\t* Task group g validation failed: 2 errors occurred:\n" +
			"\t* Task group count can't be negative\n" +
			"\t* Task t validation failed: 3 errors occurred:\n" +
			"\t* Missing task driver\n" +
			"\t* 1 error occurred:\n" +
			"\t* minimum CPU value is 1; got 0\n\n\n" +
			"\t* Template 1 validation failed: 2 errors occurred:\n" +
			"\t* Must specify a source path or have an embedded template\n" +
			"\t* Must specify a destination for the template\n\n\n\n\n\n\n\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Validate(newJobFixture(c.edit).job, JobLimits{}).Error(); got != c.want {
				t.Errorf("error\n got %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestFaultPaths(t *testing.T) {
	f := newJobFixture(func(f *jobFixture) {
		f.job.Priority = new(500)
		f.task.Templates = []*api.Template{{EmbeddedTmpl: new("x"), DestPath: new("local/a")}, {EmbeddedTmpl: new("x")}}
	})
	var got []string
	for _, fault := range LeafFaults(Validate(f.job, JobLimits{})) {
		got = append(got, strings.Join(fault.Path, " "))
	}
	want := "priority, group g task t template 1"
	if got := strings.Join(got, ", "); got != want {
		t.Errorf("paths %q, want %q", got, want)
	}
}
