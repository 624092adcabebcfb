package client

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// trial tries one method.
type trial func(*testing.T, *env)

// trials are those of one part of the client, by the name of the method.
type trials map[string]trial

// parts are the parts of the client of which each method is tried.
var parts = []struct {
	name   string
	of     func(*api.Client) any
	trials trials
}{
	{"Agent", func(c *api.Client) any { return c.Agent() }, agentTrials},
	{"AllocFS", func(c *api.Client) any { return c.AllocFS() }, fsTrials},
	{"Allocations", func(c *api.Client) any { return c.Allocations() }, allocationTrials},
	{"Deployments", func(c *api.Client) any { return c.Deployments() }, deploymentTrials},
	{"Evaluations", func(c *api.Client) any { return c.Evaluations() }, evaluationTrials},
	{"EventStream", func(c *api.Client) any { return c.EventStream() }, eventTrials},
	{"Jobs", func(c *api.Client) any { return c.Jobs() }, jobTrials},
	{"Locks", func(c *api.Client) any {
		l, _ := c.Locks(api.WriteOptions{}, api.Variable{Path: "x", Lock: &api.VariableLock{TTL: "10s"}}) // is not used
		return l
	}, lockTrials},
	{"Namespaces", func(c *api.Client) any { return c.Namespaces() }, namespaceTrials},
	{"NodeIdentity", func(c *api.Client) any { return c.Nodes().Identity() }, nodeIdentityTrials},
	{"NodeMeta", func(c *api.Client) any { return c.Nodes().Meta() }, nodeMetaTrials},
	{"Nodes", func(c *api.Client) any { return c.Nodes() }, nodeTrials},
	{"Operator", func(c *api.Client) any { return c.Operator() }, operatorTrials},
	{"Regions", func(c *api.Client) any { return c.Regions() }, regionTrials},
	{"Search", func(c *api.Client) any { return c.Search() }, searchTrials},
	{"Services", func(c *api.Client) any { return c.Services() }, serviceTrials},
	{"Status", func(c *api.Client) any { return c.Status() }, statusTrials},
	{"System", func(c *api.Client) any { return c.System() }, systemTrials},
	{"Variables", func(c *api.Client) any { return c.Variables() }, variableTrials},
}

// alone are the trials that act on the whole node. They come after the others, one
// after the other.
var alone = []string{
	"Allocations.GC", "Nodes.GC", "Nodes.GcAlloc", "Nodes.MonitorDrain", "Nodes.ToggleEligibility", "Nodes.UpdateDrain", "Nodes.UpdateDrainOpts",
	"System.GarbageCollect",
}

// TestEachMethodIsTried is why a method cannot be forgotten.
func TestEachMethodIsTried(t *testing.T) {
	c, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		has := make(map[string]bool)
		for m := range reflect.TypeOf(p.of(c)).Methods() {
			if _, embedded := reflect.TypeFor[*api.WriteOptions]().MethodByName(m.Name); embedded {
				continue
			}
			has[m.Name] = true
			if p.trials[m.Name] == nil {
				t.Errorf("%s.%s is not tried", p.name, m.Name)
			}
		}
		for name := range p.trials {
			if !has[name] {
				t.Errorf("%s.%s is tried, and the client has no such method", p.name, name)
			}
		}
	}
}

func TestMethods(t *testing.T) {
	if os.Getenv("NOMAD_ADDR") == "" {
		t.Skip("NOMAD_ADDR names no agent")
	}
	e := newEnv(t)
	each := func(t *testing.T, run func(t *testing.T, name string, try trial)) {
		for _, p := range parts {
			for _, method := range slices.Sorted(maps.Keys(p.trials)) {
				run(t, p.name+"."+method, p.trials[method])
			}
		}
	}
	t.Run("together", func(t *testing.T) {
		for name, try := range programs {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				try(t, e)
			})
		}
		each(t, func(t *testing.T, name string, try trial) {
			if !slices.Contains(alone, name) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					try(t, e)
				})
			}
		})
	})
	t.Run("alone", func(t *testing.T) {
		each(t, func(t *testing.T, name string, try trial) {
			if slices.Contains(alone, name) {
				t.Run(name, func(t *testing.T) { try(t, e) })
			}
		})
	})
}

// env is the agent, and a job on it that all trials may look at.
type env struct {
	*api.Client
	node  string
	job   *api.Job
	alloc *api.Allocation
}

func newEnv(t *testing.T) *env {
	c, err := api.NewClient(api.DefaultConfig())
	must(t, err)
	t.Cleanup(c.Close)
	e := &env{Client: c}
	nodes := until(t, func(q *api.QueryOptions) ([]*api.NodeListStub, *api.QueryMeta, error) { return c.Nodes().List(q) },
		func(nodes []*api.NodeListStub) bool { return len(nodes) == 1 && nodes[0].Status == api.NodeStatusReady })
	e.node = nodes[0].ID
	e.job = e.newJob(t, api.JobTypeService, forever)
	e.job.Meta = map[string]string{"for": "all"}
	listening, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listening.Close() })
	_, port, _ := net.SplitHostPort(listening.Addr().String())
	e.job.TaskGroups[0].Services = []*api.Service{{
		Name: *e.job.ID, Provider: "nomad", Address: "127.0.0.1", PortLabel: port, Tags: []string{"one", "two"},
		Checks: []api.ServiceCheck{{Name: "open", Type: "tcp", Interval: time.Second, Timeout: time.Second}},
	}}
	e.job.TaskGroups[0].Tasks[0].Actions = []*api.Action{{Name: "greet", Command: "/bin/echo", Args: []string{"hello"}}}
	e.alloc = e.run(t, e.job)
	return e
}

// forever is a script that writes a line to each stream and one for each SIGUSR1,
// and goes on.
const forever = `trap 'echo signalled' USR1; echo out; echo err >&2; while :; do sleep 0.05; done`

// newJob returns a job of one task that runs a script. It is purged at the end of
// the test, and nothing of it is left.
func (e *env) newJob(t *testing.T, kind, script string) *api.Job {
	id := "client-" + strings.ToLower(strings.NewReplacer("/", "-", ".", "-").Replace(t.Name())) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	task := api.NewTask("main", "raw_exec").SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", script})
	task.KillTimeout = new(time.Second)
	task.Resources = &api.Resources{CPU: new(10), MemoryMB: new(10)}
	task.LogConfig = &api.LogConfig{MaxFiles: new(2), MaxFileSizeMB: new(1)}
	group := api.NewTaskGroup("group", 1).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	job := api.NewServiceJob(id, id, "global", 50).AddTaskGroup(group)
	job.Type = &kind
	if kind == api.JobTypeService {
		job.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Duration(0))}
	}
	t.Cleanup(func() {
		_, _, err := e.Jobs().Deregister(id, true, nil)
		must(t, err)
		until(t, func(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
			return e.Jobs().Allocations(id, true, q)
		},
			func(left []*api.AllocationListStub) bool { return len(left) == 0 }) // they are gone when nothing of them runs
	})
	return job
}

// register registers a job.
func (e *env) register(t *testing.T, job *api.Job) *api.JobRegisterResponse {
	t.Helper()
	r, m, err := e.Jobs().Register(job, nil)
	must(t, err)
	if m.LastIndex == 0 || r.JobModifyIndex == 0 {
		t.Fatalf("registered at index %d, job modify index %d", m.LastIndex, r.JobModifyIndex)
	}
	return r
}

// run registers a job and returns its newest allocation when that runs.
func (e *env) run(t *testing.T, job *api.Job) *api.Allocation {
	t.Helper()
	e.register(t, job)
	return e.newest(t, *job.ID, api.AllocClientStatusRunning)
}

// newest returns the newest allocation of a job, when it has that status.
func (e *env) newest(t *testing.T, jobID, status string) *api.Allocation {
	t.Helper()
	allocs := until(t, func(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
		return e.Jobs().Allocations(jobID, false, q)
	}, func(allocs []*api.AllocationListStub) bool {
		slices.SortFunc(allocs, func(a, b *api.AllocationListStub) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
		return len(allocs) > 0 && allocs[0].ClientStatus == status
	})
	return e.allocation(t, allocs[0].ID)
}

func (e *env) allocation(t *testing.T, id string) *api.Allocation {
	t.Helper()
	alloc, _, err := e.Allocations().Info(id, nil)
	must(t, err)
	return alloc
}

// untilAlloc waits until an allocation is as it shall be.
func (e *env) untilAlloc(t *testing.T, id string, ok func(*api.Allocation) bool) *api.Allocation {
	t.Helper()
	return until(t, func(q *api.QueryOptions) (*api.Allocation, *api.QueryMeta, error) { return e.Allocations().Info(id, q) }, ok)
}

// deployed returns the latest deployment of a job when it has that status.
func (e *env) deployed(t *testing.T, jobID, status string) *api.Deployment {
	t.Helper()
	return until(t, func(q *api.QueryOptions) (*api.Deployment, *api.QueryMeta, error) {
		d, m, err := e.Jobs().LatestDeployment(jobID, q)
		return d, m, err
	}, func(d *api.Deployment) bool { return d != nil && d.Status == status })
}

// patience is when a wait is given up.
const patience = 2 * time.Minute

// until asks again, each time that the answer may be another one, until it is the
// one that is wanted.
func until[T any](t *testing.T, ask func(*api.QueryOptions) (T, *api.QueryMeta, error), ok func(T) bool) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // tests clean up with it, too
	defer cancel()
	q := (&api.QueryOptions{}).WithContext(ctx)
	for {
		answer, m, err := ask(q)
		must(t, err)
		if ok(answer) {
			return answer
		}
		if m.LastIndex == 0 {
			t.Fatal("the answer has no index")
		}
		q.WaitIndex = m.LastIndex
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// refused is the trial of a method that a single node does not serve, or not with
// these arguments.
func refused(code int, text string, call func(*env) error) trial {
	return func(t *testing.T, e *env) { refuses(t, code, text, call(e)) }
}

func refuses(t *testing.T, code int, text string, err error) {
	t.Helper()
	var answer api.UnexpectedResponseError
	switch {
	case err == nil:
		t.Errorf("it was not refused; want %d %q", code, text)
	case errors.As(err, &answer):
		if answer.StatusCode() != code || !strings.Contains(answer.Body(), text) {
			t.Errorf("%d %q, want %d %q", answer.StatusCode(), answer.Body(), code, text)
		}
	case !strings.Contains(err.Error(), strconv.Itoa(code)) || !strings.Contains(err.Error(), text):
		t.Errorf("%v, want %d %q", err, code, text)
	}
}
