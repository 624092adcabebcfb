package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
)

// TestRandomFaultsInCluster makes random changes of jobs and nodes while servers, agents and their helpers are killed and stopped.
// When all run again, each job has its allocations, none was started twice or was killed, and their logs are complete.
func TestRandomFaultsInCluster(t *testing.T) {
	stockProgram(t)
	runs := endurance.Start(t, endurance.Config{Sample: 1, Unit: "faults", Load: "3 servers, 2 nodes, 3 jobs"})
	f := newFaultyCluster(t)
	runs.Each(func(seed uint64) error {
		runs.Add(f.iterate(seed))
		if t.Failed() {
			return errors.New("see the log of the test")
		}
		return nil
	})
}

// faultyCluster is a cluster that a test changes at random.
type faultyCluster struct {
	*cluster
	t      *testing.T
	nodes  []*node
	builds [2]string
	ledger *ledger
	jobs   []*api.Job
	random *rand.Rand
	paused map[*node]bool
}

func newFaultyCluster(t *testing.T) *faultyCluster {
	f := &faultyCluster{cluster: startCluster(t, serverOptions{count: 3}), t: t, ledger: newLedger(t), paused: map[*node]bool{}}
	f.nodes = []*node{f.startNode(t, "one"), f.startNode(t, "two")}
	f.builds = [2]string{f.nodes[0].program, systemtest.CopyBinaryAsOtherBuild(t)}
	t.Cleanup(f.endFaults)
	for _, job := range []struct {
		id         string
		disconnect *api.DisconnectStrategy
	}{
		{"plain", nil}, {"patient", &api.DisconnectStrategy{LostAfter: new(time.Hour), Replace: new(true)}},
		{"stopping", &api.DisconnectStrategy{StopOnClientAfter: new(5 * time.Second), Replace: new(true)}},
	} {
		f.jobs = append(f.jobs, f.ledger.newJob(job.id, 4, func(g *api.TaskGroup) {
			g.Disconnect = job.disconnect
			// A replacement that fails because its node goes away is placed again.
			g.ReschedulePolicy = &api.ReschedulePolicy{Unlimited: new(true), Delay: new(5 * time.Second), DelayFunction: new("constant")}
			g.Migrate = &api.MigrateStrategy{MaxParallel: new(4), HealthCheck: new("task_states"), MinHealthyTime: new(100 * time.Millisecond), HealthyDeadline: new(time.Minute)}
			g.Update.MaxParallel = new(4)
		}))
		f.register(f.jobs[len(f.jobs)-1])
	}
	return f
}

// iterate makes some changes, ends the faults, and checks the tasks. It returns the number of changes.
func (f *faultyCluster) iterate(seed uint64) (changes int) {
	f.random = rand.New(rand.NewPCG(seed, 0))
	changes = 3 + f.random.IntN(6)
	for range changes {
		f.change()
		time.Sleep(time.Duration(f.random.Int64N(int64(4 * time.Second)))) // the changes overlap with what they cause
	}
	f.endFaults()
	f.awaitLeader()
	for _, n := range f.nodes {
		n.awaitStatus("ready")
		_, err := f.api().Nodes().UpdateDrainOpts(n.id, &api.DrainOptions{MarkEligible: true}, nil)
		f.check(err)
	}
	f.checkTasks()
	return changes
}

// endFaults starts what does not run.
func (f *faultyCluster) endFaults() {
	for n := range f.paused {
		_ = n.process.Process.Signal(unix.SIGCONT)
	}
	clear(f.paused)
	for _, s := range f.servers {
		if s.process == nil {
			s.start()
		}
	}
	for _, n := range f.nodes {
		if n.process == nil {
			n.start()
		}
	}
}

// change makes one random change.
func (f *faultyCluster) change() {
	n, server, job := f.nodes[f.random.IntN(2)], f.servers[f.random.IntN(3)], f.jobs[f.random.IntN(len(f.jobs))]
	changes := map[string]func(){
		"kill a server": func() {
			server.kill()
		},
		"kill all servers": func() {
			for _, s := range f.servers {
				s.kill()
			}
		},
		"start the servers": func() {
			for _, s := range f.servers {
				if s.process == nil {
					s.start()
				}
			}
		},
		"kill an agent":    func() { f.end(n, unix.SIGKILL) },
		"stop an agent":    func() { f.end(n, unix.SIGTERM) },
		"restart an agent": func() { f.end(n, unix.SIGKILL); n.start() },
		"start the other build": func() {
			f.end(n, unix.SIGTERM)
			n.program = f.builds[f.random.IntN(2)]
			n.start()
		},
		"pause an agent": func() {
			if n.process != nil {
				_ = n.process.Process.Signal(unix.SIGSTOP)
				f.paused[n] = true
			}
		},
		"kill plugins and the log collector": func() {
			n.killAll(func(kind string) bool { return kind == "plugin" || kind == "log-collector" })
		},
		"change a job": func() {
			job.TaskGroups[0].Tasks[0].Env["CHANGE"] = fmt.Sprint(f.random.Uint32())
			f.tryAPI(func(c *api.Client) error { _, _, err := c.Jobs().Register(job, nil); return err })
		},
		"change the count of a job": func() {
			job.TaskGroups[0].Count = new(2 + f.random.IntN(4))
			f.tryAPI(func(c *api.Client) error { _, _, err := c.Jobs().Register(job, nil); return err })
		},
		"purge a job": func() {
			f.tryAPI(func(c *api.Client) error { _, _, err := c.Jobs().Deregister(*job.ID, true, nil); return err })
		},
		"collect garbage": func() { f.tryAPI(func(c *api.Client) error { return c.System().GarbageCollect() }) },
		"drain a node": func() {
			f.tryAPI(func(c *api.Client) error {
				_, err := c.Nodes().UpdateDrainOpts(n.id, &api.DrainOptions{DrainSpec: &api.DrainSpec{Deadline: time.Duration(f.random.IntN(10)) * time.Second}}, nil)
				return err
			})
		},
		"purge a node": func() {
			f.tryAPI(func(c *api.Client) error { _, _, err := c.Nodes().Purge(n.id, nil); return err })
		},
	}
	names := []string{
		"kill a server", "kill a server", "kill all servers", "start the servers", "start the servers", "kill an agent", "stop an agent", "restart an agent", "restart an agent",
		"start the other build", "pause an agent", "kill plugins and the log collector", "change a job", "change the count of a job", "purge a job", "collect garbage",
		"drain a node", "purge a node",
	}
	name := names[f.random.IntN(len(names))]
	f.t.Logf("%s %s: node %s, server %s, job %s", time.Now().Format(time.TimeOnly), name, n.name, server.name, *job.ID)
	changes[name]()
}

// end ends an agent, also one that is paused.
func (f *faultyCluster) end(n *node, how unix.Signal) {
	if n.process != nil && f.paused[n] {
		_ = n.process.Process.Signal(unix.SIGCONT)
		delete(f.paused, n)
	}
	n.end(how)
}

// tryAPI makes a change through the API of each running server until one makes it. There may be none that can.
func (f *faultyCluster) tryAPI(call func(*api.Client) error) {
	for _, s := range f.servers {
		if s.process == nil {
			continue
		}
		err := call(s.Client)
		if err == nil {
			return
		}
		f.t.Logf("%s: %v", s.name, err)
	}
}

// checkTasks registers all jobs, waits until they run, and checks their tasks.
func (f *faultyCluster) checkTasks() {
	f.t.Helper()
	for _, job := range f.jobs {
		f.register(job)
	}
	for _, job := range f.jobs {
		f.awaitPlanned(*job.ID)
	}
	for _, job := range f.jobs {
		running := f.awaitRunning(f.ledger, *job.ID, *job.TaskGroups[0].Count)
		for id, stub := range running {
			for _, n := range f.nodes {
				if n.name == stub.NodeName {
					n.checkLog(f.ledger, "at the end", id, fileSize(f.ledger.countsFile(id)))
				}
			}
			if state := stub.TaskStates["t"]; state.Restarts != 0 || state.Failed {
				f.t.Errorf("allocation %s has the state %+v", id, state)
			}
		}
	}
	f.ledger.checkOnce()
	for _, r := range f.ledger.runs() {
		if !r.alive() && !r.ended {
			f.t.Errorf("run %+v was not stopped in order", r)
		}
	}
}

// awaitPlanned waits until the servers have nothing left to plan for a job.
func (f *faultyCluster) awaitPlanned(jobID string) {
	f.t.Helper()
	f.eventually("the servers have planned "+jobID, func() error {
		evaluations, _, err := f.api().Jobs().Evaluations(jobID, nil)
		if err != nil {
			return err
		}
		for _, e := range evaluations {
			// The evaluation for the end of disconnect.lost_after waits for an hour.
			if e.Status == "pending" && e.WaitUntil.Before(time.Now().Add(time.Minute)) {
				return fmt.Errorf("evaluation %s for %s is pending", e.ID, e.TriggeredBy)
			}
		}
		deployments, _, err := f.api().Jobs().Deployments(jobID, true, nil)
		if err != nil {
			return err
		}
		for _, d := range deployments {
			if d.Status == "running" || d.Status == "pending" {
				return fmt.Errorf("deployment %s is %s: %s", d.ID, d.Status, d.StatusDescription)
			}
		}
		return nil
	})
}
