package model

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
)

// addTask adds a task to the group: its hook (with a + for a sidecar) and its keys.
func (f *jobFixture) addTask(name, hook string, meta ...string) *api.Task {
	t := &api.Task{Name: name, Driver: "d", Meta: metaFromPairs(meta)}
	if hook, sidecar := strings.CutSuffix(hook, "+"); hook != "" {
		t.Lifecycle = &api.TaskLifecycle{Hook: hook, Sidecar: sidecar}
	}
	f.group.Tasks = append(f.group.Tasks, t)
	return t
}

func metaFromPairs(list []string) map[string]string {
	m := make(map[string]string)
	for i := 0; i < len(list); i += 2 {
		m[list[i]] = list[i+1]
	}
	return m
}

func TestValidateExtensions(t *testing.T) {
	after := func(text string) func(*jobFixture) {
		return func(f *jobFixture) { f.addTask("web", "", "lite_after", text) }
	}
	const at = `lite_after of task "web" in group "g" of job "j": `
	tcp := func(f *jobFixture, task string) *api.Service {
		f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "p"}}}}
		return &api.Service{Name: "s", Provider: "nomad", TaskName: task, PortLabel: "p",
			Checks: []api.ServiceCheck{{Type: "tcp", Interval: 1e9, Timeout: 1e9}}}
	}
	runFaultCases(t, []faultCase{
		{"users to which a task changes", func(f *jobFixture) { f.task.Meta = metaFromPairs([]string{"lite_users", "www-data, 33"}) }, nil},
		{"no user", func(f *jobFixture) { f.task.Meta = metaFromPairs([]string{"lite_users", " , "}) },
			wantSingleFault(`lite_users of task "t" in group "g" of job "j": it names no user: write names or uids, like "www-data, postgres"`)},
		{"users of a group", func(f *jobFixture) { f.group.Meta = metaFromPairs([]string{"lite_users", "www-data"}) },
			wantSingleFault(`lite_users of group "g" of job "j": it belongs into the meta block of a task`)},
		{"another task that runs", after("t:started"), nil},
		{"spaces do not count", after(" t : started ,t:started"), nil},
		{"no colon", after("t"), wantSingleFault(at + `"t" is no condition of a task: write TASK:CONDITION, like db:healthy`)},
		{"nothing", after(""), wantSingleFault(at + `"" is no condition of a task: write TASK:CONDITION, like db:healthy`)},
		{"a comma too many", after("t:started,"), wantSingleFault(at + `"" is no condition of a task: write TASK:CONDITION, like db:healthy`)},
		{"an unknown condition", after("t:up"), wantSingleFault(at + `there is no condition "up": write started, healthy, success or exited`)},
		{"an unknown task", after("db:started"), wantSingleFault(at + `db:started: there is no task "db" in the group, only t, web`)},
		{"itself", after("web:started"), wantSingleFault(at + `web:started can never hold: it is the same task`)},
		{"the end of a service", after("t:success"), wantSingleFault(at + `t:success can never hold: "t" runs as long as the allocation does. Write started or healthy`)},
		{"the end of work", func(f *jobFixture) { f.setJobType("batch"); after("t:success")(f) }, nil},
		{"the end of a sidecar", func(f *jobFixture) { f.addTask("db", "prestart+"); after("db:exited")(f) }, wantSingleFault(at + `db:exited can never hold: "db" runs as long as the allocation does. Write started or healthy`)},
		{"the end of the leader", func(f *jobFixture) { f.setJobType("batch"); f.task.Leader = true; after("t:exited")(f) },
			wantSingleFault(at + `t:exited can never hold: "t" is the leader, the others end with it. Write started or healthy`)},
		{"health without a check", after("t:healthy"),
			wantSingleFault(at + `t:healthy can never hold: no check says whether "t" is healthy. Give it a service with a check, provider = "nomad", in its own block or in the group with task = "t"; or write started`)},
		{"health with a check", func(f *jobFixture) { f.task.Services = []*api.Service{tcp(f, "")}; after("t:healthy")(f) }, nil},
		{"health with a check of the group", func(f *jobFixture) { f.group.Services = []*api.Service{tcp(f, "t")}; after("t:healthy")(f) }, nil},
		{"health with a check of nobody", func(f *jobFixture) { f.group.Services = []*api.Service{tcp(f, "")}; after("t:healthy")(f) },
			wantSingleFault(at + `t:healthy can never hold: no check says whether "t" is healthy. Give it a service with a check, provider = "nomad", in its own block or in the group with task = "t"; or write started`)},
		{"health with a check that nobody heeds", func(f *jobFixture) {
			s := tcp(f, "")
			s.OnUpdate = "ignore"
			f.task.Services = []*api.Service{s}
			after("t:healthy")(f)
		}, wantSingleFault(at + `t:healthy can never hold: no check says whether "t" is healthy. Give it a service with a check, provider = "nomad", in its own block or in the group with task = "t"; or write started`)},
		{"a circle", func(f *jobFixture) {
			f.task.Meta = metaFromPairs([]string{"lite_after", "web:started"})
			after("t:started")(f)
		},
			wantSingleFault(`lite_after of task "t" in group "g" of job "j": these tasks wait for each other: "t" waits for "web" (lite_after), "web" waits for "t" (lite_after)`)},
		{"a circle with the stages", func(f *jobFixture) { f.addTask("web", "prestart", "lite_after", "t:started") },
			wantSingleFault(at + `these tasks wait for each other: "web" waits for "t" (lite_after), "t" waits for "web" (prestart before main)`)},
		{"a circle through three stages", func(f *jobFixture) {
			f.addTask("a", "prestart", "lite_after", "b:started")
			f.addTask("b", "poststart+")
		}, wantSingleFault(`lite_after of task "a" in group "g" of job "j": these tasks wait for each other: "a" waits for "b" (lite_after), "b" waits for "t" (main before poststart sidecar), "t" waits for "a" (prestart before main)`)},
		{"poststop comes last", func(f *jobFixture) { f.addTask("p", "poststop"); after("p:started")(f) },
			wantSingleFault(at + `these tasks wait for each other: "web" waits for "p" (lite_after), "p" waits for "web" (main before poststop)`)},
		{"poststop after work", func(f *jobFixture) { f.setJobType("batch"); f.addTask("p", "poststop", "lite_after", "t:success") }, nil},
		{"poststop after the success of a service", func(f *jobFixture) { f.addTask("p", "poststop", "lite_after", "t:success") },
			wantSingleFault(`lite_after of task "p" in group "g" of job "j": t:success can never hold: "t" runs until it is stopped, and then has no result. Write exited or started`)},
		{"poststop after health", func(f *jobFixture) {
			f.task.Services = []*api.Service{tcp(f, "")}
			f.addTask("p", "poststop", "lite_after", "t:healthy")
		}, wantSingleFault(`lite_after of task "p" in group "g" of job "j": t:healthy can never hold: "t" has ended before a poststop task starts. Write started, success or exited`)},
		{"a sidecar after all", func(f *jobFixture) { f.setJobType("batch"); f.addTask("p", "poststart+", "lite_after", "t:exited") },
			wantSingleFault(`lite_after of task "p" in group "g" of job "j": the gate can never open: a sidecar does not run when all that it is there for have ended`)},
		{"a sidecar after one of two", func(f *jobFixture) {
			f.setJobType("batch")
			f.addTask("u", "")
			f.addTask("p", "poststart+", "lite_after", "t:exited")
		}, nil},
		{"runs again", func(f *jobFixture) { f.addTask("p", "prestart", "lite_rerun", "restart, reboot") }, nil},
		{"runs again at a time that is none", func(f *jobFixture) { f.addTask("p", "poststart", "lite_rerun", "always") },
			wantSingleFault(`lite_rerun of task "p" in group "g" of job "j": there is no occasion "always": write restart or reboot`)},
		{"a sidecar runs again anyway", func(f *jobFixture) { f.addTask("p", "poststart+", "lite_rerun", "restart") },
			wantSingleFault(`lite_rerun of task "p" in group "g" of job "j": only a prestart or poststart task that is no sidecar has work to do again, and this is a poststart sidecar task`)},
		{"a restart group", func(f *jobFixture) { f.group.Meta = metaFromPairs([]string{"lite_restart_group", "rest_for_one"}) }, nil},
		{"no restart group", func(f *jobFixture) { f.group.Meta = metaFromPairs([]string{"lite_restart_group", "all"}) },
			wantSingleFault(`lite_restart_group of group "g" of job "j": there is no restart group "all": write one_for_one, one_for_all or rest_for_one`)},
		{"a key in the wrong place", func(f *jobFixture) { f.job.Meta = metaFromPairs([]string{"lite_after", "t:started"}) },
			wantSingleFault(`lite_after of job "j": it belongs into the meta block of a task`)},
		{"another key in the wrong place", func(f *jobFixture) { f.addTask("p", "", "lite_restart_group", "one_for_all") },
			wantSingleFault(`lite_restart_group of task "p" in group "g" of job "j": it belongs into the meta block of a group`)},
		{"a key that is not there", func(f *jobFixture) { f.group.Meta = metaFromPairs([]string{"lite_afetr", ""}) },
			wantSingleFault(`lite_afetr of group "g" of job "j": keys that begin with lite_ switch on extensions, and there are only lite_after, lite_rerun, lite_restart_group, lite_users and lite_hook_NAME`)},
		{"keys of hooks and of others", func(f *jobFixture) { f.job.Meta = metaFromPairs([]string{"lite_hook_x", "", "litter", ""}) }, nil},
	})
}

func TestExtensionFaultsHaveAPath(t *testing.T) {
	f := newJobFixture(func(f *jobFixture) { f.addTask("web", "", "lite_after", "db:started") })
	faults := LeafFaults(Validate(f.job, JobLimits{}))
	if len(faults) != 1 || strings.Join(faults[0].Path, " ") != "group g task web meta lite_after" {
		t.Errorf("faults %v", faults)
	}
}

func TestGateGraph(t *testing.T) {
	if got := DescribeExtendedStartOrder(newJobFixture().job); got != "" {
		t.Errorf("a job without extensions has a graph:\n%s", got)
	}
	f := newJobFixture(func(f *jobFixture) {
		f.setJobType("batch")
		f.group.Meta = metaFromPairs([]string{"lite_restart_group", "one_for_all"})
		f.addTask("db", "prestart+")
		f.addTask("migrate", "prestart", "lite_after", "db:started", "lite_rerun", "restart, reboot")
		f.addTask("web", "", "lite_after", "db:started,t:success")
		f.addTask("publish", "poststop", "lite_after", "t:success")
		f.addGroup("plain")
	})
	const wantGraph = `Gates of group "g"
  prestart: first
    db (sidecar)
    migrate: after db has started, again when a main task restarts, again after a reboot
  main: when prestart tasks have ended well and prestart sidecars run
    t
    web: after db has started, after t has ended well
  poststop: when all other tasks have ended
    publish: after t has ended well
  restarts: one_for_all
`
	if got := DescribeExtendedStartOrder(f.job); got != wantGraph {
		t.Errorf("got\n%s\nwant\n%s", got, wantGraph)
	}
}

func TestExtensions(t *testing.T) {
	if g, err := LifecycleExtensions(newJobFixture().job, newJobFixture().group); g != nil || err != nil {
		t.Errorf("of a plain group: %v, %v", g, err)
	}
	f := newJobFixture(func(f *jobFixture) { f.addTask("p", "prestart", "lite_rerun", "restart") })
	g, err := LifecycleExtensions(f.job, f.group)
	if err != nil || g.Tasks[1].Rerun != (lifecycle.RerunPolicy{OnMainTaskRestart: true}) || g.Tasks[1].Stage != lifecycle.PrestartEphemeral {
		t.Errorf("%+v, %v", g, err)
	}
	f = newJobFixture(func(f *jobFixture) { f.addTask("p", "", "lite_after", "q:started") })
	if g, err := LifecycleExtensions(f.job, f.group); g != nil || err == nil {
		t.Errorf("of a group that is not valid: %v, %v", g, err)
	}
}

func TestAdmittedUsers(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil, "www-data": {"www-data"}, " www-data ,, 33,nomad-80001": {"www-data", "33", "nomad-80001"},
	} {
		if got := UsersSwitchedToByTask(&api.Task{Meta: map[string]string{"lite_users": text}}); !slices.Equal(got, want) {
			t.Errorf("%q names %q, want %q", text, got, want)
		}
	}
	if got := UsersSwitchedToByTask(&api.Task{}); got != nil {
		t.Errorf("without the key: %q", got)
	}
}
